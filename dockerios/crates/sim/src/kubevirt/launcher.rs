//! The launcher pod. Invariant: its name follows from the instance's uid, so that there is never a second one.

use dockerios_kubevirt::{VirtualMachineInstance, domain::Volume, names};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::world::suffix;

/// Annotation of a pod that only makes claims bind.
pub(crate) const PROVISIONING: &str = "kubevirt.io/ephemeral-provisioning";

/// A hook as the annotation asks for it.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Sidecar {
    #[serde(default)]
    pub(crate) image: String,
    #[serde(default)]
    pub(crate) args: Vec<String>,
    pub(crate) config_map: Option<HookFile>,
}

/// The file that a hook gets out of a ConfigMap.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct HookFile {
    pub(crate) name: String,
    pub(crate) key: String,
    pub(crate) hook_path: String,
}

/// The hooks of an instance.
pub(crate) fn sidecars(vmi: &VirtualMachineInstance) -> Result<Vec<Sidecar>, String> {
    match vmi.annotations().get(names::HOOK_SIDECARS) {
        None => Ok(Vec::new()),
        Some(text) => serde_json::from_str(text).map_err(|error| format!("{}: {error}", names::HOOK_SIDECARS)),
    }
}

/// The claim behind a volume, if it has one.
pub(crate) fn claim_of(volume: &Volume) -> Option<&str> {
    let by_volume = volume.data_volume.as_ref().map(|named| named.name.as_str());
    by_volume.or(volume
        .persistent_volume_claim
        .as_ref()
        .map(|named| named.claim_name.as_str()))
}

/// Name of the pod; another for the one that only makes claims bind.
pub(crate) fn name(vmi: &VirtualMachineInstance, provisioning: bool) -> String {
    let uid = vmi.uid().unwrap_or_default();
    let what = if provisioning { "provisioning" } else { "launcher" };
    let mut stem = vmi.name_any();
    stem.truncate(40);
    format!(
        "virt-launcher-{}-{}",
        stem.trim_end_matches(['-', '.']),
        suffix(&[&uid, what])
    )
}

fn amount(resources: &mut Value, resource: &str, quantity: Value) {
    resources["requests"][resource] = quantity.clone();
    resources["limits"][resource] = quantity;
}

/// What the compute container asks for, as KubeVirt reckons it.
fn resources(vmi: &VirtualMachineInstance) -> Value {
    let (cpu, memory) = (
        vmi.spec.domain.cpu.clone().unwrap_or_default(),
        vmi.spec.domain.memory.clone(),
    );
    let processors = cpu.sockets.unwrap_or(1) * cpu.cores.unwrap_or(1) * cpu.threads.unwrap_or(1);
    let guest = memory
        .as_ref()
        .and_then(|memory| memory.guest.as_ref())
        .map_or("0", |quantity| &quantity.0);
    let mut all = json!({"requests": {"ephemeral-storage": "50M"}, "limits": {}});
    let page = memory
        .as_ref()
        .and_then(|memory| memory.hugepages.as_ref()?.page_size.as_ref());
    match page {
        Some(page) => amount(&mut all, &format!("hugepages-{}", page.0), json!(guest)),
        None => all["requests"]["memory"] = json!(guest),
    }
    if cpu.dedicated_cpu_placement == Some(true) {
        let own = processors + u32::from(cpu.isolate_emulator_thread == Some(true));
        amount(&mut all, "cpu", json!(own.to_string()));
        let overhead = if page.is_some() { "1468Mi" } else { guest };
        amount(&mut all, "memory", json!(overhead));
    } else {
        all["requests"]["cpu"] = json!(format!("{}m", processors * 100));
    }
    amount(&mut all, names::KVM_RESOURCE, json!("1"));
    let devices = &vmi.spec.domain.devices;
    for device in devices.gpus.iter().chain(&devices.host_devices) {
        let known = all["requests"][&device.device_name]
            .as_str()
            .and_then(|count| count.parse::<u32>().ok());
        amount(
            &mut all,
            &device.device_name,
            json!((known.unwrap_or(0) + 1).to_string()),
        );
    }
    all
}

fn node_selector(vmi: &VirtualMachineInstance) -> Value {
    let mut selector = json!(vmi.spec.node_selector);
    selector["kubevirt.io/schedulable"] = json!("true");
    selector["kubernetes.io/arch"] = json!(vmi.spec.architecture.as_deref().unwrap_or("amd64"));
    let cpu = vmi.spec.domain.cpu.clone().unwrap_or_default();
    if cpu.dedicated_cpu_placement == Some(true) {
        selector["kubevirt.io/cpumanager"] = json!("true");
    }
    for feature in cpu
        .features
        .iter()
        .filter(|feature| feature.policy.as_deref().unwrap_or("require") == "require")
    {
        selector[format!("cpu-feature.node.kubevirt.io/{}", feature.name)] = json!("true");
    }
    selector
}

/// Renders the pod.
pub(crate) fn render(vmi: &VirtualMachineInstance, image: &str, provisioning: bool) -> Result<Pod, String> {
    let mut labels = json!(vmi.labels());
    for (key, value) in [
        (names::APP_LABEL, names::LAUNCHER.to_owned()),
        (names::CREATED_BY, vmi.uid().unwrap_or_default()),
        (names::VM_NAME, vmi.name_any()),
        (names::VMI_ID, vmi.name_any()),
    ] {
        labels[key] = json!(value);
    }
    let mut annotations = json!(vmi.annotations());
    annotations[names::DOMAIN] = json!(vmi.name_any());
    annotations["descheduler.alpha.kubernetes.io/request-evict-only"] = json!("");
    if provisioning {
        annotations[PROVISIONING] = json!("true");
    }
    let mut volumes = Vec::new();
    for volume in &vmi.spec.volumes {
        if let Some(claim) = claim_of(volume) {
            volumes.push(json!({"name": volume.name, "persistentVolumeClaim": {"claimName": claim}}));
        } else if let Some(secret) = volume.secret.as_ref().filter(|_| !provisioning) {
            volumes.push(
                json!({"name": volume.name, "secret": {"secretName": secret.secret_name, "optional": secret.optional}}),
            );
        }
    }
    let mut containers = vec![json!({
        "name": "compute",
        "image": image,
        "command": ["/usr/bin/virt-launcher-monitor"],
        "args": ["--name", vmi.name_any(), "--uid", vmi.uid(), "--namespace", vmi.namespace()],
        "resources": resources(vmi),
    })];
    let hooks = if provisioning { Vec::new() } else { sidecars(vmi)? };
    for (at, hook) in hooks.iter().enumerate() {
        containers.push(json!({
            "name": format!("hook-sidecar-{at}"),
            "image": hook.image,
            "args": hook.args,
            "resources": {"requests": {"cpu": "200m", "memory": "64M"}, "limits": {"cpu": "200m", "memory": "64M"}},
        }));
        if let Some(file) = &hook.config_map {
            let known = volumes.iter().any(|volume| volume["name"] == json!(file.name));
            if !known {
                volumes.push(json!({"name": file.name, "configMap": {"name": file.name, "defaultMode": 0o755}}));
            }
        }
    }
    let grace = vmi.spec.termination_grace_period_seconds.unwrap_or(30) + 30;
    let mut hostname = vmi.spec.hostname.clone().unwrap_or_else(|| vmi.name_any());
    hostname.truncate(63);
    serde_json::from_value(json!({
        "metadata": {
            "name": name(vmi, provisioning),
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [{
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": vmi.name_any(),
                "uid": vmi.uid(), "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "spec": {
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "restartPolicy": "Never",
            "hostname": hostname.trim_end_matches('-').replace('.', "-"),
            "terminationGracePeriodSeconds": if provisioning { 0 } else { grace },
            "nodeSelector": node_selector(vmi),
            "affinity": vmi.spec.affinity,
            "tolerations": vmi.spec.tolerations,
            "priorityClassName": vmi.spec.priority_class_name,
            "containers": containers,
            "volumes": volumes,
        },
    }))
    .map_err(|error| format!("launcher pod: {error}"))
}
