//! Liveness, by running on: from any state a run without faults comes to rest within a bound, and is then as it should
//! be. (stateright's `eventually` misses a failure inside a cycle.)

use std::{
    collections::{HashMap, hash_map::DefaultHasher},
    hash::{Hash, Hasher},
    sync::{LazyLock, Mutex, PoisonError},
};

use macrack_api::rack::node::Order;

use crate::{
    decision::{About, Act, Of, Read, decide},
    gather::View,
    rack::World,
    world::{Hour, OWNER, Real},
};

/// Rounds of everybody acting once, after which there must be rest.
pub const BOUND: u8 = 40;
/// An hour after every floor that the model can reach.
pub const LATE: Hour = 300;

fn everybody(world: &World) -> Vec<Of> {
    let macs = (0u8..).zip(&world.api.macs).map(|(n, _)| Of::Mac(n));
    let instances = (0u8..).take(OWNER.len()).map(Of::Instance);
    macs.chain((0..2).map(Of::Lease)).chain(instances).collect()
}

/// Everybody acts once, on fresh facts and without a crash; whether anything changed.
fn round(world: &mut World, agents_count: bool) -> bool {
    let before = (world.api.clone(), world.chassis.clone());
    for of in everybody(world) {
        if let Some(decision) = world.decision(of, false) {
            world.carry_out(of, &decision, 0, None);
        }
    }
    for n in (0u8..).take(world.chassis.len()) {
        world.agent_sees(n);
        world.agent_works(n, agents_count);
        world.agent_reports(n);
    }
    before != (world.api.clone(), world.chassis.clone())
}

/// Runs without faults until nothing changes; whether that came within the bound.
pub fn settle(world: &mut World, agents_count: bool) -> bool {
    (0..BOUND).any(|_| !round(world, agents_count))
}

/// By state: how many rounds it takes to come to rest, for states from which that is known to end well.
static ENDS_WELL: LazyLock<Mutex<HashMap<u64, u8>>> = LazyLock::new(Mutex::default);

fn print(world: &World, agents_count: bool) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&world.api, &world.chassis, &world.given, agents_count).hash(&mut hasher);
    hasher.finish()
}

/// Whether a run without faults, with every floor past, comes to rest within the bound and leaves things in order.
///
/// # Errors
/// What is not in order.
pub fn comes(world: &World, agents_count: bool) -> Result<(), String> {
    let mut world = world.clone();
    calm(&mut world);
    let memory = || ENDS_WELL.lock().unwrap_or_else(PoisonError::into_inner);
    let mut passed = Vec::new();
    let mut after = 0;
    for _ in 0..=BOUND {
        let print = print(&world, agents_count);
        if let Some(known) = memory().get(&print) {
            after = *known;
            break;
        }
        passed.push(print);
        if !round(&mut world, agents_count) {
            if let Some(broken) = &world.broken {
                return Err(broken.clone());
            }
            in_order(&world)?;
            break;
        }
        if passed.len() > usize::from(BOUND) {
            return Err(format!("no rest within {BOUND} rounds: {world:#?}"));
        }
    }
    if passed.len() + usize::from(after) > usize::from(BOUND) {
        return Err(format!("no rest within {BOUND} rounds"));
    }
    let mut memory = memory();
    for (print, left) in passed.into_iter().rev().zip(after..) {
        memory.insert(print, left);
    }
    Ok(())
}

/// The faults end: caches catch up, Macs answer and return, time passes.
fn calm(world: &mut World) {
    world.frozen = None;
    (world.operator, world.server) = (LATE, LATE);
    for n in (0u8..).take(world.chassis.len()) {
        world.lose_vm(n, Real::Lost, Real::Running);
        world.lose_vm(n, Real::Lost, Real::Running);
        if world.api.macs[usize::from(n)].is_none() {
            world.make_mac(n);
        }
    }
    world.api.macs.iter_mut().flatten().for_each(|mac| mac.retired = false);
    for tenant in 0..2 {
        if world.api.ending[usize::from(tenant)] {
            world.collect_namespace(tenant);
        }
    }
}

/// Whether a world at rest, long after every floor, is as it should be.
fn in_order(world: &World) -> Result<(), String> {
    let wrong = |what: &str| Err(format!("at rest, {what}: {world:#?}"));
    let api = &world.api;
    if api.leases.iter().flatten().any(|l| l.deleted.is_some()) {
        return wrong("a deleted lease is stuck");
    }
    if api.instances.iter().flatten().any(|i| i.deleted.is_some()) {
        return wrong("a deleted instance is stuck");
    }
    let live: Vec<_> = api.leases.iter().flatten().filter(|l| l.end.is_none()).collect();
    for (n, mac) in (0u8..).zip(&api.macs) {
        let Some(mac) = mac else { return wrong("a MacNode is missing") };
        let on_disk = &world.chassis[usize::from(n)].vms;
        let Some(held) = mac.lease else {
            if !on_disk.is_empty() || !mac.slots.is_empty() {
                return wrong("remains are left on a free chassis");
            }
            if live.iter().any(|l| l.told.is_none()) {
                return wrong("a lease waits beside a free chassis");
            }
            continue;
        };
        if !live.iter().any(|l| l.uid == held.lease && l.told.is_some_and(|t| t.mac == n)) {
            return wrong("a chassis is held by nobody");
        }
        if mac.slots.iter().any(|s| s.order == Order::Wipe) {
            return wrong("a wipe is not done");
        }
        for (_, instance) in api.instances.iter().enumerate().filter_map(|(n, i)| Some((n, i.as_ref()?))) {
            let slotted = mac.slots.iter().find(|s| s.uid == instance.uid);
            if instance.lease == Some(held.lease) && !instance.full && slotted.is_none() {
                return wrong("an instance waits beside a free slot");
            }
            let runs = on_disk.contains(&(instance.uid, Real::Running));
            if slotted.is_some_and(|s| (s.order == Order::Run) != runs) {
                return wrong("a VM is not as it was ordered");
            }
        }
        if on_disk.iter().any(|(uid, _)| mac.slots.iter().all(|s| s.uid != *uid)) {
            return wrong("a VM is in no slot");
        }
    }
    let lost = live.iter().any(|l| l.told.is_some_and(|t| !holds(world, t.mac, l.uid)));
    if lost { wrong("a lease names a chassis that does not know of it") } else { Ok(()) }
}

fn holds(world: &World, n: u8, lease: u8) -> bool {
    let mac = world.api.macs.get(usize::from(n)).and_then(Option::as_ref);
    mac.is_some_and(|m| m.lease.is_some_and(|r| r.lease == lease))
}

/// Whether a chassis whose lease and instances cannot be read keeps everything as it is.
///
/// # Errors
/// What it would free.
pub fn blind(world: &World) -> Result<(), String> {
    for n in (0u8..).take(world.chassis.len()) {
        let view = View { cached: &world.api, now: &world.api, operator: world.operator, server: world.server };
        let Some(mut facts) = view.facts(Of::Mac(n)) else { continue };
        let About::Mac { mac, lease, holders, .. } = &mut facts.about else { continue };
        if mac.lease.is_none_or(|r| r.releasing) || mac.retired {
            continue; // nothing to free, or decided before
        }
        *lease = Read::Unreadable;
        holders.iter_mut().for_each(|(_, read)| *read = Read::Unreadable);
        let frees = |act: &Act| match act {
            Act::Mark { .. } | Act::Clear { .. } => true,
            Act::Slots { from, to, .. } => from.iter().any(|f| f.order != Order::Wipe && !to.contains(f)),
            _ => false,
        };
        if let Some(act) = decide(facts).acts.iter().find(|a| frees(a)) {
            return Err(format!("without reading its lease: {act:?}"));
        }
    }
    Ok(())
}

/// Whether everything that time alone will change has asked to be looked at again.
///
/// # Errors
/// What is forgotten.
pub fn asleep(world: &World) -> Result<(), String> {
    let at = |of, operator, server| {
        let view = View { cached: &world.api, now: &world.api, operator, server };
        view.facts(of).map(decide)
    };
    for of in everybody(world) {
        let (Some(now), Some(late)) = (at(of, world.operator, world.server), at(of, LATE, LATE)) else { continue };
        let new = |act: &&Act| !now.acts.contains(act) && !matches!(act, Act::Bind { .. });
        if !now.wakes && late.acts.iter().any(|a| new(&a)) {
            return Err(format!("{of:?} is to do {:?} later and sleeps", late.acts));
        }
    }
    Ok(())
}
