//! From orders and facts to what is done next: pure.
//!
//! Invariants, whatever the API says:
//! - a VM is started only while fewer than two live, none is Unknown, and the counter is not stuck;
//! - nothing but an order Stop or Wipe stops a VM: not a lost pod, not a lost right, not a lost slot;
//! - a Mac that goes down starts nothing: a VM that its shutdown stopped is not started into it;
//! - Wiped is answered only for a uid of which nothing is on this disk.

use std::collections::BTreeMap;

use jiff::Timestamp;
use macrack_api::instance::macos_instance::RestartPolicy;
use macrack_api::rack::node::{Order, Slot};

use crate::backoff::waits;
use crate::gates::{Gates, Shut};
use crate::life::{Life, REMAKE_WITHIN, RESTART_EVERY, Rest};

/// What is known of an instance's placeholder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Placeholder {
    /// The scheduler bound it to this Mac.
    Bound,
    /// Not (yet, or any more): in words.
    Missing(String),
}

/// What the API says of how an instance is to be made and kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    /// `spec.restartPolicy`; `None` while the instance cannot be read.
    pub restart: Option<RestartPolicy>,
    /// Hex of its golden, or what is missing before it can be made.
    pub golden: Result<String, String>,
}

/// A golden that is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GoldenState {
    /// In the cache.
    Cached,
    /// On its way, in words.
    Pulling(String),
    /// It cannot be pulled now, in words.
    Refused(String),
}

/// Everything that is decided from.
#[derive(Debug)]
pub struct View<'a> {
    /// The chassis.
    pub gates: Gates<'a>,
    /// `MacNode.status.slots`.
    pub slots: &'a [Slot],
    /// By uid; a uid that is not here was not looked for yet.
    pub placeholders: &'a BTreeMap<String, Placeholder>,
    /// By uid.
    pub wishes: &'a BTreeMap<String, Wish>,
    /// By hex.
    pub goldens: &'a BTreeMap<String, GoldenState>,
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Clone its disk and describe it.
    Make(String),
    /// Start its process.
    Start(String),
    /// Stop it, keep its disk.
    Stop(String),
    /// It was ordered to stop after it had ended by itself: it may be started again.
    Forget(String),
    /// Stop it and destroy everything of it.
    Wipe(String),
    /// Find out why the kernel refused its start.
    Judge(String),
}

/// What is reported of a uid in the place of what its task knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Say {
    /// It is ordered to be wiped, and nothing of it is here.
    Wiped,
    /// It is ordered not to run, and was not made yet.
    Unmade,
    /// Its golden is being pulled.
    Pulling(String),
    /// It waits for something else.
    Waiting(String),
}

/// What to do, what to say, and when to decide again at the latest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decision {
    /// In order.
    pub actions: Vec<Action>,
    /// By uid.
    pub says: BTreeMap<String, Say>,
    /// Without another event.
    pub wake: Option<Timestamp>,
}

/// Decides. What was decided before and is under way shows in the VMs' lives.
pub fn decide(view: &View<'_>) -> Decision {
    let mut decision = Decision::default();
    // a start decided here is alive for the next slot
    let mut alive = view.gates.alive();
    for slot in view.slots {
        let life = view.gates.vms.get(&slot.uid);
        match slot.order {
            Order::Run => run(view, slot, life, &mut alive, &mut decision),
            Order::Stop => stop(slot, life, &mut decision),
            Order::Wipe => wipe(slot, life, &mut decision),
        }
    }
    decision
}

fn stop(slot: &Slot, life: Option<&Life>, decision: &mut Decision) {
    let uid = slot.uid.clone();
    match life {
        // Wiped would say that it was destroyed: it was never made, and may be made yet
        None => drop(decision.says.insert(uid, Say::Unmade)),
        Some(Life::Starting | Life::Running | Life::Unknown(_)) => decision.actions.push(Action::Stop(uid)),
        Some(Life::AtRest(Rest::Ready)) => {}
        Some(Life::AtRest(_)) => decision.actions.push(Action::Forget(uid)),
        // under way, or nothing that could be stopped
        Some(Life::Partial { .. } | Life::Cloning | Life::Stopping | Life::Wiping | Life::WipeFailed(_)) => {}
    }
}

fn wipe(slot: &Slot, life: Option<&Life>, decision: &mut Decision) {
    match life {
        None => drop(decision.says.insert(slot.uid.clone(), Say::Wiped)),
        // its task tries again by itself
        Some(Life::Wiping | Life::WipeFailed(_)) => {}
        Some(_) => decision.actions.push(Action::Wipe(slot.uid.clone())),
    }
}

fn run<'a>(view: &View<'a>, slot: &'a Slot, life: Option<&Life>, alive: &mut Vec<&'a str>, decision: &mut Decision) {
    let uid = || slot.uid.clone();
    let next = match life {
        None | Some(Life::Partial { .. }) => Next::Make,
        Some(Life::AtRest(Rest::Ready | Rest::HostRestarted)) => Next::Start,
        Some(Life::AtRest(Rest::Refused(_))) if view.gates.quota.stuck => Next::Start,
        Some(Life::AtRest(Rest::Refused(_))) => return decision.actions.push(Action::Judge(uid())),
        Some(Life::AtRest(Rest::GuestShutdown { .. })) if restarts(view, slot) => Next::Start,
        // stays as it is; it runs, is under way, or has ended for good
        Some(_) => return,
    };
    if let Some(wait) = obstacle(view, slot, life, next, alive) {
        if let Some(until) = wait.until {
            decision.wake = Some(decision.wake.map_or(until, |wake| wake.min(until)));
        }
        decision.says.insert(uid(), wait.say);
        return;
    }
    match next {
        Next::Make => decision.actions.push(Action::Make(uid())),
        Next::Start => decision.actions.push(Action::Start(uid())),
    }
    // one that is being made starts next: its place is taken
    alive.push(&slot.uid);
}

fn restarts(view: &View<'_>, slot: &Slot) -> bool {
    let wish = view.wishes.get(&slot.uid);
    wish.is_some_and(|wish| wish.restart == Some(RestartPolicy::OnGuestShutdown))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Make,
    Start,
}

struct Wait {
    say: Say,
    until: Option<Timestamp>,
}

impl From<Shut> for Wait {
    fn from(Shut { why, until }: Shut) -> Wait {
        Wait { say: Say::Waiting(why), until }
    }
}

fn waiting(words: impl Into<String>) -> Option<Wait> {
    Some(Wait { say: Say::Waiting(words.into()), until: None })
}

/// The first thing that stands in the way of making or starting a VM.
fn obstacle(view: &View<'_>, slot: &Slot, life: Option<&Life>, next: Next, alive: &[&str]) -> Option<Wait> {
    match view.placeholders.get(&slot.uid) {
        Some(Placeholder::Bound) => {}
        Some(Placeholder::Missing(why)) => return waiting(why.clone()),
        None => return waiting("its placeholder pod was not looked for yet"),
    }
    view.gates.shut(&slot.uid, alive).map(Wait::from).or_else(|| match (next, life) {
        (Next::Make, _) => unmade(view, slot, life),
        (Next::Start, Some(Life::AtRest(Rest::GuestShutdown { restart_at })))
            if waits(*restart_at, view.gates.now, RESTART_EVERY) =>
        {
            let say = Say::Waiting(
                "the guest shut itself down right after its start; it is started again in a moment".to_owned(),
            );
            Some(Wait { say, until: Some(*restart_at) })
        }
        (Next::Start, _) => None,
    })
}

/// Why a VM cannot be made yet.
fn unmade(view: &View<'_>, slot: &Slot, life: Option<&Life>) -> Option<Wait> {
    let hex = match view.wishes.get(&slot.uid).map(|wish| &wish.golden) {
        Some(Ok(hex)) => hex,
        Some(Err(why)) => return waiting(why.clone()),
        None => return waiting("its MacOSInstance was not read yet"),
    };
    match view.goldens.get(hex) {
        Some(GoldenState::Cached) => {}
        Some(GoldenState::Pulling(words)) => {
            return Some(Wait { say: Say::Pulling(words.clone()), until: None });
        }
        Some(GoldenState::Refused(why)) => return waiting(why.clone()),
        None => return Some(Wait { say: Say::Pulling("its golden is about to be pulled".to_owned()), until: None }),
    }
    match life {
        Some(Life::Partial { why, retry_at: Some(until) }) if waits(*until, view.gates.now, REMAKE_WITHIN) => {
            let why = why.clone().unwrap_or_else(|| "its disk is made anew in a moment".to_owned());
            Some(Wait { say: Say::Waiting(why), until: Some(*until) })
        }
        _ => None,
    }
}

#[cfg(test)]
#[path = "orders_tests.rs"]
mod tests;
