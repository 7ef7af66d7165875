//! A cluster of two dozen lines: it stores what plans write, holds finalizers, and proves guards against what is there.
//! Its builder builds at once.

use std::{collections::BTreeMap, sync::Arc};

use dockerios_api::{Name, identity::machine_identity::IdentityClaimRef};
use dockerios_core::{
    Guard, Id, Kind, Plan, Seen, Step, Target,
    decide::{identity, identity_pool},
    plan::{Refusal, RefusalCause},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::build::*;

#[derive(Clone, Default)]
pub struct Cluster {
    pub objects: BTreeMap<Id, Value>,
    version: u64,
    refusals: BTreeMap<Id, Refusal>,
}

impl Cluster {
    pub fn put(&mut self, id: Id, mut body: Value) {
        self.version += 1;
        body["metadata"]["resourceVersion"] = self.version.to_string().into();
        if body["metadata"]["uid"].is_null() {
            body["metadata"]["uid"] = format!("uid-{}", self.version).into();
        }
        let gone = body["metadata"]["deletionTimestamp"].is_string();
        let held = body["metadata"]["finalizers"]
            .as_array()
            .is_some_and(|all| !all.is_empty());
        if gone && !held {
            self.objects.remove(&id);
        } else {
            self.objects.insert(id, body);
        }
    }

    pub fn of(&self, kind: Kind) -> Vec<&Value> {
        self.objects
            .iter()
            .filter(|(id, _)| id.kind == kind)
            .map(|(_, body)| body)
            .collect()
    }

    pub fn delete(&mut self, id: &Id) {
        if let Some(mut body) = self.objects.get(id).cloned() {
            body["metadata"]["deletionTimestamp"] = "2026-03-02T09:00:00Z".into();
            self.put(id.clone(), body);
        }
    }

    fn typed<T: DeserializeOwned>(&self, id: &Id) -> Seen<Arc<T>> {
        self.objects.get(id).map(|body| Arc::new(typed(body.clone()))).into()
    }

    fn all<T: DeserializeOwned>(&self, kind: Kind) -> Vec<Arc<T>> {
        self.of(kind)
            .into_iter()
            .map(|body| Arc::new(typed(body.clone())))
            .collect()
    }

    fn exact(&self, target: &Target) -> bool {
        self.objects.get(&target.id).is_some_and(|body| {
            body["metadata"]["uid"] == target.uid.as_str()
                && target
                    .resource_version
                    .as_ref()
                    .is_none_or(|version| body["metadata"]["resourceVersion"] == version.as_str())
        })
    }

    fn carriers(&self, identity: &str) -> Vec<identity::Carrier> {
        let of_it = |vm: &&Value| vm["metadata"]["labels"]["identity.dockerios.io/name"] == identity;
        let carrier = |vm: &Value| {
            let label = |key: &str| vm["metadata"]["labels"][key].as_str().unwrap_or_default().to_owned();
            let by = IdentityClaimRef {
                namespace: Name("team-a".into()),
                name: Name(label("machine.dockerios.io/machine")),
                uid: label("machine.dockerios.io/uid"),
            };
            let stored = self
                .of(Kind::MacOSMachine)
                .iter()
                .any(|machine| machine["metadata"]["uid"] == by.uid.as_str());
            identity::Carrier {
                object: "VirtualMachine".into(),
                machine: Some(by),
                stored,
            }
        };
        self.of(Kind::VirtualMachine)
            .into_iter()
            .filter(of_it)
            .map(carrier)
            .collect()
    }

    fn proven(&self, guard: &Guard) -> Result<(), String> {
        match guard {
            Guard::IdentityUnused { identity, .. } if !self.carriers(identity).is_empty() => {
                Err(format!("a VirtualMachine carries {identity}"))
            }
            Guard::IdentityUnique { identity } => {
                let all = self.of(Kind::MachineIdentity);
                let name = |one: &Value| one["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                let mine = all.iter().find(|one| name(one) == *identity).ok_or("it is gone")?;
                let same = |other: &&&Value| name(other) != *identity && other["spec"]["mlb"] == mine["spec"]["mlb"];
                all.iter()
                    .find(same)
                    .map_or(Ok(()), |other| Err(format!("{} has the same mlb", name(other))))
            }
            _ => Ok(()),
        }
    }

    /// One write; false when it is refused or conflicts.
    pub fn apply(&mut self, of: &Id, step: &Step) -> bool {
        let guard = match step {
            Step::ReplaceStatus(_, guard) | Step::RemoveFinalizer(.., guard) => guard.as_ref(),
            _ => None,
        };
        if let Some(Err(message)) = guard.map(|guard| self.proven(guard)) {
            let refusal = Refusal {
                of: step.id(),
                cause: RefusalCause::Unproven,
                message,
            };
            self.refusals.insert(of.clone(), refusal);
            return false;
        }
        match step {
            Step::Create(object) => {
                if !self.objects.contains_key(&object.id()) {
                    self.put(object.id(), object.body.clone());
                }
                true
            }
            Step::ReplaceStatus(object, _) => {
                let id = object.id();
                let Some(mut there) = self.objects.get(&id).cloned() else {
                    return false;
                };
                if there["metadata"]["resourceVersion"] != object.body["metadata"]["resourceVersion"] {
                    return false;
                }
                there["status"] = object.body["status"].clone();
                self.put(id, there);
                true
            }
            Step::AddFinalizer(target, finalizer) | Step::RemoveFinalizer(target, finalizer, _) => {
                if !self.exact(target) {
                    return false;
                }
                let mut there = self.objects[&target.id].clone();
                let mut all: Vec<Value> = there["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
                all.retain(|one| one != finalizer);
                if matches!(step, Step::AddFinalizer(..)) {
                    all.push((*finalizer).into());
                }
                there["metadata"]["finalizers"] = all.into();
                self.put(target.id.clone(), there);
                true
            }
            Step::Delete(target) => {
                let exact = self.exact(target);
                if exact {
                    self.delete(&target.id.clone());
                }
                exact || !self.objects.contains_key(&target.id)
            }
            Step::Merge(target, _) => {
                let mut there = self.objects[&target.id].clone();
                there["metadata"]["annotations"] = Value::Null;
                self.put(target.id.clone(), there);
                true
            }
            other => panic!("not a step of these kinds: {other:?}"),
        }
    }

    pub fn identity(&self, id: &Id) -> Option<Plan> {
        let identity = self.typed::<dockerios_api::MachineIdentity>(id).present()?.clone();
        let claim = identity.status.as_ref().and_then(|status| status.claim_ref.clone());
        let facts = identity::Facts {
            pool: self.typed(&Id::new(Kind::IdentityPool, "", "imacpro")),
            platform: Seen::Present(Arc::new(platform())),
            fleet: Seen::Present(self.all(Kind::MachineIdentity)),
            machine: claim.map_or(Seen::Absent, |claim| {
                self.typed(&Id::new(
                    Kind::MacOSMachine,
                    claim.namespace.0.clone(),
                    claim.name.0.clone(),
                ))
            }),
            carriers: Seen::Present(self.carriers(&id.name)),
            volume: self.typed(&Id::new(
                Kind::PersistentVolumeClaim,
                HOME,
                format!("bootdisk-{}", id.name),
            )),
            jobs: Seen::Present(self.of_identity(Kind::Job, &id.name)),
            pods: Seen::Present(self.of_identity(Kind::Pod, &id.name)),
            builds: Seen::Present(0),
            platform_namespace: HOME.into(),
            refusal: self.refusals.get(id).cloned(),
            identity,
        };
        Some(judged(identity::decide(&facts, now())))
    }

    fn of_identity<T: DeserializeOwned>(&self, kind: Kind, identity: &str) -> Vec<Arc<T>> {
        let all = self.of(kind).into_iter();
        let mine = all.filter(|one| one["metadata"]["labels"]["identity.dockerios.io/bootdisk-of"] == identity);
        mine.map(|one| Arc::new(typed(one.clone()))).collect()
    }

    pub fn pool(&self, id: &Id, seed: u8) -> Option<Plan> {
        let facts = identity_pool::Facts {
            pool: self.typed::<dockerios_api::IdentityPool>(id).present()?.clone(),
            fleet: Seen::Present(self.all(Kind::MachineIdentity)),
            platform: Seen::Present(Arc::new(platform())),
            machines: Seen::Present(Vec::new()),
            seed: [seed; 32],
        };
        Some(judged(identity_pool::decide(&facts, now())))
    }

    /// Builders build, and pods go with their Jobs.
    fn play(&mut self) {
        let jobs: Vec<Value> = self.of(Kind::Job).into_iter().cloned().collect();
        for mut job in jobs.into_iter().filter(|job| job["status"].is_null()) {
            let name = job["metadata"]["name"].as_str().expect("a name").to_owned();
            job["status"] = json!({"conditions": [{"type": "Complete", "status": "True"}]});
            self.put(Id::new(Kind::Job, HOME, &name), job.clone());
            let mut labels = job["metadata"]["labels"].clone();
            labels["batch.kubernetes.io/job-name"] = name.as_str().into();
            let state = json!({"terminated": {"exitCode": 0, "message": "ab".repeat(32)}});
            let pod = json!({"metadata": {"name": name, "namespace": HOME, "labels": labels},
                "status": {"phase": "Succeeded", "containerStatuses": [{"name": "builder", "image": "", "imageID": "",
                    "ready": false, "restartCount": 0, "state": state}]}});
            self.put(Id::new(Kind::Pod, HOME, &name), pod);
        }
        let orphan = |id: &Id| id.kind == Kind::Pod && !self.objects.contains_key(&Id::new(Kind::Job, HOME, &id.name));
        let orphans: Vec<Id> = self.objects.keys().filter(|id| orphan(id)).cloned().collect();
        for id in orphans {
            self.objects.remove(&id);
        }
    }

    fn ids(&self) -> Vec<Id> {
        let mine = |id: &&Id| matches!(id.kind, Kind::IdentityPool | Kind::MachineIdentity);
        self.objects.keys().filter(mine).cloned().collect()
    }

    /// One pass over everything; at most `budget` writes are made before the operator dies. False when nothing changed.
    pub fn round(&mut self, seed: u8, budget: &mut usize) -> bool {
        let mut changed = false;
        for id in self.ids() {
            let plan = match id.kind {
                Kind::IdentityPool => self.pool(&id, seed),
                _ => self.identity(&id),
            };
            let Some(plan) = plan else { continue };
            self.refusals.remove(&id);
            for step in &plan.steps {
                if *budget == 0 {
                    return true;
                }
                *budget -= 1;
                if !self.apply(&id, step) {
                    break;
                }
                changed = true;
            }
        }
        self.play();
        changed
    }

    /// Until nothing changes.
    pub fn settle(&mut self) {
        for seed in 1..=40 {
            if !self.round(seed, &mut usize::MAX.clone()) {
                return;
            }
        }
        panic!("it never comes to rest");
    }
}
