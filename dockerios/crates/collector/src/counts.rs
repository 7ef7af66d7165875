//! What the collector did, in numbers that only grow, for the operator's metrics.

use std::sync::atomic::{AtomicU64, Ordering};

/// One number, from the start of the process.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    pub(crate) fn one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// The number now.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// All numbers.
#[derive(Debug, Default)]
pub struct Counts {
    /// Reports that were taken.
    pub accepted: Count,
    /// Reports that were written into a status.
    pub written: Count,
    /// Reports that could not be written; the guest was asked to try again.
    pub not_written: Count,
    /// Taken reports whose serial or UUID is not that of the machine's identity.
    pub identity_mismatch: Count,
    /// Requests with another machine's token.
    pub foreign_token: Count,
    /// Requests without a token of this installation.
    pub unauthorized: Count,
    /// Requests with a good token for a machine that is gone.
    pub gone: Count,
    /// Requests that came while machines could not be read.
    pub unreadable: Count,
    /// Requests above a machine's rate.
    pub too_often: Count,
    /// Bodies that were too large.
    pub too_large: Count,
    /// Bodies that did not arrive in time.
    pub too_slow: Count,
    /// Bodies that were no report.
    pub malformed: Count,
    /// Connections that broke off before a request: no TLS, another CA, too slow.
    pub handshake: Count,
}

impl Counts {
    /// Every number with the word that labels it.
    #[must_use]
    pub fn all(&self) -> [(&'static str, u64); 13] {
        [
            ("accepted", self.accepted.get()),
            ("written", self.written.get()),
            ("not_written", self.not_written.get()),
            ("identity_mismatch", self.identity_mismatch.get()),
            ("foreign_token", self.foreign_token.get()),
            ("unauthorized", self.unauthorized.get()),
            ("gone", self.gone.get()),
            ("unreadable", self.unreadable.get()),
            ("too_often", self.too_often.get()),
            ("too_large", self.too_large.get()),
            ("too_slow", self.too_slow.get()),
            ("malformed", self.malformed.get()),
            ("handshake", self.handshake.get()),
        ]
    }
}
