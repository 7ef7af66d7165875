//! The reboot that ends a stuck counter: asked for, approved, done; each step once.
//!
//! ```text
//!   stuck ──▶ StopsFirst ──nothing runs──▶ AwaitsApproval ──admin or policy──▶ Rebooting ──new boot──▶ done
//!                                              │ cleared by hand                  │ deadline
//!                                              ▼                                  ▼
//!                                          withdrawn                        RebootTimedOut
//! ```
//!
//! Invariants (`check.rs` judges every plan): a request is for one boot and an approval for one request; while an
//! approved one is not done there is no other; the policy approves no second reboot of a chassis within a day, and no
//! more than its budget over all of them. The agent holds the other half: it asks its host once per request.

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::{SignedDuration, Timestamp, TimestampRound, Unit},
};
use kube::ResourceExt;
use macrack_api::{
    Span,
    condition::ConditionStatus,
    config::rack_config::RebootPolicy,
    rack::node::{
        AgentStatus, Approver, MacNodeReason as Because, Order, Quarantine, QuarantineReason, Reboot, Slot, VmState,
    },
};

use super::Facts;
use crate::{
    clock::{after, rfc3339, span_words, time},
    seen::Seen,
};

/// How long a reboot counts against the budget.
const BUDGET_SPAN: Span = Span(24 * 3600);
/// When a chassis whose VMs could not be counted is looked at again.
const LOOK_AGAIN: Span = Span(10);

/// What is to be written and said of the reboot of one chassis.
pub(super) struct Outcome {
    /// `status.reboot`.
    pub reboot: Option<Reboot>,
    /// `status.policyRebootAt`.
    pub policy_reboot_at: Option<Time>,
    /// The condition `RebootSettled`.
    pub fact: (ConditionStatus, Because, String),
    /// When the passing of time alone changes something.
    pub wake: Option<Timestamp>,
}

/// The entry that only a reboot ends, in the boot that has to end.
pub(super) fn needed<'a>(quarantine: &'a [Quarantine], agent: Option<&AgentStatus>) -> Option<&'a Quarantine> {
    let entry = quarantine.iter().find(|entry| entry.reason == QuarantineReason::QuotaStuck.as_str())?;
    agent.is_some_and(|agent| agent.boot_id == entry.boot_id).then_some(entry)
}

/// What the agent is told in the place of Run. In maintenance everything stops. While the chassis waits for a reboot,
/// what runs stops cleanly, and what was stopped for it stays so until the new boot; what waits goes on waiting, for its
/// agent starts nothing. In neither is a VM touched that cannot be reached.
pub(super) fn order(facts: &Facts, quarantine: &[Quarantine], slot: &Slot) -> Order {
    let state = facts.vm(&slot.uid);
    let runs = matches!(state, Some(VmState::Starting | VmState::Running | VmState::Stopping));
    let waits = needed(quarantine, facts.agent()).is_some();
    let drained = facts.node.spec.drain && state != Some(VmState::Unknown);
    if drained || (waits && (runs || slot.order == Order::Stop)) { Order::Stop } else { Order::Run }
}

/// VMs that a reboot would cut off.
fn in_the_way(agent: &AgentStatus) -> Vec<&str> {
    let busy = |state| {
        use VmState::{Cloning, Running, Starting, Stopping, Unknown, Wiping};
        matches!(state, Starting | Running | Stopping | Unknown | Cloning | Wiping)
    };
    agent.vms.iter().filter(|vm| busy(vm.state)).map(|vm| vm.uid.as_str()).collect()
}

/// Decides, from the quarantine as it will be written.
pub(super) fn decide(facts: &Facts, quarantine: &[Quarantine]) -> Outcome {
    let status = facts.status();
    let mut outcome = Outcome {
        reboot: status.and_then(|status| status.reboot.clone()),
        policy_reboot_at: status.and_then(|status| status.policy_reboot_at.clone()),
        fact: (ConditionStatus::True, Because::NotAsked, "nothing asks for a reboot".into()),
        wake: None,
    };
    let Some(agent) = facts.agent() else { return outcome };
    let mut just_done = false;
    if let Some(reboot) = open(&mut outcome.reboot)
        && reboot.boot_id.as_deref() != Some(&agent.boot_id)
    {
        reboot.done_boot_id = Some(agent.boot_id.clone());
        just_done = true;
    }
    let Some(entry) = needed(quarantine, Some(agent)) else {
        // cleared by hand: what was asked for is not wanted any more, an approval included
        if open(&mut outcome.reboot).is_some() {
            outcome.reboot = None;
        }
        if quarantine.iter().any(|e| e.reason == QuarantineReason::QuotaStuck.as_str()) {
            outcome.fact = (
                ConditionStatus::False,
                Because::AwaitsSelfTest,
                "the Mac is back in a new boot; its VM counter is healthy once a VM has started in it: one that is to run, \
                 or the agent's self test from a golden in its cache"
                    .into(),
            );
        }
        return outcome;
    };
    if facts.node.spec.retirement.is_some() {
        return outcome;
    }
    if just_done {
        // one that was approved is written as done before another is asked for: the schema refuses both in one write
        let words = "the Mac came back and its counter is stuck again".into();
        outcome.fact = (ConditionStatus::False, Because::StopsFirst, words);
        return outcome;
    }
    if open(&mut outcome.reboot).is_none() {
        let cut = in_the_way(agent);
        if !cut.is_empty() {
            let words = format!("a reboot is needed; first {} is to be at rest", cut.join(", "));
            outcome.fact = (ConditionStatus::False, Because::StopsFirst, words);
            return outcome;
        }
        outcome.reboot = Some(request(facts, entry, outcome.reboot.as_ref()));
    }
    pending(facts, agent, &mut outcome);
    outcome
}

/// The request that is not done yet.
fn open(reboot: &mut Option<Reboot>) -> Option<&mut Reboot> {
    reboot.as_mut().filter(|reboot| reboot.done_boot_id.is_none())
}

/// A new request. Its time is its name: a later one than any before, in whole seconds as the API server keeps them.
fn request(facts: &Facts, entry: &Quarantine, last: Option<&Reboot>) -> Reboot {
    let now = whole(facts.clocks.operator);
    let later = last.map(|last| last.requested_at.0 + SignedDuration::from_secs(1));
    Reboot {
        reason: entry.reason.clone(),
        requested_at: time(later.map_or(now, |later| later.max(now))),
        boot_id: Some(entry.boot_id.clone()),
        approved_at: None,
        approved_by: None,
        done_boot_id: None,
    }
}

fn whole(moment: Timestamp) -> Timestamp {
    moment.round(TimestampRound::new().smallest(Unit::Second)).unwrap_or(moment)
}

/// Approves what is asked for, or says what is waited for.
fn pending(facts: &Facts, agent: &AgentStatus, outcome: &mut Outcome) {
    let now = facts.clocks.operator;
    let own_last = outcome.policy_reboot_at.as_ref().map(|t| t.0);
    let Some(reboot) = open(&mut outcome.reboot) else { return };
    if reboot.approved_at.is_none() {
        match approval(facts, agent, reboot, own_last) {
            Ok(by) => {
                reboot.approved_at = Some(time(whole(now)));
                reboot.approved_by = Some(by);
                if by == Approver::Policy {
                    outcome.policy_reboot_at.clone_from(&reboot.approved_at);
                }
            }
            Err(wait) => {
                outcome.fact = (ConditionStatus::False, Because::AwaitsApproval, wait.words);
                outcome.wake = wait.until;
                return;
            }
        }
    }
    let Some(approved) = reboot.approved_at.as_ref().map(|t| t.0) else { return };
    let deadline: Span = facts.config.quota.deadline.parse().unwrap_or(Span(1800));
    let due = after(approved, deadline);
    let problem = agent.reboot.as_ref().filter(|r| r.requested_at == reboot.requested_at);
    let problem =
        problem.and_then(|r| r.problem.as_deref()).map(|p| format!("; the Mac says: {p}")).unwrap_or_default();
    if due > now {
        let words = format!("approved at {}; to be back by {}{problem}", rfc3339(approved), rfc3339(due));
        outcome.fact = (ConditionStatus::False, Because::Rebooting, words);
        outcome.wake = Some(due);
        return;
    }
    let words = format!(
        "the reboot approved at {} has not brought the Mac back for {}{problem}. It is not rebooted again and keeps its \
         lease: look at it and start it by hand; a new boot ends this, or retire it with spec.retirement",
        rfc3339(approved),
        span_words(approved, now),
    );
    outcome.fact = (ConditionStatus::False, Because::RebootTimedOut, words);
}

/// What an approval waits for.
struct Wait {
    words: String,
    until: Option<Timestamp>,
}

/// Who approves this request now.
fn approval(
    facts: &Facts,
    agent: &AgentStatus,
    reboot: &Reboot,
    own_last: Option<Timestamp>,
) -> Result<Approver, Wait> {
    let echoed = facts.node.spec.approved_reboot.as_ref();
    if echoed == Some(&reboot.requested_at) {
        return Ok(Approver::Admin);
    }
    let stale = match echoed {
        Some(other) => format!("; spec.approvedReboot names {}, which is another request", rfc3339(other.0)),
        None => String::new(),
    };
    let out = format!(
        "to approve it see `kubectl macrack reboot {}`, or set spec.approvedReboot to {:?}{stale}",
        facts.node.name_any(),
        rfc3339(reboot.requested_at.0)
    );
    let wait = |why: String, until| Wait { words: format!("{why}: {out}"), until };
    match by_policy(facts, agent, own_last) {
        Ok(()) => Ok(Approver::Policy),
        Err((why, until)) => Err(wait(why, until)),
    }
}

/// Whether the policy approves a reboot of this chassis now; else why not, and when that may change by itself.
fn by_policy(
    facts: &Facts,
    agent: &AgentStatus,
    own_last: Option<Timestamp>,
) -> Result<(), (String, Option<Timestamp>)> {
    let (now, quota) = (facts.clocks.operator, &facts.config.quota);
    if quota.reboot == RebootPolicy::Manual {
        return Err(("asked for; quota.reboot is Manual".into(), None));
    }
    if !agent.host.as_ref().is_some_and(|host| host.auto_login) {
        let why = "the policy does not reboot a Mac that would not come back by itself (its user does not log in \
                   automatically), somebody must be at hand";
        return Err((why.into(), None));
    }
    let counts = |moment: &Timestamp| after(*moment, BUDGET_SPAN) > now;
    if let Some(last) = own_last.filter(counts) {
        let why = format!("its counter is stuck again although the policy had it rebooted at {}", rfc3339(last));
        return Err((why, None));
    }
    let others = match &facts.policy_reboots {
        Seen::Present(others) => others.iter().filter(|moment| counts(moment)).collect::<Vec<_>>(),
        Seen::Absent => {
            return Err(("the reboots of the other Macs were not counted yet".into(), Some(after(now, LOOK_AGAIN))));
        }
        Seen::Unknown(why) => {
            let why = format!("how many Macs the policy has rebooted today cannot be read ({why})");
            return Err((why, Some(after(now, LOOK_AGAIN))));
        }
    };
    if others.len() >= usize::try_from(quota.budget).unwrap_or(0) {
        let free = others.iter().min().map(|oldest| after(**oldest, BUDGET_SPAN));
        let why = format!(
            "the policy has approved {} reboots within 24h and its budget (quota.budget) is {}",
            others.len(),
            quota.budget
        );
        return Err((why, free));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_later_than_the_one_before_and_in_whole_seconds() {
        let now: Timestamp = "2026-03-02T09:00:00.4Z".parse().unwrap();
        assert_eq!(rfc3339(whole(now)), "2026-03-02T09:00:00Z");
        assert_eq!(whole(now).subsec_nanosecond(), 0, "the API server keeps no parts of seconds");
    }
}
