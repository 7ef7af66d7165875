//! The whole world as stateright explores it: the API server, the Macs, the clocks, what the operator's caches still
//! show, what may still happen, and what must never have happened.

use std::sync::Arc;

use macrack_api::rack::node::Order;

use crate::{
    agent,
    decision::{Act, Decision, Of, Status, decide},
    gather::View,
    world::{
        Api, Chassis, End, Hour, Instance, Lease, LeaseRef, Mac, OWNER, Real, Uid, admits, instance_uid, lease_uid,
    },
};

/// How often each thing may still happen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    /// A tenant makes a lease.
    pub make_lease: u8,
    /// A tenant deletes it.
    pub delete_lease: u8,
    /// An admin takes its finalizer off and deletes it.
    pub force_lease: u8,
    /// A tenant raises its minimum to 48 hours.
    pub raise_minimum: u8,
    /// A tenant makes an instance.
    pub make_instance: u8,
    /// A tenant deletes one.
    pub delete_instance: u8,
    /// An admin removes one by force.
    pub force_instance: u8,
    /// A tenant switches one off or on.
    pub power: u8,
    /// A namespace is deleted.
    pub end_namespace: u8,
    /// A clock moves.
    pub tick: u8,
    /// An agent restarts and does not find one of its VMs.
    pub lose_vm: u8,
    /// An admin removes a MacNode by force (it is made again later).
    pub force_mac: u8,
    /// An admin retires a Mac (and takes that back later).
    pub retire: u8,
    /// The operator's caches fall behind for a while.
    pub freeze: u8,
    /// The operator dies in the middle of a pass.
    pub crash: u8,
}

/// What the operator's caches still show.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Frozen {
    /// Which caches are behind.
    pub which: Which,
    /// What they show.
    pub api: Arc<Api>,
}

/// Caches that fall behind together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Which {
    /// Every cache: a paused leader.
    All,
    /// MacNodes.
    Macs,
    /// Leases and namespaces.
    Leases,
    /// Instances.
    Instances,
}

/// Who has a chassis, and until when at least: what tenant and agent were told, whatever became of the objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Given {
    /// uid of the lease.
    pub lease: Uid,
    /// Since when.
    pub bound: Hour,
    /// The floor, the highest that was told.
    pub floor: Hour,
    /// It was given back.
    pub released: bool,
}

/// One state of the world.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    /// The operator's clock.
    pub operator: Hour,
    /// The API server's clock.
    pub server: Hour,
    /// The API server.
    pub api: Api,
    /// The Macs.
    pub chassis: Vec<Chassis>,
    /// By chassis.
    pub given: Vec<Option<Given>>,
    /// How many leases were made, by tenant.
    pub leases_made: Vec<u8>,
    /// How many instances were made, by name.
    pub instances_made: Vec<u8>,
    /// Caches that are behind.
    pub frozen: Option<Frozen>,
    /// What may still happen.
    pub left: Budget,
    /// The rule that was broken on the way here.
    pub broken: Option<String>,
}

/// Why a write was refused.
#[derive(Debug)]
pub struct Refused;

impl World {
    /// Enrolled Macs that nobody leases; nothing else.
    pub fn new(macs: u8, left: Budget) -> Self {
        let mac = |n| Mac {
            uid: n + 1,
            finalizer: false,
            deleting: false,
            retired: false,
            lease: None,
            slots: Vec::new(),
            report: Some(crate::world::Report::default()),
            quarantined: false,
        };
        Self {
            operator: 0,
            server: 0,
            api: Api {
                macs: (0..macs).map(|n| Some(mac(n))).collect(),
                leases: vec![None; 2],
                instances: vec![None; OWNER.len()],
                ending: vec![false; 2],
            },
            chassis: vec![Chassis::default(); usize::from(macs)],
            given: vec![None; usize::from(macs)],
            leases_made: vec![0; 2],
            instances_made: vec![0; OWNER.len()],
            frozen: None,
            left,
            broken: None,
        }
    }

    /// What was decided about that object, from caches as they are.
    pub fn decision(&self, of: Of, stale: bool) -> Option<Arc<Decision>> {
        let cached = match &self.frozen {
            Some(frozen) if stale => {
                let (old, new) = (frozen.api.as_ref(), &self.api);
                let pick = |which| if frozen.which == Which::All || frozen.which == which { old } else { new };
                Api {
                    macs: pick(Which::Macs).macs.clone(),
                    leases: pick(Which::Leases).leases.clone(),
                    ending: pick(Which::Leases).ending.clone(),
                    instances: pick(Which::Instances).instances.clone(),
                }
            }
            _ => self.api.clone(),
        };
        let view = View { cached: &cached, now: &self.api, operator: self.operator, server: self.server };
        Some(decide(view.facts(of)?))
    }

    /// Carries out a decision from step `from` up to step `to`, or to its end with the status.
    pub fn carry_out(&mut self, of: Of, decision: &Decision, from: usize, to: Option<usize>) {
        if let Some(broken) = &decision.broken {
            self.breaks(broken);
            return;
        }
        let end = to.unwrap_or(decision.acts.len());
        for act in decision.acts.iter().take(end).skip(from) {
            if self.act(act).is_err() {
                break;
            }
        }
        if to.is_none() {
            self.tell(of, decision);
        }
    }

    /// A rule is broken; the first one counts.
    pub fn breaks(&mut self, rule: &str) {
        self.broken.get_or_insert_with(|| rule.to_owned());
    }

    fn act(&mut self, act: &Act) -> Result<(), Refused> {
        match act {
            Act::Hold(of) => self.hold(*of),
            Act::LetGo(of, uid) => self.let_go(*of, *uid),
            Act::Bind { mac, uid, to } => self.bind(*mac, *uid, *to),
            Act::Raise { mac, uid, lease, to } => self.patch((*mac, *uid), Some(*lease), |m| {
                m.lease.iter_mut().for_each(|r| r.floor = *to);
            }),
            Act::Mark { mac, uid, lease } => self.patch((*mac, *uid), Some(*lease), |m| {
                m.lease.iter_mut().for_each(|r| r.releasing = true);
            }),
            Act::Clear { mac, uid, lease } => {
                self.patch((*mac, *uid), Some(*lease), |m| m.lease = None)?;
                if let Some(given) = self.given[usize::from(*mac)].as_mut().filter(|g| g.lease == *lease) {
                    given.released = true;
                }
                if !self.chassis[usize::from(*mac)].vms.is_empty() {
                    self.breaks("a chassis was released with a VM or a disk on it");
                }
                Ok(())
            }
            Act::Slots { mac, uid, lease, from, to } => {
                if self.mac(*mac).is_none_or(|m| m.slots != *from) {
                    return Err(Refused);
                }
                self.patch((*mac, *uid), *lease, |m| m.slots.clone_from(to))
            }
        }
    }

    fn mac(&self, n: u8) -> Option<&Mac> {
        self.api.macs.get(usize::from(n))?.as_ref()
    }

    /// A contested write on the MacNode with that uid: tests it and the holder, then the schema judges.
    fn patch(&mut self, (n, uid): (u8, Uid), lease: Option<Uid>, change: impl FnOnce(&mut Mac)) -> Result<(), Refused> {
        let old = self.mac(n).filter(|m| m.uid == uid).ok_or(Refused)?;
        if lease.is_some() && lease != old.lease.map(|r| r.lease) {
            return Err(Refused);
        }
        let mut new = old.clone();
        change(&mut new);
        admits(old, &new).map_err(|_| Refused)?;
        self.api.macs[usize::from(n)] = Some(new);
        Ok(())
    }

    fn bind(&mut self, n: u8, uid: Uid, to: LeaseRef) -> Result<(), Refused> {
        let was = self.mac(n).and_then(|m| m.lease);
        self.patch((n, uid), None, |m| m.lease = Some(to))?;
        if was.is_some() {
            return Ok(());
        }
        let at = usize::from(n);
        let (operator, server) = (self.operator, self.server);
        match self.given[at] {
            // one that was released a moment ago: nobody's, and soon released again
            Some(given) if given.lease == to.lease && given.released => {}
            Some(given) if given.lease == to.lease => {
                // one that its lease never told may begin anew, and then ends later
                let told = self.api.leases.iter().flatten().any(|l| l.uid == to.lease && l.told.is_some());
                if (told && to.bound != given.bound) || to.floor < given.floor {
                    self.breaks("a binding came back with another clock");
                }
            }
            Some(given) if operator < given.floor || server < given.floor => {
                self.breaks("a chassis was given to another lease before its floor by both clocks");
            }
            _ if to.bound < operator.max(server) => self.breaks("a lease was bound by a clock of the past"),
            _ => {}
        }
        let foreign = self.chassis[at].tenants().iter().any(|t| *t != to.tenant);
        if foreign {
            self.breaks("a chassis was given to a tenant with something of another on it");
        }
        Ok(())
    }

    fn hold(&mut self, of: Of) -> Result<(), Refused> {
        let finalizer = match of {
            Of::Mac(n) => slot_mut(&mut self.api.macs, n).filter(|m| !m.deleting).map(|m| &mut m.finalizer),
            Of::Lease(t) => slot_mut(&mut self.api.leases, t).filter(|l| l.deleted.is_none()).map(|l| &mut l.finalizer),
            Of::Instance(n) => {
                slot_mut(&mut self.api.instances, n).filter(|i| i.deleted.is_none()).map(|i| &mut i.finalizer)
            }
        };
        *finalizer.ok_or(Refused)? = true;
        Ok(())
    }

    fn let_go(&mut self, of: Of, uid: Uid) -> Result<(), Refused> {
        if self.uid(of) != Some(uid) {
            return Err(Refused);
        }
        if let Some(rule) = self.holds_still(of) {
            self.breaks(rule);
        }
        let finalizer = match of {
            Of::Mac(n) => slot_mut(&mut self.api.macs, n).map(|m| &mut m.finalizer),
            Of::Lease(t) => slot_mut(&mut self.api.leases, t).map(|l| &mut l.finalizer),
            Of::Instance(n) => slot_mut(&mut self.api.instances, n).map(|i| &mut i.finalizer),
        };
        let finalizer = finalizer.filter(|f| **f).ok_or(Refused)?;
        *finalizer = false;
        self.collect();
        Ok(())
    }

    /// uid of the object of that name now.
    fn uid(&self, of: Of) -> Option<Uid> {
        let api = &self.api;
        match of {
            Of::Mac(n) => api.macs[usize::from(n)].as_ref().map(|m| m.uid),
            Of::Lease(t) => api.leases[usize::from(t)].as_ref().map(|l| l.uid),
            Of::Instance(n) => api.instances[usize::from(n)].as_ref().map(|i| i.uid),
        }
    }

    /// Why this object must not go yet.
    fn holds_still(&self, of: Of) -> Option<&'static str> {
        let macs = || self.api.macs.iter().flatten();
        match of {
            // one that is not being deleted gets its finalizer back in the next pass
            Of::Mac(n) => self.mac(n).filter(|m| m.deleting)?.lease.map(|_| "a MacNode went with a lease on it"),
            Of::Lease(t) => {
                let lease = self.api.leases[usize::from(t)].as_ref()?;
                let held = macs().any(|m| m.lease.is_some_and(|r| r.lease == lease.uid));
                (held && lease.end != Some(End::Broken)).then_some("a lease was let go while it holds a chassis")
            }
            Of::Instance(n) => {
                let instance = self.api.instances[usize::from(n)].as_ref()?;
                let held = macs().any(|m| !m.retired && m.slots.iter().any(|s| s.uid == instance.uid));
                held.then_some("an instance was let go while it has a slot")
            }
        }
    }

    /// Objects that are being deleted and that nothing holds are gone.
    pub fn collect(&mut self) {
        let api = &mut self.api;
        fn sweep<T>(all: &mut [Option<T>], goes: impl Fn(&T) -> bool) {
            all.iter_mut().filter(|thing| thing.as_ref().is_some_and(&goes)).for_each(|thing| *thing = None);
        }
        sweep(&mut api.macs, |m| m.deleting && !m.finalizer);
        sweep(&mut api.leases, |l| l.deleted.is_some() && !l.finalizer);
        sweep(&mut api.instances, |i| i.deleted.is_some() && !i.finalizer);
    }

    /// Writes the status, if the object is still the one that it was decided for: without its uid in the write a
    /// paused operator told a lease made again under the same name the clock of the lease before it.
    fn tell(&mut self, of: Of, decision: &Decision) {
        if self.uid(of) != Some(decision.uid) {
            return;
        }
        match (of, &decision.status) {
            (Of::Mac(n), Status::Mac { quarantined }) => {
                if let Some(mac) = slot_mut(&mut self.api.macs, n) {
                    mac.quarantined = *quarantined;
                }
            }
            (Of::Lease(t), Status::Lease { told, end }) => {
                let Some(lease) = slot_mut(&mut self.api.leases, t) else { return };
                let falls = lease.told.is_some_and(|was| told.is_none_or(|is| is.floor < was.floor));
                let unended = lease.end.is_some() && lease.end != *end;
                if falls || unended {
                    return; // floor-never-falls, ended-is-final
                }
                (lease.told, lease.end) = (*told, *end);
                if let Some(told) = told {
                    let given = Given { lease: lease.uid, bound: told.bound, floor: told.floor, released: false };
                    self.give(told.mac, given);
                }
            }
            (Of::Instance(n), Status::Instance { lease, full }) => {
                let Some(instance) = slot_mut(&mut self.api.instances, n) else { return };
                if instance.lease.is_some() && instance.lease != *lease {
                    return; // lease-uid-once
                }
                (instance.lease, instance.full) = (*lease, *full);
            }
            _ => {}
        }
    }

    /// A binding is known to its tenant or to the Mac: from now on it counts, whatever becomes of the objects.
    fn give(&mut self, n: u8, new: Given) {
        let held = self.mac(n).and_then(|m| m.lease).map(|r| r.lease) == Some(new.lease);
        let Some(old) = self.given.get_mut(usize::from(n)) else { return };
        match old {
            Some(old) if old.lease == new.lease && !old.released => old.floor = old.floor.max(new.floor),
            _ if held => *old = Some(new),
            _ => {}
        }
    }

    /// The agent reads its MacNode.
    pub fn agent_sees(&mut self, n: u8) {
        let at = usize::from(n);
        let Some(mac) = self.mac(n).cloned() else { return };
        agent::sees(&mut self.chassis[at], &mac);
        if let Some(r) = mac.lease {
            self.give(n, Given { lease: r.lease, bound: r.bound, floor: r.floor, released: false });
        }
    }

    /// The agent does the next step of what it saw.
    pub fn agent_works(&mut self, n: u8, counts: bool) {
        let chassis = &mut self.chassis[usize::from(n)];
        agent::works(chassis, counts);
        let (alive, tenants) = (chassis.alive(), chassis.tenants().len());
        if alive > 2 {
            self.breaks("three VMs are alive on one chassis");
        }
        if tenants > 1 {
            self.breaks("VMs of two tenants are on one chassis");
        }
    }

    /// The agent reports.
    pub fn agent_reports(&mut self, n: u8) {
        let report = agent::reports(&self.chassis[usize::from(n)]);
        if let Some(mac) = slot_mut(&mut self.api.macs, n) {
            let mut new = mac.clone();
            new.report = Some(report);
            if admits(mac, &new).is_ok() {
                *mac = new;
            }
        }
    }

    /// A tenant makes its lease.
    pub fn make_lease(&mut self, tenant: u8, maximum: Option<Hour>) {
        let at = usize::from(tenant);
        let uid = lease_uid(tenant, self.leases_made[at]);
        self.leases_made[at] += 1;
        self.api.leases[at] = Some(Lease {
            uid,
            tenant,
            made: self.server,
            finalizer: false,
            deleted: None,
            minimum: 24,
            maximum,
            told: None,
            end: None,
        });
    }

    /// A tenant makes an instance.
    pub fn make_instance(&mut self, name: u8) {
        let at = usize::from(name);
        let uid = instance_uid(name, self.instances_made[at]);
        self.instances_made[at] += 1;
        let made = self.server;
        self.api.instances[at] =
            Some(Instance { uid, made, deleted: None, finalizer: false, off: false, lease: None, full: false });
    }

    /// The objects of a namespace that is being deleted are deleted.
    pub fn collect_namespace(&mut self, tenant: u8) {
        let now = self.server;
        if let Some(lease) = slot_mut(&mut self.api.leases, tenant) {
            lease.deleted.get_or_insert(now);
        }
        for (name, instance) in OWNER.iter().zip(&mut self.api.instances) {
            if let Some(instance) = instance.as_mut().filter(|_| *name == tenant) {
                instance.deleted.get_or_insert(now);
            }
        }
        self.collect();
    }

    /// A MacNode is made again.
    pub fn make_mac(&mut self, n: u8) {
        self.api.macs[usize::from(n)] = Some(Mac {
            uid: n + 1 + 2 * (1 + self.left.force_mac),
            finalizer: false,
            deleting: false,
            retired: false,
            lease: None,
            slots: Vec::new(),
            report: None,
            quarantined: false,
        });
    }

    /// A running VM that its agent cannot reach any more, or can again.
    pub fn lose_vm(&mut self, n: u8, from: Real, to: Real) {
        let vm = self.chassis[usize::from(n)].vms.iter_mut().find(|(_, real)| *real == from);
        if let Some(vm) = vm {
            vm.1 = to;
        }
    }

    /// Rules about orders that hold in every state.
    pub fn orders_break(&self) -> Option<&'static str> {
        let macs: Vec<&Mac> = self.api.macs.iter().flatten().collect();
        for (i, mac) in macs.iter().enumerate() {
            let ours = |t: u8| mac.lease.is_some_and(|r| r.tenant == t);
            let live = |m: &&Mac| m.slots.iter().filter(|s| s.order != Order::Wipe).copied().collect::<Vec<_>>();
            if live(mac).iter().any(|s| s.name.is_none_or(|n| !ours(OWNER[usize::from(n)]))) {
                return Some("a slot is given to another tenant than the lease's");
            }
            let twice = macs[i + 1..].iter().any(|m| live(m).iter().any(|s| live(mac).iter().any(|t| s.uid == t.uid)));
            if twice {
                return Some("one instance has slots on two chassis");
            }
        }
        None
    }
}

fn slot_mut<T>(all: &mut [Option<T>], n: u8) -> Option<&mut T> {
    all.get_mut(usize::from(n))?.as_mut()
}
