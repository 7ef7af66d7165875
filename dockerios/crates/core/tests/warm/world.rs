//! A namespace in memory: an API server of a few lines (versions, preconditions, names, write-once fields), and
//! machines that become Ready, fail and go when they are told to.

use std::sync::Arc;

use dockerios_api::{
    MacOSMachine, MacOSMachineClaim, MacOSMachineClass, MacOSMachinePool, PlatformConfig,
    condition::{Condition, Verdict, of},
    machine::macos_machine::{MacOSMachineStatus, MachineFailure},
};
use dockerios_core::{
    Id, Kind, Object, Plan, Seen, Step,
    check::check,
    decide::{claim, pool},
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{api::core::v1::Namespace, apimachinery::pkg::apis::meta::v1::Time};
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

pub const SPACE: &str = "team-a";
pub const CLASS: &str = "build";

/// When all begins.
pub fn start() -> Timestamp {
    "2026-03-02T09:00:00Z".parse().expect("a time")
}

/// What one pass reads; an old one is a stale cache.
#[derive(Clone)]
pub struct View {
    pub pools: Vec<Arc<MacOSMachinePool>>,
    pub machines: Vec<Arc<MacOSMachine>>,
    pub claims: Vec<Arc<MacOSMachineClaim>>,
    pub class: Seen<Arc<MacOSMachineClass>>,
}

pub struct World {
    pub now: Timestamp,
    pub view: View,
    pub platform: Seen<Arc<PlatformConfig>>,
    version: u64,
}

/// Why a step was not made.
#[derive(Debug, PartialEq, Eq)]
pub enum Not {
    Conflict,
    Refused,
}

impl World {
    pub fn new() -> Self {
        let class: MacOSMachineClass = serde_json::from_value(json!({
            "apiVersion": "machine.dockerios.io/v1alpha1", "kind": "MacOSMachineClass", "metadata": {"name": CLASS},
            "spec": {"imageName": "i", "identity": {"type": "PerMachine", "perMachine": {"poolName": "p"}},
                     "cpu": {"cores": 4, "model": "Haswell"}, "memory": {"size": "8Gi"},
                     "systemDisk": {"size": "200Gi", "storageClassName": "s"}}
        }))
        .expect("a class");
        Self {
            now: start(),
            view: View {
                pools: Vec::new(),
                machines: Vec::new(),
                claims: Vec::new(),
                class: Seen::Present(Arc::new(class)),
            },
            platform: Seen::Absent,
            version: 1,
        }
    }

    fn meta(&mut self, name: &str) -> Value {
        self.version += 1;
        let version = self.version;
        // uids differ in their first eight digits, which names are made of
        json!({"name": name, "namespace": SPACE, "uid": format!("{version:08x}-0000-4000-8000-000000000000"),
               "resourceVersion": version.to_string(), "generation": 1, "creationTimestamp": self.now})
    }

    pub fn pool(&mut self, name: &str, replicas: i32, most: i32) {
        let pool = json!({"apiVersion": "machine.dockerios.io/v1alpha1", "kind": "MacOSMachinePool",
            "metadata": self.meta(name), "spec": {"machineClassName": CLASS, "replicas": replicas, "maxMachines": most}});
        self.view
            .pools
            .push(Arc::new(serde_json::from_value(pool).expect("a pool")));
    }

    pub fn claim(&mut self, name: &str, spec: Value) {
        let claim = json!({"apiVersion": "machine.dockerios.io/v1alpha1", "kind": "MacOSMachineClaim",
            "metadata": self.meta(name), "spec": spec});
        self.view
            .claims
            .push(Arc::new(serde_json::from_value(claim).expect("a claim")));
    }

    pub fn pass_time(&mut self, seconds: i64) {
        self.now = self
            .now
            .checked_add(SignedDuration::from_secs(seconds))
            .expect("a time");
    }

    pub fn find_claim(&self, name: &str) -> MacOSMachineClaim {
        let found = self.view.claims.iter().find(|c| c.name_any() == name);
        found.expect("the claim is there").as_ref().clone()
    }

    pub fn find_pool(&self, name: &str) -> MacOSMachinePool {
        let found = self.view.pools.iter().find(|p| p.name_any() == name);
        found.expect("the pool is there").as_ref().clone()
    }

    /// Machines that name the claim.
    pub fn machines_of(&self, claim: &MacOSMachineClaim) -> Vec<Arc<MacOSMachine>> {
        let uid = claim.uid();
        let all = self.view.machines.iter();
        all.filter(|m| m.spec.claim_ref.as_ref().map(|c| &c.uid) == uid.as_ref())
            .cloned()
            .collect()
    }

    /// Changes a machine in place, as its own pass or a person would.
    pub fn touch(&mut self, name: &str, change: impl FnOnce(&mut MacOSMachine)) {
        self.version += 1;
        let version = self.version.to_string();
        let found = self.view.machines.iter_mut().find(|m| m.name_any() == name);
        let machine = Arc::make_mut(found.expect("the machine is there"));
        change(machine);
        machine.metadata.resource_version = Some(version);
    }

    pub fn touch_claim(&mut self, name: &str, change: impl FnOnce(&mut MacOSMachineClaim)) {
        self.version += 1;
        let version = self.version.to_string();
        let found = self.view.claims.iter_mut().find(|c| c.name_any() == name);
        let claim = Arc::make_mut(found.expect("the claim is there"));
        change(claim);
        claim.metadata.resource_version = Some(version);
        claim.metadata.generation = claim.metadata.generation.map(|g| g + 1);
    }

    pub fn touch_pool(&mut self, name: &str, change: impl FnOnce(&mut MacOSMachinePool)) {
        self.version += 1;
        let version = self.version.to_string();
        let found = self.view.pools.iter_mut().find(|p| p.name_any() == name);
        let pool = Arc::make_mut(found.expect("the pool is there"));
        change(pool);
        pool.metadata.resource_version = Some(version);
    }

    pub fn ready(&mut self, name: &str) {
        let now = self.now;
        self.touch(name, |machine| {
            say(machine, Verdict::True, "Ready", "", now);
            status(machine).first_ready_at.get_or_insert(Time(now));
        });
    }

    /// Its guest says nothing any more.
    pub fn silence(&mut self, name: &str) {
        let now = self.now;
        self.touch(name, |machine| say(machine, Verdict::Unknown, "GuestSilent", "", now));
    }

    pub fn fail(&mut self, name: &str) {
        let now = self.now;
        self.touch(name, |machine| {
            say(machine, Verdict::False, "ReadinessTimeout", "the guest hung", now);
            status(machine).failure = Some(MachineFailure {
                reason: "ReadinessTimeout".into(),
                message: "the guest hung".into(),
                at: Time(now),
                screen: None,
            });
        });
    }

    /// Whatever is being deleted goes, and so does what is orphaned, as the machine's own pass sees to it.
    pub fn sweep(&mut self) {
        let orphans: Vec<Step> = self
            .view
            .machines
            .iter()
            .filter_map(|machine| {
                let name = machine.spec.claim_ref.as_ref()?.name.0.clone();
                let found = self.view.claims.iter().find(|c| c.name_any() == name).cloned();
                claim::orphaned(machine, &Seen::from(found))
            })
            .collect();
        for step in orphans {
            self.apply(&step).expect("the version is the present one");
        }
        self.view
            .machines
            .retain(|machine| machine.metadata.deletion_timestamp.is_none());
    }

    pub fn claim_facts(&self, name: &str, view: &View) -> Option<claim::Facts> {
        let claim = view.claims.iter().find(|c| c.name_any() == name)?.clone();
        Some(claim::Facts {
            claim,
            claims: Seen::Present(view.claims.clone()),
            machines: Seen::Present(view.machines.clone()),
            pools: Seen::Present(view.pools.clone()),
            class: view.class.clone(),
            namespace: Seen::Present(Arc::new(Namespace::default())),
            platform: self.platform.clone(),
            refusal: None,
        })
    }

    pub fn pool_facts(&self, name: &str, view: &View) -> Option<pool::Facts> {
        let pool = view.pools.iter().find(|p| p.name_any() == name)?.clone();
        Some(pool::Facts {
            pool,
            class: view.class.clone(),
            namespace: Seen::Present(Arc::new(Namespace::default())),
            pools: Seen::Present(view.pools.clone()),
            machines: Seen::Present(view.machines.clone()),
            claims: Seen::Present(view.claims.clone()),
            refusal: None,
        })
    }

    pub fn decide_claim(&self, name: &str, view: &View) -> Plan {
        let facts = self.claim_facts(name, view).expect("the claim is there");
        judged(claim::decide(&facts, self.now))
    }

    pub fn decide_pool(&self, name: &str, view: &View) -> Plan {
        let facts = self.pool_facts(name, view).expect("the pool is there");
        judged(pool::decide(&facts, self.now))
    }

    /// A pass over a claim, from what is there now. Gives the plan that was carried out.
    pub fn run_claim(&mut self, name: &str) -> Plan {
        let plan = self.decide_claim(name, &self.view);
        let version = self.find_claim(name).resource_version();
        self.carry_out(&plan, usize::MAX);
        self.write_status(Kind::MacOSMachineClaim, name, version, &plan);
        plan
    }

    /// A pass over a pool.
    pub fn run_pool(&mut self, name: &str) -> Plan {
        let plan = self.decide_pool(name, &self.view);
        let version = self.find_pool(name).resource_version();
        self.carry_out(&plan, usize::MAX);
        self.write_status(Kind::MacOSMachinePool, name, version, &plan);
        plan
    }

    /// The first `most` steps, up to the first that fails.
    pub fn carry_out(&mut self, plan: &Plan, most: usize) {
        for step in plan.steps.iter().take(most) {
            if self.apply(step).is_err() {
                return;
            }
        }
    }

    /// Written in the version that was decided on, or not at all.
    pub fn write_status(&mut self, kind: Kind, name: &str, version: Option<String>, plan: &Plan) {
        let Some(value) = plan.status.clone() else { return };
        self.version += 1;
        let next = Some(self.version.to_string());
        if kind == Kind::MacOSMachinePool {
            let found = self.view.pools.iter_mut().find(|p| p.name_any() == name);
            if let Some(pool) = found.filter(|p| p.resource_version() == version) {
                let pool = Arc::make_mut(pool);
                pool.status = serde_json::from_value(value).expect("a pool's status");
                pool.metadata.resource_version = next;
            }
            return;
        }
        let found = self.view.claims.iter_mut().find(|c| c.name_any() == name);
        if let Some(claim) = found.filter(|c| c.resource_version() == version) {
            let claim = Arc::make_mut(claim);
            let before = claim.status.clone().unwrap_or_default();
            claim.status = serde_json::from_value(value).expect("a claim's status");
            claim.metadata.resource_version = next;
            let after = claim.status.clone().unwrap_or_default();
            assert!(before.end.is_none() || before.end == after.end, "[claim-ends-once]");
            let moved = before.machine_ref.is_some() && before.machine_ref != after.machine_ref;
            assert!(!moved, "[claim-bound-once] {before:?} {after:?}");
        }
    }

    pub fn apply(&mut self, step: &Step) -> Result<(), Not> {
        match step {
            Step::Create(object) => self.create(object),
            Step::Replace(object) => self.replace(object),
            Step::Delete(target) => self.delete(&target.id, &target.uid, target.resource_version.as_deref()),
            other => panic!("no such step is expected here: {other:?}"),
        }
    }

    fn create(&mut self, object: &Object) -> Result<(), Not> {
        let id = object.id();
        let given = self
            .view
            .machines
            .iter()
            .find(|m| !id.name.is_empty() && m.name_any() == id.name);
        if let Some(there) = given {
            let same = there.metadata.labels == serde_json::from_value(object.body["metadata"]["labels"].clone()).ok();
            return if same { Ok(()) } else { Err(Not::Refused) };
        }
        let name = match object.meta("generateName") {
            Some(prefix) => format!("{prefix}{}", self.version + 1),
            None => id.name,
        };
        let mut body = object.body.clone();
        for (key, value) in self.meta(&name).as_object().expect("an object") {
            body["metadata"][key] = value.clone();
        }
        let machine = serde_json::from_value(body).expect("the machine has the form of its kind");
        self.view.machines.push(Arc::new(machine));
        Ok(())
    }

    fn replace(&mut self, object: &Object) -> Result<(), Not> {
        let new: MacOSMachine = serde_json::from_value(object.body.clone()).expect("a machine");
        let found = self.view.machines.iter_mut().find(|m| m.name_any() == new.name_any());
        let Some(there) = found else { return Err(Not::Conflict) };
        if there.resource_version() != new.resource_version() || there.uid() != new.uid() {
            return Err(Not::Conflict);
        }
        let there = Arc::make_mut(there);
        let rebound = there.spec.claim_ref.is_some() && there.spec.claim_ref != new.spec.claim_ref;
        assert!(!rebound, "a machine was given to a second claim");
        // the main resource has no say about the status
        let status = there.status.clone();
        *there = MacOSMachine { status, ..new };
        self.version += 1;
        there.metadata.resource_version = Some(self.version.to_string());
        Ok(())
    }

    fn delete(&mut self, id: &Id, uid: &str, version: Option<&str>) -> Result<(), Not> {
        if id.kind == Kind::MacOSMachineClaim {
            self.view.claims.retain(|claim| claim.uid().as_deref() != Some(uid));
            return Ok(());
        }
        let found = self.view.machines.iter_mut().find(|m| m.uid().as_deref() == Some(uid));
        let Some(there) = found else { return Ok(()) };
        if version.is_some_and(|version| there.resource_version().as_deref() != Some(version)) {
            return Err(Not::Conflict);
        }
        self.version += 1;
        let machine = Arc::make_mut(there);
        machine.meta_mut().deletion_timestamp = Some(Time(self.now));
        machine.metadata.resource_version = Some(self.version.to_string());
        Ok(())
    }
}

fn judged(plan: Plan) -> Plan {
    assert_eq!(check(&plan), Ok(()), "{plan:#?}");
    plan
}

fn status(machine: &mut MacOSMachine) -> &mut MacOSMachineStatus {
    machine.status.get_or_insert_default()
}

/// Sets the machine's `Ready`.
pub fn say(machine: &mut MacOSMachine, verdict: Verdict, reason: &str, message: &str, now: Timestamp) {
    status(machine).conditions = vec![Condition {
        kind: "Ready".into(),
        status: verdict,
        observed_generation: None,
        last_transition_time: Time(now),
        reason: reason.into(),
        message: message.into(),
    }];
}

/// Verdict, reason and message of a condition in a plan's status.
pub fn condition(plan: &Plan, kind: &str) -> (Verdict, String, String) {
    let status = plan.status.as_ref().expect("the plan reports");
    let all: Vec<Condition> = serde_json::from_value(status["conditions"].clone()).expect("conditions");
    let found = of(&all, kind).expect("the condition is said");
    (found.status, found.reason.clone(), found.message.clone())
}

/// Deletions of a plan, by name.
pub fn deleted(plan: &Plan) -> Vec<String> {
    let name = |step: &Step| matches!(step, Step::Delete(_)).then(|| step.id().name);
    plan.steps.iter().filter_map(name).collect()
}

/// Machines that the plan makes: for which claim (by uid), or for the stock.
pub fn made(plan: &Plan) -> Vec<Option<String>> {
    let of = |step: &Step| match step {
        Step::Create(object) => Some(object.body["spec"]["claimRef"]["uid"].as_str().map(str::to_owned)),
        _ => None,
    };
    plan.steps.iter().filter_map(of).collect()
}
