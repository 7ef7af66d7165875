//! What a replica remembers of the machines that spoke to it. Invariant: only machines whose token was right are
//! remembered, so a stranger cannot make it grow; those that fell silent are forgotten.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use dockerios_api::machine::macos_machine::Guest;
use tokio::time::Instant;

use crate::pace::Pace;

/// Reports a machine may send, a second and at once.
const RATE: f64 = 1.0;
const BURST: f64 = 5.0;
/// A machine that was not heard for so long is forgotten.
const FORGET: Duration = Duration::from_secs(600);

/// The memory of one machine.
pub(crate) struct Heard {
    pace: Mutex<(Pace, Instant)>,
    /// Held while a report is judged and written, so that two of one machine cannot overtake each other.
    pub(crate) told: tokio::sync::Mutex<Told>,
}

/// What this replica was told and wrote.
#[derive(Default)]
pub(crate) struct Told {
    /// The run that was heard last, and its newest report that was taken; none: it is still to come.
    newest: (String, Option<u64>),
    /// What was last written from here.
    pub(crate) written: Option<Guest>,
}

impl Told {
    /// Whether a report is newer than all that were taken; if so, it is the newest from now on.
    pub(crate) fn newest(&mut self, run: &str, sequence: u64) -> bool {
        let (known, taken) = &self.newest;
        if known == run && taken.is_some_and(|taken| sequence <= taken) {
            return false;
        }
        self.newest = (run.to_owned(), Some(sequence));
        true
    }

    /// Takes back what [`Told::newest`] noted: the report could not be written and will come again.
    pub(crate) fn again(&mut self) {
        self.newest.1 = self.newest.1.and_then(|taken| taken.checked_sub(1));
    }
}

/// All of them.
#[derive(Default)]
pub(crate) struct Memory(Mutex<Shelf>);

#[derive(Default)]
struct Shelf {
    machines: HashMap<String, Arc<Heard>>,
    tidy_at: usize,
}

impl Memory {
    /// The memory of a machine whose token was right.
    pub(crate) fn of(&self, uid: &str, now: Instant) -> Arc<Heard> {
        let mut shelf = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(heard) = shelf.machines.get(uid) {
            return Arc::clone(heard);
        }
        if shelf.machines.len() >= shelf.tidy_at.max(64) {
            shelf
                .machines
                .retain(|_, heard| Arc::strong_count(heard) > 1 || heard.silent(now) < FORGET);
            shelf.tidy_at = shelf.machines.len() * 2;
        }
        let heard = Arc::new(Heard {
            pace: Mutex::new((Pace::new(RATE, BURST, now), now)),
            told: tokio::sync::Mutex::default(),
        });
        shelf.machines.insert(uid.to_owned(), Arc::clone(&heard));
        heard
    }
}

impl Heard {
    /// Whether the machine may speak now, or how long it must wait.
    pub(crate) fn pace(&self, now: Instant) -> Result<(), Duration> {
        let mut pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
        pace.1 = now;
        pace.0.take(now)
    }

    fn silent(&self, now: Instant) -> Duration {
        let pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
        now.saturating_duration_since(pace.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_that_was_overtaken_or_repeated_is_not_the_newest() {
        let mut told = Told::default();
        assert!(told.newest("a", 1));
        assert!(!told.newest("a", 1), "repeated");
        assert!(told.newest("a", 3));
        assert!(!told.newest("a", 2), "overtaken");
        assert!(told.newest("b", 1), "the agent started anew");
        told.again();
        assert!(told.newest("b", 1), "it could not be written and comes again");
        for first in [0, u64::MAX] {
            let mut told = Told::default();
            assert!(told.newest("c", first));
            told.again();
            assert!(told.newest("c", first), "also one that is numbered {first}");
        }
    }

    #[test]
    fn silent_machines_are_forgotten_and_those_being_heard_are_not() {
        let memory = Memory::default();
        let start = Instant::now();
        let kept = memory.of("kept", start);
        for i in 0..63 {
            memory.of(&format!("m{i}"), start);
        }
        memory.of("new", start + FORGET);
        let shelf = memory.0.lock().expect("not poisoned");
        assert_eq!(shelf.machines.len(), 2, "the one that is held and the new one");
        assert!(Arc::ptr_eq(&kept, &shelf.machines["kept"]));
    }
}
