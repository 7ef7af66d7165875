//! How an identity changes hands. Each function gives one write at the resourceVersion that was decided on: whoever
//! comes second decides again.

use std::fmt;

use dockerios_api::{
    MacOSMachine, MachineIdentity, MachineIdentityStatus, Name,
    condition::{holds, of},
    identity::{
        machine_identity::{IdentityClaimRef, IdentityCondition, IdentityPhase, IdentityReason},
        pool::IdentityReclaimPolicy,
    },
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use serde_json::Value;

use crate::{Guard, Kind, Object, Step, report::Report};

/// Why an identity cannot be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotTakeable {
    /// A machine has it already.
    Taken(IdentityClaimRef),
    /// Its own controller has not said that it is Available; the word is the reason that it gave, if it gave one.
    NotAvailable(String),
    /// It is being deleted.
    Deleting,
    /// The machine has no name, namespace or uid: it was never stored.
    NoMachine,
}

impl fmt::Display for NotTakeable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Taken(by) => write!(f, "machine {}/{} has it", by.namespace, by.name),
            Self::NotAvailable(reason) if reason.is_empty() => f.write_str("it has not been judged yet"),
            Self::NotAvailable(reason) => write!(f, "it is not available ({reason})"),
            Self::Deleting => f.write_str("it is being deleted"),
            Self::NoMachine => f.write_str("the machine that wants it is not stored"),
        }
    }
}

impl std::error::Error for NotTakeable {}

/// What an identity counts as, read from who has it and from what its controller said of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// On its way to being available.
    Preparing,
    /// Can be taken.
    Available,
    /// A machine has it, or had it and may still run with it.
    Allocated,
    /// Kept aside.
    Quarantined,
    /// Its bootdisk could not be built; tried again by itself.
    Failed,
    /// Being deleted, without a machine.
    Leaving,
}

/// What an identity counts as.
pub fn standing(identity: &MachineIdentity) -> Standing {
    let status = status(identity);
    let said = of(&status.conditions, IdentityCondition::Ready.word()).map_or("", |ready| ready.reason.as_str());
    let is = |reason: IdentityReason| said == reason.word();
    if status.claim_ref.is_some() || is(IdentityReason::StillRunning) {
        Standing::Allocated
    } else if identity.metadata.deletion_timestamp.is_some() {
        Standing::Leaving
    } else if takeable(identity).is_ok() {
        Standing::Available
    } else if [
        IdentityReason::Collision,
        IdentityReason::Invalid,
        IdentityReason::QuarantinedByPolicy,
        IdentityReason::PoolNotFound,
    ]
    .into_iter()
    .any(is)
    {
        Standing::Quarantined
    } else if is(IdentityReason::BuildFailed) {
        Standing::Failed
    } else {
        Standing::Preparing
    }
}

/// Whether a machine may take it: its controller said Available, proven unique, bootdisk built, nobody has it.
///
/// # Errors
/// Why not.
pub fn takeable(identity: &MachineIdentity) -> Result<(), NotTakeable> {
    let status = status(identity);
    if let Some(by) = status.claim_ref {
        return Err(NotTakeable::Taken(by));
    }
    if identity.metadata.deletion_timestamp.is_some() {
        return Err(NotTakeable::Deleting);
    }
    let ready = of(&status.conditions, IdentityCondition::Ready.word());
    let available = ready.is_some_and(|ready| ready.reason == IdentityReason::Available.word())
        && holds(&status.conditions, IdentityCondition::Ready.word())
        && status.unique_at.is_some()
        && status.boot_disk.is_some();
    if available {
        Ok(())
    } else {
        Err(NotTakeable::NotAvailable(
            ready.map(|ready| ready.reason.clone()).unwrap_or_default(),
        ))
    }
}

/// Gives the identity to the machine: the claimRef is set where it was empty, after the proof that nothing runs with
/// the identity.
///
/// # Errors
/// It cannot be taken, see [`takeable`].
pub fn take(identity: &MachineIdentity, machine: &MacOSMachine, now: Timestamp) -> Result<Step, NotTakeable> {
    takeable(identity)?;
    let (Some(namespace), Some(name), Some(uid)) = (
        &machine.metadata.namespace,
        &machine.metadata.name,
        &machine.metadata.uid,
    ) else {
        return Err(NotTakeable::NoMachine);
    };
    let by = IdentityClaimRef {
        namespace: Name(namespace.clone()),
        name: Name(name.clone()),
        uid: uid.clone(),
    };
    let mut status = status(identity);
    status.used_at = None;
    allocated(identity, &mut status, by, now);
    Ok(write(identity, status, Some(unused(identity))))
}

/// Takes the identity from its machine, after the proof that nothing runs with it. One whose machine never was Ready
/// becomes available again whatever the policy says; for a used one the policy decides. Released is what its own
/// controller goes on from: it makes the identity Available, or deletes it with its bootdisk.
///
/// `policy` is that of its pool. If the pool is gone, say Quarantine: a person then decides.
pub fn give_back(identity: &MachineIdentity, policy: IdentityReclaimPolicy, now: Timestamp) -> Step {
    let mut status = status(identity);
    status.claim_ref = None;
    let before = std::mem::take(&mut status.conditions);
    let mut report = Report::after(&before, identity.metadata.generation, now);
    for condition in &before {
        report.say(&condition.kind, condition.status, &condition.reason, &condition.message);
    }
    let policy = if status.used_at.is_none() {
        IdentityReclaimPolicy::Recycle
    } else {
        policy
    };
    let (phase, reason, message) = match policy {
        IdentityReclaimPolicy::Recycle => {
            status.used_at = None;
            // whether its bootdisk is still the right one is for its own controller to say, before it is given out
            (
                IdentityPhase::Released,
                IdentityReason::Reclaiming,
                "free again; its bootdisk is being looked at",
            )
        }
        IdentityReclaimPolicy::Quarantine => (
            IdentityPhase::Quarantined,
            IdentityReason::QuarantinedByPolicy,
            QUARANTINED,
        ),
        IdentityReclaimPolicy::Delete => (
            IdentityPhase::Released,
            IdentityReason::Reclaiming,
            "its machine is gone; it is deleted with its bootdisk, as its pool says",
        ),
    };
    report.say(IdentityCondition::Ready, false, reason, message);
    status.phase = Some(phase);
    status.conditions = report.done();
    write(identity, status, Some(unused(identity)))
}

/// What a quarantined identity says.
pub(super) const QUARANTINED: &str = "a machine was Ready with it, and its pool keeps used identities aside; give it \
                                      out again with: kubectl annotate machineidentity NAME \
                                      identity.dockerios.io/release=true, or delete it";
/// The way out of quarantine.
pub(super) const WAY_OUT: &str = "it is kept aside; give it out again with: kubectl annotate machineidentity NAME \
                                  identity.dockerios.io/release=true, or delete it";

/// Notes that its machine is Ready for the first time: from now on the policy decides what becomes of it. Written
/// before the machine says Ready, so that it survives a crash.
pub fn used(identity: &MachineIdentity, now: Timestamp) -> Step {
    let mut status = status(identity);
    status.used_at.get_or_insert(Time(now));
    write(identity, status, None)
}

/// The proof that nothing runs with it.
pub fn unused(identity: &MachineIdentity) -> Guard {
    Guard::IdentityUnused {
        identity: identity.name_any(),
        uuid: identity.spec.system_uuid.clone(),
    }
}

/// Its status; an empty one when it has none.
pub(super) fn status(identity: &MachineIdentity) -> MachineIdentityStatus {
    identity.status.clone().unwrap_or_default()
}

/// Says in `status` that the machine has it.
pub(super) fn allocated(
    identity: &MachineIdentity,
    status: &mut MachineIdentityStatus,
    by: IdentityClaimRef,
    now: Timestamp,
) {
    let before = std::mem::take(&mut status.conditions);
    let mut report = Report::after(&before, identity.metadata.generation, now);
    for condition in &before {
        report.say(&condition.kind, condition.status, &condition.reason, &condition.message);
    }
    let message = format!("machine {}/{} has it", by.namespace, by.name);
    report.say(IdentityCondition::Ready, true, IdentityReason::Allocated, message);
    status.conditions = report.done();
    status.phase = Some(IdentityPhase::Allocated);
    status.observed_generation = identity.metadata.generation;
    status.claim_ref = Some(by);
}

/// The write of that status at the identity's resourceVersion.
pub(super) fn write(identity: &MachineIdentity, status: MachineIdentityStatus, guard: Option<Guard>) -> Step {
    let object = MachineIdentity {
        status: Some(status),
        ..identity.clone()
    };
    // a kind of ours that is no JSON would be a defect: without its resourceVersion the plan is not carried out
    let object = Object::of(Kind::MachineIdentity, &object).unwrap_or(Object {
        kind: Kind::MachineIdentity,
        body: Value::Null,
    });
    Step::ReplaceStatus(object, guard)
}
