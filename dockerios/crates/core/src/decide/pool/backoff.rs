//! How fast a pool replaces machines that fail.
//!
//! Invariant: the pause is reckoned from the failures that are kept, so a restart neither forgets nor shortens it.

use dockerios_api::{
    MacOSMachine,
    condition::of,
    machine::macos_machine::{MachineCondition, MachineReason},
};
use jiff::{SignedDuration, Timestamp};

use super::{
    super::claim::line::{is_coming, is_ready},
    census::{Census, failed_at},
};

/// The pause after the first failure.
const SHORTEST: SignedDuration = SignedDuration::from_secs(10);
/// The longest pause.
const LONGEST: SignedDuration = SignedDuration::from_mins(10);
/// The pause when the launcher's QEMU lacks a device: that comes with another launcher and not by waiting. Whoever has
/// mended it deletes the failed machines, and the next is made at once.
const HOPELESS: SignedDuration = SignedDuration::from_mins(30);

/// How machines may be made just now.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// None failed since one was last Ready.
    Free,
    /// Machines fail: one at a time is tried, not before that moment.
    Careful {
        /// When the next may be made.
        next: Timestamp,
        /// Whether that moment has come.
        now: bool,
    },
}

impl Pace {
    pub(super) fn of(census: &Census, now: Timestamp) -> Self {
        // each pause is twice the time between the last two failures: it doubles with every further one
        let mut times = census.failed.iter().filter_map(|machine| failed_at(machine));
        let Some(last) = times.next() else { return Self::Free };
        let hopeless = census.failed.first().is_some_and(|machine| lacks_device(machine));
        let alive = [&census.free, &census.taken, &census.claimed];
        if alive
            .into_iter()
            .flatten()
            .filter_map(|machine| ready_since(machine))
            .any(|since| since > last)
        {
            return Self::Free;
        }
        let between = times.next().map(|before| last.duration_since(before));
        let pause = between.and_then(|between| between.checked_mul(2)).unwrap_or(SHORTEST);
        let pause = match hopeless {
            true => HOPELESS,
            false => pause.clamp(SHORTEST, LONGEST),
        };
        let next = last.checked_add(pause).unwrap_or(last);
        Self::Careful { next, now: now >= next }
    }

    /// Machines that may be made in this pass.
    pub(super) fn allowed(&self, census: &Census) -> usize {
        // one that is on its way will show whether it works again
        let trying = census.warming() > 0 || census.claimed.iter().any(|machine| is_coming(machine));
        match self {
            Self::Free => usize::MAX,
            Self::Careful { now: true, .. } if !trying => 1,
            Self::Careful { .. } => 0,
        }
    }

    /// When to look again.
    pub(super) fn waits_until(&self, now: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Careful { next, .. } if *next > now => Some(*next),
            Self::Careful { .. } | Self::Free => None,
        }
    }
}

fn lacks_device(machine: &MacOSMachine) -> bool {
    let failure = machine.status.as_ref().and_then(|status| status.failure.as_ref());
    failure.is_some_and(|failure| failure.reason == MachineReason::DeviceMissing.word())
}

fn ready_since(machine: &MacOSMachine) -> Option<Timestamp> {
    let conditions = &machine.status.as_ref()?.conditions;
    let ready = of(conditions, MachineCondition::Ready.word())?;
    is_ready(machine).then_some(ready.last_transition_time.0)
}
