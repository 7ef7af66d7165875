//! How far a pull has come: bytes, rate, time left.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Shared between the copy, which counts, and the report, which reads.
#[derive(Debug, Default)]
pub struct Progress {
    done: AtomicU64,
    total: AtomicU64,
}

impl Progress {
    /// Sets the number of bytes to come.
    pub fn expect(&self, total: u64) {
        self.total.store(total, Ordering::Relaxed);
    }

    /// Counts bytes that are on the disk.
    pub fn add(&self, bytes: u64) {
        self.done.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Takes bytes back that were of no use.
    pub fn sub(&self, bytes: u64) {
        let less = |done: u64| Some(done.saturating_sub(bytes));
        // a closure that always answers: this cannot fail
        let _ = self.done.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// How far it is, `elapsed` after its start.
    pub fn account(&self, elapsed: Duration) -> Account {
        let (done, total) = (self.done(), self.total.load(Ordering::Relaxed));
        let millis = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        // a rate of so short a time misleads
        let rate = if millis < 1000 { 0 } else { done.saturating_mul(1000) / millis };
        Account {
            bytes: done,
            total_bytes: total,
            bytes_per_second: (rate > 0).then_some(rate),
            seconds_left: total.saturating_sub(done).checked_div(rate),
        }
    }

    /// Bytes so far.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Bytes to come.
    pub fn left(&self) -> u64 {
        self.total.load(Ordering::Relaxed).saturating_sub(self.done())
    }
}

/// How far a pull is, in numbers; in words by its `Display`: `2.1 of 5.0 GB, 1.4 GB/s, 2 s left`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Account {
    /// Bytes of the golden's disk that are there.
    pub bytes: u64,
    /// Bytes of it in all.
    pub total_bytes: u64,
    /// Since the start; not known in the first second.
    pub bytes_per_second: Option<u64>,
    /// At this rate.
    pub seconds_left: Option<u64>,
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name) = if self.total_bytes < 1_000_000_000 { (1_000_000, "MB") } else { (1_000_000_000, "GB") };
        let amount = |bytes: u64| {
            let tenths = bytes.saturating_mul(10) / unit;
            format!("{}.{}", tenths / 10, tenths % 10)
        };
        write!(f, "{} of {} {name}", amount(self.bytes), amount(self.total_bytes))?;
        match (self.bytes_per_second, self.seconds_left) {
            (Some(rate), Some(left)) => write!(f, ", {} {name}/s, {left} s left", amount(rate)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_says_bytes_rate_and_time_left() {
        let progress = Progress::default();
        progress.expect(5_000_000_000);
        assert_eq!(progress.account(Duration::ZERO).to_string(), "0.0 of 5.0 GB");
        progress.add(1_000_000);
        assert_eq!(progress.account(Duration::from_millis(3)).to_string(), "0.0 of 5.0 GB", "no rate yet");
        progress.add(2_099_000_000);
        assert_eq!(progress.account(Duration::from_millis(1500)).to_string(), "2.1 of 5.0 GB, 1.4 GB/s, 2 s left");
    }
}
