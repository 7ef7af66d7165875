//! `MacOSMachinePool`: machines that are warm before anybody asks.
//!
//! ```text
//! replicas ──▶ unclaimed machines ──a claim takes one──▶ claimed, leaves the pool's care ──▶ gone with its claim
//!    ▲               │ failed: replaced ever more slowly (three kept)
//!    └─── made ──────┘ older class: replaced a third at a time
//! ```
//!
//! Invariants: a machine is deleted only in the very version in which it was seen unclaimed, so none that a claim has
//! just taken is lost. All machines of the pool, those for its waiting claims included, are made in this pass and
//! nowhere else, one pass at a time: `maxMachines` is never exceeded. Absent counts are never taken from lists that
//! could not be read.

mod backoff;
mod census;
mod make;
mod say;

use std::sync::Arc;

use dockerios_api::{
    MacOSMachine, MacOSMachineClaim, MacOSMachineClass, MacOSMachinePool, machine::claim::ClaimEndReason,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;

use super::claim::{line::Crowd, made_for};
use crate::{Kind, Plan, Seen, Step, Target, plan::Refusal};
use backoff::Pace;
use census::Census;

pub use make::template_hash;

/// Machines that one pass makes, and that it deletes, at most: the next pass goes on, and other objects have their turn
/// in between.
pub const BATCH: usize = 20;

/// What the decision looks at.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The pool.
    pub pool: Arc<MacOSMachinePool>,
    /// Its class.
    pub class: Seen<Arc<MacOSMachineClass>>,
    /// Its namespace.
    pub namespace: Seen<Arc<Namespace>>,
    /// All pools of its namespace.
    pub pools: Seen<Vec<Arc<MacOSMachinePool>>>,
    /// All machines of its namespace.
    pub machines: Seen<Vec<Arc<MacOSMachine>>>,
    /// All claims of its namespace.
    pub claims: Seen<Vec<Arc<MacOSMachineClaim>>>,
    /// What was last refused to this pool's pass.
    pub refusal: Option<Refusal>,
}

/// Decides one pass over a pool.
pub fn decide(facts: &Facts, now: Timestamp) -> Plan {
    let crowd = match Crowd::of(&facts.pools, &facts.machines, &facts.claims) {
        Ok(crowd) => crowd,
        Err(why) => return say::unreadable(&facts.pool, why, now),
    };
    let pool = facts.pool.as_ref();
    let class = make::usable(facts);
    let hash = class.as_ref().ok().map(|class| template_hash(class));
    let census = Census::of(pool, crowd, hash.as_deref());
    let pace = Pace::of(&census, now);
    let mut plan = Plan::default();
    if pool.metadata.deletion_timestamp.is_none() {
        deletions(&mut plan, pool, &census);
        if let Ok(class) = &class {
            creations(&mut plan, facts, class, &census, &pace);
        }
    }
    say::report(&mut plan, facts, &census, &pace, class.as_ref().err(), now);
    if let Some(next) = pace.waits_until(now) {
        plan.wake_at(next);
    }
    plan
}

/// First what is too much, then what is old, then evidence beyond what is kept.
fn deletions(plan: &mut Plan, pool: &MacOSMachinePool, census: &Census) {
    let surplus = census.surplus(pool);
    let rolled = census.rolled(pool, surplus.len());
    let all = surplus.into_iter().chain(rolled).chain(census.stale_evidence());
    let steps = all.map(|machine| Step::Delete(Target::exactly(Kind::MacOSMachine, &machine.metadata)));
    plan.steps.extend(steps.take(BATCH));
}

/// First for claims that wait, then for the stock.
fn creations(plan: &mut Plan, facts: &Facts, class: &MacOSMachineClass, census: &Census, pace: &Pace) {
    let pool = facts.pool.as_ref();
    let budget = census.room(pool).min(pace.allowed(census)).min(BATCH);
    // a machine of the same name that is still going makes room for the next when it has gone
    let mut steps: Vec<Step> = census
        .unserved
        .iter()
        .filter(|claim| !census.has_machine_named_for(claim))
        .map(|claim| Step::Create(made_for(claim, &pool.spec.machine_class_name, Some(pool))))
        .take(budget)
        .collect();
    // room for claims that wait is not filled up with stock
    let stock = census
        .room(pool)
        .saturating_sub(census.unserved.len())
        .min(census.deficit(pool));
    let rest = budget.saturating_sub(steps.len());
    steps.extend((0..stock.min(rest)).map(|_| Step::Create(make::warm(pool, class))));
    plan.steps.extend(steps);
}

/// Whether the machine's claim is over, or gone.
fn claim_is_over(machine: &MacOSMachine, claims: &[Arc<MacOSMachineClaim>]) -> bool {
    let Some(wanted) = &machine.spec.claim_ref else {
        return true;
    };
    let claim = claims
        .iter()
        .find(|claim| claim.metadata.uid.as_ref() == Some(&wanted.uid));
    claim.is_none_or(|claim| {
        let end = claim.status.as_ref().and_then(|status| status.end.as_ref());
        end.is_some_and(|end| matches!(end.reason, ClaimEndReason::Lost | ClaimEndReason::Expired))
    })
}
