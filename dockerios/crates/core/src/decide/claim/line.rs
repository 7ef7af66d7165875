//! Who is next: the line of waiting claims of one namespace, and the machines that they take.
//!
//! Invariant: first come, first served. Every pass that looks at the same objects finds the same line, so two claims
//! never aim at one machine out of two opinions; what changed in between is decided by the machine's resourceVersion.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use dockerios_api::{
    MacOSMachine, MacOSMachineClaim, MacOSMachinePool,
    condition::holds,
    machine::macos_machine::{MachineCondition, PowerState},
    names::{CLAIMED, POOL_UID},
};
use jiff::Timestamp;
use kube::ResourceExt;

use crate::Seen;

/// What the line is made of: objects of one namespace.
#[derive(Clone, Copy, Debug)]
pub struct Crowd<'a> {
    /// Its pools.
    pub pools: &'a [Arc<MacOSMachinePool>],
    /// Its machines.
    pub machines: &'a [Arc<MacOSMachine>],
    /// Its claims.
    pub claims: &'a [Arc<MacOSMachineClaim>],
}

impl<'a> Crowd<'a> {
    /// Of three lists.
    ///
    /// # Errors
    /// Why one of them is not known.
    pub fn of(
        pools: &'a Seen<Vec<Arc<MacOSMachinePool>>>,
        machines: &'a Seen<Vec<Arc<MacOSMachine>>>,
        claims: &'a Seen<Vec<Arc<MacOSMachineClaim>>>,
    ) -> Result<Self, &'a str> {
        fn all<'a, T>(seen: &'a Seen<Vec<Arc<T>>>, what: &'static str) -> Result<&'a [Arc<T>], &'a str> {
            match seen {
                Seen::Present(all) => Ok(all),
                Seen::Absent => Err(what),
                Seen::Unknown(why) => Err(why),
            }
        }
        Ok(Self {
            pools: all(pools, "pools were not listed")?,
            machines: all(machines, "machines were not listed")?,
            claims: all(claims, "claims were not listed")?,
        })
    }
}

/// Who takes what.
#[derive(Debug, Default)]
pub struct Line<'a> {
    /// uid of the claim → the machine that it takes.
    served: BTreeMap<String, &'a MacOSMachine>,
    /// uids of those machines.
    taken: BTreeSet<String>,
    /// Claims for which no machine is there, in order.
    unserved: Vec<&'a MacOSMachineClaim>,
}

impl<'a> Line<'a> {
    /// Of that crowd.
    pub fn of(crowd: Crowd<'a>) -> Self {
        let pools = uids(crowd.pools);
        let mut stock = Stock::of(crowd, &pools);
        let mut line = Self::default();
        for claim in waiting(crowd) {
            let key = match (&claim.spec.pool_name, &claim.spec.machine_class_name) {
                (Some(pool), _) => pools.get(pool.0.as_str()).map(|uid| Key::Pool(uid)),
                (None, Some(class)) => Some(Key::Class(class)),
                // the schema wants one of them
                (None, None) => None,
            };
            match key.and_then(|key| stock.take(key)) {
                Some(machine) => {
                    line.taken.insert(text(machine.uid()));
                    line.served.insert(text(claim.uid()), machine);
                }
                None => line.unserved.push(claim),
            }
        }
        line
    }

    /// The machine that the claim takes now.
    pub fn machine_for(&self, claim: &MacOSMachineClaim) -> Option<&'a MacOSMachine> {
        self.served.get(&text(claim.uid())).copied()
    }

    /// Whether a waiting claim takes that machine.
    pub fn takes(&self, machine: &MacOSMachine) -> bool {
        self.taken.contains(&text(machine.uid()))
    }

    /// Claims on that pool for which no machine is there, in order.
    pub fn unserved_of(&self, pool: &str) -> Vec<&'a MacOSMachineClaim> {
        let on = |claim: &MacOSMachineClaim| claim.spec.pool_name.as_ref().is_some_and(|name| name.0 == pool);
        self.unserved.iter().copied().filter(|claim| on(claim)).collect()
    }
}

/// Machines that the pool made, or that were made for a claim on it.
pub fn of_pool<'a>(pool: &MacOSMachinePool, machines: &'a [Arc<MacOSMachine>]) -> Vec<&'a MacOSMachine> {
    let Some(uid) = &pool.metadata.uid else {
        return Vec::new();
    };
    let ours = |machine: &&MacOSMachine| machine.labels().get(POOL_UID) == Some(uid);
    machines.iter().map(Arc::as_ref).filter(ours).collect()
}

/// The machine names a claim.
pub fn is_claimed(machine: &MacOSMachine) -> bool {
    machine.spec.claim_ref.is_some() || machine.labels().get(CLAIMED).is_some_and(|value| value == "true")
}

/// The machine failed, and holds no resources any more.
pub fn is_failed(machine: &MacOSMachine) -> bool {
    machine.status.as_ref().is_some_and(|status| status.failure.is_some())
}

/// The machine is being deleted.
pub fn is_going(machine: &MacOSMachine) -> bool {
    machine.metadata.deletion_timestamp.is_some()
}

/// The machine's guest says that it is ready.
pub fn is_ready(machine: &MacOSMachine) -> bool {
    let conditions = machine.status.as_ref().map(|status| &status.conditions);
    conditions.is_some_and(|conditions| holds(conditions, MachineCondition::Ready.word()))
}

/// The machine is on its way to be Ready for the first time. One that was Ready before and is not now, or that is to be
/// off, may stay so for ever: nobody waits for it.
pub fn is_coming(machine: &MacOSMachine) -> bool {
    let was_ready = machine
        .status
        .as_ref()
        .is_some_and(|status| status.first_ready_at.is_some());
    !is_ready(machine) && !was_ready && machine.spec.power_state == PowerState::Running
}

/// How near a machine is to being of use, nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Warmth {
    /// Ready.
    Warm,
    /// On its way, see [`is_coming`].
    Coming,
    /// Neither: it was Ready once, and does not answer now.
    Fallen,
}

impl Warmth {
    /// Of that machine.
    pub fn of(machine: &MacOSMachine) -> Self {
        match (is_ready(machine), is_coming(machine)) {
            (true, _) => Self::Warm,
            (false, true) => Self::Coming,
            (false, false) => Self::Fallen,
        }
    }
}

/// When the object was created; an object that the API server never stored is the youngest of all.
pub fn born(object: &impl ResourceExt) -> Timestamp {
    object.creation_timestamp().map_or(Timestamp::MAX, |time| time.0)
}

fn text(uid: Option<String>) -> String {
    uid.unwrap_or_default()
}

/// Pools that are to stay, by name.
fn uids(pools: &[Arc<MacOSMachinePool>]) -> BTreeMap<&str, &str> {
    let staying = pools.iter().filter(|pool| pool.metadata.deletion_timestamp.is_none());
    staying
        .filter_map(|pool| Some((pool.metadata.name.as_deref()?, pool.metadata.uid.as_deref()?)))
        .collect()
}

/// Claims that have no machine yet, oldest first.
fn waiting(crowd: Crowd<'_>) -> Vec<&MacOSMachineClaim> {
    // a machine that failed ends its claim; one that is being deleted before its claim was told of it does not count
    let held: BTreeSet<&str> = crowd
        .machines
        .iter()
        .filter(|machine| !is_going(machine))
        .filter_map(|machine| machine.spec.claim_ref.as_ref())
        .map(|claim| claim.uid.as_str())
        .collect();
    let waits = |claim: &&MacOSMachineClaim| {
        let over = claim
            .status
            .as_ref()
            .is_some_and(|status| status.end.is_some() || status.machine_ref.is_some());
        let uid = claim.metadata.uid.as_deref().unwrap_or_default();
        !over && claim.metadata.deletion_timestamp.is_none() && !held.contains(uid)
    };
    let mut all: Vec<_> = crowd.claims.iter().map(Arc::as_ref).filter(waits).collect();
    all.sort_by_cached_key(|claim| (born(*claim), claim.uid()));
    all
}

/// What a claim asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key<'a> {
    Pool(&'a str),
    Class(&'a str),
}

/// Machines that can be taken, best first, found by pool and by class.
struct Stock<'a> {
    machines: Vec<(&'a MacOSMachine, bool)>,
    by_key: BTreeMap<Key<'a>, Vec<usize>>,
    /// Up to where a key's list is used up, so that a long line is walked once.
    walked: BTreeMap<Key<'a>, usize>,
}

impl<'a> Stock<'a> {
    fn of(crowd: Crowd<'a>, pools: &BTreeMap<&'a str, &'a str>) -> Self {
        let live: BTreeSet<&str> = pools.values().copied().collect();
        let mut machines: Vec<&MacOSMachine> = crowd.machines.iter().map(Arc::as_ref).filter(|m| free(m)).collect();
        machines.sort_by_cached_key(|machine| (Warmth::of(machine), born(*machine), machine.uid()));
        let mut by_key: BTreeMap<Key, Vec<usize>> = BTreeMap::new();
        for (at, machine) in machines.iter().enumerate() {
            let pool = machine.labels().get(POOL_UID).map(String::as_str);
            let Some(pool) = pool.filter(|uid| live.contains(uid)) else {
                continue;
            };
            by_key.entry(Key::Pool(pool)).or_default().push(at);
            let class = machine.spec.machine_class_name.0.as_str();
            by_key.entry(Key::Class(class)).or_default().push(at);
        }
        Self {
            machines: machines.into_iter().map(|machine| (machine, true)).collect(),
            by_key,
            walked: BTreeMap::new(),
        }
    }

    fn take(&mut self, key: Key<'a>) -> Option<&'a MacOSMachine> {
        let list = self.by_key.get(&key)?;
        let walked = self.walked.entry(key).or_default();
        while let Some(at) = list.get(*walked) {
            *walked += 1;
            let (machine, free) = &mut self.machines[*at];
            if std::mem::take(free) {
                return Some(machine);
            }
        }
        None
    }
}

/// A warm machine, or one on its way to be warm, that nobody has and that stays.
fn free(machine: &MacOSMachine) -> bool {
    let conditions = machine.status.as_ref().map(|status| &status.conditions);
    let draining = conditions.is_some_and(|conditions| holds(conditions, MachineCondition::Draining.word()));
    let on = machine.spec.power_state == PowerState::Running;
    on && !draining && !is_claimed(machine) && !is_going(machine) && !is_failed(machine)
}
