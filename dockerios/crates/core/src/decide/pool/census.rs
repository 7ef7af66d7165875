//! The machines of one pool, counted and judged.

use std::cmp::Reverse;

use dockerios_api::{
    MacOSMachine, MacOSMachineClaim, MacOSMachinePool,
    names::{TEMPLATE_HASH, for_claim},
};
use jiff::Timestamp;
use kube::ResourceExt;

use super::{
    super::claim::line::{Crowd, Line, Warmth, born, is_claimed, is_coming, is_failed, is_going, is_ready, of_pool},
    claim_is_over,
};

/// Failed machines that are kept to be looked at.
pub(super) const EVIDENCE: usize = 3;

/// The pool's machines. Each stands in exactly one of `free`, `taken`, `claimed`, `going`, `failed`.
#[derive(Debug, Default)]
pub(super) struct Census<'a> {
    /// Unclaimed, staying, and nobody takes it in this moment.
    pub free: Vec<&'a MacOSMachine>,
    /// Unclaimed still; the first claims in line are taking them.
    pub taken: Vec<&'a MacOSMachine>,
    /// Given to claims.
    pub claimed: Vec<&'a MacOSMachine>,
    /// Being deleted; they hold resources until they have gone.
    pub going: Vec<&'a MacOSMachine>,
    /// Failed, newest first; they hold no resources.
    pub failed: Vec<&'a MacOSMachine>,
    /// Claims on the pool that no machine serves, in order.
    pub unserved: Vec<&'a MacOSMachineClaim>,
    /// Claims on the pool that were told of no machine yet.
    pub waiting: usize,
    /// Those of `free` that were made of another class or class version; none while the class cannot be seen.
    outdated: Vec<&'a MacOSMachine>,
    prunable: Vec<&'a MacOSMachine>,
}

impl<'a> Census<'a> {
    pub(super) fn of(pool: &MacOSMachinePool, crowd: Crowd<'a>, hash: Option<&str>) -> Self {
        let line = Line::of(crowd);
        let name = pool.name_any();
        let mut all = Self {
            unserved: line.unserved_of(&name),
            waiting: crowd.claims.iter().filter(|claim| waits_on(claim, &name)).count(),
            ..Self::default()
        };
        for machine in of_pool(pool, crowd.machines) {
            let list = match () {
                () if is_going(machine) => &mut all.going,
                () if is_failed(machine) => &mut all.failed,
                () if is_claimed(machine) => &mut all.claimed,
                () if line.takes(machine) => &mut all.taken,
                () => &mut all.free,
            };
            list.push(machine);
        }
        all.failed
            .sort_by_cached_key(|machine| (Reverse(failed_at(machine)), machine.uid()));
        // the evidence of a claim that is still told of it stays with that claim
        let beyond = all.failed.iter().skip(EVIDENCE);
        all.prunable = beyond
            .copied()
            .filter(|machine| claim_is_over(machine, crowd.claims))
            .collect();
        let old = |machine: &&MacOSMachine| hash.is_some_and(|hash| label(machine) != Some(hash));
        all.outdated = all.free.iter().copied().filter(old).collect();
        all
    }

    /// Unclaimed machines in whatever phase: what `replicas` counts.
    pub(super) fn replicas(&self) -> usize {
        self.free.len() + self.taken.len()
    }

    /// Unclaimed and Ready.
    pub(super) fn warm(&self) -> usize {
        self.free
            .iter()
            .chain(&self.taken)
            .filter(|machine| is_ready(machine))
            .count()
    }

    /// Unclaimed and on their way to be warm.
    pub(super) fn warming(&self) -> usize {
        self.free
            .iter()
            .chain(&self.taken)
            .filter(|machine| is_coming(machine))
            .count()
    }

    /// Unclaimed, and neither warm nor on their way: they were warm once.
    pub(super) fn fallen(&self) -> usize {
        self.replicas() - self.warm() - self.warming()
    }

    pub(super) fn outdated(&self) -> usize {
        self.outdated.len()
    }

    /// Machines that hold resources.
    pub(super) fn population(&self) -> usize {
        self.replicas() + self.claimed.len() + self.going.len()
    }

    /// Machines that may still be made.
    pub(super) fn room(&self, pool: &MacOSMachinePool) -> usize {
        count(pool.spec.max_machines).saturating_sub(self.population())
    }

    /// Machines that are missing in the stock.
    pub(super) fn deficit(&self, pool: &MacOSMachinePool) -> usize {
        self.target(pool).saturating_sub(self.free.len())
    }

    /// `replicas`, as far as claimed machines leave room for it.
    fn target(&self, pool: &MacOSMachinePool) -> usize {
        let left = count(pool.spec.max_machines).saturating_sub(self.claimed.len() + self.taken.len());
        count(pool.spec.replicas).min(left)
    }

    /// Machines beyond what is wanted: first those that do not answer any more, then those on their way; among them
    /// old ones, then the youngest.
    pub(super) fn surplus(&self, pool: &MacOSMachinePool) -> Vec<&'a MacOSMachine> {
        let many = self.free.len().saturating_sub(self.target(pool));
        let mut order = self.free.clone();
        order.sort_by_cached_key(|m| (Reverse(Warmth::of(m)), !self.is_outdated(m), Reverse(born(*m)), m.uid()));
        order.truncate(many);
        order
    }

    /// Old machines whose turn it is: those that are not Ready serve nobody and go at once; Ready ones as long as no
    /// more than a third of the stock (at least one) is not warm. Nothing while the size is being corrected.
    pub(super) fn rolled(&self, pool: &MacOSMachinePool, surplus: usize) -> Vec<&'a MacOSMachine> {
        if surplus > 0 {
            return Vec::new();
        }
        let (mut ready, cold): (Vec<_>, Vec<_>) = self.outdated.iter().copied().partition(|machine| is_ready(machine));
        let target = self.target(pool);
        let warm = self.free.iter().filter(|machine| is_ready(machine)).count();
        let most = (target / 3).max(1);
        let more = most.saturating_sub(target.saturating_sub(warm));
        ready.sort_by_cached_key(|machine| (born(*machine), machine.uid()));
        cold.into_iter().chain(ready.into_iter().take(more)).collect()
    }

    /// Failed machines beyond those that are kept.
    pub(super) fn stale_evidence(&self) -> Vec<&'a MacOSMachine> {
        self.prunable.clone()
    }

    /// Whether there is a machine of the name that one for this claim gets.
    pub(super) fn has_machine_named_for(&self, claim: &MacOSMachineClaim) -> bool {
        let name = for_claim(&claim.uid().unwrap_or_default());
        let lists = [&self.free, &self.taken, &self.claimed, &self.going, &self.failed];
        lists.into_iter().flatten().any(|machine| machine.name_any() == name)
    }

    fn is_outdated(&self, machine: &MacOSMachine) -> bool {
        self.outdated.iter().any(|old| old.metadata.uid == machine.metadata.uid)
    }
}

/// When a machine failed.
pub(super) fn failed_at(machine: &MacOSMachine) -> Option<Timestamp> {
    let failure = machine.status.as_ref().and_then(|status| status.failure.as_ref());
    failure.map(|failure| failure.at.0)
}

fn label(machine: &MacOSMachine) -> Option<&str> {
    machine.labels().get(TEMPLATE_HASH).map(String::as_str)
}

fn waits_on(claim: &MacOSMachineClaim, pool: &str) -> bool {
    let over = claim
        .status
        .as_ref()
        .is_some_and(|status| status.end.is_some() || status.machine_ref.is_some());
    let named = claim.spec.pool_name.as_ref().is_some_and(|name| name.0 == pool);
    named && !over && claim.metadata.deletion_timestamp.is_none()
}

/// A number of machines; the schema keeps it from being negative.
fn count(number: i32) -> usize {
    usize::try_from(number).unwrap_or_default()
}
