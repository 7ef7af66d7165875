//! A scene: which Macs there are, what may happen to them, and from where it begins. stateright explores every order in
//! which it can happen.

use std::sync::Arc;

use stateright::{Model, Property};

use crate::{
    decision::Of,
    rack::{Budget, Frozen, Which, World},
    rest,
    world::{Hour, OWNER, Real},
};

/// What is explored.
#[derive(Clone, Debug)]
pub struct Scene {
    /// How many Macs there are.
    pub macs: u8,
    /// How often each thing may happen.
    pub budget: Budget,
    /// The names under which instances may be made.
    pub names: Vec<u8>,
    /// The tenants that may make leases.
    pub tenants: Vec<u8>,
    /// maximumDuration of new leases.
    pub maximum: Option<Hour>,
    /// Whether agents refuse a third VM by themselves.
    pub agents_count: bool,
    /// The tenants that have asked for a lease already.
    pub unbound: Vec<u8>,
    /// The tenants that have their lease already, and the instances that run already.
    pub begun: (Vec<u8>, Vec<u8>),
    /// Caches that may fall behind, each alone or with the others.
    pub freezes: Vec<Which>,
    /// What must be met on the way, or the scene shows nothing.
    pub meets: Vec<Sight>,
}

/// A situation, by name.
pub type Sight = (&'static str, fn(&Scene, &World) -> bool);

/// One thing that happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The operator looks at an object: carries out its plan from a step up to another, or to the end and the status.
    Pass { of: Of, stale: bool, from: usize, to: Option<usize> },
    /// The agent reads its MacNode.
    AgentSees(u8),
    /// The agent does what it saw.
    AgentWorks(u8),
    /// The agent reports.
    AgentReports(u8),
    /// A tenant makes its lease.
    MakeLease(u8),
    /// A tenant deletes it.
    DeleteLease(u8),
    /// An admin removes it by force.
    ForceLease(u8),
    /// A tenant raises its minimum.
    RaiseMinimum(u8),
    /// A tenant makes an instance.
    MakeInstance(u8),
    /// A tenant deletes it.
    DeleteInstance(u8),
    /// An admin removes it by force.
    ForceInstance(u8),
    /// A tenant switches it off or on.
    Power(u8),
    /// A namespace is being deleted.
    EndNamespace(u8),
    /// What is in it is deleted.
    CollectNamespace(u8),
    /// The clocks move on, the operator's and the server's.
    Tick(Hour, Hour),
    /// An agent restarts and cannot reach a VM that runs.
    LoseVm(u8),
    /// It reaches it again.
    FindVm(u8),
    /// An admin removes a MacNode by force.
    ForceMac(u8),
    /// It is made again.
    MakeMac(u8),
    /// An admin retires a Mac.
    Retire(u8),
    /// And takes that back.
    Unretire(u8),
    /// Caches fall behind.
    Freeze(Which),
    /// And catch up.
    Thaw,
}

impl Scene {
    fn passes(&self, world: &World, stale: bool, events: &mut Vec<Event>) {
        let macs = (0..self.macs).map(Of::Mac);
        let leases = (0..2).map(Of::Lease);
        let instances = (0u8..).take(OWNER.len()).map(Of::Instance);
        for of in macs.chain(leases).chain(instances) {
            let Some(decision) = world.decision(of, stale) else { continue };
            let acts = decision.acts.len();
            // a leader that was paused in the middle of a plan goes on from where it was
            for from in 0..=if stale { acts } else { 0 } {
                events.push(Event::Pass { of, stale, from, to: None });
                if world.left.crash > 0 {
                    events.extend((from + 1..=acts).map(|to| Event::Pass { of, stale, from, to: Some(to) }));
                }
            }
        }
    }

    fn tenants(&self, world: &World, events: &mut Vec<Event>) {
        let (left, api) = (&world.left, &world.api);
        for &t in &self.tenants {
            let lease = api.leases[usize::from(t)].as_ref();
            let ending = api.ending[usize::from(t)];
            let live = lease.is_some_and(|l| l.deleted.is_none());
            let mut may = |yes: bool, event: Event| events.extend(yes.then_some(event));
            may(left.make_lease > 0 && lease.is_none() && !ending, Event::MakeLease(t));
            may(left.delete_lease > 0 && live, Event::DeleteLease(t));
            may(left.force_lease > 0 && lease.is_some(), Event::ForceLease(t));
            may(left.raise_minimum > 0 && live, Event::RaiseMinimum(t));
            may(left.end_namespace > 0 && !ending, Event::EndNamespace(t));
            may(ending, Event::CollectNamespace(t));
        }
        for &n in &self.names {
            let instance = api.instances[usize::from(n)].as_ref();
            let live = instance.is_some_and(|i| i.deleted.is_none());
            let tenant = usize::from(OWNER[usize::from(n)]);
            // admission would wait until the lease has its chassis; nothing here rests on admission
            let open = instance.is_none() && api.leases[tenant].is_some() && !api.ending[tenant];
            let mut may = |yes: bool, event: Event| events.extend(yes.then_some(event));
            may(left.make_instance > 0 && open, Event::MakeInstance(n));
            may(left.delete_instance > 0 && live, Event::DeleteInstance(n));
            may(left.force_instance > 0 && instance.is_some(), Event::ForceInstance(n));
            may(left.power > 0 && live, Event::Power(n));
        }
    }

    fn macs(&self, world: &World, events: &mut Vec<Event>) {
        for n in 0..self.macs {
            let at = usize::from(n);
            let chassis = &world.chassis[at];
            let has = |real| chassis.vms.iter().any(|(_, r)| *r == real);
            let mac = world.api.macs[at].as_ref();
            let mut may = |yes: bool, event: Event| events.extend(yes.then_some(event));
            may(mac.is_some(), Event::AgentSees(n));
            may(true, Event::AgentWorks(n));
            may(mac.is_some(), Event::AgentReports(n));
            may(world.left.lose_vm > 0 && has(Real::Running), Event::LoseVm(n));
            may(has(Real::Lost), Event::FindVm(n));
            // a binding that neither its tenant nor its Mac has heard of binds nobody: not forgotten, never known
            let known = mac.is_some_and(|m| m.lease.is_none_or(|r| chassis.last.is_some_and(|l| l.0 == r.lease)));
            may(world.left.force_mac > 0 && known, Event::ForceMac(n));
            may(mac.is_none(), Event::MakeMac(n));
            may(world.left.retire > 0 && mac.is_some_and(|m| !m.retired), Event::Retire(n));
            may(mac.is_some_and(|m| m.retired), Event::Unretire(n));
        }
    }

    fn time(&self, world: &World, events: &mut Vec<Event>) {
        if world.left.tick > 0 {
            events.extend([(3, 3), (24, 24), (24, 0), (0, 24)].map(|(o, s)| Event::Tick(o, s)));
        }
        if world.frozen.is_some() {
            events.push(Event::Thaw);
        } else if world.left.freeze > 0 {
            events.extend(self.freezes.iter().copied().map(Event::Freeze));
        }
    }

    fn happen(&self, world: &mut World, event: &Event) {
        let now = world.server;
        let left = &mut world.left;
        let at = |n: &u8| usize::from(*n);
        match event {
            Event::Pass { of, stale, from, to } => {
                if let Some(decision) = world.decision(*of, *stale) {
                    if to.is_some() {
                        world.left.crash -= 1;
                    }
                    world.carry_out(*of, &decision, *from, *to);
                }
            }
            Event::AgentSees(n) => world.agent_sees(*n),
            Event::AgentWorks(n) => world.agent_works(*n, self.agents_count),
            Event::AgentReports(n) => world.agent_reports(*n),
            Event::MakeLease(t) => {
                left.make_lease -= 1;
                world.make_lease(*t, self.maximum);
            }
            Event::DeleteLease(t) => {
                left.delete_lease -= 1;
                world.api.leases[at(t)].iter_mut().for_each(|l| l.deleted = Some(now));
                world.collect();
            }
            Event::ForceLease(t) => {
                left.force_lease -= 1;
                world.api.leases[at(t)] = None;
            }
            Event::RaiseMinimum(t) => {
                left.raise_minimum -= 1;
                world.api.leases[at(t)].iter_mut().for_each(|l| l.minimum = 48);
            }
            Event::MakeInstance(n) => {
                left.make_instance -= 1;
                world.make_instance(*n);
            }
            Event::DeleteInstance(n) => {
                left.delete_instance -= 1;
                world.api.instances[at(n)].iter_mut().for_each(|i| i.deleted = Some(now));
                world.collect();
            }
            Event::ForceInstance(n) => {
                left.force_instance -= 1;
                world.api.instances[at(n)] = None;
            }
            Event::Power(n) => {
                left.power -= 1;
                world.api.instances[at(n)].iter_mut().for_each(|i| i.off = !i.off);
            }
            Event::EndNamespace(t) => {
                left.end_namespace -= 1;
                world.api.ending[at(t)] = true;
            }
            Event::CollectNamespace(t) => world.collect_namespace(*t),
            Event::Tick(operator, server) => {
                left.tick -= 1;
                world.operator += operator;
                world.server += server;
            }
            Event::LoseVm(n) => {
                left.lose_vm -= 1;
                world.lose_vm(*n, Real::Running, Real::Lost);
            }
            Event::FindVm(n) => world.lose_vm(*n, Real::Lost, Real::Running),
            Event::ForceMac(n) => {
                left.force_mac -= 1;
                world.api.macs[at(n)] = None;
            }
            Event::MakeMac(n) => world.make_mac(*n),
            Event::Retire(n) => {
                left.retire -= 1;
                world.api.macs[at(n)].iter_mut().for_each(|m| m.retired = true);
            }
            Event::Unretire(n) => world.api.macs[at(n)].iter_mut().for_each(|m| m.retired = false),
            Event::Freeze(which) => {
                left.freeze -= 1;
                world.frozen = Some(Frozen { which: *which, api: Arc::new(world.api.clone()) });
            }
            Event::Thaw => world.frozen = None,
        }
    }
}

impl Model for Scene {
    type State = World;
    type Action = Event;

    fn init_states(&self) -> Vec<World> {
        let mut world = World::new(self.macs, self.budget.clone());
        for &tenant in &self.unbound {
            world.make_lease(tenant, self.maximum);
        }
        for &tenant in &self.begun.0 {
            world.make_lease(tenant, self.maximum);
            rest::settle(&mut world, self.agents_count);
        }
        for &name in &self.begun.1 {
            world.make_instance(name);
            rest::settle(&mut world, self.agents_count);
        }
        vec![world]
    }

    fn actions(&self, world: &World, events: &mut Vec<Event>) {
        if world.broken.is_some() {
            return;
        }
        self.passes(world, false, events);
        if world.frozen.is_some() {
            self.passes(world, true, events);
        }
        self.tenants(world, events);
        self.macs(world, events);
        self.time(world, events);
    }

    fn next_state(&self, world: &World, event: Event) -> Option<World> {
        let mut next = world.clone();
        self.happen(&mut next, &event);
        (next != *world).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let rules = vec![
            Property::always("no rule is ever broken", |_, world: &World| world.broken.is_none()),
            Property::always("orders keep to tenants and chassis", |_, world: &World| world.orders_break().is_none()),
            Property::always("what cannot be read frees nothing", |_, world: &World| rest::blind(world).is_ok()),
            Property::always("what waits for time has asked to be woken", |_, world: &World| {
                rest::asleep(world).is_ok()
            }),
            Property::always("without faults everything comes to rest", |scene: &Scene, world: &World| {
                rest::comes(world, scene.agents_count).is_ok()
            }),
        ];
        rules.into_iter().chain(self.meets.iter().map(|(name, met)| Property::sometimes(name, *met))).collect()
    }
}
