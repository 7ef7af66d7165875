//! The claim of a DataVolume. Invariant: it has the DataVolume's name and its labels, and is owned by it.

use anyhow::Result;
use dockerios_kubevirt::{DataVolume, names};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{ResourceExt, api::PostParams};
use serde_json::{Value, json};

use crate::{csi, world::World};

/// What came of making the claim.
pub(super) enum Made {
    /// It is there now.
    Yes,
    /// The API server refuses it, such as for a quota.
    Refused(String),
}

fn labels(volume: &DataVolume) -> Value {
    let mut labels = json!(volume.labels());
    for (key, value) in [
        ("app", "containerized-data-importer"),
        ("app.kubernetes.io/component", "storage"),
        ("app.kubernetes.io/managed-by", "cdi-controller"),
        ("alerts.k8s.io/KubePersistentVolumeFillingUp", "disabled"),
    ] {
        labels[key] = json!(value);
    }
    labels
}

/// Makes it.
pub(super) async fn make(world: &World, volume: &DataVolume, strategy: Option<&str>) -> Result<Made> {
    let (namespace, name) = (volume.namespace().unwrap_or_default(), volume.name_any());
    let storage = volume.spec.storage.clone().unwrap_or_default();
    let modes = Some(storage.access_modes).filter(|modes| !modes.is_empty());
    let mut annotations = json!(volume.annotations());
    annotations[names::CONTENT_TYPE] = json!("kubevirt");
    annotations[csi::POPULATED] = json!("true");
    if let Some(strategy) = strategy {
        annotations[names::CLONE_TYPE] = json!(strategy);
    }
    let claim: PersistentVolumeClaim = serde_json::from_value(json!({
        "metadata": {
            "name": name,
            "labels": labels(volume),
            "annotations": annotations,
            "ownerReferences": [{
                "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "name": name, "uid": volume.uid(),
                "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "spec": {
            "accessModes": modes.unwrap_or_else(|| vec!["ReadWriteOnce".to_owned()]),
            "volumeMode": storage.volume_mode.unwrap_or_else(|| "Block".to_owned()),
            "storageClassName": storage.storage_class_name,
            "resources": storage.resources,
        },
    }))?;
    match world
        .api::<PersistentVolumeClaim>(&namespace)
        .create(&PostParams::default(), &claim)
        .await
    {
        Ok(_) => Ok(Made::Yes),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(Made::Yes),
        Err(kube::Error::Api(status)) if matches!(status.code, 403 | 422) => Ok(Made::Refused(status.message.clone())),
        Err(error) => Err(error.into()),
    }
}

/// Whether the claim is the DataVolume's own.
pub(super) fn is_ours(claim: &PersistentVolumeClaim, volume: &DataVolume) -> bool {
    claim
        .owner_references()
        .iter()
        .any(|owner| Some(&owner.uid) == volume.metadata.uid.as_ref())
}
