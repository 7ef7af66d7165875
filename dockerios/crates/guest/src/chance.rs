//! Waiting after failures, and names that nobody else has. Invariant: many guests that lost their collector at once
//! do not come back at once.

use std::time::Duration;

use ring::rand::{SecureRandom, SystemRandom};

/// First and longest wait.
const FIRST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(30);

/// Doubles from half a second to half a minute, each wait somewhere in its upper half.
#[derive(Debug, Default)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The wait after one more failure.
    pub fn wait(&mut self) -> Duration {
        let full = FIRST.saturating_mul(1 << self.failures.min(10)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        full.mul_f64(0.5 + fraction() / 2.0)
    }

    /// It worked.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

/// 0 ≤ x < 1. Without randomness all wait alike, which is worse than nothing but not wrong.
fn fraction() -> f64 {
    let mut bytes = [0; 4];
    match SystemRandom::new().fill(&mut bytes) {
        Ok(()) => f64::from(u32::from_le_bytes(bytes)) / (f64::from(u32::MAX) + 1.0),
        Err(_) => 0.5,
    }
}

/// 32 hexadecimal digits for one start of the agent.
///
/// # Errors
/// When the system gives no randomness.
pub fn run_name() -> Result<String, String> {
    let mut bytes = [0; 16];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| "the system gives no random numbers".to_owned())?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_half_a_minute_and_never_coincide_exactly() {
        let mut backoff = Backoff::default();
        for n in 0..40 {
            let full = FIRST.saturating_mul(1 << n.min(10)).min(LONGEST);
            let wait = backoff.wait();
            assert!(wait >= full / 2 && wait <= full, "{n}: {wait:?}");
        }
        backoff.reset();
        assert!(backoff.wait() <= FIRST);
        let spread: std::collections::HashSet<_> = (0..20).map(|_| fraction().to_bits()).collect();
        assert!(spread.len() > 1);
    }
}
