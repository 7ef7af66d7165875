//! This Mac's clock beside the API server's: every answer carries the server's time (`Date`, RFC 9110 §6.6.1).
//!
//! Invariant: a skew is only ever reported. No VM is touched for it, and no moment of this agent's is moved by it; the
//! operator binds no lease to a Mac whose clock is far off.

use std::sync::{Mutex, PoisonError};

use http::HeaderMap;
use http::header::DATE;
use jiff::Timestamp;

/// Seconds from which on a skew is worth a word: `Date` has whole seconds, and an answer takes its time.
const WORTH: i64 = 5;
/// Below this a skew that was reported is over.
const OVER: i64 = 3;

/// The API server's clock, as its answers show it.
#[derive(Debug, Default)]
pub struct ServerClock(Mutex<Option<i64>>);

impl ServerClock {
    /// Takes in the time of an answer that arrives at `now`. One without a readable time says nothing.
    pub fn note(&self, headers: &HeaderMap, now: Timestamp) {
        let Some(date) = date(headers) else { return };
        // the header's fraction is cut off: half a second is added on the average
        let ahead = now.as_millisecond() - date.as_millisecond() - 500;
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *known = reported(*known, ahead.div_euclid(1000));
    }

    /// Seconds that this Mac's clock is ahead (behind, if negative), rounded so that it changes seldom; `None` while it
    /// is in step or nobody has answered.
    pub fn skew(&self) -> Option<i64> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The time that an answer says, if it is readable.
pub(crate) fn date(headers: &HeaderMap) -> Option<Timestamp> {
    let date = headers.get(DATE)?.to_str().ok()?;
    Some(jiff::fmt::rfc2822::parse(date).ok()?.timestamp())
}

/// What is reported after `before`, now that `ahead` seconds were seen.
fn reported(before: Option<i64>, ahead: i64) -> Option<i64> {
    match before {
        Some(_) if ahead.abs() < OVER => None,
        // a slow answer, or a clock that drifts, is no news
        Some(before) if (ahead - before).abs() < WORTH => Some(before),
        None if ahead.abs() < WORTH => None,
        _ => Some((ahead + WORTH.div_euclid(2)).div_euclid(WORTH) * WORTH).filter(|ahead| *ahead != 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skew_is_reported_rounded_and_changes_seldom() {
        for (before, ahead, after) in [
            (None, 0, None),
            (None, 4, None),
            (None, -4, None),
            (None, 6, Some(5)),
            (None, -241, Some(-240)),
            (Some(5), 7, Some(5)),
            (Some(5), 3, Some(5)),
            (Some(5), 2, None),
            (Some(5), 61, Some(60)),
            (Some(60), 63, Some(60)),
            (Some(-240), -86_400, Some(-86_400)),
        ] {
            assert_eq!(reported(before, ahead), after, "{before:?} then {ahead}");
        }
    }

    #[test]
    fn the_time_of_an_answer_is_read_and_nonsense_says_nothing() {
        let clock = ServerClock::default();
        let answer = |date: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(DATE, date.parse().unwrap());
            headers
        };
        let now: Timestamp = "2026-03-02T09:04:00.5Z".parse().unwrap();
        for nonsense in ["", "yesterday", "Mon, 99 Mar 2026 09:00:00 GMT"] {
            clock.note(&answer(nonsense), now);
            assert_eq!(clock.skew(), None, "{nonsense}");
        }
        clock.note(&answer("Mon, 02 Mar 2026 09:00:00 GMT"), now);
        assert_eq!(clock.skew(), Some(240));
        clock.note(&HeaderMap::new(), now);
        assert_eq!(clock.skew(), Some(240), "an answer without a time says nothing");
        clock.note(&answer("Mon, 02 Mar 2026 09:04:00 GMT"), now);
        assert_eq!(clock.skew(), None);
    }
}
