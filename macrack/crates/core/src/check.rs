//! The invariants, judging every plan about a chassis before it is carried out: in the operator (a plan that
//! breaks one is refused and reported, not carried out), in every test, and in the model.

use macrack_api::{
    config::rack_config::RebootPolicy,
    rack::node::{Order, Quarantine, QuarantineReason, Reboot, Slot, VmState},
};

use crate::{
    clock::after,
    decide::node::Facts,
    plan::{Plan, Step},
};

/// What a plan about a chassis would break.
pub fn node(facts: &Facts, plan: &Plan) -> Result<(), String> {
    for step in &plan.steps {
        match step {
            Step::SetSlots { to, .. } => slots(facts, facts.slots(), to)?,
            Step::ClearLease { lease_uid, .. } => clear(facts, plan, lease_uid)?,
            Step::Bind { lease_ref, .. } => {
                let floor = after(lease_ref.bound_at.0, macrack_api::duration::FLOOR);
                ensure(lease_ref.earliest_release_at.0 >= floor, "a floor below 24 hours")?;
                ensure(facts.lease_ref().is_none(), "a second lease on a chassis")?;
            }
            Step::RaiseFloor { to, .. } => {
                let old = facts.lease_ref().map(|r| r.earliest_release_at.0);
                ensure(old.is_some_and(|old| *to > old), "a floor that falls")?;
            }
            _ => {}
        }
    }
    reboot(facts, plan)
}

/// One approval for a request, one request for a boot, and no quarantine for a stuck counter left without a new boot in
/// which it was checked.
fn reboot(facts: &Facts, plan: &Plan) -> Result<(), String> {
    let Some(planned) = &plan.status else { return Ok(()) };
    let read = |field: &str| planned.get(field).filter(|value| !value.is_null()).cloned();
    let (was, agent) = (facts.status(), facts.agent());
    if let Some(new) = read("reboot") {
        let new: Reboot = serde_json::from_value(new).map_err(|e| format!("status.reboot: {e}"))?;
        let old = was.and_then(|was| was.reboot.as_ref());
        let same = old.filter(|old| old.requested_at == new.requested_at);
        let replaced = old.filter(|_| same.is_none());
        ensure(replaced.is_none_or(|old| old.done_boot_id.is_some()), "a reboot asked for while another is not done")?;
        ensure(
            replaced.is_none_or(|old| old.requested_at < new.requested_at),
            "two requests of a reboot with one name",
        )?;
        ensure(
            same.is_none_or(|old| old.approved_at.is_none() || old.approved_at == new.approved_at),
            "a reboot approved twice",
        )?;
        let approved = new.approved_at.is_some() && same.is_none_or(|old| old.approved_at.is_none());
        let echoed = facts.node.spec.approved_reboot.as_ref() == Some(&new.requested_at);
        let automatic = facts.config.quota.reboot == RebootPolicy::Automatic;
        ensure(!approved || echoed || automatic, "a reboot that nobody approved")?;
        let ended = agent.is_some_and(|agent| new.boot_id.as_ref() == Some(&agent.boot_id));
        ensure(!approved || ended, "a reboot approved for a boot that is over")?;
    }
    let stuck = QuarantineReason::QuotaStuck.as_str();
    let is_left = |entry: &&Quarantine| {
        let listed = |list: serde_json::Value| list.as_array().is_some_and(|l| l.iter().any(|e| e["reason"] == stuck));
        entry.reason == stuck && !read("quarantine").is_some_and(listed)
    };
    if let Some(entry) = was.and_then(|was| was.quarantine.iter().find(is_left)) {
        let by_hand = facts.node.spec.cleared_quarantine.as_deref() == Some(entry.token().as_str());
        let earned = agent.is_some_and(|a| {
            a.boot_id != entry.boot_id && a.quota.checked_boot_id.as_ref() == Some(&a.boot_id) && !a.quota.stuck
        });
        ensure(by_hand || earned, "a stuck counter believed healthy without a new boot in which a VM started")?;
    }
    Ok(())
}

fn ensure(holds: bool, broken: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(broken.to_owned()) }
}

fn slots(facts: &Facts, from: &[Slot], to: &[Slot]) -> Result<(), String> {
    ensure(to.len() <= macrack_api::names::VMS_PER_MAC, "more than two slots")?;
    let twice = to.iter().enumerate().any(|(i, a)| to[..i].iter().any(|b| a.uid == b.uid || a.slot == b.slot));
    ensure(!twice, "one uid or number in two slots")?;
    for old in from {
        let wiped =
            facts.agent().is_some_and(|a| a.vms.iter().any(|vm| vm.uid == old.uid && vm.state == VmState::Wiped));
        match to.iter().find(|new| new.uid == old.uid) {
            None => ensure(
                old.order == Order::Wipe && wiped,
                "a slot emptied before its VM was ordered Wipe and reported Wiped",
            )?,
            Some(new) => {
                ensure(new.slot == old.slot, "a VM moved between slots")?;
                ensure(old.order != Order::Wipe || new.order == Order::Wipe, "an order Wipe taken back")?;
            }
        }
    }
    let holder = facts.lease_ref();
    let foreign = |s: &Slot| s.order != Order::Wipe && holder.is_none_or(|r| r.namespace != s.namespace);
    let is_new = |s: &&Slot| from.iter().all(|old| old.uid != s.uid);
    ensure(!to.iter().filter(is_new).any(foreign), "a slot given to another namespace than that of the lease")?;
    ensure(holder.is_some() || to.iter().all(|s| s.order == Order::Wipe), "a VM on a chassis that nobody leases")
}

fn clear(facts: &Facts, plan: &Plan, lease_uid: &str) -> Result<(), String> {
    let Some(lease_ref) = facts.lease_ref() else {
        return Err("leaseRef cleared where there is none".into());
    };
    ensure(lease_ref.uid == *lease_uid, "the leaseRef of another lease cleared")?;
    ensure(
        facts.clocks.both_past(lease_ref.earliest_release_at.0),
        "a chassis released before its floor by both clocks",
    )?;
    ensure(facts.slots().is_empty(), "a chassis released with a slot in use")?;
    ensure(
        facts.agent().is_some_and(|a| a.vms.iter().all(|vm| vm.state == VmState::Wiped)),
        "a chassis released with remains on its disk",
    )?;
    let marked = lease_ref.releasing || plan.steps.iter().any(|s| matches!(s, Step::MarkReleasing { .. }));
    ensure(marked, "a chassis released without being marked")
}
