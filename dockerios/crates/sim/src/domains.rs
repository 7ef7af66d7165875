//! The domains that run: one task for each, from the hook's first call to the end.
//!
//! ```text
//! Defining > Up > Ended (guest shut down) | Killed (grace over, pod gone) | Crashed
//!     > Refused (hook or QEMU said no; tried again) > Killed (the launcher gave up)
//! ```
//! Invariant: a domain's state is told to nobody; whoever is concerned is queued and looks here.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use dockerios_kubevirt::VirtualMachineInstance;
use kube::ResourceExt;
use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    task::AbortHandle,
    time::Instant,
};

use crate::{
    faults::Fault,
    guest::{Guest, Stage},
    hook,
    queue::Key,
    world::World,
};

/// Where a domain stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Defining,
    Refused(String),
    Up,
    Ended,
    Killed,
    Crashed,
}

enum Order {
    /// ACPI; kill after that many seconds of grace.
    PowerButton(u32),
    PowerOff,
    End(State),
}

struct Domain {
    state: State,
    orders: UnboundedSender<Order>,
    xml: Option<String>,
    stage: Stage,
    /// Whether an agent runs in its guest.
    agent: bool,
    task: Option<AbortHandle>,
}

/// All of them, by UID of their instance.
#[derive(Default)]
pub(crate) struct Domains(Mutex<HashMap<String, Domain>>);

impl Domains {
    fn with<T>(&self, uid: &str, look: impl FnOnce(&mut Domain) -> T) -> Option<T> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get_mut(uid).map(look)
    }

    pub(crate) fn state(&self, uid: &str) -> Option<State> {
        self.with(uid, |domain| domain.state.clone())
    }

    pub(crate) fn stage(&self, uid: &str) -> Option<Stage> {
        self.with(uid, |domain| domain.stage)
    }

    /// Whether an agent runs in the guest.
    pub(crate) fn has_agent(&self, uid: &str) -> Option<bool> {
        self.with(uid, |domain| domain.agent)
    }

    pub(crate) fn agent_runs(&self, uid: &str, runs: bool) {
        self.with(uid, |domain| domain.agent = runs);
    }

    /// The XML that QEMU would have been started with.
    pub(crate) fn xml(&self, uid: &str) -> Option<String> {
        self.with(uid, |domain| domain.xml.clone()).flatten()
    }

    fn order(&self, uid: &str, order: Order) {
        // a domain that has ended takes no orders
        self.with(uid, |domain| drop(domain.orders.send(order)));
    }

    pub(crate) fn press_power_button(&self, uid: &str, grace: u32) {
        self.order(uid, Order::PowerButton(grace));
    }

    pub(crate) fn power_off(&self, uid: &str) {
        self.order(uid, Order::PowerOff);
    }

    pub(crate) fn end(&self, uid: &str, how: State) {
        self.order(uid, Order::End(how));
    }

    /// Ends every task and with it every process, and tells nobody: the simulator ends.
    pub(crate) fn abandon(&self) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for task in all.drain().filter_map(|(_, domain)| domain.task) {
            task.abort();
        }
    }

    pub(crate) fn forget(&self, uid: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }

    fn enter(&self, uid: &str, state: State) -> Option<UnboundedReceiver<Order>> {
        let (orders, receiver) = unbounded_channel();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.contains_key(uid) {
            return None;
        }
        let domain = Domain {
            state,
            orders,
            xml: None,
            stage: Stage::Booting,
            agent: false,
            task: None,
        };
        all.insert(uid.to_owned(), domain);
        Some(receiver)
    }

    /// Starts the domain of an instance, through its hooks.
    pub(crate) fn define(&self, world: &Arc<World>, vmi: &Arc<VirtualMachineInstance>) {
        self.spawn(world, vmi, State::Defining);
    }

    /// Takes over one that ran before this process did.
    pub(crate) fn adopt(&self, world: &Arc<World>, vmi: &Arc<VirtualMachineInstance>) {
        self.spawn(world, vmi, State::Up);
    }

    fn spawn(&self, world: &Arc<World>, vmi: &Arc<VirtualMachineInstance>, first: State) {
        let uid = vmi.uid().unwrap_or_default();
        let Some(orders) = self.enter(&uid, first.clone()) else {
            return;
        };
        let run = Run {
            world: world.clone(),
            vmi: vmi.clone(),
            uid: uid.clone(),
            orders,
        };
        let task = tokio::spawn(run.whole(first == State::Up)).abort_handle();
        self.with(&uid, |domain| domain.task = Some(task));
    }
}

struct Run {
    world: Arc<World>,
    vmi: Arc<VirtualMachineInstance>,
    uid: String,
    orders: UnboundedReceiver<Order>,
}

impl Run {
    fn become_(&self, state: State) {
        self.world.domains.with(&self.uid, |domain| domain.state = state);
        self.world.queues.instances.add(Key::of(&*self.vmi));
        for pod in self
            .world
            .launchers(&self.vmi.namespace().unwrap_or_default(), &self.uid)
        {
            self.world.queues.pods.add(Key::of(&*pod));
        }
    }

    async fn whole(mut self, adopted: bool) {
        if !adopted && let Err(end) = self.defined().await {
            return self.become_(end);
        }
        self.become_(State::Up);
        let end = self.live(adopted).await;
        self.become_(end);
        hook::clean(&self.world.options.dir, &self.uid);
    }

    /// Until the domain is defined, or the launcher gives up.
    async fn defined(&mut self) -> Result<(), State> {
        let world = self.world.clone();
        let until = Instant::now() + world.options.timings.define;
        loop {
            let tried = tokio::select! {
                tried = hook::define(&world, &self.vmi) => tried,
                how = ended(&mut self.orders) => return Err(how),
            };
            match tried {
                Ok(xml) => {
                    world.domains.with(&self.uid, |domain| domain.xml = Some(xml));
                    return Ok(());
                }
                Err(why) => self.become_(State::Refused(why)),
            }
            tokio::select! {
                () = tokio::time::sleep(world.options.timings.define / 4) => {}
                how = ended(&mut self.orders) => return Err(how),
            }
            if Instant::now() >= until {
                return Err(State::Killed);
            }
        }
    }

    async fn live(&mut self, adopted: bool) -> State {
        let world = self.world.clone();
        let timings = &world.options.timings;
        let mut guest = Guest::new(&world, &self.vmi, adopted);
        let (mut off, mut kill): (Option<Instant>, Option<Instant>) = (None, None);
        loop {
            tokio::select! {
                order = self.orders.recv() => match order {
                    None => return State::Killed,
                    Some(Order::End(how)) => return how,
                    Some(Order::PowerOff) => {
                        off.get_or_insert(Instant::now() + timings.shutdown);
                    }
                    Some(Order::PowerButton(grace)) => {
                        kill.get_or_insert(Instant::now() + timings.grace_second.saturating_mul(grace));
                        if world.instance_fault(Fault::IgnoreAcpi, &self.vmi).is_none() {
                            off.get_or_insert(Instant::now() + timings.shutdown);
                        }
                    }
                },
                () = at(off) => {
                    guest.go_down().await;
                    return State::Ended;
                }
                () = at(kill) => return State::Killed,
                stage = guest.next() => {
                    world.domains.with(&self.uid, |domain| domain.stage = stage);
                }
            }
        }
    }
}

/// Never, without a time.
async fn at(when: Option<Instant>) {
    match when {
        Some(when) => tokio::time::sleep_until(when).await,
        None => std::future::pending().await,
    }
}

/// Until somebody says that it is over; a domain that is not up has no power button.
async fn ended(orders: &mut UnboundedReceiver<Order>) -> State {
    loop {
        match orders.recv().await {
            None => return State::Killed,
            Some(Order::End(how)) => return how,
            Some(Order::PowerButton(_) | Order::PowerOff) => {}
        }
    }
}

/// Shortest time between two looks at a hook's socket directory (KubeVirt: 300 ms).
pub(crate) const SOCKET_LOOK: Duration = Duration::from_millis(20);
