//! What a claim means to the machine that names it.
//!
//! Invariant: a claim that could not be read holds its machine, and never costs it its life.

use std::borrow::Borrow;

use dockerios_api::{MacOSMachine, MacOSMachineClaim, machine::claim::ClaimEndReason};
use kube::ResourceExt;

use crate::{Kind, Seen, Step, Target};

/// Whether nobody needs the machine any more, as far as claims go: it names none, or its claim is absent, another of
/// that name, being deleted, ended, or was never told of this machine (it then gets another one).
pub fn let_go(machine: &MacOSMachine, claim: &Seen<impl Borrow<MacOSMachineClaim>>) -> bool {
    let Some(wanted) = &machine.spec.claim_ref else {
        return true;
    };
    match claim {
        Seen::Unknown(_) => false,
        Seen::Absent => true,
        Seen::Present(claim) => {
            let claim = claim.borrow();
            let uid = machine.uid().unwrap_or_default();
            let told = claim.status.as_ref().and_then(|status| status.machine_ref.as_ref());
            gone(claim, &wanted.uid) || told.is_none_or(|told| told.uid != uid)
        }
    }
}

/// The end of a machine whose claim is over: it is deleted in the very version that was seen, never used again. Nothing
/// while a claim is Pending. A machine that failed stays as evidence until its Lost claim is removed, a day later.
pub fn orphaned(machine: &MacOSMachine, claim: &Seen<impl Borrow<MacOSMachineClaim>>) -> Option<Step> {
    let wanted = machine.spec.claim_ref.as_ref()?;
    let over = match claim {
        Seen::Unknown(_) => false,
        Seen::Absent => true,
        Seen::Present(claim) => {
            let claim = claim.borrow();
            gone(claim, &wanted.uid) && !(failed(machine) && lost(claim, &wanted.uid))
        }
    };
    (over && machine.metadata.deletion_timestamp.is_none())
        .then(|| Step::Delete(Target::exactly(Kind::MacOSMachine, &machine.metadata)))
}

fn failed(machine: &MacOSMachine) -> bool {
    machine.status.as_ref().is_some_and(|status| status.failure.is_some())
}

fn lost(claim: &MacOSMachineClaim, uid: &str) -> bool {
    let end = claim.status.as_ref().and_then(|status| status.end.as_ref());
    let same = claim.uid().as_deref() == Some(uid) && claim.metadata.deletion_timestamp.is_none();
    same && end.is_some_and(|end| end.reason == ClaimEndReason::Lost)
}

fn gone(claim: &MacOSMachineClaim, uid: &str) -> bool {
    let ended = claim.status.as_ref().is_some_and(|status| status.end.is_some());
    claim.uid().as_deref() != Some(uid) || claim.metadata.deletion_timestamp.is_some() || ended
}
