//! What a claim says about itself: one condition `Ready`, one that it ends soon, a phase, events on transitions.

use dockerios_api::{
    MacOSMachine, MacOSMachineClaim, MacOSMachineClaimStatus, MacOSMachinePool, Verdict,
    condition::{Condition, holds, of},
    machine::{
        claim::{ClaimCondition, ClaimEndReason, ClaimPhase, ClaimReason},
        macos_machine::{MachineCondition, MachineReason},
    },
    names::for_claim,
};
use jiff::Timestamp;
use kube::ResourceExt;

use super::{
    line::{Crowd, is_failed, is_going, of_pool},
    term::{NOTICE, moved},
};
use crate::{News, Plan, plan::Refusal, report::Report};

/// The verdict on `Ready`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Word {
    verdict: Verdict,
    reason: ClaimReason,
    message: String,
}

impl Word {
    /// Not Ready, for that reason.
    pub(super) fn new(reason: ClaimReason, message: impl Into<String>) -> Self {
        Self {
            verdict: Verdict::False,
            reason,
            message: message.into(),
        }
    }

    /// Something could not be read.
    pub(super) fn unseen(why: &str) -> Self {
        let message = format!("{why}; nothing is decided until it can be read again");
        Self {
            verdict: Verdict::Unknown,
            ..Self::new(ClaimReason::Unreadable, message)
        }
    }
}

/// The status, its events, and nothing else yet.
pub(super) fn plan(
    claim: &MacOSMachineClaim,
    mut status: MacOSMachineClaimStatus,
    word: &Word,
    complaint: Option<&str>,
    now: Timestamp,
) -> Plan {
    let before = claim.status.as_ref();
    let reported: &[Condition] = before.map_or(&[], |status| &status.conditions);
    let mut report = Report::after(reported, claim.metadata.generation, now);
    let message = match complaint {
        Some(complaint) => format!("{}. {complaint}", word.message),
        None => word.message.clone(),
    };
    report.say(ClaimCondition::Ready, word.verdict, word.reason, message);
    let mut plan = Plan::default();
    plan.news.extend(report.news(ClaimCondition::Ready).map(|news| News {
        // on its way as it should be
        warning: news.warning && word.reason != ClaimReason::MachineNotReady,
        ..news
    }));
    let until = status
        .expires_at
        .as_ref()
        .map(|until| until.0)
        .filter(|_| status.end.is_none());
    if let Some(until) = until {
        expiring(&mut report, now, until);
        let soon = report
            .said(ClaimCondition::Expiring)
            .is_some_and(|c| c.status == Verdict::True);
        plan.news.extend(report.news(ClaimCondition::Expiring).filter(|_| soon));
    }
    let judged = before.and_then(|status| status.observed_generation) == claim.metadata.generation && before.is_some();
    if let Some(complaint) = complaint.filter(|_| !judged) {
        plan.news.push(News::warning(ClaimReason::TtlUnreadable, complaint));
    }
    status.phase = Some(phase(&status));
    status.conditions = report.done();
    plan.report(&status);
    plan
}

fn expiring(report: &mut Report, now: Timestamp, until: Timestamp) {
    let soon = now >= moved(until, -NOTICE);
    let (reason, message) = if soon {
        let message = format!("ends at {until:.0}; raise spec.ttl to keep the machine longer");
        (ClaimReason::ExpiresSoon, message)
    } else {
        (ClaimReason::TimeLeft, format!("ends at {until:.0}"))
    };
    report.say(ClaimCondition::Expiring, soon, reason, message);
}

fn phase(status: &MacOSMachineClaimStatus) -> ClaimPhase {
    match (&status.end, &status.machine_ref) {
        (Some(end), _) if end.reason == ClaimEndReason::Expired => ClaimPhase::Expired,
        (Some(_), _) => ClaimPhase::Lost,
        (None, Some(_)) => ClaimPhase::Bound,
        (None, None) => ClaimPhase::Pending,
    }
}

/// While lists cannot be read a bound claim stays as it is; a waiting one says why nothing moves.
pub(super) fn unreadable(claim: &MacOSMachineClaim, why: &str, now: Timestamp) -> Plan {
    let status = claim.status.clone().unwrap_or_default();
    if status.machine_ref.is_some() || status.end.is_some() {
        return Plan::default();
    }
    plan(claim, status, &Word::unseen(why), None, now)
}

fn ready_of(machine: &MacOSMachine) -> Option<&Condition> {
    let conditions = machine.status.as_ref().map(|status| status.conditions.as_slice());
    of(conditions.unwrap_or_default(), MachineCondition::Ready.word())
}

/// Of a machine that was handed over.
pub(super) fn of_machine(machine: &MacOSMachine, until: Option<Timestamp>) -> Word {
    let name = machine.name_any();
    let ready = ready_of(machine);
    let silent = [
        MachineReason::GuestSilent,
        MachineReason::NodeLost,
        MachineReason::Unreadable,
    ];
    let verdict = ready.map(|ready| ready.status);
    if verdict == Some(Verdict::True) {
        return Word {
            verdict: Verdict::True,
            ..Word::new(ClaimReason::Bound, in_use(machine, until))
        };
    }
    if verdict == Some(Verdict::Unknown) || ready.is_some_and(|c| silent.iter().any(|r| r.word() == c.reason)) {
        let why = ready.map_or("", |ready| ready.message.as_str());
        let message = format!("machine {name} does not answer and is not replaced while it may still run: {why}");
        return Word {
            verdict: Verdict::Unknown,
            ..Word::new(ClaimReason::MachineUnreachable, message)
        };
    }
    Word::new(ClaimReason::MachineNotReady, said_by(machine))
}

fn in_use(machine: &MacOSMachine, until: Option<Timestamp>) -> String {
    let mut message = format!("machine {}", machine.name_any());
    if let Some(until) = until {
        message += &format!(" until {until:.0}");
    }
    let conditions = machine
        .status
        .as_ref()
        .map(|status| status.conditions.as_slice())
        .unwrap_or_default();
    if let Some(draining) = of(conditions, MachineCondition::Draining.word())
        .filter(|_| holds(conditions, MachineCondition::Draining.word()))
    {
        message += &format!("; its node is being drained: {}", draining.message);
    }
    if is_going(machine) {
        message += "; it was deleted by somebody and waits for this claim: delete the claim to let it go";
    }
    message
}

/// Of a machine that is taken or made, and not Ready yet.
pub(super) fn on_its_way(machine: &MacOSMachine) -> Word {
    Word::new(ClaimReason::MachineNotReady, said_by(machine))
}

fn said_by(machine: &MacOSMachine) -> String {
    let name = machine.name_any();
    match ready_of(machine) {
        Some(ready) => format!("machine {name} is not Ready yet: {} ({})", ready.reason, ready.message),
        None => format!("machine {name} has just been made"),
    }
}

/// Why a failed machine ends its claim.
pub(super) fn failed(machine: &MacOSMachine) -> String {
    let name = machine.name_any();
    match machine.status.as_ref().and_then(|status| status.failure.as_ref()) {
        Some(failure) => format!(
            "machine {name} failed: {}: {}; make a new claim",
            failure.reason, failure.message
        ),
        None => format!("machine {name} failed; make a new claim"),
    }
}

pub(super) fn no_pool(name: &str, going: bool) -> Word {
    let message = if going {
        format!("pool {name} is being deleted; name another in a new claim")
    } else {
        format!("there is no MacOSMachinePool {name} in this namespace; make it, or name another in a new claim")
    };
    Word::new(ClaimReason::PoolNotFound, message)
}

pub(super) fn no_class(name: Option<&str>) -> Word {
    let name = name.unwrap_or("of that name");
    Word::new(
        ClaimReason::ClassNotFound,
        format!("there is no MacOSMachineClass {name}; see kubectl get macosmachineclasses, or ask the platform team"),
    )
}

pub(super) fn not_allowed(class: &str, claim: &MacOSMachineClaim) -> Word {
    let namespace = claim.namespace().unwrap_or_default();
    Word::new(
        ClaimReason::NamespaceNotAllowed,
        format!("class {class} is not for namespace {namespace}; ask the platform team to widen its allowedNamespaces"),
    )
}

pub(super) fn nothing_asked() -> Word {
    Word::new(
        ClaimReason::PoolNotFound,
        "the claim names neither spec.poolName nor spec.machineClassName; make one that does",
    )
}

pub(super) fn refused(refusal: &Refusal) -> Word {
    Word::new(
        ClaimReason::CreationRefused,
        format!("{} was refused: {}", refusal.of, refusal.message),
    )
}

pub(super) fn making(claim: &MacOSMachineClaim) -> Word {
    let name = for_claim(&claim.uid().unwrap_or_default());
    Word::new(
        ClaimReason::MachineNotReady,
        format!("no warm machine is left: {name} is being made"),
    )
}

/// Why the pool makes none for the claim that has that place (from 0) among those it has no machine for.
pub(super) fn full(pool: &MacOSMachinePool, crowd: Crowd<'_>, place: usize) -> Option<Word> {
    let most = pool.spec.max_machines;
    // also those that are going hold resources; failed ones do not
    let there = of_pool(pool, crowd.machines)
        .into_iter()
        .filter(|machine| !is_failed(machine))
        .count();
    let room = usize::try_from(most).unwrap_or_default().saturating_sub(there);
    (place >= room).then(|| {
        let message = format!(
            "pool {} has {there} machines of maxMachines {most}, and {place} claims are before this one; it waits until \
             a claim ends, or raise maxMachines",
            pool.name_any()
        );
        Word::new(ClaimReason::AtMaxMachines, message)
    })
}
