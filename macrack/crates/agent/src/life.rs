//! Where one VM of this chassis is in its life, as its own task knows it.
//!
//! ```text
//!   (nothing) ──▶ Cloning ──▶ AtRest ──▶ Starting ──▶ Running ──▶ Stopping ──▶ AtRest
//!                   │ fails               └─────────────┴── the process does not answer ──▶ Unknown
//!                   ▼
//!                Partial                  any ──▶ Wiping ──▶ (nothing) │ WipeFailed
//! ```
//!
//! A uid that is not known here has nothing on this disk.

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use macrack_api::rack::node::{CloneWay, WipeReceipt};
use macrack_wire::{GuestStage, VmError, VmReport};

/// Least time between two starts of a guest that shuts itself down.
pub const RESTART_EVERY: SignedDuration = SignedDuration::from_secs(10);
/// The longest between two tries to make a disk.
pub const REMAKE_WITHIN: SignedDuration = SignedDuration::from_secs(60);

/// Where a VM is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Life {
    /// Its directory holds a disk that was never whole; it is made anew.
    Partial {
        /// Why the last attempt failed; `None` when the agent went down in it.
        why: Option<String>,
        /// When it may be tried again.
        retry_at: Option<Timestamp>,
    },
    /// Its disk is being cloned.
    Cloning,
    /// Its disk is there; no process of it lives.
    AtRest(Rest),
    /// Its process was asked for and does not say Running yet.
    Starting,
    /// It runs.
    Running,
    /// It was told to stop.
    Stopping,
    /// A process of it lives and cannot be reached, or it cannot be told whether one lives.
    Unknown(String),
    /// Its files are being destroyed.
    Wiping,
    /// Some of its files could not be destroyed; it is tried again.
    WipeFailed(String),
}

/// Why a VM that has a disk does not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rest {
    /// Never started, or stopped as ordered.
    Ready,
    /// The guest shut itself down.
    GuestShutdown {
        /// Not before this is it started again: a guest that shuts down as soon as it is up would be
        /// started without end.
        restart_at: Timestamp,
    },
    /// The host went down while it ran.
    HostRestarted,
    /// The kernel refused its start: it counts two already. Nobody has judged yet why.
    Refused(VmError),
    /// It could not start, or broke; it is not tried again until it was ordered to stop.
    Failed(String),
}

impl fmt::Display for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Life::Partial { why: Some(why), .. } => write!(f, "not made: {why}"),
            Life::Partial { why: None, .. } => f.write_str("half made"),
            Life::Cloning => f.write_str("cloning its disk"),
            Life::AtRest(rest) => rest.fmt(f),
            Life::Starting => f.write_str("starting"),
            Life::Running => f.write_str("running"),
            Life::Stopping => f.write_str("stopping"),
            Life::Unknown(why) => write!(f, "unknown: {why}"),
            Life::Wiping => f.write_str("wiping"),
            Life::WipeFailed(why) => write!(f, "not wiped: {why}"),
        }
    }
}

impl fmt::Display for Rest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rest::Ready => f.write_str("at rest"),
            Rest::GuestShutdown { .. } => f.write_str("at rest: the guest shut itself down"),
            Rest::HostRestarted => f.write_str("at rest: the Mac restarted while it ran"),
            Rest::Refused(error) => write!(f, "at rest: {error}"),
            Rest::Failed(why) => write!(f, "failed: {why}"),
        }
    }
}

impl Life {
    /// A process of it lives, or may live, or is about to.
    pub fn is_alive(&self) -> bool {
        matches!(self, Life::Starting | Life::Running | Life::Stopping | Life::Unknown(_))
    }
}

/// What is reported of a VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Where it is.
    pub life: Life,
    /// Since when.
    pub since: Timestamp,
    /// Hex of the golden that its disk is a clone of, as far as its record says.
    pub golden: Option<String>,
    /// Bytes that its disk may still grow by.
    pub growth: u64,
    /// How its disk was made, once it was.
    pub cloned_by: Option<CloneWay>,
    /// How often it was started.
    pub starts: u32,
    /// The last report of its process since its last start.
    pub report: Option<VmReport>,
    /// Its MAC address, once it has one.
    pub mac_address: Option<macrack_wire::MacAddress>,
    /// The guest said Ready since its last start.
    pub guest_ready: bool,
    /// Nothing of it is left: its task has ended.
    pub gone: bool,
    /// What was wiped, once nothing of it is left.
    pub receipt: Option<WipeReceipt>,
}

impl Facts {
    /// A VM of which only its place in life is known.
    pub fn new(life: Life, since: Timestamp) -> Self {
        Facts {
            life,
            since,
            golden: None,
            growth: 0,
            cloned_by: None,
            starts: 0,
            report: None,
            mac_address: None,
            guest_ready: false,
            gone: false,
            receipt: None,
        }
    }

    /// Moves on to `life`.
    pub fn enter(&mut self, life: Life, now: Timestamp) {
        if self.life != life {
            self.life = life;
            self.since = now;
        }
    }

    /// Takes in a report of the process.
    pub fn hear(&mut self, report: VmReport, now: Timestamp) {
        use macrack_wire::VmState;
        let ready = report.guest.as_ref().is_some_and(|guest| guest.stage == GuestStage::Ready);
        self.guest_ready |= ready;
        match report.state {
            // said before the order to stop was heard
            VmState::Starting | VmState::Running if self.life == Life::Stopping => {}
            VmState::Starting => self.enter(Life::Starting, now),
            VmState::Running => self.enter(Life::Running, now),
            VmState::Stopping => self.enter(Life::Stopping, now),
            // the process is about to end, and is counted until it has
            VmState::Stopped | VmState::Failed => {}
        }
        self.report = Some(report);
    }
}

#[cfg(test)]
mod tests {
    use macrack_wire::VmState;

    use super::*;

    #[test]
    fn what_a_process_said_before_it_heard_the_order_to_stop_does_not_take_the_stop_back() {
        let says = |state| VmReport {
            uid: "u".to_owned(),
            pid: 7,
            state,
            error: None,
            started_at: Timestamp::UNIX_EPOCH,
            guest: None,
            guest_problem: None,
            stop_cause: None,
        };
        for state in [VmState::Starting, VmState::Running, VmState::Stopping, VmState::Stopped] {
            let mut facts = Facts::new(Life::Stopping, Timestamp::UNIX_EPOCH);
            facts.hear(says(state), Timestamp::UNIX_EPOCH);
            assert_eq!(facts.life, Life::Stopping, "{state:?}");
        }
        let mut facts = Facts::new(Life::Unknown("silent".to_owned()), Timestamp::UNIX_EPOCH);
        facts.hear(says(VmState::Starting), Timestamp::UNIX_EPOCH);
        assert_eq!(facts.life, Life::Starting);
    }
}
