//! How far a pull has come: bytes, rate, time left.

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

    /// Bytes so far.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// `2.1 of 5.0 GB, 1.4 GB/s, 2 s left`, after `elapsed` since the start.
    pub fn in_words(&self, elapsed: Duration) -> String {
        let (done, total) = (self.done(), self.total.load(Ordering::Relaxed));
        let (unit, name) = if total < 1_000_000_000 { (1_000_000, "MB") } else { (1_000_000_000, "GB") };
        let amount = |bytes: u64| {
            let tenths = bytes * 10 / unit;
            format!("{}.{}", tenths / 10, tenths % 10)
        };
        let millis = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        if millis < 1000 {
            return format!("{} of {} {name}", amount(done), amount(total)); // a rate of so short a time misleads
        }
        let rate = done.saturating_mul(1000).checked_div(millis).unwrap_or(0);
        let so_far = format!("{} of {} {name}", amount(done), amount(total));
        match total.saturating_sub(done).checked_div(rate) {
            Some(left) => format!("{so_far}, {} {name}/s, {left} s left", amount(rate)),
            None => so_far,
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
        assert_eq!(progress.in_words(Duration::ZERO), "0.0 of 5.0 GB");
        progress.add(1_000_000);
        assert_eq!(progress.in_words(Duration::from_millis(3)), "0.0 of 5.0 GB", "no rate yet");
        progress.add(2_099_000_000);
        assert_eq!(progress.in_words(Duration::from_millis(1500)), "2.1 of 5.0 GB, 1.4 GB/s, 2 s left");
    }
}
