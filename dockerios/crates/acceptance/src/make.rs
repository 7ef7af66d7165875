//! Objects as people would write them, small and fast.

use std::fmt::Debug;
use std::time::Duration;

use anyhow::{Context as _, Result};
use dockerios_testkit::expect::DEADLINE;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::{ClusterResourceScope, NamespaceResourceScope};
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// The golden image that every class here names.
pub const IMAGE: &str = "golden";
/// Storage class whose driver clones by itself.
pub const STORAGE: &str = "mac-csi";
/// Storage class of a thin pool, which no scene uses but the one about its free space.
pub const THIN: &str = "mac-thin";
/// The same, for the scene that counts copies.
pub const COUNTED: &str = "mac-counted";
/// A digest, as images are pinned.
const DIGEST: &str = "sha256:4509beb0ab401d71fa4a5cd94a55c9a74f13332776ae4019c5bfc4c2005157ff";
/// Image that holds the OpenCore template.
pub(crate) const TEMPLATE_IMAGE: &str =
    "registry.example.com/template@sha256:4509beb0ab401d71fa4a5cd94a55c9a74f13332776ae4019c5bfc4c2005157ff";
/// Image that holds the template of machines with a card.
pub(crate) const GPU_TEMPLATE_IMAGE: &str =
    "registry.example.com/gpu-template@sha256:4509beb0ab401d71fa4a5cd94a55c9a74f13332776ae4019c5bfc4c2005157ff";
/// A card that the platform permits.
pub const CARD: &str = "amd.com/rx580";
/// Its audio function.
pub const CARD_AUDIO: &str = "amd.com/rx580-audio";
/// The nodes that have one each.
pub const CARD_NODES: [&str; 2] = ["kvm-card-a", "kvm-card-b"];
/// Taint of nodes that are for one scene.
const ALONE: &str = "acceptance.dockerios.io/alone";

/// Seconds that a draining node waits for claims.
pub const DRAIN_SECONDS: u64 = 40;

/// What a scene needs of a kind to make it.
pub trait Makeable: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned {}
impl<K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned> Makeable for K {}

/// Makes a cluster-wide object.
///
/// # Errors
/// When it is refused.
pub async fn cluster<K: Makeable + Resource<Scope = ClusterResourceScope>>(
    client: &Client,
    object: Value,
) -> Result<K> {
    create(&Api::all(client.clone()), object).await
}

/// Makes an object in a namespace.
///
/// # Errors
/// When it is refused.
pub async fn within<K: Makeable + Resource<Scope = NamespaceResourceScope>>(
    client: &Client,
    namespace: &str,
    object: Value,
) -> Result<K> {
    create(&Api::namespaced(client.clone(), namespace), object).await
}

/// While no operator answers, creations of our kinds are refused and anybody tries again; so does this.
async fn create<K: Makeable>(api: &Api<K>, object: Value) -> Result<K> {
    let shown = format!(
        "{} {}",
        K::kind(&()),
        object["metadata"]["name"].as_str().unwrap_or_default()
    );
    let object: K = serde_json::from_value(object).with_context(|| format!("{shown} is none"))?;
    let deadline = tokio::time::Instant::now() + DEADLINE;
    loop {
        match api.create(&PostParams::default(), &object).await {
            Ok(made) => return Ok(made),
            Err(kube::Error::Api(status))
                if status.message.contains("failed calling webhook") && tokio::time::Instant::now() < deadline =>
            {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Err(error) => return Err(error).with_context(|| format!("make {shown}")),
        }
    }
}

/// The one PlatformConfig.
pub(crate) fn platform(template_sha256: &str, gpu_template_sha256: &str) -> Value {
    json!({
        "apiVersion": "config.dockerios.io/v1alpha1", "kind": "PlatformConfig", "metadata": {"name": "default"},
        "spec": {
            "domainHook": {"image": format!("registry.example.com/hook@{DIGEST}")},
            "bootDiskBuilder": {
                "image": format!("registry.example.com/bootdisk@{DIGEST}"),
                "template": {"image": TEMPLATE_IMAGE, "sha256": template_sha256},
                "gpuTemplate": {"image": GPU_TEMPLATE_IMAGE, "sha256": gpu_template_sha256},
            },
            "permittedGPUs": [{"deviceName": CARD, "audioDeviceName": CARD_AUDIO, "vendorReset": "Installed"}],
            "smc": {"oskSecretRef": {"name": "smc", "key": "osk"}},
            "claims": {"defaultTTL": "2h", "maxTTL": "24h"},
            "drainDeadline": format!("{DRAIN_SECONDS}s"),
        },
    })
}

/// An image from a registry.
pub fn image(name: &str, storage: &str) -> Value {
    json!({
        "apiVersion": "image.dockerios.io/v1alpha1", "kind": "MacOSImage", "metadata": {"name": name},
        "spec": {
            "osVersion": "15.6", "size": "20Gi", "storageClassName": storage,
            "source": {"registry": {"url": format!("docker://registry.example.com/golden@{DIGEST}")}},
        },
    })
}

/// A pool of `size` identities, all made ahead.
pub fn identities(name: &str, size: u32, policy: &str) -> Value {
    json!({
        "apiVersion": "identity.dockerios.io/v1alpha1", "kind": "IdentityPool", "metadata": {"name": name},
        "spec": {
            "model": "iMacPro1,1", "minAvailable": size, "maxSize": size, "reclaimPolicy": policy,
            "bootDisk": {"storageClassName": STORAGE},
        },
    })
}

/// A class whose machines share a bootdisk.
pub fn class(name: &str) -> Value {
    json!({
        "apiVersion": "machine.dockerios.io/v1alpha1", "kind": "MacOSMachineClass", "metadata": {"name": name},
        "spec": {
            "imageName": IMAGE,
            "identity": {
                "type": "Shared",
                "shared": {"bootDiskImage": format!("registry.example.com/shared@{DIGEST}")},
            },
            "cpu": {"cores": 2, "model": "Haswell-noTSX", "features": [{"name": "avx2", "policy": "require"}]},
            "memory": {"size": "4Gi"},
            "systemDisk": {"bus": "nvme", "size": "20Gi", "storageClassName": STORAGE},
        },
    })
}

/// A class whose machines take an identity each.
pub fn class_of(name: &str, identities: &str) -> Value {
    let mut class = class(name);
    class["spec"]["identity"] = json!({"type": "PerMachine", "perMachine": {"poolName": identities}});
    class
}

/// The object with a field of its spec set, by JSON pointer below `spec`.
#[must_use]
pub fn with(mut object: Value, field: &str, value: Value) -> Value {
    let mut at = &mut object["spec"];
    for part in field.split('/') {
        at = &mut at[part];
    }
    *at = value;
    object
}

/// A class whose machines run on that spare node alone.
#[must_use]
pub fn on_node(class: Value, node: &str) -> Value {
    let placement = json!({
        "nodeSelector": {"kubernetes.io/hostname": node},
        "tolerations": [{"key": ALONE, "operator": "Exists"}],
    });
    with(class, "placement", placement)
}

/// A class whose machines may run on any spare node: what else they ask for says on which.
#[must_use]
pub fn on_spares(class: Value) -> Value {
    let placement = json!({"tolerations": [{"key": ALONE, "operator": "Exists"}]});
    with(class, "placement", placement)
}

/// A machine.
pub fn machine(name: &str, class: &str) -> Value {
    json!({
        "apiVersion": "machine.dockerios.io/v1alpha1", "kind": "MacOSMachine", "metadata": {"name": name},
        "spec": {"machineClassName": class},
    })
}

/// A pool of warm machines.
pub fn pool(name: &str, class: &str, replicas: u32, most: u32) -> Value {
    json!({
        "apiVersion": "machine.dockerios.io/v1alpha1", "kind": "MacOSMachinePool", "metadata": {"name": name},
        "spec": {"machineClassName": class, "replicas": replicas, "maxMachines": most},
    })
}

/// A claim on a pool.
pub fn claim(name: &str, pool: &str) -> Value {
    json!({
        "apiVersion": "machine.dockerios.io/v1alpha1", "kind": "MacOSMachineClaim", "metadata": {"name": name},
        "spec": {"poolName": pool},
    })
}

/// A claim on a class.
pub fn claim_of(name: &str, class: &str) -> Value {
    json!({
        "apiVersion": "machine.dockerios.io/v1alpha1", "kind": "MacOSMachineClaim", "metadata": {"name": name},
        "spec": {"machineClassName": class},
    })
}

/// Keeps everything but what names the node from it.
pub(crate) async fn taint(client: &Client, node: &str) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let patch = json!({"spec": {"taints": [{"key": ALONE, "effect": "NoSchedule"}]}});
    nodes.patch(node, &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}
