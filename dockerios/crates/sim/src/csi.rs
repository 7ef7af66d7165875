//! Plays the CSI driver beside the real PersistentVolume controller and the real scheduler: makes volumes for claims
//! that ask for one, deletes released ones, tells free space, takes snapshots.
//!
//! Invariant: a claim that a DataVolume fills gets its volume when it is filled, not before, as with CDI's populators.

use std::sync::Arc;

use anyhow::Result;
use dockerios_kubevirt::names;
use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    storage::v1::{CSIStorageCapacity, StorageClass},
};
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DeleteParams, Patch, PatchParams, PostParams},
    core::{DynamicObject, GroupVersionKind},
    runtime::reflector::ObjectRef,
};
use serde_json::json;

use crate::{
    faults::Fault,
    queue::{Again, Key},
    world::{NAMESPACE, World, now, unless},
};

const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";
/// Annotation of a claim that a DataVolume fills: `Succeeded` when it is filled.
pub(crate) const FILLED: &str = "cdi.kubevirt.io/storage.pod.phase";
/// Annotation of a claim that a DataVolume fills.
pub(crate) const POPULATED: &str = "cdi.kubevirt.io/storage.usePopulator";
/// Annotation of a StorageClass: free space to tell.
const CAPACITY: &str = "sim.dockerios.io/capacity";

/// The class of a claim: the named one, or the cluster's default.
pub(crate) fn class_of(world: &World, named: Option<&str>) -> Option<Arc<StorageClass>> {
    match named {
        Some(name) => world.stores.classes.get(&ObjectRef::new(name)),
        None => world.stores.classes.find(|class| {
            let default = "storageclass.kubernetes.io/is-default-class";
            class.annotations().get(default).is_some_and(|value| value == "true")
        }),
    }
}

pub(crate) fn waits_for_consumer(class: &StorageClass) -> bool {
    class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer")
}

/// A pod that uses the claim has been given a node.
pub(crate) fn has_consumer(claim: &PersistentVolumeClaim) -> bool {
    claim.annotations().contains_key(SELECTED_NODE)
}

/// Its DataVolume asks for a volume before there is a consumer: CDI's own importer pod is one.
pub(crate) fn binds_at_once(asked: &impl ResourceExt) -> bool {
    asked
        .annotations()
        .get(names::IMMEDIATE_BINDING)
        .is_some_and(|value| value != "false")
}

pub(crate) fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound")
}

/// Makes the volume of a claim.
pub(crate) async fn claim(world: Arc<World>, key: Key) -> Result<Again> {
    let Some(claim) = world.claim(&key) else {
        return Ok(None);
    };
    let Some(uid) = claim.uid() else { return Ok(None) };
    let Some(spec) = claim.spec.as_ref() else {
        return Ok(None);
    };
    let annotations = claim.annotations();
    if claim.metadata.deletion_timestamp.is_some()
        || spec.volume_name.is_some()
        || world.fault(Fault::Unbound, &claim.metadata).is_some()
    {
        return Ok(None);
    }
    let Some(class) = class_of(&world, spec.storage_class_name.as_deref()) else {
        return Ok(None);
    };
    let ours = world
        .options
        .classes
        .iter()
        .any(|known| known.provisioner == class.provisioner);
    let filled = annotations.get(FILLED).is_some_and(|phase| phase == "Succeeded");
    let populated = annotations.contains_key(POPULATED);
    if !ours || populated && !filled {
        return Ok(None);
    }
    // CDI filled a claim of its own, which its pod consumed, and hands the volume over to this one: nobody asked the
    // provisioner on behalf of this one, and the volume's reference to it is what binds it
    let handed_over = populated && binds_at_once(&*claim);
    let asked = annotations.contains_key(PROVISIONER) && (!waits_for_consumer(&class) || has_consumer(&claim));
    if !asked && !handed_over {
        return Ok(None);
    }
    let size = spec
        .resources
        .as_ref()
        .and_then(|resources| resources.requests.as_ref());
    let volume: PersistentVolume = serde_json::from_value(json!({
        "metadata": {
            "name": format!("pvc-{uid}"),
            "finalizers": [FINALIZER],
            "annotations": {"pv.kubernetes.io/provisioned-by": class.provisioner},
        },
        "spec": {
            "capacity": size,
            "accessModes": spec.access_modes,
            "volumeMode": spec.volume_mode,
            "storageClassName": class.name_any(),
            "persistentVolumeReclaimPolicy": class.reclaim_policy.as_deref().unwrap_or("Delete"),
            "csi": {"driver": class.provisioner, "volumeHandle": format!("sim-{uid}")},
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "namespace": key.namespace, "name": key.name, "uid": uid,
                "resourceVersion": claim.resource_version(),
            },
        },
    }))?;
    let api: Api<PersistentVolume> = Api::all(world.client.clone());
    unless(api.create(&PostParams::default(), &volume).await, 409)?;
    Ok(None)
}

/// Deletes a released volume, and lets a deleted one go.
pub(crate) async fn persistent(world: Arc<World>, key: Key) -> Result<Again> {
    let Some(volume) = world.stores.persistent.get(&ObjectRef::new(&key.name)) else {
        return Ok(None);
    };
    let by_us = volume.finalizers().iter().any(|finalizer| finalizer == FINALIZER);
    if !by_us {
        return Ok(None);
    }
    let api: Api<PersistentVolume> = Api::all(world.client.clone());
    let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
    let policy = volume
        .spec
        .as_ref()
        .and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
    if volume.metadata.deletion_timestamp.is_some() {
        if phase == Some("Bound") {
            return Ok(None);
        }
        let rest: Vec<_> = volume
            .finalizers()
            .iter()
            .filter(|finalizer| *finalizer != FINALIZER)
            .collect();
        let patch = json!({"metadata": {"finalizers": rest, "resourceVersion": volume.resource_version()}});
        unless(
            api.patch(&key.name, &PatchParams::default(), &Patch::Merge(patch))
                .await,
            404,
        )?;
    } else if phase == Some("Released") && policy == Some("Delete") {
        unless(api.delete(&key.name, &DeleteParams::default()).await, 404)?;
    }
    Ok(None)
}

/// Tells the free space of a class.
pub(crate) async fn class(world: Arc<World>, key: Key) -> Result<Again> {
    let Some(class) = world.stores.classes.get(&ObjectRef::new(&key.name)) else {
        return Ok(None);
    };
    let Some(shape) = world.options.classes.iter().find(|shape| shape.name == key.name) else {
        return Ok(None);
    };
    let told = class.annotations().get(CAPACITY).or(shape.capacity.as_ref());
    let api: Api<CSIStorageCapacity> = Api::namespaced(world.client.clone(), NAMESPACE);
    let name = format!("sim-{}", key.name);
    match told.filter(|quantity| *quantity != "unknown") {
        Some(quantity) => {
            let capacity = json!({
                "apiVersion": "storage.k8s.io/v1", "kind": "CSIStorageCapacity",
                "metadata": {"name": name},
                "storageClassName": key.name,
                "nodeTopology": {},
                "capacity": quantity,
            });
            let how = PatchParams::apply("dockerios-sim").force();
            api.patch(&name, &how, &Patch::Apply(capacity)).await?;
        }
        None => {
            unless(api.delete(&name, &DeleteParams::default()).await, 404)?;
        }
    }
    Ok(None)
}

/// VolumeSnapshot, when the cluster has it.
pub(crate) fn snapshot_kind() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(
        "snapshot.storage.k8s.io",
        "v1",
        "VolumeSnapshot",
    ))
}

pub(crate) fn is_taken(snapshot: &DynamicObject) -> bool {
    snapshot.data["status"]["readyToUse"] == json!(true)
}

/// Takes a snapshot once its claim is bound.
pub(crate) async fn snapshot(world: Arc<World>, key: Key) -> Result<Again> {
    let kind = snapshot_kind();
    let reference = ObjectRef::new_with(&key.name, kind.clone()).within(&key.namespace);
    let Some(snapshot) = world.stores.snapshots.get(&reference) else {
        return Ok(None);
    };
    let Some(uid) = snapshot.uid() else { return Ok(None) };
    if is_taken(&snapshot) || snapshot.metadata.deletion_timestamp.is_some() {
        return Ok(None);
    }
    let source = snapshot.data["spec"]["source"]["persistentVolumeClaimName"].as_str();
    let Some(claim) = source.and_then(|name| world.claim(&Key::new(&*key.namespace, name))) else {
        return Ok(Some(std::time::Duration::from_millis(500)));
    };
    if !is_bound(&claim) {
        return Ok(Some(std::time::Duration::from_millis(200)));
    }
    if let Some(left) = world.left(&uid, "snapshot", world.options.timings.clone) {
        return Ok(Some(left));
    }
    let size = claim
        .status
        .as_ref()
        .and_then(|status| status.capacity.as_ref()?.get("storage").cloned());
    let status = json!({"status": {
        "readyToUse": true, "restoreSize": size, "creationTime": now(),
        "boundVolumeSnapshotContentName": format!("snapcontent-{uid}"),
    }});
    let api: Api<DynamicObject> = Api::namespaced_with(world.client.clone(), &key.namespace, &kind);
    unless(
        api.patch_status(&key.name, &PatchParams::default(), &Patch::Merge(status))
            .await,
        404,
    )?;
    Ok(None)
}
