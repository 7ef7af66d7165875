//! A small cluster as the shelves hold it, and the text that is made of it.

use std::{collections::BTreeMap, sync::Arc};

use dockerios_collector::Counts;
use dockerios_operator::{
    metrics::{Metrics, fleet::Fleet},
    source::Source,
    world::{Notice, World},
};
use serde_json::{Value, json};

pub const UID: &str = "2f0c9a51-7b1e-4f0e-9d6f-0a4b8c1d2e3f";
pub const DIGEST: &str = "sha256:4509beb0ab401d71fa4a5cd94a55c9a74f13332776ae4019c5bfc4c2005157ff";
/// A system disk of twenty GiB.
pub const SIZE: u64 = 20 << 30;

/// Every source has told an empty list.
pub fn empty() -> World {
    let mut world = World::new("dockerios-system", "https://collector:7443");
    for source in Source::ALL {
        world.take(source, Notice::List(Vec::new(), 1));
    }
    world
}

pub fn list(world: &mut World, source: Source, objects: Vec<Value>) {
    world.take(source, Notice::List(objects, 9));
}

pub fn class(name: &str) -> Value {
    json!({"kind": "MacOSMachineClass", "metadata": {"name": name}, "spec": {
        "imageName": "golden",
        "identity": {"type": "Shared", "shared": {"bootDiskImage": format!("r/b@{DIGEST}")}},
        "cpu": {"cores": 2, "model": "Haswell-noTSX"}, "memory": {"size": "4Gi"},
        "systemDisk": {"bus": "nvme", "size": "20Gi", "storageClassName": "fast"}}})
}

pub fn machine(name: &str, class: &str, status: Value) -> Value {
    json!({"kind": "MacOSMachine",
        "metadata": {"name": name, "namespace": "team", "uid": UID, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"machineClassName": class}, "status": status})
}

pub fn condition(kind: &str, status: &str, reason: &str) -> Value {
    json!({"type": kind, "status": status, "reason": reason, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

/// The machine's disk, cloned that way.
pub fn disk(strategy: Option<&str>) -> Value {
    let mut disk = json!({"kind": "PersistentVolumeClaim",
        "metadata": {"name": "macs-m-2f0c9a51-system", "namespace": "team", "annotations": {},
            "labels": {"machine.dockerios.io/uid": UID}},
        "spec": {"storageClassName": "fast"}, "status": {"phase": "Bound", "capacity": {"storage": "20Gi"}}});
    if let Some(strategy) = strategy {
        disk["metadata"]["annotations"]["cdi.kubevirt.io/cloneType"] = json!(strategy);
    }
    disk
}

/// One object of each kind that is told of.
pub fn full() -> World {
    let mut world = empty();
    let launcher = json!({"digest": DIGEST, "nvme": "Override", "smc": true, "nicModels": []});
    let platform = json!({"kind": "PlatformConfig", "metadata": {"name": "default"},
        "spec": {"storage": {"headroom": [
            {"storageClassName": "fast", "minFreePercent": 20, "source": {"csiCapacity": {}}},
            {"storageClassName": "dark", "minFreePercent": 10, "source":
                {"prometheus": {"url": "http://p:9090", "freeQuery": "f", "capacityQuery": "c"}}}]}},
        "status": {"launchers": [launcher], "conditions": [condition("LauncherCapable", "True", "Capable")]}});
    list(&mut world, Source::PlatformConfigs, vec![platform]);
    list(&mut world, Source::Classes, vec![class("mac")]);
    let waits = json!({"phase": "Pending", "awaitsRoomIn": "fast",
        "conditions": [condition("Ready", "False", "BelowThreshold")]});
    let ready = json!({"phase": "Ready", "conditions": [condition("Ready", "True", "Ready")]});
    let mut other = machine("stray", "no-such-class", Value::Null);
    other["metadata"]["uid"] = json!("other");
    let mut waiting = machine("w", "mac", waits);
    waiting["metadata"]["uid"] = json!("w");
    let mut bad = machine("bad", "mac", Value::Null);
    bad["spec"]["powerState"] = json!(7);
    let machines = vec![machine("m", "mac", ready), waiting, other, bad];
    list(&mut world, Source::Machines, machines);
    let vm = json!({"kind": "VirtualMachine", "metadata": {"name": "macs-m-2f0c9a51-vm", "namespace": "team"},
        "spec": {"template": {"spec": {"domain": {"devices": {}}}}}});
    list(&mut world, Source::VirtualMachines, vec![vm]);
    let pool = json!({"kind": "MacOSMachinePool", "metadata": {"name": "ci", "namespace": "team"},
        "spec": {"machineClassName": "mac", "replicas": 3, "maxMachines": 9},
        "status": {"warm": 2, "claimed": 1, "waiting": 4, "failed": 1}});
    list(&mut world, Source::MachinePools, vec![pool]);
    let claim = json!({"kind": "MacOSMachineClaim", "metadata": {"name": "c", "namespace": "team"},
        "spec": {"poolName": "ci"}, "status": {"phase": "Bound"}});
    list(&mut world, Source::Claims, vec![claim]);
    let identities = json!({"kind": "IdentityPool", "metadata": {"name": "imac"}, "spec": {"model": "iMacPro1,1",
        "minAvailable": 2, "maxSize": 5, "reclaimPolicy": "Recycle", "bootDisk": {"storageClassName": "fast"}}});
    list(&mut world, Source::IdentityPools, vec![identities]);
    let image = json!({"kind": "MacOSImage", "metadata": {"name": "golden"}, "spec": {"osVersion": "15.6", "size": "20Gi",
        "storageClassName": "fast", "source": {"registry": {"url": "docker://r/g"}}}, "status": {"phase": "Ready"}});
    list(&mut world, Source::Images, vec![image]);
    let capacity = json!({"kind": "CSIStorageCapacity", "metadata": {"name": "a", "namespace": "x"},
        "storageClassName": "fast", "capacity": "100Gi"});
    list(&mut world, Source::StorageCapacities, vec![capacity]);
    world
}

/// The text of a leader that sees that fleet.
pub async fn text(
    metrics: &Metrics,
    questions: tokio::sync::mpsc::Receiver<dockerios_operator::metrics::Question>,
    fleet: Option<Fleet>,
) -> String {
    metrics.elected();
    let mut questions = questions;
    let answers = tokio::spawn(async move {
        while let Some(question) = questions.recv().await {
            question.send(fleet.clone()).ok();
        }
    });
    let text = metrics.render().await.expect("it is answered");
    answers.abort();
    text
}

/// Of a world, with nothing done yet.
pub async fn text_of(world: &World) -> String {
    let (metrics, questions) = Metrics::new(Arc::new(Counts::default()));
    text(&metrics, questions, Some(Fleet::of(world))).await
}

/// The samples of a text: name with labels, as they are written, and value.
pub fn samples(text: &str) -> BTreeMap<String, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let sample = |line: &str| {
        let (name, value) = line.rsplit_once(' ').expect("a name and a value");
        (name.to_owned(), value.parse().expect("a number"))
    };
    lines.map(sample).collect()
}
