//! What the difference between two statuses is worth counting. Pure: the status that is there, the one that is to be
//! written, what is known beside them.
//!
//! Invariant: each is found at one transition alone, and counted once the status that makes the transition was written,
//! at the version it was decided on. So an operator that is restarted, or decides again after a conflict, counts
//! nothing twice; one that dies between write and count has lost that count.

use dockerios_api::{
    MacOSMachine, MacOSMachineClaim, MacOSMachineClaimStatus, MacOSMachineStatus,
    condition::{holds, of},
    machine::macos_machine::{MachineCondition, MachineReason},
    names::{TEARDOWN, for_claim, of_machine},
};
use dockerios_core::{Id, Kind, Plan, Step};
use dockerios_kubevirt::names::CLONE_TYPE;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use serde::Deserialize;
use serde_json::Value;

use super::word;
use crate::{headroom::bytes, index::Index, world::World};

/// One thing to count.
#[derive(Clone, Debug, PartialEq)]
pub enum Measure {
    /// A machine is in that phase no more.
    PhaseLeft {
        /// Its class; empty when there is none of that name.
        class: String,
        /// The phase.
        phase: String,
        /// For how long it was.
        seconds: f64,
    },
    /// A claim has its machine.
    ClaimBound {
        /// Its namespace.
        namespace: String,
        /// The pool that it names; empty when it names a class.
        pool: String,
        /// The class that it gets.
        class: String,
        /// How it came by the machine.
        start: Start,
        /// Since its creation.
        seconds: f64,
    },
    /// A machine cannot start for the domain hook.
    HookFailed {
        /// Its class.
        class: String,
    },
    /// A disk was cloned.
    Cloned {
        /// Where it is.
        storage_class: String,
        /// How CDI did it.
        strategy: Strategy,
        /// Its size.
        bytes: u64,
    },
}

/// How a claim came by its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// It was there, or on its way for whoever comes.
    Warm,
    /// It was made for this claim.
    Cold,
}

impl Start {
    /// As a label.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Warm => "warm",
            Self::Cold => "cold",
        }
    }
}

/// How CDI cloned a disk, by its own annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// The driver did.
    Csi,
    /// From a snapshot.
    Snapshot,
    /// A pod read it all and wrote it all.
    Copy,
    /// CDI does not say, or says a word that is not known here.
    Unknown,
}

impl Strategy {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Csi, Self::Snapshot, Self::Copy, Self::Unknown];

    fn of(told: Option<&str>) -> Self {
        match told {
            Some("csi-clone") => Self::Csi,
            Some("snapshot") => Self::Snapshot,
            Some("copy") => Self::Copy,
            _ => Self::Unknown,
        }
    }

    /// As a label: CDI's word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Csi => "csi-clone",
            Self::Snapshot => "snapshot",
            Self::Copy => "copy",
            Self::Unknown => "unknown",
        }
    }
}

/// What is to be counted once `plan` was carried out.
pub fn of_plan(world: &World, id: &Id, plan: &Plan, now: Timestamp) -> Vec<Measure> {
    match id.kind {
        Kind::MacOSMachine => {
            let seen = world.machines.get(&id.namespace, &id.name);
            seen.present()
                .map(|machine| machine_measures(world, machine, plan, now))
                .unwrap_or_default()
        }
        Kind::MacOSMachineClaim => {
            let seen = world.claims.get(&id.namespace, &id.name);
            let bound = seen
                .present()
                .zip(plan.status.as_ref())
                .and_then(|(claim, after)| bound(world, claim, after));
            bound.into_iter().collect()
        }
        Kind::MacOSImage => published(world, id, plan.status.as_ref()),
        _ => Vec::new(),
    }
}

fn machine_measures(world: &World, machine: &MacOSMachine, plan: &Plan, now: Timestamp) -> Vec<Measure> {
    let class = class_label(world, &machine.spec.machine_class_name);
    let before = machine.status.as_ref();
    let after = plan
        .status
        .as_ref()
        .and_then(|s| MacOSMachineStatus::deserialize(s).ok());
    let goes = plan
        .steps
        .iter()
        .any(|step| matches!(step, Step::RemoveFinalizer(_, finalizer, _) if *finalizer == TEARDOWN));
    let mut measures = Vec::new();
    let left = |before: &&MacOSMachineStatus| goes || after.as_ref().is_some_and(|after| after.phase != before.phase);
    if let Some(before) = before.filter(left)
        && let (Some(phase), Some(since)) = (&before.phase, &before.phase_since)
    {
        measures.push(Measure::PhaseLeft {
            class: class.clone(),
            phase: word(phase),
            seconds: between(since.0, now),
        });
    }
    let Some(after) = after else { return measures };
    let stood = |kind: MachineCondition| before.and_then(|before| of(&before.conditions, kind.word()));
    let failed = |reason: &str| reason == MachineReason::HookFailed.word();
    let fails = of(&after.conditions, MachineCondition::InstanceRunning.word()).is_some_and(|c| failed(&c.reason));
    if fails && !stood(MachineCondition::InstanceRunning).is_some_and(|c| failed(&c.reason)) {
        measures.push(Measure::HookFailed { class });
    }
    // True once and for all: it is left only for a volume that is lost, which may be found again
    let cloned = MachineCondition::DiskCloned;
    let lost = |reason: &str| reason == MachineReason::VolumeLost.word();
    let first = !before.is_some_and(|before| holds(&before.conditions, cloned.word()))
        && !stood(cloned).is_some_and(|c| lost(&c.reason));
    if first && holds(&after.conditions, cloned.word()) {
        let uid = machine.uid().unwrap_or_default();
        let volumes = world.volumes.by(Index::MachineUid, &uid);
        // tenants may put that label on volumes of theirs, with any storage class
        let disks = ["system", "boot"].map(|role| of_machine(&machine.name_any(), &uid, role));
        let own = volumes.present().into_iter().flatten();
        let own = own.filter(|volume| volume.namespace() == machine.namespace() && disks.contains(&volume.name_any()));
        measures.extend(own.map(|volume| disk(volume)));
    }
    measures
}

fn disk(volume: &PersistentVolumeClaim) -> Measure {
    let spec = volume.spec.as_ref();
    let held = volume.status.as_ref().and_then(|status| status.capacity.as_ref());
    let asked = spec.and_then(|spec| spec.resources.as_ref()?.requests.as_ref());
    let size = held.and_then(|sizes| sizes.get("storage"));
    let size = size.or_else(|| asked.and_then(|sizes| sizes.get("storage")));
    Measure::Cloned {
        storage_class: spec
            .and_then(|spec| spec.storage_class_name.clone())
            .unwrap_or_default(),
        strategy: Strategy::of(volume.annotations().get(CLONE_TYPE).map(String::as_str)),
        bytes: size.and_then(|size| bytes(&size.0)).unwrap_or_default(),
    }
}

fn bound(world: &World, claim: &MacOSMachineClaim, after: &Value) -> Option<Measure> {
    let before = claim.status.as_ref().and_then(|status| status.bound_at.as_ref());
    let after = MacOSMachineClaimStatus::deserialize(after).ok()?;
    let (at, machine) = (after.bound_at?, after.machine_ref?);
    if before.is_some() {
        return None;
    }
    let namespace = claim.namespace()?;
    let pool = claim.spec.pool_name.as_ref();
    let pool = pool.and_then(|name| world.pools.get(&namespace, name).present().cloned());
    let class = pool.as_ref().map(|pool| &pool.spec.machine_class_name);
    let class = class.or(claim.spec.machine_class_name.as_ref());
    let made = *machine.name == for_claim(&claim.uid()?);
    Some(Measure::ClaimBound {
        pool: pool.as_ref().map(|pool| pool.name_any()).unwrap_or_default(),
        class: class.map(|class| class_label(world, class)).unwrap_or_default(),
        start: if made { Start::Cold } else { Start::Warm },
        seconds: between(claim.metadata.creation_timestamp.as_ref()?.0, at.0),
        namespace,
    })
}

/// A golden disk that was cloned from a volume or snapshot; an import from elsewhere is no clone.
fn published(world: &World, id: &Id, after: Option<&Value>) -> Vec<Measure> {
    let seen = world.images.get("", &id.name);
    let published = |status: &Value| !status["published"].is_null();
    let before = seen
        .present()
        .and_then(|image| image.status.as_ref())
        .is_some_and(|status| status.published.is_some());
    if before || !after.is_some_and(published) {
        return Vec::new();
    }
    let volumes = world.volumes.by(Index::Image, &id.name);
    let volumes = volumes.present().into_iter().flatten();
    let own = volumes.filter(|volume| {
        volume
            .namespace()
            .is_some_and(|space| space == world.platform_namespace)
    });
    let cloned = own.filter(|volume| volume.annotations().contains_key(CLONE_TYPE));
    cloned.map(|volume| disk(volume)).collect()
}

/// The class's name as a label: empty when there is none of that name, since tenants may write any.
pub(super) fn class_label(world: &World, name: &str) -> String {
    if world.classes.get("", name).absent() {
        String::new()
    } else {
        name.to_owned()
    }
}

fn between(since: Timestamp, until: Timestamp) -> f64 {
    // clocks may differ: a machine's first phase began by the API server's
    until.duration_since(since).as_secs_f64().max(0.0)
}
