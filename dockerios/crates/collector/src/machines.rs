//! What the collector asks about machines. Invariant: a machine that cannot be read is neither known nor gone.

use std::{fmt, future::Future, pin::Pin};

use dockerios_api::machine::macos_machine::Guest;
use dockerios_wire::Reply;
use tokio::sync::watch;

/// A future behind a trait object.
pub type Later<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What was found under a uid.
#[derive(Debug, Clone, PartialEq)]
pub enum Look {
    /// There is such a machine.
    Known(Box<Known>),
    /// There is certainly none.
    Unknown,
    /// Machines cannot be read at the moment: nothing may be concluded.
    Unreadable,
}

/// A machine, as far as reports go.
#[derive(Debug, Clone, PartialEq)]
pub struct Known {
    /// Namespace of the machine object.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// What is wanted of the guest.
    pub order: Reply,
    /// Who the guest should be; None for a class that shares one identity, and while it is not known.
    pub identity: Option<Expected>,
    /// What its status says that the guest last reported.
    pub recorded: Option<Guest>,
}

/// The identity that a machine was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    /// Its serial number; compared without regard to case.
    pub serial: String,
    /// Its hardware UUID, when it is known; compared without regard to case.
    pub system_uuid: Option<String>,
}

/// What became of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recorded {
    /// It stands in the machine's status.
    Written,
    /// The machine is gone, or another stands under its name: nothing was written.
    Gone,
}

/// Why a record could not be written; the guest is asked to try again.
#[derive(Debug)]
pub struct NotRecorded(pub String);

impl fmt::Display for NotRecorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotRecorded {}

/// Where machines are looked up and their guests' words are written down.
pub trait Machines: Send + Sync + 'static {
    /// The machine with this uid.
    fn look(&self, uid: &str) -> Look;

    /// The uids of all machines: to tell a stolen token from nonsense. Empty when they cannot be read.
    fn uids(&self) -> Vec<String>;

    /// Marked as changed whenever the answer of [`Machines::look`] for this uid may have changed since the call.
    fn changed(&self, uid: &str) -> watch::Receiver<()>;

    /// Writes down what the guest of exactly this machine reported.
    fn record<'a>(&'a self, uid: &'a str, known: &'a Known, guest: Guest) -> Later<'a, Result<Recorded, NotRecorded>>;
}
