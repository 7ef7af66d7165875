//! Builders of objects and facts.

use std::sync::Arc;

use dockerios_api::{IdentityPool, MacOSMachine, MachineIdentity, PlatformConfig};
use dockerios_core::{Plan, Seen, check::check, decide::identity::Facts};
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

pub const HOME: &str = "dockerios-system";
pub const BUILDER: &str = "r/b@sha256:4509beb0ab401d71fa4a5cd94a55c9a74f13332776ae4019c5bfc4c2005157ff";
pub const TEMPLATE: &str = "9f2c5d0a7be1f4d3a1c0e8b6f7d2c4a5b3e1908f6a7d5c3b2e1f0a9b8c7d6e5f";

pub fn now() -> Timestamp {
    "2026-03-02T09:00:00Z".parse().expect("a time")
}

pub fn typed<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("an object of its kind")
}

/// Values that keep every rule, from a fixed seed.
pub fn values(seed: u8) -> Value {
    let identity = dockerios_identity::Generator::seeded([seed; 32])
        .mint("iMacPro1,1")
        .expect("minted");
    let mut spec = serde_json::to_value(dockerios_identity::Fields::from(identity)).expect("JSON");
    spec["poolName"] = "imacpro".into();
    spec
}

/// As it is made, without finalizer and status.
pub fn new_identity(seed: u8) -> Value {
    let spec = values(seed);
    let name = spec["serial"].as_str().expect("a serial").to_lowercase();
    json!({"apiVersion": "identity.dockerios.io/v1alpha1", "kind": "MachineIdentity",
        "metadata": {"name": name, "uid": format!("id-{seed}"), "resourceVersion": "7", "generation": 1},
        "spec": spec})
}

pub fn condition(kind: &str, status: &str, reason: &str) -> Value {
    json!({"type": kind, "status": status, "reason": reason, "message": "", "observedGeneration": 1,
        "lastTransitionTime": "2026-03-01T00:00:00Z"})
}

/// Proven unique, with a bootdisk, ready to be taken.
pub fn available(seed: u8) -> Value {
    let mut identity = new_identity(seed);
    let name = identity["metadata"]["name"].as_str().expect("a name").to_owned();
    identity["metadata"]["finalizers"] = json!(["identity.dockerios.io/allocated"]);
    identity["status"] = json!({"phase": "Available", "observedGeneration": 1, "uniqueAt": "2026-03-01T00:00:00Z",
        "bootDisk": {"pvc": format!("bootdisk-{name}"), "sha256": "ab", "builderImage": BUILDER,
            "templateSha256": TEMPLATE},
        "conditions": [condition("BootDiskBuilt", "True", "Built"), condition("Ready", "True", "Available"),
            condition("Unique", "True", "Unique")]});
    identity
}

/// With machine `team-a/mac-1` of that uid.
pub fn allocated(seed: u8, uid: &str, used: bool) -> Value {
    let mut identity = available(seed);
    identity["status"]["phase"] = "Allocated".into();
    identity["status"]["claimRef"] = json!({"namespace": "team-a", "name": "mac-1", "uid": uid});
    identity["status"]["conditions"][1] = condition("Ready", "True", "Allocated");
    if used {
        identity["status"]["usedAt"] = "2026-03-01T12:00:00Z".into();
    }
    identity
}

pub fn pool(policy: &str) -> IdentityPool {
    typed(
        json!({"apiVersion": "identity.dockerios.io/v1alpha1", "kind": "IdentityPool",
        "metadata": {"name": "imacpro", "uid": "pool", "resourceVersion": "3", "generation": 1,
            "finalizers": ["identity.dockerios.io/minted"]},
        "spec": {"model": "iMacPro1,1", "minAvailable": 5, "maxSize": 8, "reclaimPolicy": policy,
            "bootDisk": {"storageClassName": "rbd"}}}),
    )
}

pub fn platform() -> PlatformConfig {
    let image = |name: &str| format!("r/{name}@sha256:{}", "0".repeat(64));
    typed(
        json!({"apiVersion": "config.dockerios.io/v1alpha1", "kind": "PlatformConfig",
        "metadata": {"name": "default", "uid": "platform", "resourceVersion": "2", "generation": 1},
        "spec": {"domainHook": {"image": image("hook")}, "smc": {"oskSecretRef": {"name": "smc", "key": "osk"}},
            "bootDiskBuilder": {"image": BUILDER, "template": {"image": image("template"), "sha256": TEMPLATE}}}}),
    )
}

pub fn machine(uid: &str) -> MacOSMachine {
    typed(
        json!({"apiVersion": "machine.dockerios.io/v1alpha1", "kind": "MacOSMachine",
        "metadata": {"name": "mac-1", "namespace": "team-a", "uid": uid, "resourceVersion": "5"},
        "spec": {"machineClassName": "build-8"}}),
    )
}

/// The volume of an identity's bootdisk.
pub fn volume(identity: &str, phase: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": format!("bootdisk-{identity}"), "namespace": HOME, "uid": "pvc",
            "labels": {"identity.dockerios.io/bootdisk-of": identity}},
        "status": {"phase": phase}})
}

/// Facts about that identity in a fleet of its own: nothing carries it, its bootdisk is there.
pub fn facts(identity: Value) -> Facts {
    let identity: Arc<MachineIdentity> = Arc::new(typed(identity));
    let name = identity.metadata.name.clone().expect("a name");
    Facts {
        fleet: Seen::Present(vec![identity.clone()]),
        identity,
        pool: Seen::Present(Arc::new(pool("Quarantine"))),
        platform: Seen::Present(Arc::new(platform())),
        machine: Seen::Absent,
        carriers: Seen::Present(Vec::new()),
        volume: Seen::Present(Arc::new(typed(volume(&name, "Bound")))),
        jobs: Seen::Present(Vec::new()),
        pods: Seen::Present(Vec::new()),
        builds: Seen::Present(0),
        platform_namespace: HOME.into(),
        refusal: None,
    }
}

/// A plan that breaks no invariant.
pub fn judged(plan: Plan) -> Plan {
    check(&plan).expect("a plan that breaks no invariant");
    plan
}

/// Verdict and reason of a condition in a status.
pub fn said(status: &Value, kind: &str) -> (String, String) {
    let all = status["conditions"].as_array().cloned().unwrap_or_default();
    let one = all
        .into_iter()
        .find(|one| one["type"] == kind)
        .unwrap_or_else(|| panic!("no {kind} in {status}"));
    let text = |field: &str| one[field].as_str().unwrap_or_default().to_owned();
    (text("status"), text("reason"))
}

pub fn message(status: &Value, kind: &str) -> String {
    let all = status["conditions"].as_array().cloned().unwrap_or_default();
    let one = all
        .into_iter()
        .find(|one| one["type"] == kind)
        .unwrap_or_else(|| panic!("no {kind} in {status}"));
    one["message"].as_str().unwrap_or_default().to_owned()
}
