//! A small world: it does what plans say, step by step, and plays as much of KubeVirt and CDI as a life needs.

use std::{collections::BTreeMap, sync::Arc};

use dockerios_api::{
    MacOSMachine, MacOSMachineStatus, MachineIdentity, Verdict, condition::of, machine::macos_machine::MachinePhase,
};
use dockerios_core::{
    Guard, Object, Plan, Seen, Step,
    check::check,
    decide::machine::{Facts, Line, Waiter, decide, node_of},
};
use jiff::{SignedDuration, Timestamp};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

pub const UID: &str = "2f0c9a51-7b1e-4f0e-9d6f-0a4b8c1d2e3f";
pub const VM: &str = "macs-m-2f0c9a51-vm";
pub const SYSTEM: &str = "macs-m-2f0c9a51-system";
pub const BOOT: &str = "macs-m-2f0c9a51-boot";
const DIGEST: &str = "sha256:0000000000000000000000000000000000000000000000000000000000000000";

/// Everything that exists, by kind and name.
#[derive(Clone, Debug)]
pub struct World {
    pub now: Timestamp,
    pub objects: BTreeMap<(String, String), Value>,
    pub unreadable: Vec<&'static str>,
    pub others: Vec<Waiter>,
    pub line: Option<Line>,
    pub refusal: Option<dockerios_core::plan::Refusal>,
    pub clone_right: Seen<bool>,
    /// Every step that was done, as kind and name of what it wrote.
    pub done: Vec<String>,
    pub news: Vec<String>,
    version: u64,
}

pub fn read<T: DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{error}: {value:#}"))
}

impl World {
    /// A machine that was just made, of a class with everything that it needs.
    pub fn new() -> Self {
        let mut world = Self {
            now: "2026-03-02T09:00:00Z".parse().expect("a time"),
            objects: BTreeMap::new(),
            unreadable: Vec::new(),
            others: Vec::new(),
            line: None,
            refusal: None,
            clone_right: Seen::Present(true),
            done: Vec::new(),
            news: Vec::new(),
            version: 1,
        };
        world.put(
            "MacOSMachine",
            json!({"metadata": {"name": "m", "namespace": "team-a", "uid": UID},
            "spec": {"machineClassName": "mac", "powerState": "Running"}}),
        );
        world.put(
            "MacOSMachineClass",
            json!({"metadata": {"name": "mac", "uid": "c"}, "spec": {
            "imageName": "tahoe", "identity": {"type": "PerMachine", "perMachine": {"poolName": "imac"}},
            "cpu": {"cores": 4, "threads": 1, "model": "Skylake-Client-noTSX-IBRS"}, "memory": {"size": "8Gi"},
            "systemDisk": {"bus": "nvme", "size": "100Gi", "storageClassName": "fast", "reclaimPolicy": "Delete"},
            "terminationGracePeriod": "240s", "readinessTimeout": "15m"}}),
        );
        world.put(
            "Namespace",
            json!({"metadata": {"name": "team-a", "labels": {"team": "a"}}}),
        );
        world.put("MacOSImage", json!({"metadata": {"name": "tahoe", "uid": "i"}, "spec": {
            "source": {"registry": {"url": format!("docker://r/tahoe@{DIGEST}")}}, "size": "100Gi",
            "storageClassName": "fast", "osVersion": "26.0"},
            "status": {"published": {"kind": "PersistentVolumeClaim", "namespace": "dockerios-system", "name": "img-tahoe"}}}));
        world.put(
            "PlatformConfig",
            json!({"metadata": {"name": "default", "uid": "p"}, "spec": {
            "domainHook": {"image": format!("r/hook@{DIGEST}")},
            "smc": {"oskSecretRef": {"name": "osk", "key": "osk"}}, "drainDeadline": "1h"},
            "status": {"launchers": [{"digest": DIGEST, "nvme": "Native", "smc": true}]}}),
        );
        world.put(
            "IdentityPool",
            json!({"metadata": {"name": "imac", "uid": "ip"}, "spec": {
            "model": "iMacPro1,1", "minAvailable": 1, "maxSize": 5, "reclaimPolicy": "Recycle",
            "bootDisk": {"storageClassName": "fast"}}, "status": {"total": 1, "available": 1}}),
        );
        world.identity("C02AAAAAAAA1");
        world.put(
            "Node",
            json!({"metadata": {"name": "n1"}, "spec": {},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]}}),
        );
        world
    }

    /// An identity that can be taken.
    pub fn identity(&mut self, serial: &str) {
        let name = serial.to_lowercase();
        let condition = json!({"type": "Ready", "status": "True", "reason": "Available", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        self.put("MachineIdentity", json!({"metadata": {"name": name, "uid": name}, "spec": {
            "poolName": "imac", "model": "iMacPro1,1", "serial": serial, "mlb": "C02AAAAAAAAAAAAA1", "rom": "02005E100001",
            "systemUUID": "6F0C1D1E-0000-4000-8000-00000000B001", "macAddress": "02:00:5e:10:00:01"},
            "status": {"phase": "Available", "uniqueAt": "2026-01-01T00:00:00Z", "conditions": [condition],
                "bootDisk": {"pvc": format!("bootdisk-{name}"), "sha256": "0".repeat(64),
                    "builderImage": format!("r/b@{DIGEST}"), "templateSha256": "0".repeat(64)}}}));
    }

    pub fn put(&mut self, kind: &str, mut object: Value) {
        let name = object["metadata"]["name"].as_str().expect("a name").to_owned();
        self.version += 1;
        let version = self.version.to_string();
        let now = self.now.to_string();
        let meta = object["metadata"].as_object_mut().expect("metadata");
        meta.insert("resourceVersion".into(), version.clone().into());
        meta.entry("creationTimestamp").or_insert(now.into());
        meta.entry("uid").or_insert(format!("uid-{kind}-{name}").into());
        self.objects.insert((kind.into(), name), object);
    }

    pub fn get(&self, kind: &str, name: &str) -> Option<&Value> {
        self.objects.get(&(kind.to_owned(), name.to_owned()))
    }

    pub fn names(&self, kind: &str) -> Vec<String> {
        self.objects
            .keys()
            .filter(|(of, _)| of == kind)
            .map(|(_, name)| name.clone())
            .collect()
    }

    pub fn edit(&mut self, kind: &str, name: &str, edit: impl FnOnce(&mut Value)) {
        let mut object = self
            .get(kind, name)
            .unwrap_or_else(|| panic!("{kind} {name} exists"))
            .clone();
        edit(&mut object);
        self.put(kind, object);
    }

    pub fn remove(&mut self, kind: &str, name: &str) {
        self.objects.remove(&(kind.to_owned(), name.to_owned()));
    }

    pub fn wait(&mut self, seconds: i64) {
        self.now = self
            .now
            .checked_add(SignedDuration::from_secs(seconds))
            .expect("a time");
    }

    fn seen<T: DeserializeOwned>(&self, kind: &'static str, name: &str) -> Seen<Arc<T>> {
        if self.unreadable.contains(&kind) {
            return Seen::Unknown(format!("{kind}s cannot be listed"));
        }
        self.get(kind, name).map(|object| Arc::new(read(object))).into()
    }

    fn own<T: DeserializeOwned>(&self, kind: &'static str) -> Seen<Vec<Arc<T>>> {
        if self.unreadable.contains(&kind) {
            return Seen::Unknown(format!("{kind}s cannot be listed"));
        }
        let of_machine = |(key, object): &(&(String, String), &Value)| {
            key.0 == kind && object["metadata"]["labels"]["machine.dockerios.io/uid"] == UID
        };
        Seen::Present(
            self.objects
                .iter()
                .filter(of_machine)
                .map(|(_, object)| Arc::new(read(object)))
                .collect(),
        )
    }

    pub fn machine(&self) -> MacOSMachine {
        read(self.get("MacOSMachine", "m").expect("the machine is there"))
    }

    pub fn status(&self) -> MacOSMachineStatus {
        self.machine().status.unwrap_or_default()
    }

    pub fn phase(&self) -> MachinePhase {
        self.status().phase.expect("a phase")
    }

    /// Reason of a condition.
    pub fn reason(&self, kind: &str) -> String {
        of(&self.status().conditions, kind)
            .map(|condition| condition.reason.clone())
            .unwrap_or_default()
    }

    pub fn verdict(&self, kind: &str) -> Option<Verdict> {
        of(&self.status().conditions, kind).map(|condition| condition.status)
    }

    pub fn message(&self, kind: &str) -> String {
        of(&self.status().conditions, kind)
            .map(|condition| condition.message.clone())
            .unwrap_or_default()
    }

    pub fn facts(&self) -> Facts {
        let machine = Arc::new(self.machine());
        let all = self.objects.iter().filter(|(key, _)| key.0 == "MachineIdentity");
        let all: Vec<Arc<MachineIdentity>> = all.map(|(_, object)| Arc::new(read(object))).collect();
        let holds = |i: &&Arc<MachineIdentity>| {
            let claim = i.status.as_ref().and_then(|status| status.claim_ref.as_ref());
            claim.is_some_and(|claim| claim.uid == UID)
        };
        let held: Vec<_> = all.iter().filter(holds).cloned().collect();
        let class: Seen<Arc<dockerios_api::MacOSMachineClass>> = self.seen("MacOSMachineClass", "mac");
        let pool: Seen<Arc<dockerios_api::IdentityPool>> = self.seen("IdentityPool", "imac");
        let mut waiters = self.others.clone();
        waiters.extend(Waiter::of(&machine, class.present().map(AsRef::as_ref), false));
        let line = Line {
            waiters: Seen::Present(waiters),
            identities: Seen::Present(all),
            capacity: BTreeMap::new(),
            strategy: BTreeMap::new(),
            cards: BTreeMap::new(),
        };
        let vmis: Seen<Vec<Arc<dockerios_kubevirt::VirtualMachineInstance>>> = self.own("VirtualMachineInstance");
        let pods: Seen<Vec<Arc<k8s_openapi::api::core::v1::Pod>>> = self.own("Pod");
        let node = node_of(
            vmis.present().map_or(&[], Vec::as_slice),
            pods.present().map_or(&[], Vec::as_slice),
        );
        let claim = machine.spec.claim_ref.as_ref().map(|claim| claim.name.to_string());
        let cannot = |kind: &str| {
            self.unreadable
                .contains(&kind)
                .then(|| Seen::Unknown(format!("{kind}s cannot be listed")))
        };
        Facts {
            namespace: self.seen("Namespace", "team-a"),
            image: self.seen("MacOSImage", "tahoe"),
            platform: self.seen("PlatformConfig", "default"),
            clone_right: self.clone_right.clone(),
            home: if held.is_empty() { Seen::Absent } else { pool.clone() },
            held: cannot("MachineIdentity").unwrap_or(Seen::Present(held)),
            claim: claim.map_or(Seen::Absent, |name| self.seen("MacOSMachineClaim", &name)),
            line: self.line.clone().unwrap_or(line),
            vms: self.own("VirtualMachine"),
            data_volumes: self.own("DataVolume"),
            volumes: self.own("PersistentVolumeClaim"),
            node: node.map_or(Seen::Absent, |name| self.seen("Node", &name)),
            collector_url: "https://collector:7443".into(),
            platform_namespace: "dockerios-system".into(),
            refusal: self.refusal.clone(),
            machine,
            class,
            pool,
            vmis,
            pods,
        }
    }

    pub fn plan(&self) -> Plan {
        let plan = decide(&self.facts(), self.now);
        check(&plan).unwrap_or_else(|why| panic!("{why}: {plan:#?}"));
        plan
    }

    /// One pass: as many of its steps as told are done, then the status unless it crashed before.
    pub fn pass(&mut self, steps: usize) -> Plan {
        let plan = self.plan();
        let crashed = steps < plan.steps.len();
        for step in plan.steps.iter().take(steps) {
            self.apply(step);
        }
        if let (false, Some(status), true) = (crashed, &plan.status, self.get("MacOSMachine", "m").is_some()) {
            let guest = self.get("MacOSMachine", "m").expect("it is there")["status"]["guest"].clone();
            let mut status = status.clone();
            if !guest.is_null() {
                status["guest"] = guest;
            }
            self.edit("MacOSMachine", "m", |machine| machine["status"] = status);
            self.news
                .extend(plan.news.iter().map(|news| format!("{}: {}", news.reason, news.note)));
        }
        plan
    }

    /// Passes until nothing changes; the first `most` passes at least come to rest.
    pub fn settle(&mut self) {
        for _ in 0..30 {
            if self.get("MacOSMachine", "m").is_none() {
                return;
            }
            let before = self.objects.clone();
            self.pass(usize::MAX);
            self.collect();
            if same(&before, &self.objects) {
                return;
            }
        }
        panic!("it does not come to rest: {:#?}", self.plan());
    }

    fn apply(&mut self, step: &Step) {
        let id = step.id();
        let (kind, name) = (id.kind.to_string(), id.name.clone());
        self.done.push(format!("{} {kind} {name}", word(step)));
        match step {
            Step::Create(object) | Step::CreateHookConfig(object) | Step::CreateGuestConfig(object) => {
                if self.get(&kind, &name).is_none() {
                    self.put(&kind, object.body.clone());
                }
            }
            Step::Replace(object) => self.put(&kind, object.body.clone()),
            Step::ReplaceStatus(object, guard) => self.replace_status(object, guard.as_ref()),
            Step::Merge(_, patch) => self.edit(&kind, &name, |object| merge(object, patch)),
            Step::AddFinalizer(_, finalizer) => {
                self.edit(&kind, &name, |o| o["metadata"]["finalizers"] = json!([finalizer]))
            }
            Step::RemoveFinalizer(_, _, guard) => {
                self.prove(guard.as_ref());
                self.remove(&kind, &name);
            }
            Step::Delete(_) => self.delete(&kind, &name),
            Step::DeleteLabelled {
                label: (key, value), ..
            } => {
                let labelled = |object: &Value| object["metadata"]["labels"][*key] == value.as_str();
                self.objects.retain(|(of, _), object| *of != kind || !labelled(object));
            }
            Step::CancelEvacuation { .. } => {
                self.edit(&kind, &name, |vmi| vmi["status"]["evacuationNodeName"] = Value::Null);
            }
            Step::KeepScreen { name, .. } => {
                self.put(
                    "ConfigMap",
                    // owned by its machine, and found by no uid label
                    json!({"metadata": {"name": name, "labels": {"machine.dockerios.io/machine": "m"}}}),
                );
            }
            #[allow(unreachable_patterns)]
            other => panic!("no pass over a machine plans this: {other:?}"),
        }
    }

    fn replace_status(&mut self, object: &Object, guard: Option<&Guard>) {
        self.prove(guard);
        let id = object.id();
        let stored = self.get(&id.kind.to_string(), &id.name).expect("it is there");
        assert_eq!(
            stored["metadata"]["resourceVersion"], object.body["metadata"]["resourceVersion"],
            "a conflict"
        );
        self.put(&id.kind.to_string(), object.body.clone());
    }

    fn prove(&self, guard: Option<&Guard>) {
        match guard {
            Some(Guard::IdentityUnused { .. }) => {
                for kind in ["VirtualMachine", "VirtualMachineInstance", "Pod"] {
                    assert!(
                        self.names(kind).is_empty(),
                        "an identity changes hands while {kind} runs with it"
                    );
                }
            }
            Some(Guard::NothingLeftOf { retained, .. }) => {
                let volumes: &[&str] = if *retained {
                    &[]
                } else {
                    &["DataVolume", "PersistentVolumeClaim"]
                };
                for kind in ["VirtualMachine", "VirtualMachineInstance", "Pod"]
                    .iter()
                    .chain(volumes)
                {
                    assert!(self.names(kind).is_empty(), "{kind} is left behind");
                }
            }
            _ => {}
        }
    }

    fn delete(&mut self, kind: &str, name: &str) {
        let now = self.now.to_string();
        match kind {
            // finalizers hold these
            "MacOSMachine" => self.edit(kind, name, |o| o["metadata"]["deletionTimestamp"] = now.into()),
            "VirtualMachine" if self.get("VirtualMachineInstance", name).is_some() => {
                self.edit(kind, name, |o| o["metadata"]["deletionTimestamp"] = now.into());
            }
            "DataVolume" => {
                self.remove(kind, name);
                self.remove("PersistentVolumeClaim", name);
            }
            _ => self.remove(kind, name),
        }
    }

    /// What KubeVirt does by itself: an ended instance of a Halted or deleted machine goes, with its pod.
    fn collect(&mut self) {
        let gone = self
            .get("VirtualMachine", VM)
            .is_none_or(|vm| vm["spec"]["runStrategy"] == "Halted" || !vm["metadata"]["deletionTimestamp"].is_null());
        let ended = self
            .get("VirtualMachineInstance", VM)
            .is_some_and(|vmi| ["Succeeded", "Failed"].contains(&vmi["status"]["phase"].as_str().unwrap_or_default()));
        if gone && ended {
            self.remove("VirtualMachineInstance", VM);
            self.remove("Pod", "launcher");
        }
        let asked = self
            .get("VirtualMachineInstance", VM)
            .is_some_and(|vmi| vmi["metadata"]["deletionTimestamp"].is_null());
        if gone && asked {
            let now = self.now.to_string();
            self.edit("VirtualMachineInstance", VM, |vmi| {
                vmi["metadata"]["deletionTimestamp"] = now.into()
            });
        }
        let deleted = self
            .get("VirtualMachine", VM)
            .is_some_and(|vm| !vm["metadata"]["deletionTimestamp"].is_null());
        if deleted && self.get("VirtualMachineInstance", VM).is_none() {
            self.remove("VirtualMachine", VM);
        }
    }

    /// CDI has cloned every disk.
    pub fn cloned(&mut self) {
        for name in self.names("DataVolume") {
            self.edit("DataVolume", &name, |volume| {
                volume["status"] = json!({"phase": "Succeeded"})
            });
            self.put(
                "PersistentVolumeClaim",
                json!({"metadata": {"name": name, "namespace": "team-a",
                "labels": {"machine.dockerios.io/uid": UID}, "annotations": {"cdi.kubevirt.io/cloneType": "csi-clone"}},
                "spec": {}, "status": {"phase": "Bound"}}),
            );
        }
    }

    /// KubeVirt has the instance in that phase since now.
    pub fn instance(&mut self, phase: &str) {
        let known = self.get("VirtualMachineInstance", VM).cloned();
        let mut vmi = known.unwrap_or_else(|| {
            let labels =
                self.get("VirtualMachine", VM).expect("a VM")["spec"]["template"]["metadata"]["labels"].clone();
            json!({"metadata": {"name": VM, "namespace": "team-a", "labels": labels}, "spec": {}, "status": {}})
        });
        let now = self.now.to_string();
        vmi["status"]["phase"] = phase.into();
        let mut times = vmi["status"]["phaseTransitionTimestamps"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        times.push(json!({"phase": phase, "phaseTransitionTimestamp": now}));
        vmi["status"]["phaseTransitionTimestamps"] = times.into();
        let pod_phase = match phase {
            "Running" | "Scheduled" => "Running",
            "Succeeded" | "Failed" => phase,
            _ => "Pending",
        };
        if phase == "Running" || phase == "Scheduled" {
            vmi["status"]["nodeName"] = "n1".into();
        }
        let labels = vmi["metadata"]["labels"].clone();
        self.put("VirtualMachineInstance", vmi);
        self.put(
            "Pod",
            json!({"metadata": {"name": "launcher", "namespace": "team-a", "labels": labels},
            "spec": {"nodeName": "n1", "containers": []}, "status": {"phase": pod_phase}}),
        );
    }

    /// The guest reports now.
    pub fn report(&mut self, ready: bool) {
        let now = self.now.to_string();
        self.edit("MacOSMachine", "m", |machine| {
            let stage = if ready { "Ready" } else { "LoginWindow" };
            machine["status"]["guest"] = json!({"stage": stage, "ready": ready, "lastReport": now});
        });
    }

    /// A machine whose guest is ready.
    pub fn ready() -> Self {
        let mut world = Self::new();
        world.bring_to_ready();
        assert_eq!(world.phase(), MachinePhase::Ready, "{}", world.message("Ready"));
        world
    }

    pub fn bring_to_ready(&mut self) {
        self.settle();
        self.wait(5);
        self.cloned();
        self.instance("Scheduling");
        self.settle();
        self.wait(5);
        self.instance("Running");
        self.settle();
        self.wait(30);
        self.report(true);
        self.settle();
    }
}

fn word(step: &Step) -> &'static str {
    match step {
        Step::Create(_) | Step::CreateHookConfig(_) | Step::CreateGuestConfig(_) => "create",
        Step::Replace(_) | Step::ReplaceStatus(..) => "replace",
        Step::Merge(..) => "merge",
        Step::AddFinalizer(..) => "guard",
        Step::RemoveFinalizer(..) => "release",
        Step::Delete(_) | Step::DeleteLabelled { .. } => "delete",
        Step::CancelEvacuation { .. } => "cancel",
        Step::KeepScreen { .. } => "keep",
        #[allow(unreachable_patterns)]
        _ => "other",
    }
}

fn merge(object: &mut Value, patch: &Value) {
    match patch {
        Value::Object(fields) => {
            if !object.is_object() {
                *object = json!({});
            }
            for (key, value) in fields {
                merge(&mut object[key.as_str()], value);
            }
        }
        other => *object = other.clone(),
    }
}

/// Equal but for versions.
fn same(one: &BTreeMap<(String, String), Value>, other: &BTreeMap<(String, String), Value>) -> bool {
    let bare = |all: &BTreeMap<(String, String), Value>| {
        let mut all = all.clone();
        for object in all.values_mut() {
            object["metadata"]["resourceVersion"] = Value::Null;
        }
        all
    };
    bare(one) == bare(other)
}
