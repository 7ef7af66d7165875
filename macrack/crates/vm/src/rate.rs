//! How much a guest may say: a bucket of messages that refills with time.

use std::time::Duration;

use tokio::time::Instant;

/// Messages that may come at once: a boot and a first-boot script take about ten.
const BURST: u32 = 64;
/// One more message is allowed after each of these.
const REFILL: Duration = Duration::from_millis(500);

/// The bucket.
#[derive(Debug)]
pub struct Rate {
    left: u32,
    counted_from: Instant,
}

impl Rate {
    /// A full bucket.
    pub fn new(now: Instant) -> Self {
        Rate { left: BURST, counted_from: now }
    }

    /// Takes one message out; false when there is none left.
    #[must_use]
    pub fn spend(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.counted_from);
        let refills = u32::try_from(passed.as_millis() / REFILL.as_millis()).unwrap_or(u32::MAX);
        self.counted_from += REFILL.saturating_mul(refills);
        self.left = self.left.saturating_add(refills).min(BURST);
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_taken_and_the_next_message_is_not_until_time_has_passed() {
        let start = Instant::now();
        let mut rate = Rate::new(start);
        assert!((0..BURST).all(|_| rate.spend(start)));
        assert!(!rate.spend(start));
        assert!(!rate.spend(start + REFILL / 2));
        assert!(rate.spend(start + REFILL));
        assert!(!rate.spend(start + REFILL));
    }

    #[test]
    fn a_long_silence_saves_up_no_more_than_one_burst() {
        let start = Instant::now();
        let mut rate = Rate::new(start);
        let later = start + Duration::from_secs(365 * 86_400);
        assert_eq!((0..BURST + 10).filter(|_| rate.spend(later)).count(), BURST as usize);
    }
}
