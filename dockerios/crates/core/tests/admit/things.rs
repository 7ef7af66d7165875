//! Objects that break no rule, to be changed.

use dockerios_api::{
    IdentityPool, MacOSImage, MacOSMachine, MacOSMachineClaim, MacOSMachineClass, MachineIdentity, PlatformConfig,
};
use dockerios_core::{Seen, admit::Verdict};
use k8s_openapi::api::{core::v1::Namespace, storage::v1::StorageClass};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

pub(crate) fn read<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).expect("an object")
}

fn of<K: DeserializeOwned>(group: &str, kind: &str, name: &str, spec: Value) -> K {
    let metadata = match kind {
        "MacOSMachine" | "MacOSMachineClaim" => json!({"name": name, "namespace": "red"}),
        _ => json!({"name": name}),
    };
    let version = format!("{group}.dockerios.io/v1alpha1");
    read(json!({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}))
}

pub(crate) fn platform() -> PlatformConfig {
    let image = format!("ghcr.io/example/hook@sha256:{}", "a".repeat(64));
    let cards = json!([{"deviceName": "amd.com/rx580", "vendorReset": "Installed"}, {"deviceName": "amd.com/vega64"}]);
    let claims = json!({"defaultTTL": "2h", "maxTTL": "8h"});
    let spec = json!({"domainHook": {"image": image}, "permittedGPUs": cards, "claims": claims});
    of("config", "PlatformConfig", "default", spec)
}

pub(crate) fn image(version: &str) -> MacOSImage {
    let source = json!({"pvc": {"namespace": "a", "name": "b"}});
    let spec = json!({"source": source, "size": "100Gi", "storageClassName": "fast", "osVersion": version});
    of("image", "MacOSImage", "golden", spec)
}

pub(crate) fn pool(model: &str) -> IdentityPool {
    let spec = json!({"model": model, "minAvailable": 0, "maxSize": 2, "bootDisk": {"storageClassName": "fast"}});
    of("identity", "IdentityPool", "macs", spec)
}

pub(crate) fn identity(number: u8) -> MachineIdentity {
    let minted = dockerios_identity::Generator::seeded([number; 32])
        .mint("iMacPro1,1")
        .expect("an identity");
    let mut spec = serde_json::to_value(dockerios_identity::Fields::from(minted)).expect("fields");
    let name = spec["serial"].as_str().unwrap_or_default().to_lowercase();
    spec["poolName"] = json!("macs");
    of("identity", "MachineIdentity", &name, spec)
}

pub(crate) fn class() -> MacOSMachineClass {
    let boot = json!({"type": "Shared", "shared": {"bootDiskImage": format!("a/b@sha256:{}", "a".repeat(64))}});
    let spec = json!({
        "imageName": "golden", "identity": boot, "cpu": {"cores": 4, "model": "Haswell-noTSX"},
        "memory": {"size": "8Gi"}, "systemDisk": {"size": "100Gi", "storageClassName": "fast"},
    });
    of("machine", "MacOSMachineClass", "c", spec)
}

pub(crate) fn storage(provisioner: &str) -> StorageClass {
    read(json!({"metadata": {"name": "fast"}, "provisioner": provisioner}))
}

pub(crate) fn machine() -> MacOSMachine {
    of("machine", "MacOSMachine", "m", json!({"machineClassName": "c"}))
}

pub(crate) fn claim(ttl: Option<&str>) -> MacOSMachineClaim {
    let spec = match ttl {
        Some(ttl) => json!({"machineClassName": "c", "ttl": ttl}),
        None => json!({"machineClassName": "c"}),
    };
    of("machine", "MacOSMachineClaim", "job", spec)
}

pub(crate) fn namespace(team: &str) -> Namespace {
    read(json!({"metadata": {"name": "red", "labels": {"team": team}}}))
}

pub(crate) fn unseen<T>() -> Seen<T> {
    Seen::Unknown("timeout".to_owned())
}

/// The rules that were broken.
pub(crate) fn broken(verdict: &Verdict) -> Vec<&'static str> {
    verdict.refusals.iter().map(|refusal| refusal.rule).collect()
}

/// Refused for now, because of that.
pub(crate) fn blind(verdict: &Verdict, what: &str) {
    assert!(verdict.only_for_now(), "{what}: {verdict:?}");
    let reason = verdict.reason();
    for part in ["[cannot-see]", what, "(timeout)", "try again"] {
        assert!(reason.contains(part), "{part}: {reason}");
    }
}
