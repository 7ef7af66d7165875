//! The world in few bytes: what the API server stores, what is really on the Macs, and the rules that the server
//! itself holds (the CEL rules of `macrack_api::rack::node`, written once more).

use std::collections::BTreeSet;

use macrack_api::rack::node::{Order, VmState};

/// Hours since the world began.
pub type Hour = u16;
/// uid of a lease or an instance; never used twice.
pub type Uid = u8;

/// Namespace of each instance name: three of the first tenant, one of the second.
pub const OWNER: [u8; 4] = [0, 0, 0, 1];

/// uid of the n-th lease that a tenant made.
pub fn lease_uid(tenant: u8, nth: u8) -> Uid {
    10 + tenant * 20 + nth
}
/// uid of the n-th instance of that name.
pub fn instance_uid(name: u8, nth: u8) -> Uid {
    100 + name * 20 + nth
}
/// Whose VM that is.
pub fn tenant_of(instance: Uid) -> u8 {
    OWNER[usize::from((instance - 100) / 20)]
}

/// A MacNode.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Mac {
    /// Grows each time it is made again.
    pub uid: Uid,
    /// Carries `rack.macrack.io/leased`.
    pub finalizer: bool,
    /// Has a deletionTimestamp.
    pub deleting: bool,
    /// spec.retirement is set.
    pub retired: bool,
    /// status.leaseRef
    pub lease: Option<LeaseRef>,
    /// status.slots
    pub slots: Vec<Slot>,
    /// status.agent
    pub report: Option<Report>,
    /// status.quarantine holds ReattachFailed.
    pub quarantined: bool,
}

/// `status.leaseRef`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseRef {
    /// uid of the lease.
    pub lease: Uid,
    /// Its namespace.
    pub tenant: u8,
    /// boundAt
    pub bound: Hour,
    /// earliestReleaseAt
    pub floor: Hour,
    /// releasing
    pub releasing: bool,
}

/// An entry of `status.slots`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slot {
    /// 0 or 1.
    pub slot: u8,
    /// uid of the instance.
    pub uid: Uid,
    /// Its name; none for an orphan.
    pub name: Option<u8>,
    /// What the agent is to do.
    pub order: Order,
}

/// What an agent reported.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Report {
    /// Every VM it knows of.
    pub vms: Vec<(Uid, VmState)>,
    /// The lease that the Mac remembers, and its floor.
    pub last: Option<(Uid, Hour)>,
}

/// A MacNodeLease; its name is the same in each namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    /// uid
    pub uid: Uid,
    /// namespace
    pub tenant: u8,
    /// creationTimestamp
    pub made: Hour,
    /// Carries `rack.macrack.io/release`.
    pub finalizer: bool,
    /// deletionTimestamp
    pub deleted: Option<Hour>,
    /// minimumDuration
    pub minimum: Hour,
    /// maximumDuration
    pub maximum: Option<Hour>,
    /// serial, boundAt and earliestReleaseAt of its status.
    pub told: Option<Told>,
    /// status.end
    pub end: Option<End>,
}

/// What a lease's status says of its binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Told {
    /// serial
    pub mac: u8,
    /// boundAt
    pub bound: Hour,
    /// earliestReleaseAt
    pub floor: Hour,
}

/// How a lease ended other than by deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// maximumDuration
    Expired,
    /// retirement
    Broken,
}

/// A MacOSInstance.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Instance {
    /// uid
    pub uid: Uid,
    /// creationTimestamp
    pub made: Hour,
    /// deletionTimestamp
    pub deleted: Option<Hour>,
    /// Carries `instance.macrack.io/vm`.
    pub finalizer: bool,
    /// spec.powerState is Stopped.
    pub off: bool,
    /// status.leaseUID
    pub lease: Option<Uid>,
    /// status.leaseFull
    pub full: bool,
}

/// Everything that the API server stores.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Api {
    /// MacNodes by number.
    pub macs: Vec<Option<Mac>>,
    /// Leases by namespace.
    pub leases: Vec<Option<Lease>>,
    /// Instances by name.
    pub instances: Vec<Option<Instance>>,
    /// Namespaces that are being deleted.
    pub ending: Vec<bool>,
}

/// What is really on a Mac.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Chassis {
    /// VMs of which anything is left.
    pub vms: Vec<(Uid, Real)>,
    /// The slots as its agent last saw them.
    pub seen: Vec<(Uid, Order)>,
    /// The last leaseRef that its agent saw, kept on its disk.
    pub last: Option<(Uid, Hour)>,
}

/// How a VM really is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Real {
    /// It runs.
    Running,
    /// It runs, and its agent cannot reach it.
    Lost,
    /// Its disk is there.
    Stopped,
}

impl Chassis {
    /// The tenants of whom something is on this Mac.
    pub fn tenants(&self) -> BTreeSet<u8> {
        self.vms.iter().map(|(uid, _)| tenant_of(*uid)).collect()
    }
    /// VMs that run.
    pub fn alive(&self) -> usize {
        self.vms.iter().filter(|(_, real)| *real != Real::Stopped).count()
    }
}

/// Whether the schema lets this status follow that one; else the rule that refuses it.
pub fn admits(old: &Mac, new: &Mac) -> Result<(), &'static str> {
    let rule = |holds: bool, name: &'static str| if holds { Ok(()) } else { Err(name) };
    if let Some(is) = &new.lease {
        rule(is.floor >= is.bound.saturating_add(24), "floor-24h")?;
    }
    if let (Some(was), Some(is)) = (&old.lease, &new.lease) {
        rule(was.lease == is.lease, "lease-ref-once")?;
        rule(was.bound == is.bound && is.floor >= was.floor, "floor-never-falls")?;
        rule(is.releasing || !was.releasing, "releasing-stays")?;
    }
    if let (Some(was), None) = (&old.lease, &new.lease) {
        rule(was.releasing && old.slots.is_empty(), "clear-when-empty")?;
    }
    rule(new.lease.is_some() || new.slots.iter().all(|s| s.order == Order::Wipe), "slots-belong-to-a-lease")?;
    rule(new.slots.len() <= 2, "two slots")?;
    rule(new.slots.len() < 2 || new.slots[0].uid != new.slots[1].uid, "one-slot-per-vm")?;
    let wiped = |uid| new.report.iter().flat_map(|r| &r.vms).any(|vm| *vm == (uid, VmState::Wiped));
    let kept = |o: &Slot| {
        let same = |n: &Slot| n.slot == o.slot && n.uid == o.uid && (o.order != Order::Wipe || n.order == Order::Wipe);
        new.slots.iter().any(same) || (o.order == Order::Wipe && wiped(o.uid))
    };
    rule(old.slots.iter().all(kept), "slot-until-wiped")
}
