//! A stuck counter and its reboot, explored on its own: one Mac with one VM, the real `decide::node` and `check::node`,
//! and what agent, `macrack-hostd` and kernel do, each in steps that anything may come between.
//!
//! ```text
//!   operator (fresh, or on a cache that stopped) ──orders, status.reboot──▶ agent ──note──▶ hostd ──▶ a new boot
//!      ▲ what it asks or approves is read fresh                              └──── dies between any two ────┘
//!      └──────────────────────────── report: boot, stuck, checked, the VM ──────────┘
//! ```
//!
//! Never: two reboots for one approval, or one without; a VM cut off by a reboot that was asked for; the quarantine left
//! without a new boot in which a VM started, unless by an admin's hand; a start in the boot that stuck.

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::{SignedDuration, Timestamp},
};
use macrack_api::{
    MacNode, RackConfigSpec,
    config::rack_config::RebootPolicy,
    rack::node::{Order, Quarantine, QuarantineReason, Reboot, VmState},
};
use macrack_core::{check, clock::Clocks, decide, plan::Step, seen::Seen};
use serde_json::Value;
use stateright::{Model, Property};

use crate::{
    expand,
    world::{Instance, Lease, LeaseRef, Mac, Report, Slot, Told, instance_uid, lease_uid},
};

/// Seconds since the world began; the name of a request.
pub type Moment = u32;
/// A boot of the host.
pub type Boot = u8;

/// `status.reboot`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// requestedAt
    pub at: Moment,
    /// bootID
    pub boot: Boot,
    /// approvedAt
    pub approved: Option<Moment>,
    /// doneBootID
    pub done: Option<Boot>,
}

/// What the API server holds of the Mac.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stored {
    /// The order in the slot.
    pub order: Order,
    /// The boot of the entry QuotaStuck.
    pub entry: Option<Boot>,
    /// status.reboot
    pub reboot: Option<Request>,
    /// status.policyRebootAt
    pub policy: Option<Moment>,
    /// spec.approvedReboot
    pub echo: Option<Moment>,
    /// spec.clearedQuarantine names the entry.
    pub cleared: bool,
    /// status.agent
    pub report: Heard,
}

/// What the agent reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Heard {
    /// bootID
    pub boot: Boot,
    /// quota.stuck
    pub stuck: bool,
    /// quota.checkedBootID
    pub checked: Option<Boot>,
    /// The VM.
    pub vm: VmState,
}

/// What is really so on the Mac.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Host {
    /// The boot.
    pub boot: Boot,
    /// The kernel refuses a start.
    pub refuses: bool,
    /// The VM runs.
    pub runs: bool,
    /// The agent's file: the counter is stuck in that boot.
    pub stuck: Option<Boot>,
    /// The agent's file: a start succeeded in that boot.
    pub checked: Option<Boot>,
    /// The agent's file: the request that was asked for, and whether it is known to have begun.
    pub asked: Option<(Moment, bool)>,
    /// What the agent saw last; nothing since it died.
    pub seen: Option<(Order, Option<Request>)>,
    /// hostd's file: the last approval that was used.
    pub used: Option<Moment>,
    /// An asking is on its way to hostd.
    pub asking: Option<Moment>,
    /// The host goes down for that request.
    pub going: Option<Moment>,
    /// Reboots that were asked for, by request.
    pub rebooted: Vec<Moment>,
}

/// How often each thing may still happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Budget {
    /// The counter sticks.
    pub stick: u8,
    /// An admin approves what is pending.
    pub approve: u8,
    /// An admin clears the quarantine by hand.
    pub clear: u8,
    /// Power is cut.
    pub cut: u8,
    /// The agent dies.
    pub die: u8,
    /// The operator's cache stops, and goes on later.
    pub freeze: u8,
    /// An hour passes.
    pub tick: u8,
}

/// One state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    /// The operator's clock.
    pub now: Moment,
    /// The API server.
    pub api: Stored,
    /// A cache that stopped.
    pub frozen: Option<Box<Stored>>,
    /// The Mac.
    pub host: Host,
    /// What may still happen.
    pub left: Budget,
    /// What was broken.
    pub broken: Option<&'static str>,
}

/// One thing that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// The operator's pass, on the cache that stopped or on what is; it may die after the orders.
    Pass { stale: bool, dies: bool },
    /// The agent reads its MacNode.
    Sees,
    /// It obeys the order.
    Obeys,
    /// It notes an approved reboot and asks for it.
    Asks,
    /// hostd gets the asking.
    Reboots,
    /// The host goes down.
    GoesDown,
    /// The agent reports.
    Reports,
    /// The agent dies and comes again.
    Dies,
    /// The counter sticks.
    Sticks,
    /// An admin echoes the pending request.
    Approves,
    /// An admin echoes the entry.
    Clears,
    /// Power is cut.
    Cut,
    /// The cache stops.
    Freezes,
    /// An hour passes.
    Ticks,
}

/// A world to explore.
#[derive(Clone, Debug)]
pub struct Scene {
    /// quota.reboot
    pub policy: RebootPolicy,
    /// What may happen.
    pub budget: Budget,
}

fn moment(at: Moment) -> Timestamp {
    expand::time(0).checked_add(SignedDuration::from_secs(i64::from(at))).unwrap_or(Timestamp::MAX)
}
fn at(moment: &Time) -> Moment {
    u32::try_from(moment.0.duration_since(expand::time(0)).as_secs()).unwrap_or(u32::MAX)
}
fn boot_id(boot: Boot) -> String {
    format!("boot-{boot}")
}
fn boot(id: &str) -> Boot {
    id.rsplit('-').next().and_then(|n| n.parse().ok()).unwrap_or(0)
}

fn entry(of: Boot) -> Quarantine {
    Quarantine { reason: QuarantineReason::QuotaStuck.into(), since: Time(moment(0)), boot_id: boot_id(of) }
}

fn mac_node(stored: &Stored) -> MacNode {
    let (lease, instance) = (lease_uid(0, 0), instance_uid(0, 0));
    let held = LeaseRef { lease, tenant: 0, bound: 0, floor: 24, releasing: false };
    let slot = Slot { slot: 0, uid: instance, name: Some(0), order: stored.order };
    let mut node = expand::mac(
        0,
        &Mac {
            uid: 1,
            finalizer: true,
            deleting: false,
            retired: false,
            lease: Some(held),
            slots: vec![slot],
            report: Some(Report { vms: vec![(instance, stored.report.vm)], last: None }),
            quarantined: false,
        },
    );
    node.spec.approved_reboot = stored.echo.map(|echo| Time(moment(echo)));
    node.spec.cleared_quarantine = stored.entry.filter(|_| stored.cleared).map(|of| entry(of).token());
    let status = node.status.get_or_insert_default();
    status.quarantine = stored.entry.map(entry).into_iter().collect();
    status.policy_reboot_at = stored.policy.map(|at| Time(moment(at)));
    status.reboot = stored.reboot.map(|request| Reboot {
        reason: "QuotaStuck".into(),
        requested_at: Time(moment(request.at)),
        boot_id: Some(boot_id(request.boot)),
        approved_at: request.approved.map(|at| Time(moment(at))),
        approved_by: None,
        done_boot_id: request.done.map(boot_id),
    });
    let agent = status.agent.get_or_insert_default();
    agent.boot_id = boot_id(stored.report.boot);
    agent.quota.stuck = stored.report.stuck;
    agent.quota.checked_boot_id = stored.report.checked.map(boot_id);
    node
}

fn facts(node: MacNode, now: Moment, policy: RebootPolicy) -> decide::node::Facts {
    let told = Told { mac: 0, bound: 0, floor: 24 };
    let lease = Lease {
        uid: lease_uid(0, 0),
        tenant: 0,
        made: 0,
        finalizer: true,
        deleted: None,
        minimum: 24,
        maximum: None,
        told: Some(told),
        end: None,
    };
    let uid = instance_uid(0, 0);
    let instance =
        Instance { uid, made: 0, deleted: None, finalizer: true, off: false, lease: Some(lease.uid), full: false };
    let instance = expand::instance(0, &instance);
    let mut config = RackConfigSpec::default();
    config.quota.reboot = policy;
    decide::node::Facts {
        clocks: Clocks { operator: moment(now), server: Seen::Absent },
        class: Seen::Present(expand::class()),
        lease: Seen::Present(expand::lease(&lease)),
        namespace_ending: Seen::Present(false),
        instances: Seen::Present(vec![instance.clone()]),
        holders: [(expand::uid(uid), Seen::Present(instance))].into(),
        sizes: [("small".to_owned(), expand::size())].into(),
        kube_node: Seen::Present(expand::kube_node(&node)),
        existing: Default::default(),
        claim: Seen::Absent,
        config,
        policy_reboots: Seen::Present(Vec::new()),
        pull_secrets: Default::default(),
        node,
    }
}

impl Stored {
    /// Whether the schema lets the entry QuotaStuck and policyRebootAt be written so.
    fn admits(&self, entry: Option<Boot>, policy: Option<Moment>) -> bool {
        let Heard { boot, stuck, checked, .. } = self.report;
        let stays = match (self.entry, entry) {
            (None, _) => true,
            (Some(was), Some(is)) => is == was || is == boot,
            (Some(was), None) => self.cleared || (boot != was && checked == Some(boot) && !stuck),
        };
        stays && policy >= self.policy
    }
}

impl World {
    /// A Mac whose VM runs.
    fn new(left: Budget) -> World {
        let report = Heard { boot: 1, stuck: false, checked: Some(1), vm: VmState::Running };
        let api =
            Stored { order: Order::Run, entry: None, reboot: None, policy: None, echo: None, cleared: false, report };
        let host = Host {
            boot: 1,
            refuses: false,
            runs: true,
            stuck: None,
            checked: Some(1),
            asked: None,
            seen: None,
            used: None,
            asking: None,
            going: None,
            rebooted: Vec::new(),
        };
        World { now: 0, api, frozen: None, host, left, broken: None }
    }

    fn breaks(&mut self, rule: &'static str) {
        self.broken.get_or_insert(rule);
    }

    fn pass(&mut self, stale: bool, dies: bool, policy: RebootPolicy) {
        let cached = match (&self.frozen, stale) {
            (Some(frozen), true) => frozen.as_ref().clone(),
            _ => self.api.clone(),
        };
        let mut node = mac_node(&cached);
        if decide::node::settles_reboot(&node, moment(self.now)) {
            // what may be asked for or approved is read from the API server itself
            node = mac_node(&self.api);
        }
        let facts = facts(node, self.now, policy);
        let plan = decide::node::decide(&facts);
        if check::node(&facts, &plan).is_err() {
            self.breaks("a plan that check refuses");
            return;
        }
        for step in &plan.steps {
            if let Step::SetSlots { from, to, .. } = step
                && let (Some(from), Some(to)) = (from.first(), to.first())
                && from.order == self.api.order
            {
                self.api.order = to.order;
            }
        }
        // any change of a condition writes the whole status, what was read from a cache that stopped with it
        if let Some(status) = plan.status.filter(|_| !dies)
            && self.tell(&status).is_err()
        {
            self.breaks("a status that is none");
        }
    }

    fn tell(&mut self, status: &Value) -> serde_json::Result<()> {
        let reboot: Option<Reboot> = serde_json::from_value(status["reboot"].clone())?;
        let policy: Option<Time> = serde_json::from_value(status["policyRebootAt"].clone())?;
        let quarantine: Option<Vec<Quarantine>> = serde_json::from_value(status["quarantine"].clone())?;
        let reboot = reboot.map(|r| Request {
            at: at(&r.requested_at),
            boot: r.boot_id.as_deref().map_or(0, boot),
            approved: r.approved_at.as_ref().map(at),
            done: r.done_boot_id.as_deref().map(boot),
        });
        if let (Some(was), Some(is)) = (&self.api.reboot, &reboot)
            && was.approved.is_some()
            && was.done.is_none()
            && (was.at, was.approved) != (is.at, is.approved)
        {
            return Ok(()); // one-reboot: the schema refuses the whole write
        }
        let stuck = QuarantineReason::QuotaStuck.as_str();
        let is = quarantine.iter().flatten().find(|q| q.reason == stuck).map(|q| boot(&q.boot_id));
        let policy = policy.as_ref().map(at);
        if !self.api.admits(is, policy) {
            return Ok(()); // quarantine-stays, policy-reboot-stays
        }
        if let (Some(was), None) = (self.api.entry, is) {
            let earned = self.host.checked.is_some_and(|checked| checked > was);
            if !earned && !self.api.cleared {
                self.breaks("unquarantined without a new boot in which a VM started");
            }
            self.api.cleared = false;
        }
        self.api.entry = is;
        self.api.reboot = reboot;
        self.api.policy = policy;
        Ok(())
    }

    fn obeys(&mut self) {
        let host = &mut self.host;
        let Some((order, _)) = host.seen else { return };
        match order {
            Order::Run if !host.runs && host.stuck != Some(host.boot) => {
                if host.refuses {
                    host.stuck = Some(host.boot);
                } else {
                    (host.runs, host.checked) = (true, Some(host.boot));
                }
            }
            Order::Stop | Order::Wipe => host.runs = false,
            Order::Run => {}
        }
    }

    /// The rule of `macrack-agent`'s `reboot.rs`, written once more.
    fn asks(&mut self) {
        let host = &mut self.host;
        let Some((_, Some(request))) = host.seen else { return };
        let mine = request.approved.is_some() && request.done.is_none() && request.boot == host.boot;
        let again = match host.asked {
            Some((at, begun)) => at < request.at || (at == request.at && !begun),
            None => true,
        };
        if mine && again && !host.runs {
            host.asked = Some((request.at, false));
            host.asking = Some(request.at);
        }
    }

    /// hostd uses each approval once, and notes it first.
    fn reboots(&mut self) {
        let Some(asked) = self.host.asking.take() else { return };
        if self.host.used.is_some_and(|used| asked <= used) {
            if let Some((at, begun)) = &mut self.host.asked
                && *at == asked
            {
                *begun = true;
            }
            return;
        }
        self.host.used = Some(asked);
        self.host.going.get_or_insert(asked);
    }

    /// The reboot that has begun comes to its end.
    fn goes_down(&mut self) {
        let Some(asked) = self.host.going else { return };
        if self.host.runs {
            self.breaks("a VM was cut off by a reboot that was asked for");
        }
        if self.host.rebooted.contains(&asked) {
            self.breaks("two reboots for one approval");
        }
        self.host.rebooted.push(asked);
        self.boot();
    }

    fn boot(&mut self) {
        let host = &mut self.host;
        host.boot += 1;
        (host.runs, host.refuses) = (false, false);
        (host.seen, host.asking, host.going) = (None, None, None);
    }

    fn reports(&mut self) {
        let host = &self.host;
        let stuck = host.stuck == Some(host.boot);
        let waits = self.api.order == Order::Run;
        let vm = match host.runs {
            true => VmState::Running,
            false if waits => VmState::Waiting,
            false => VmState::Stopped,
        };
        self.api.report = Heard { boot: host.boot, stuck, checked: host.checked, vm };
    }

    fn happen(&mut self, event: Event, policy: RebootPolicy) {
        match event {
            Event::Pass { stale, dies } => self.pass(stale, dies, policy),
            Event::Sees => self.host.seen = Some((self.api.order, self.api.reboot)),
            Event::Obeys => self.obeys(),
            Event::Asks => self.asks(),
            Event::Reboots => self.reboots(),
            Event::GoesDown => self.goes_down(),
            Event::Reports => self.reports(),
            Event::Dies => {
                self.left.die -= 1;
                (self.host.seen, self.host.asking) = (None, None);
            }
            Event::Sticks => {
                self.left.stick -= 1;
                // the VM ends, stays counted, and its next start is refused
                (self.host.refuses, self.host.runs) = (true, false);
            }
            Event::Approves => {
                self.left.approve -= 1;
                self.api.echo = self.api.reboot.map(|request| request.at);
            }
            Event::Clears => {
                self.left.clear -= 1;
                self.api.cleared = true;
            }
            Event::Cut => {
                self.left.cut -= 1;
                self.boot();
            }
            Event::Freezes => {
                self.left.freeze -= 1;
                self.frozen = Some(Box::new(self.api.clone()));
            }
            Event::Ticks => {
                self.left.tick -= 1;
                self.now += 3600;
            }
        }
        let approvals = usize::from(self.api.policy.is_some()) * 2 + usize::from(self.api.echo.is_some());
        if self.host.rebooted.len() > approvals {
            self.breaks("a reboot that nobody approved");
        }
    }
}

impl Model for Scene {
    type State = World;
    type Action = Event;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self.budget)]
    }

    fn actions(&self, world: &World, events: &mut Vec<Event>) {
        if world.broken.is_some() {
            return;
        }
        events.extend([Event::Pass { stale: false, dies: false }, Event::Pass { stale: false, dies: true }]);
        if world.frozen.is_some() {
            events.push(Event::Pass { stale: true, dies: false });
        }
        events.extend([Event::Sees, Event::Obeys, Event::Asks, Event::Reboots, Event::GoesDown, Event::Reports]);
        let left = &world.left;
        let pending = world.api.reboot.is_some_and(|request| request.approved.is_none());
        for (event, may) in [
            (Event::Dies, left.die > 0),
            (Event::Sticks, left.stick > 0 && world.host.runs),
            (Event::Approves, left.approve > 0 && pending),
            (Event::Clears, left.clear > 0 && world.api.entry.is_some()),
            (Event::Cut, left.cut > 0),
            (Event::Freezes, left.freeze > 0),
            (Event::Ticks, left.tick > 0),
        ] {
            if may {
                events.push(event);
            }
        }
    }

    fn next_state(&self, world: &World, event: Event) -> Option<World> {
        let mut next = world.clone();
        next.happen(event, self.policy);
        (next != *world).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no rule is ever broken", |_, world: &World| world.broken.is_none()),
            Property::sometimes("a Mac is rebooted once and its VM runs again", |_, world: &World| {
                world.host.rebooted.len() == 1 && world.host.runs && world.api.entry.is_none() && world.host.boot == 2
            }),
            Property::sometimes("an approval is asked with again and used once", |_, world: &World| {
                world.host.asked.is_some_and(|(_, begun)| begun) && world.host.going.is_some()
            }),
        ]
    }
}
