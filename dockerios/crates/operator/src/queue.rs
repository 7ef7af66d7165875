//! Which object's pass is due. Invariant: one pass at a time per object; what is asked for during a pass is not lost.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    time::{Duration, Instant},
};

use dockerios_core::Id;

use crate::source::Source;

/// What must have been seen before an object is decided about again: its last writes.
pub type Barrier = Vec<(Source, u64)>;

/// Due passes, future wakes, and objects whose pass is under way.
#[derive(Debug, Default)]
pub struct Queue {
    due: VecDeque<Id>,
    queued: HashSet<Id>,
    wakes: BTreeMap<(Instant, Id), ()>,
    wake_of: HashMap<Id, Instant>,
    /// Under way, and whether it was asked for again meanwhile.
    busy: HashMap<Id, bool>,
    /// Written, and not yet seen again.
    parked: HashMap<Id, Barrier>,
    failures: HashMap<Id, u32>,
}

/// First and longest pause before an object whose steps failed is decided about again.
pub type Pause = (Duration, Duration);

/// After what time may heal, or a person.
pub const PAUSE: Pause = (Duration::from_millis(250), Duration::from_secs(120));
/// After what is to be looked at at once: a refusal that is to be told, facts that have changed. It grows too, since some
/// refusals have other words each time, and some conflicts do not pass.
pub const SOON: Pause = (Duration::from_millis(20), Duration::from_secs(5));

impl Queue {
    /// Asks for a pass.
    pub fn ask(&mut self, id: Id) {
        if let Some(again) = self.busy.get_mut(&id) {
            *again = true;
        } else if !self.parked.contains_key(&id) && self.queued.insert(id.clone()) {
            self.due.push_back(id);
        }
    }

    /// Asks for a pass at that moment, or earlier if one is asked for earlier.
    pub fn ask_at(&mut self, id: Id, moment: Instant) {
        match self.wake_of.get(&id) {
            Some(earlier) if *earlier <= moment => return,
            Some(later) => {
                self.wakes.remove(&(*later, id.clone()));
            }
            None => {}
        }
        self.wake_of.insert(id.clone(), moment);
        self.wakes.insert((moment, id), ());
    }

    /// The next moment at which a wake is due.
    pub fn next_wake(&self) -> Option<Instant> {
        self.wakes.first_key_value().map(|((moment, _), ())| *moment)
    }

    /// The next object whose pass is due.
    pub fn pop(&mut self, now: Instant) -> Option<Id> {
        while let Some(((moment, id), ())) = self.wakes.first_key_value().map(|(k, v)| (k.clone(), *v)) {
            if moment > now {
                break;
            }
            self.wakes.remove(&(moment, id.clone()));
            self.wake_of.remove(&id);
            self.ask(id);
        }
        let id = self.due.pop_front()?;
        self.queued.remove(&id);
        Some(id)
    }

    /// Its steps are being carried out.
    pub fn begin(&mut self, id: Id) {
        self.busy.insert(id, false);
    }

    /// Its steps are done. It is decided about again once its writes were seen.
    pub fn finish(&mut self, id: &Id, barrier: Barrier) {
        let again = self.busy.remove(id).unwrap_or_default();
        if barrier.is_empty() {
            if again {
                self.ask(id.clone());
            }
        } else {
            // seeing its own writes is news to it in any case: it is asked for then
            self.parked.insert(id.clone(), barrier);
        }
    }

    /// Lets go of those whose writes were all seen, and names them.
    pub fn unpark(&mut self, caught_up: impl Fn(Source, u64) -> bool) -> Vec<Id> {
        let seen = |barrier: &Barrier| barrier.iter().all(|(source, version)| caught_up(*source, *version));
        let free: Vec<Id> = self
            .parked
            .iter()
            .filter(|(_, barrier)| seen(barrier))
            .map(|(id, _)| id.clone())
            .collect();
        for id in &free {
            self.parked.remove(id);
            self.ask(id.clone());
        }
        free
    }

    /// Its steps failed: again after a pause that doubles, with jitter.
    pub fn failed(&mut self, id: &Id, now: Instant, (first, longest): Pause) {
        let failures = self.failures.entry(id.clone()).or_default();
        let pause = first.saturating_mul(1 << (*failures).min(12)).min(longest);
        *failures = failures.saturating_add(1);
        self.ask_at(id.clone(), now + pause.mul_f32(rand::random_range(0.8..1.2)));
    }

    /// Its steps went well, or there is nothing to decide about.
    pub fn succeeded(&mut self, id: &Id) {
        self.failures.remove(id);
    }

    /// Nothing is due, under way or waiting to be seen, and nothing of the past is kept.
    #[cfg(test)]
    pub(crate) fn at_rest(&self) -> bool {
        self.due.is_empty() && self.busy.is_empty() && self.parked.is_empty() && self.failures.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use dockerios_core::Kind;

    use super::*;

    fn id(name: &str) -> Id {
        Id::new(Kind::MacOSMachine, "n", name)
    }

    #[test]
    fn what_is_asked_for_during_a_pass_comes_after_it() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.ask(id("a"));
        queue.ask(id("a"));
        assert_eq!(queue.pop(now), Some(id("a")));
        queue.begin(id("a"));
        queue.ask(id("a"));
        assert_eq!(queue.pop(now), None, "one pass at a time");
        queue.finish(&id("a"), vec![]);
        assert_eq!(queue.pop(now), Some(id("a")));
    }

    #[test]
    fn an_object_waits_until_its_own_writes_were_seen() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.begin(id("a"));
        queue.finish(&id("a"), vec![(Source::Machines, 7)]);
        queue.ask(id("a"));
        queue.unpark(|_, version| version <= 6);
        assert_eq!(queue.pop(now), None);
        queue.unpark(|_, version| version <= 7);
        assert_eq!(queue.pop(now), Some(id("a")));
        assert!(queue.at_rest());
    }

    #[test]
    fn what_fails_over_and_over_is_tried_less_and_less_often_and_anew_once_it_went_well() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        let pause = |queue: &mut Queue, pause: Pause| {
            queue.failed(&id("a"), now, pause);
            let due = queue.next_wake().expect("it is tried again") - now;
            assert!(queue.pop(now + due).is_some());
            due
        };
        for kind in [SOON, PAUSE] {
            assert!(pause(&mut queue, kind) <= kind.0.mul_f32(1.2));
            let longest = (0..20).map(|_| pause(&mut queue, kind)).last();
            assert!(longest >= Some(kind.1.mul_f32(0.8)), "{longest:?}");
            queue.succeeded(&id("a"));
        }
    }

    #[test]
    fn the_earliest_wake_holds() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.ask_at(id("a"), now + Duration::from_secs(9));
        queue.ask_at(id("a"), now + Duration::from_secs(3));
        queue.ask_at(id("a"), now + Duration::from_secs(6));
        assert_eq!(queue.pop(now + Duration::from_secs(2)), None);
        assert_eq!(queue.pop(now + Duration::from_secs(4)), Some(id("a")));
        assert_eq!(queue.pop(now + Duration::from_secs(99)), None, "woken once");
    }
}
