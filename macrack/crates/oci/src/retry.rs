//! When a request is tried again, and after how long.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, SystemTime};

use http::{HeaderMap, StatusCode, header::RETRY_AFTER};

use crate::error::Error;

/// How long is tried before a request is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// Tries in all, the first included.
    pub tries: u32,
    /// The first pause; each further one is twice as long.
    pub first: Duration,
    /// The longest pause, also when the registry names a longer one.
    pub most: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Patience { tries: 6, first: Duration::from_millis(250), most: Duration::from_secs(30) }
    }
}

impl Patience {
    /// The pause after try number `tried` (from 1): the registry's wish where it has one, else doubled and drawn
    /// from the upper half, so that a fleet does not come back at one moment. `None` when it is enough.
    pub fn pause(&self, tried: u32, wish: Option<Duration>) -> Option<Duration> {
        if tried >= self.tries || wish.is_some_and(|wish| wish > self.most) {
            return None;
        }
        let whole = self.first.saturating_mul(1 << tried.saturating_sub(1).min(20)).min(self.most);
        // the hasher's keys are random; this is no secret
        let draw = u32::try_from(RandomState::new().hash_one(tried) % 1000).unwrap_or(0);
        Some((whole / 2 + whole * draw / 2000).max(wish.unwrap_or_default()))
    }

    /// The tries of one piece of work, of however many requests.
    pub(crate) fn tries(self) -> Tries {
        Tries { patience: self, tried: 0 }
    }
}

/// How often one piece of work was tried. Whoever works for it at whatever depth is handed this one, so that tries within
/// tries are not multiplied.
#[derive(Debug)]
pub(crate) struct Tries {
    patience: Patience,
    tried: u32,
}

impl Tries {
    /// Waits after a try that ended with `error`. What comes `next` is for the log.
    ///
    /// # Errors
    /// `error` itself, at once, when it is enough or another try would not help.
    pub(crate) async fn wait(&mut self, error: Error, next: &str) -> Result<(), Error> {
        self.tried = self.tried.saturating_add(1);
        let Error::Transient { what, why, after } = &error else { return Err(error) };
        let Some(pause) = self.patience.pause(self.tried, *after) else { return Err(error) };
        tracing::debug!(what, why, ?pause, "{next}");
        tokio::time::sleep(pause).await;
        Ok(())
    }

    /// The work has come forward: what was tried before counts no more.
    pub(crate) fn renew(&mut self) {
        self.tried = 0;
    }
}

/// Whether a later try may be answered otherwise.
pub fn is_transient(status: StatusCode) -> bool {
    status.is_server_error()
        || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY)
}

/// `Retry-After`: seconds, or a date (RFC 9110, 10.2.3).
pub fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_and_the_registrys_own_wish_counts_up_to_a_limit() {
        let patience = Patience { tries: 4, first: Duration::from_secs(1), most: Duration::from_secs(3) };
        for (tried, whole) in [(1, 1), (2, 2), (3, 3)] {
            let pause = patience.pause(tried, None).unwrap();
            assert!((Duration::from_secs(whole) / 2..=Duration::from_secs(whole)).contains(&pause), "{pause:?}");
        }
        assert_eq!(patience.pause(4, None), None, "four tries are four");
        assert_eq!(patience.pause(1, Some(Duration::from_secs(2))), Some(Duration::from_secs(2)));
        assert_eq!(patience.pause(1, Some(Duration::from_secs(60))), None, "not that long");
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777 - 5);
        let of = |text: &str| {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, text.parse().unwrap())]);
            retry_after(&headers, now).map(|pause| pause.as_secs())
        };
        assert_eq!(of("120"), Some(120));
        assert_eq!(of("Sun, 06 Nov 1994 08:49:37 GMT"), Some(5));
        assert_eq!(of("Sat, 06 Nov 1993 08:49:37 GMT"), Some(0), "a date that has passed is now");
        assert_eq!(of("soon"), None);
        assert_eq!(retry_after(&HeaderMap::new(), now), None);
    }

    #[test]
    fn a_refusal_is_told_from_a_registry_that_is_busy() {
        for (code, again) in
            [(408, true), (429, true), (500, true), (503, true), (401, false), (404, false), (416, false)]
        {
            assert_eq!(is_transient(StatusCode::from_u16(code).unwrap()), again, "{code}");
        }
    }
}
