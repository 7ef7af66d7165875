//! The machine goes: its claim lets go, everything is given back in order, the finalizer is removed last.
//!
//! Invariant: the finalizer is removed after the proof that nothing of the machine is left. While it waits, the
//! machine says for what.

use dockerios_api::{
    MacOSMachine, MacOSMachineClaim, Verdict,
    machine::macos_machine::{
        MachineCondition as Condition, MachineFailure, MachinePhase as Phase, MachineReason as Reason,
    },
    names::TEARDOWN,
};
use std::sync::Arc;

use kube::ResourceExt;

use super::{
    drain::{self, Drain},
    facts::Objects,
    instance::Life,
    status::{Pass, alarming, clock},
    teardown::{Progress, give_back},
};
use crate::{Guard, Kind, Seen, Step, Target, decide::claim::let_go};

/// Whether the machine's claim holds it, see [`let_go`].
///
/// # Errors
/// The claim could not be read: nothing may be concluded.
pub fn held_by_claim(machine: &MacOSMachine, claim: &Seen<Arc<MacOSMachineClaim>>) -> Result<bool, String> {
    match claim {
        Seen::Unknown(why) if machine.spec.claim_ref.is_some() => Err(why.clone()),
        claim => Ok(!let_go(machine, claim)),
    }
}

/// The machine is being deleted.
pub(super) fn proceed(pass: &mut Pass, objects: &Objects) {
    let life = Life::of(pass.facts, objects);
    let drain = drain::judge(pass, objects, &life);
    match held_by_claim(pass.machine(), &pass.facts.claim) {
        Err(why) => return pass.unreadable(&why),
        Ok(true) if drain != Drain::Leave => {
            let claim = pass
                .machine()
                .spec
                .claim_ref
                .as_ref()
                .map(|claim| claim.name.to_string())
                .unwrap_or_default();
            let message = format!(
                "it is to be deleted, and claim {claim} holds it until the claim ends or is deleted: kubectl delete macclaim/{claim}"
            );
            let phase = pass.before().and_then(|status| status.phase).unwrap_or(Phase::Pending);
            return pass.sum_up(phase, Reason::HeldByClaim, message);
        }
        Ok(_) => {}
    }
    match give_back(pass, objects, &life, true) {
        Progress::Waiting(reason, message) => pass.sum_up(Phase::Stopping, reason, message),
        Progress::Unreadable(why) => pass.unreadable(&why),
        Progress::Done { retained } => {
            let machine = pass.machine();
            let guard = Guard::NothingLeftOf {
                namespace: machine.namespace().unwrap_or_default(),
                uid: machine.uid().unwrap_or_default(),
                retained,
            };
            let target = Target::exactly(Kind::MacOSMachine, &machine.metadata);
            pass.plan.then(Step::RemoveFinalizer(target, TEARDOWN, Some(guard)));
            let refused = pass
                .facts
                .refusal
                .as_ref()
                .map(|refusal| format!(": {}", refusal.message))
                .unwrap_or_default();
            pass.sum_up(
                Phase::Stopping,
                Reason::ShuttingDown,
                format!("everything was given back{refused}"),
            );
        }
    }
}

/// Begins what a condition said when the machine failed, which is kept as evidence.
const WHEN_IT_FAILED: &str = "as it was when the machine failed: ";

/// Whether the condition says that what it tells of was given back.
pub(super) fn has_given_back(pass: &Pass, kind: Condition) -> bool {
    pass.stood(kind)
        .is_some_and(|stood| stood.reason == Reason::GivenBack.word())
}

/// A failed machine holds nothing any more. What a condition said of the failure is kept and marked as evidence; all
/// else that it said is over.
fn say_given_back(pass: &mut Pass, disk_is_kept: bool) {
    let shared = pass
        .report
        .said(Condition::IdentityAllocated)
        .is_some_and(|said| said.reason == Reason::SharedBootDisk.word());
    if !shared {
        let message = "its identity was given back when the machine failed";
        pass.say(Condition::IdentityAllocated, false, Reason::GivenBack, message);
    }
    if !disk_is_kept {
        let message = "its disks were given back when the machine failed";
        evidence_or(pass, Condition::DiskCloned, message);
    }
    let message = "its instance was given back when the machine failed";
    evidence_or(pass, Condition::InstanceRunning, message);
    evidence_or(pass, Condition::GuestReady, &last_report(pass));
}

fn evidence_or(pass: &mut Pass, kind: Condition, message: &str) {
    let stood = pass.report.said(kind).cloned();
    let evidence = stood.filter(|said| {
        said.status == Verdict::False && (alarming(&said.reason) || said.reason == Reason::GuestNotReady.word())
    });
    match evidence {
        None => pass.say(kind, false, Reason::GivenBack, message),
        Some(said) if said.message.starts_with(WHEN_IT_FAILED) => {}
        Some(said) => {
            let message = format!("{WHEN_IT_FAILED}{}", said.message);
            pass.report.say(kind, false, said.reason, message);
        }
    }
}

/// What its guest said last.
fn last_report(pass: &Pass) -> String {
    let guest = pass.before().and_then(|status| status.guest.as_ref());
    let last = guest.and_then(|guest| Some((guest.stage?, guest.last_report.as_ref()?)));
    match last {
        Some((stage, at)) => format!(
            "nothing runs since the machine failed; its guest's last report, stage {stage:?} at {}, is kept as evidence",
            clock(at.0)
        ),
        None => "nothing runs since the machine failed".to_owned(),
    }
}

/// The machine failed and stays as evidence; what it holds is given back.
pub(super) fn failed(pass: &mut Pass, objects: &Objects, failure: &MachineFailure) {
    let life = Life::of(pass.facts, objects);
    drain::judge(pass, objects, &life);
    let left = match give_back(pass, objects, &life, false) {
        Progress::Waiting(_, message) => format!("; giving back what it holds: {message}"),
        Progress::Unreadable(why) => {
            format!("; what it holds cannot be given back while something cannot be read: {why}")
        }
        Progress::Done { retained } => {
            say_given_back(pass, retained);
            match retained {
                true => "; all was given back but its disk, which is kept".to_owned(),
                false => "; all that it held was given back".to_owned(),
            }
        }
    };
    if objects.none() {
        pass.draft.stop_requested_at = None;
    }
    pass.sum_up_failed(failure, &left);
}
