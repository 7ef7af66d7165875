//! The invariants, judging every plan about a chassis before it is carried out: in the operator (a plan that
//! breaks one is refused and reported, not carried out), in every test, and in the model.

use macrack_api::rack::node::{Order, Slot, VmState};

use crate::{
    clock::after,
    decide::node::Facts,
    plan::{Plan, Step},
};

/// What a plan about a chassis would break.
pub fn node(facts: &Facts, plan: &Plan) -> Result<(), String> {
    let status = facts.node.status.clone().unwrap_or_default();
    for step in &plan.steps {
        match step {
            Step::SetSlots { to, .. } => slots(facts, &status.slots, to)?,
            Step::ClearLease { lease_uid, .. } => clear(facts, plan, lease_uid)?,
            Step::Bind { lease_ref, .. } => {
                let floor = after(lease_ref.bound_at.0, macrack_api::duration::FLOOR);
                ensure(lease_ref.earliest_release_at.0 >= floor, "a floor below 24 hours")?;
                ensure(status.lease_ref.is_none(), "a second lease on a chassis")?;
            }
            Step::RaiseFloor { to, .. } => {
                let old = status.lease_ref.as_ref().map(|r| r.earliest_release_at.0);
                ensure(old.is_some_and(|old| *to > old), "a floor that falls")?;
            }
            _ => {}
        }
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
    let agent = facts.node.status.as_ref().and_then(|s| s.agent.as_ref());
    for old in from {
        let wiped = agent.is_some_and(|a| a.vms.iter().any(|vm| vm.uid == old.uid && vm.state == VmState::Wiped));
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
    let holder = facts.node.status.as_ref().and_then(|s| s.lease_ref.as_ref());
    let foreign = |s: &Slot| s.order != Order::Wipe && holder.is_none_or(|r| r.namespace != s.namespace);
    let is_new = |s: &&Slot| from.iter().all(|old| old.uid != s.uid);
    ensure(!to.iter().filter(is_new).any(foreign), "a slot given to another namespace than that of the lease")?;
    let unheld = facts.node.status.as_ref().is_none_or(|s| s.lease_ref.is_none());
    ensure(!unheld || to.iter().all(|s| s.order == Order::Wipe), "a VM on a chassis that nobody leases")
}

fn clear(facts: &Facts, plan: &Plan, lease_uid: &str) -> Result<(), String> {
    let status = facts.node.status.clone().unwrap_or_default();
    let Some(lease_ref) = &status.lease_ref else {
        return Err("leaseRef cleared where there is none".into());
    };
    ensure(lease_ref.uid == *lease_uid, "the leaseRef of another lease cleared")?;
    ensure(
        facts.clocks.both_past(lease_ref.earliest_release_at.0),
        "a chassis released before its floor by both clocks",
    )?;
    ensure(status.slots.is_empty(), "a chassis released with a slot in use")?;
    ensure(
        status.agent.is_some_and(|a| a.vms.iter().all(|vm| vm.state == VmState::Wiped)),
        "a chassis released with remains on its disk",
    )?;
    let marked = lease_ref.releasing || plan.steps.iter().any(|s| matches!(s, Step::MarkReleasing { .. }));
    ensure(marked, "a chassis released without being marked")
}
