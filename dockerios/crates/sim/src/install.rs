//! Puts the played installation into the cluster: definitions, storage classes and profiles, the KubeVirt object,
//! webhooks, the aggregated API.
//!
//! Invariant: everything is applied, so a simulator that starts again finds its own things and changes what differs.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, Result, bail};
use base64::{Engine, engine::general_purpose::STANDARD};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, Patch, PatchParams},
    core::GroupVersionKind,
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    options::Options,
    served::Served,
    world::{NAMESPACE, now},
};

const MANAGER: &str = "dockerios-sim";
/// Definitions that are of use here; the rest of KubeVirt's and CDI's is not played.
const DEFINITIONS: [&str; 10] = [
    "kubevirt/virtualmachines.kubevirt.io.yaml",
    "kubevirt/virtualmachineinstances.kubevirt.io.yaml",
    "kubevirt/kubevirts.kubevirt.io.yaml",
    "kubevirt/plugins.plugin.kubevirt.io.yaml",
    "cdi/cdiconfigs.cdi.kubevirt.io.yaml",
    "cdi/datavolumes.cdi.kubevirt.io.yaml",
    "cdi/storageprofiles.cdi.kubevirt.io.yaml",
    "snapshot/snapshot.storage.k8s.io_volumesnapshots.yaml",
    "snapshot/snapshot.storage.k8s.io_volumesnapshotclasses.yaml",
    "snapshot/snapshot.storage.k8s.io_volumesnapshotcontents.yaml",
];
const ESTABLISHED: Duration = Duration::from_secs(30);

async fn apply(client: &Client, api_version: &str, kind: &str, plural: &str, object: Value) -> Result<()> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let kind = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural);
    let mut object = object;
    object["apiVersion"] = json!(api_version);
    object["kind"] = json!(kind.kind);
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let api: Api<DynamicObject> = match object["metadata"]["namespace"].as_str() {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &kind),
        None => Api::all_with(client.clone(), &kind),
    };
    let how = PatchParams::apply(MANAGER).force();
    let applied = api.patch(&name, &how, &Patch::Apply(&object)).await;
    applied.with_context(|| format!("{} {name}", kind.kind))?;
    Ok(())
}

async fn apply_status(
    client: &Client,
    api_version: &str,
    kind: &str,
    plural: &str,
    name: &str,
    status: Value,
) -> Result<()> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let kind = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural);
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &kind);
    let patch = Patch::Merge(json!({"status": status}));
    api.patch_status(name, &PatchParams::default(), &patch).await?;
    Ok(())
}

fn read_definitions(directory: &Path) -> Result<Vec<Value>> {
    let mut all = Vec::new();
    for name in DEFINITIONS {
        let path = directory.join(name);
        let text = fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
        for document in serde_yaml::Deserializer::from_str(&text) {
            let definition = Value::deserialize(document).with_context(|| format!("{}", path.display()))?;
            if definition.is_object() {
                all.push(definition);
            }
        }
    }
    Ok(all)
}

/// Definitions, the real ones or the product's own; waits until the API server serves them.
pub(crate) async fn definitions(client: &Client, options: &Options) -> Result<()> {
    let all = match &options.crds {
        Some(directory) => read_definitions(directory)?,
        None => {
            let own = dockerios_kubevirt::crds();
            own.iter().map(serde_json::to_value).collect::<Result<_, _>>()?
        }
    };
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut names = Vec::new();
    for mut definition in all {
        names.push(definition["metadata"]["name"].as_str().unwrap_or_default().to_owned());
        definition.as_object_mut().and_then(|fields| fields.remove("status"));
        let group = "apiextensions.k8s.io/v1";
        apply(
            client,
            group,
            "CustomResourceDefinition",
            "customresourcedefinitions",
            definition,
        )
        .await?;
    }
    for name in names {
        let established = kube::runtime::conditions::is_crd_established();
        let waiting = kube::runtime::wait::await_condition(api.clone(), &name, established);
        tokio::time::timeout(ESTABLISHED, waiting)
            .await
            .with_context(|| format!("definition {name} is not served"))??;
    }
    Ok(())
}

/// Whether the cluster has VolumeSnapshots.
pub(crate) async fn has_snapshots(client: &Client) -> Result<bool> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    Ok(api
        .get_metadata_opt("volumesnapshots.snapshot.storage.k8s.io")
        .await?
        .is_some())
}

/// Storage classes, profiles, CDI's configuration, the KubeVirt object.
pub(crate) async fn objects(client: &Client, options: &Options) -> Result<()> {
    for namespace in [NAMESPACE, "kubevirt"] {
        apply(
            client,
            "v1",
            "Namespace",
            "namespaces",
            json!({"metadata": {"name": namespace}}),
        )
        .await?;
    }
    let snapshots = has_snapshots(client).await?;
    for class in &options.classes {
        let storage = "storage.k8s.io/v1";
        let driver = json!({"metadata": {"name": class.provisioner}, "spec": {"attachRequired": false, "podInfoOnMount": false}});
        apply(client, storage, "CSIDriver", "csidrivers", driver).await?;
        let binding = if class.waits_for_consumer {
            "WaitForFirstConsumer"
        } else {
            "Immediate"
        };
        let object = json!({
            "metadata": {"name": class.name},
            "provisioner": class.provisioner, "volumeBindingMode": binding, "parameters": class.parameters,
            "allowVolumeExpansion": true, "reclaimPolicy": "Delete", "mountOptions": class.mount_options,
        });
        apply(client, storage, "StorageClass", "storageclasses", object).await?;
        let snapshot_class = snapshots.then(|| format!("{}-snapshots", class.provisioner));
        if let Some(name) = &snapshot_class {
            let object = json!({"metadata": {"name": name}, "driver": class.provisioner, "deletionPolicy": "Delete"});
            apply(
                client,
                "snapshot.storage.k8s.io/v1",
                "VolumeSnapshotClass",
                "volumesnapshotclasses",
                object,
            )
            .await?;
        }
        profile(client, class, snapshot_class).await?;
    }
    // claims of waiting classes are left to their first consumer, as `cdi` does with this gate
    let cdi = json!({"metadata": {"name": "config"}, "spec": {"featureGates": ["HonorWaitForFirstConsumer"]}});
    apply(client, "cdi.kubevirt.io/v1beta1", "CDIConfig", "cdiconfigs", cdi).await?;
    let kubevirt = json!({
        "metadata": {"name": "kubevirt", "namespace": "kubevirt"},
        "spec": {"configuration": {"developerConfiguration": {"featureGates": options.feature_gates},
                                   "permittedHostDevices": {"pciHostDevices": options.permitted()}}},
    });
    apply(client, "kubevirt.io/v1", "KubeVirt", "kubevirts", kubevirt).await?;
    let deployment = json!({
        "registry": "quay.io/kubevirt", "imagePrefix": "", "kubeVirtVersion": "v1.9.0",
        "virtLauncherImage": options.launcher_image,
    });
    let status = json!({"status": {
        "phase": "Deployed", "observedKubeVirtVersion": "v1.9.0", "targetKubeVirtVersion": "v1.9.0",
        "observedDeploymentConfig": deployment.to_string(),
        "conditions": [{"type": "Available", "status": "True", "reason": "AllComponentsReady", "message": "",
                        "lastTransitionTime": now(), "lastProbeTime": now()}],
    }});
    let api: Api<dockerios_kubevirt::KubeVirt> = Api::namespaced(client.clone(), "kubevirt");
    api.patch_status("kubevirt", &PatchParams::default(), &Patch::Merge(status))
        .await?;
    Ok(())
}

async fn profile(client: &Client, class: &crate::options::ClassShape, snapshot_class: Option<String>) -> Result<()> {
    let (group, kind, plural) = ("cdi.kubevirt.io/v1beta1", "StorageProfile", "storageprofiles");
    apply(
        client,
        group,
        kind,
        plural,
        json!({"metadata": {"name": class.name}, "spec": {}}),
    )
    .await?;
    let format = if class.clone_strategy == "snapshot" && snapshot_class.is_some() {
        "snapshot"
    } else {
        "pvc"
    };
    let mut status = json!({
        "storageClass": class.name, "provisioner": class.provisioner, "cloneStrategy": class.clone_strategy,
        "dataImportCronSourceFormat": format,
        "claimPropertySets": [{"accessModes": ["ReadWriteOnce"], "volumeMode": "Block"}],
    });
    if let Some(name) = snapshot_class {
        status["snapshotClass"] = json!(name);
    }
    apply_status(client, group, kind, plural, &class.name, status).await
}

/// Webhooks and the aggregated API, at the address where they are served now.
pub(crate) async fn registrations(client: &Client, served: &Served) -> Result<()> {
    if !served.address.ip().is_loopback() {
        bail!(
            "{} is not loopback: the simulator serves the API server of this machine only",
            served.address
        );
    }
    let bundle = STANDARD.encode(&served.authority);
    let hook = |name: &str, path: &str, group: &str, resources: &[&str], operations: &[&str]| {
        json!({
            "name": format!("{name}.sim.dockerios.io"),
            "clientConfig": {"url": format!("https://{}{path}", served.address), "caBundle": bundle},
            "rules": [{"apiGroups": [group], "apiVersions": ["*"], "resources": resources, "operations": operations, "scope": "Namespaced"}],
            "admissionReviewVersions": ["v1"], "sideEffects": "NoneOnDryRun", "failurePolicy": "Fail", "timeoutSeconds": 10,
        })
    };
    let machines = ["virtualmachines", "virtualmachineinstances"];
    let webhooks = [
        hook(
            "machines",
            "/validate/machines",
            "kubevirt.io",
            &machines,
            &["CREATE", "UPDATE"],
        ),
        hook(
            "datavolumes",
            "/validate/datavolumes",
            "cdi.kubevirt.io",
            &["datavolumes"],
            &["CREATE"],
        ),
        hook("evictions", "/validate/evictions", "", &["pods/eviction"], &["CREATE"]),
    ];
    let group = "admissionregistration.k8s.io/v1";
    let (kind, plural) = ("ValidatingWebhookConfiguration", "validatingwebhookconfigurations");
    apply(
        client,
        group,
        kind,
        plural,
        json!({"metadata": {"name": MANAGER}, "webhooks": webhooks}),
    )
    .await?;
    // an external name is the one kind of Service that leads from an API server to its own machine
    let service = json!({
        "metadata": {"name": MANAGER, "namespace": NAMESPACE},
        "spec": {"type": "ExternalName", "externalName": "localhost"},
    });
    apply(client, "v1", "Service", "services", service).await?;
    let aggregated = json!({
        "metadata": {"name": "v1.subresources.kubevirt.io"},
        "spec": {
            "group": "subresources.kubevirt.io", "version": "v1", "groupPriorityMinimum": 1000, "versionPriority": 15,
            "caBundle": bundle,
            "service": {"namespace": NAMESPACE, "name": MANAGER, "port": served.address.port()},
        },
    });
    apply(
        client,
        "apiregistration.k8s.io/v1",
        "APIService",
        "apiservices",
        aggregated,
    )
    .await
}
