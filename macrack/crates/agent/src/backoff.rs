//! How long to wait before something is tried again: one policy for the whole agent.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// Delays that double from `first` to `most`, each drawn from the upper half of its range so that many
/// Macs that lost the same server do not come back at the same moment.
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    most: Duration,
    tries: u32,
}

impl Backoff {
    /// A backoff that has not begun.
    pub fn new(first: Duration, most: Duration) -> Self {
        Backoff { first, most, tries: 0 }
    }

    /// For requests and watches: a right that was just granted is seen within milliseconds, an API
    /// server that is down is not stormed.
    pub fn for_api() -> Self {
        Backoff::new(Duration::from_millis(50), Duration::from_secs(10))
    }

    /// Lets the delays grow up to `most` from here on.
    pub fn at_most(&mut self, most: Duration) {
        self.most = most;
    }

    /// The next delay.
    pub fn next_delay(&mut self) -> Duration {
        let whole = self.first.saturating_mul(1 << self.tries.min(20)).min(self.most);
        self.tries = self.tries.saturating_add(1);
        // the hasher's keys are random; this is no secret
        let draw = u32::try_from(RandomState::new().hash_one(self.tries) % 1000).unwrap_or(0);
        whole / 2 + whole * draw / 2000
    }

    /// Begins anew after a success.
    pub fn reset(&mut self) {
        self.tries = 0;
    }
}

/// Whether what waits until `until` is still to wait at `now`. No wait of its kind is longer than `longest`: one that
/// seems so was set by a clock that has been put back since, and is over.
pub fn waits(until: Timestamp, now: Timestamp, longest: SignedDuration) -> bool {
    let left = until.duration_since(now);
    left > SignedDuration::ZERO && left <= longest
}

impl Iterator for Backoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(self.next_delay())
    }
}

impl kube::runtime::utils::Backoff for Backoff {
    fn reset(&mut self) {
        Backoff::reset(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_that_a_clock_a_day_ahead_has_set_ends_when_that_clock_is_put_right() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let longest = SignedDuration::from_secs(30);
        for (until, now, on) in
            [(100, 99, true), (100, 70, true), (100, 100, false), (100, 101, false), (86_500, 100, false)]
        {
            assert_eq!(waits(at(until), at(now), longest), on, "until {until}, now {now}");
        }
        assert!(!waits(Timestamp::MAX, Timestamp::MIN, longest));
    }

    #[test]
    fn delays_double_up_to_the_most_and_never_exceed_it() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
        for whole in [100, 200, 400, 800, 1000, 1000] {
            let delay = backoff.next_delay().as_millis();
            assert!((whole / 2..=whole).contains(&delay), "{delay} of {whole}");
        }
        backoff.reset();
        assert!(backoff.next_delay() <= Duration::from_millis(100));
    }
}
