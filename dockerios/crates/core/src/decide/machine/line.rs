//! Who waits for what, in which order: first come, first served by creation.
//!
//! Invariant: every machine that asks walks the same line over the same caches, so two of them never reckon with the
//! same identity or the same room, and one that was served in a write still on its way is still reckoned with.

use std::{collections::BTreeMap, sync::Arc};

use dockerios_api::{
    MacOSMachine, MacOSMachineClass, MacOSMachineClassSpec, MachineIdentity,
    condition::holds,
    config::platform_config::Headroom,
    machine::{
        class::IdentityKind,
        macos_machine::{MachineCondition, PowerState},
    },
};
use jiff::Timestamp;
use kube::ResourceExt;

use super::{
    cards::Cards,
    headroom::{Capacity, Room, judge, reservation},
};
use crate::Seen;

/// All that the line is walked over.
#[derive(Clone, Debug)]
pub struct Line {
    /// Machines that wait or are being made, in the whole cluster, the asking one among them; see [`Waiter::of`].
    pub waiters: Seen<Vec<Waiter>>,
    /// Identities of all pools that they ask for; [`crate::decide::identity::takeable`] ones or not.
    pub identities: Seen<Vec<Arc<MachineIdentity>>>,
    /// Capacity by storage class, for those that have a rule.
    pub capacity: BTreeMap<String, Seen<Capacity>>,
    /// How a storage class clones, in CDI's words, as far as it is known.
    pub strategy: BTreeMap<String, String>,
    /// Cards by device, for the devices that somebody in the line asks for.
    pub cards: BTreeMap<String, Seen<Cards>>,
}

impl Line {
    /// Of which nothing is known.
    pub fn unknown(why: &str) -> Self {
        Self {
            waiters: Seen::Unknown(why.to_owned()),
            identities: Seen::Unknown(why.to_owned()),
            capacity: BTreeMap::new(),
            strategy: BTreeMap::new(),
            cards: BTreeMap::new(),
        }
    }
}

/// A machine that waits, or that is being made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// Its uid.
    pub uid: String,
    /// Its creation.
    pub since: Timestamp,
    /// It has an identity or disks already: it is past the line, and only its room counts.
    pub begun: bool,
    /// The storage class in which it was held back for want of room: that one opens again only some points above its
    /// threshold, all others at theirs.
    pub held: Option<String>,
    /// Storage class and bytes of each disk that is still to be filled.
    pub disks: Vec<(String, u64)>,
    /// The identity pool that it takes from.
    pub pool: Option<String>,
    /// Device of the card that it asks for, until a VirtualMachine of its own is reckoned with in [`Cards::used`].
    pub gpu: Option<String>,
}

impl Waiter {
    /// The machine as it stands in the line; none when it does not: it is Ready, failed, off, or being deleted, or its
    /// class is not there. One that was Ready before takes no more room: its disks are there.
    pub fn of(machine: &MacOSMachine, class: Option<&MacOSMachineClass>, begun: bool) -> Option<Self> {
        let class = &class?.spec;
        let status = machine.status.as_ref();
        let done = status.is_some_and(|status| {
            status.failure.is_some() || holds(&status.conditions, MachineCondition::Ready.word())
        });
        if done || machine.metadata.deletion_timestamp.is_some() || machine.spec.power_state == PowerState::Stopped {
            return None;
        }
        let filled = status.is_some_and(|status| status.first_ready_at.is_some());
        Some(Self {
            uid: machine.uid()?,
            since: machine
                .metadata
                .creation_timestamp
                .as_ref()
                .map_or(Timestamp::MAX, |time| time.0),
            begun,
            held: status.and_then(|status| Some(status.awaits_room_in.as_ref()?.to_string())),
            disks: if filled { Vec::new() } else { disks_of(class) },
            pool: class
                .identity
                .per_machine
                .as_ref()
                .map(|identity| identity.pool_name.to_string()),
            gpu: class.gpu.as_ref().map(|gpu| gpu.device_name.clone()),
        })
    }

    fn rank(&self) -> (Timestamp, &str) {
        (self.since, &self.uid)
    }
}

/// Bytes of a bootdisk.
const BOOT_DISK: u64 = 384 << 20;

/// Storage class and bytes of each disk of a machine. The clone of a bootdisk stands where the system disk does,
/// wherever its master is (`render::machine`).
fn disks_of(class: &MacOSMachineClassSpec) -> Vec<(String, u64)> {
    let home = || class.system_disk.storage_class_name.to_string();
    let mut disks = vec![(home(), class.system_disk.size.bytes().unwrap_or(u64::MAX))];
    if class.identity.kind == IdentityKind::PerMachine {
        disks.push((home(), BOOT_DISK));
    }
    disks
}

/// Whose turn it is.
#[derive(Clone, Debug)]
pub(super) enum Turn {
    /// Its own; with the identity that it takes, if it takes one.
    Go(Option<Arc<MachineIdentity>>),
    /// There is no room in that storage class.
    NoRoom(String, Room),
    /// An older machine waits for room in that storage class.
    Behind(String),
    /// No card of that device is left for it.
    NoCard(String, Cards),
    /// No identity is left for it.
    NoIdentity,
    /// Something could not be read.
    Unreadable(String),
}

/// Walks the line up to the machine with that uid.
pub(super) fn turn(line: &Line, rules: &[Headroom], uid: &str) -> Turn {
    let (waiters, identities) = match (&line.waiters, &line.identities) {
        (Seen::Unknown(why), _) | (_, Seen::Unknown(why)) => return Turn::Unreadable(why.clone()),
        (waiters, identities) => (waiters.present(), identities.present()),
    };
    let mut waiters: Vec<&Waiter> = waiters.into_iter().flatten().collect();
    waiters.sort_by(|a, b| a.rank().cmp(&b.rank()));
    let mut walk = Walk::new(line, rules, identities.into_iter().flatten());
    for begun in waiters.iter().filter(|waiter| waiter.begun) {
        walk.reserve(begun);
    }
    for waiter in waiters.iter().filter(|waiter| !waiter.begun) {
        let turn = walk.serve(waiter);
        if waiter.uid == uid {
            return turn;
        }
    }
    Turn::Unreadable("it is not in the line yet".into())
}

/// Bytes that machines which are being made still take, by storage class.
pub fn reserved(line: &Line) -> BTreeMap<String, u64> {
    let mut walk = Walk::new(line, &[], std::iter::empty());
    let waiters = line.waiters.present().into_iter().flatten();
    waiters
        .filter(|waiter| waiter.begun)
        .for_each(|waiter| walk.reserve(waiter));
    let by_class = walk.reserved.into_iter();
    by_class.map(|(class, bytes)| (class.to_owned(), bytes)).collect()
}

struct Walk<'a> {
    line: &'a Line,
    rules: &'a [Headroom],
    reserved: BTreeMap<&'a str, u64>,
    /// Storage classes in which somebody earlier waits for room: nobody overtakes there.
    closed: Vec<&'a str>,
    /// Cards that those before take.
    taken: BTreeMap<&'a str, u64>,
    /// What is left of each pool, oldest last.
    free: BTreeMap<&'a str, Vec<&'a Arc<MachineIdentity>>>,
}

impl<'a> Walk<'a> {
    fn new(line: &'a Line, rules: &'a [Headroom], identities: impl Iterator<Item = &'a Arc<MachineIdentity>>) -> Self {
        let mut free: BTreeMap<&str, Vec<&Arc<MachineIdentity>>> = BTreeMap::new();
        for identity in identities.filter(|identity| crate::decide::identity::takeable(identity).is_ok()) {
            free.entry(&identity.spec.pool_name).or_default().push(identity);
        }
        for of_pool in free.values_mut() {
            of_pool.sort_by_key(|identity| (identity.metadata.creation_timestamp.clone(), identity.name_any()));
            of_pool.reverse();
        }
        Self {
            line,
            rules,
            reserved: BTreeMap::new(),
            closed: Vec::new(),
            taken: BTreeMap::new(),
            free,
        }
    }

    fn part(&self, class: &str, bytes: u64) -> u64 {
        reservation(bytes, self.line.strategy.get(class).map(String::as_str))
    }

    fn reserve(&mut self, waiter: &'a Waiter) {
        for (class, bytes) in &waiter.disks {
            let part = self.part(class, *bytes);
            let reserved = self.reserved.entry(class).or_default();
            *reserved = reserved.saturating_add(part);
        }
        if let Some(device) = &waiter.gpu {
            *self.taken.entry(device).or_default() += 1;
        }
    }

    /// Why there is no card for it; none when there is, or it asks for none.
    fn without_card(&self, waiter: &'a Waiter) -> Option<Turn> {
        let device = waiter.gpu.as_deref()?;
        let cards = match self.line.cards.get(device) {
            Some(Seen::Present(cards)) => *cards,
            Some(Seen::Unknown(why)) => return Some(Turn::Unreadable(why.clone())),
            Some(Seen::Absent) | None => Cards::default(),
        };
        let used = cards.used + self.taken.get(device).copied().unwrap_or_default();
        (used >= cards.total).then(|| Turn::NoCard(device.to_owned(), Cards { used, ..cards }))
    }

    /// What that machine gets; one that is held back takes nothing from those behind it.
    fn serve(&mut self, waiter: &'a Waiter) -> Turn {
        if let Some((class, room)) = self.short_of(waiter) {
            let open = !self.closed.contains(&class);
            self.closed.push(class);
            let (class, enough) = (class.to_owned(), matches!(room, Room::Enough { .. }));
            return if enough && !open {
                Turn::Behind(class)
            } else {
                Turn::NoRoom(class, room)
            };
        }
        if let Some(turn) = self.without_card(waiter) {
            return turn;
        }
        let identity = match &waiter.pool {
            None => None,
            Some(pool) => match self.free.get_mut(pool.as_str()).and_then(Vec::pop) {
                None => return Turn::NoIdentity,
                identity => identity.cloned(),
            },
        };
        self.reserve(waiter);
        Turn::Go(identity)
    }

    /// The first storage class that has no room for it, or in which it may not overtake.
    fn short_of(&self, waiter: &'a Waiter) -> Option<(&'a str, Room)> {
        let mut own: BTreeMap<&str, u64> = BTreeMap::new();
        for (class, bytes) in &waiter.disks {
            let sum = own.entry(class).or_default();
            *sum = sum.saturating_add(self.part(class, *bytes));
        }
        own.into_iter().find_map(|(class, part)| {
            let reserved = self
                .reserved
                .get(class)
                .copied()
                .unwrap_or_default()
                .saturating_add(part);
            let rule = self.rules.iter().find(|rule| *rule.storage_class_name == *class);
            let capacity = self.line.capacity.get(class).cloned().unwrap_or(Seen::Absent);
            match judge(rule, &capacity, reserved, waiter.held.as_deref() == Some(class)) {
                Room::NotConfigured => None,
                Room::Enough { .. } if !self.closed.contains(&class) => None,
                room => Some((class, room)),
            }
        })
    }
}
