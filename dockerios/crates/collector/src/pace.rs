//! How often one may speak. Invariant: never more than `burst` at once, nor more than `rate` a second for long.

use std::time::Duration;

use tokio::time::Instant;

/// A token bucket.
#[derive(Debug)]
pub(crate) struct Pace {
    rate: f64,
    burst: f64,
    left: f64,
    at: Instant,
}

impl Pace {
    /// `rate` a second, and `burst` at once.
    pub(crate) fn new(rate: f64, burst: f64, now: Instant) -> Self {
        Self {
            rate,
            burst,
            left: burst,
            at: now,
        }
    }

    /// Takes one, or says how long to wait for it.
    pub(crate) fn take(&mut self, now: Instant) -> Result<(), Duration> {
        let since = now.saturating_duration_since(self.at).as_secs_f64();
        self.left = (self.left + since * self.rate).min(self.burst);
        self.at = now;
        if self.left >= 1.0 {
            self.left -= 1.0;
            return Ok(());
        }
        Err(Duration::from_secs_f64((1.0 - self.left) / self.rate))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_then_one_a_second() {
        let t = Instant::now();
        let mut pace = Pace::new(1.0, 5.0, t);
        assert!((0..5).all(|_| pace.take(t).is_ok()));
        assert_eq!(pace.take(t), Err(Duration::from_secs(1)));
        assert!(pace.take(t + Duration::from_secs(1)).is_ok());
        assert!(pace.take(t + Duration::from_secs(1)).is_err());
        let later = t + Duration::from_secs(3600);
        assert!(
            (0..5).all(|_| pace.take(later).is_ok()) && pace.take(later).is_err(),
            "a long silence saves no more than a burst"
        );
    }
}
