//! Where the machines that the API server has are looked up. Invariant: one that is there and cannot be read is not
//! absent.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use dockerios_api::{MacOSMachine, MachineIdentity};
use futures::FutureExt;
use kube::runtime::reflector::{ObjectRef, Store};

/// What a cache says of a machine.
#[derive(Debug, Clone)]
pub enum Sighting {
    /// It is there.
    There(Arc<MacOSMachine>),
    /// There is certainly none with this uid.
    Absent,
    /// It cannot be said.
    Unreadable,
}

/// A cache that somebody else keeps filled.
pub trait Roster: Send + Sync + 'static {
    /// The machine with this uid.
    fn machine(&self, uid: &str) -> Sighting;

    /// The uids of all machines that can be read.
    fn uids(&self) -> Vec<String>;

    /// The hardware UUID of the identity with this name, when it is known.
    fn system_uuid(&self, identity: &str) -> Option<String>;
}

/// The stores of two reflectors.
pub struct Stores {
    machines: Store<MacOSMachine>,
    identities: Store<MachineIdentity>,
    listed: AtomicBool,
}

impl Stores {
    /// Over stores that are being filled.
    #[must_use]
    pub fn new(machines: Store<MacOSMachine>, identities: Store<MachineIdentity>) -> Self {
        Self {
            machines,
            identities,
            listed: AtomicBool::new(false),
        }
    }

    /// Whether the first list of machines is complete.
    fn listed(&self) -> bool {
        if !self.listed.load(Ordering::Acquire) {
            let ready = self.machines.wait_until_ready().now_or_never();
            self.listed.store(ready.is_some_and(|r| r.is_ok()), Ordering::Release);
        }
        self.listed.load(Ordering::Acquire)
    }
}

impl Roster for Stores {
    fn machine(&self, uid: &str) -> Sighting {
        if !self.listed() {
            return Sighting::Unreadable;
        }
        match self.machines.find(|m| m.metadata.uid.as_deref() == Some(uid)) {
            Some(machine) => Sighting::There(machine),
            None => Sighting::Absent,
        }
    }

    fn uids(&self) -> Vec<String> {
        self.machines
            .state()
            .iter()
            .filter_map(|m| m.metadata.uid.clone())
            .collect()
    }

    fn system_uuid(&self, identity: &str) -> Option<String> {
        self.identities
            .get(&ObjectRef::new(identity))
            .map(|i| i.spec.system_uuid.clone())
    }
}
