//! Time, as it arrives. Two clocks must agree that the floor has passed: the operator's and the API server's.

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::{RoundMode, SignedDuration, Timestamp, TimestampRound, Unit},
};
use macrack_api::duration::{FLOOR, Span};

use crate::seen::Seen;

/// How long a clock that is behind is left alone.
const LONGEST_WAIT: SignedDuration = SignedDuration::from_secs(60);

/// What both clocks say.
#[derive(Clone, Debug, PartialEq)]
pub struct Clocks {
    /// The operator's.
    pub operator: Timestamp,
    /// The API server's, asked for when a moment seems to have come; Absent when nobody asked.
    pub server: Seen<Timestamp>,
}

impl Clocks {
    /// Whether both clocks have reached that moment. One that is unknown has not.
    pub fn both_past(&self, moment: Timestamp) -> bool {
        self.operator >= moment && self.server.present().is_some_and(|server| *server >= moment)
    }

    /// Whether one clock is known to be before that moment: it has certainly not come for both.
    pub fn one_before(&self, moment: Timestamp) -> bool {
        self.operator < moment || self.server.present().is_some_and(|server| *server < moment)
    }

    /// When it is worth to look again whether both have reached that moment. Behind a server's clock that is hours behind
    /// nobody asks every moment, and none is believed to go on for longer than a minute as it went.
    pub fn look_again(&self, moment: Timestamp) -> Timestamp {
        if self.operator < moment {
            return moment;
        }
        let left = self.server.present().map(|server| moment.duration_since(*server)).unwrap_or_default();
        let wait = left.clamp(SignedDuration::ZERO, LONGEST_WAIT);
        self.operator.checked_add(wait).unwrap_or(self.operator)
    }

    /// The later of both, rounded up to the second: when a lease is bound. `None` while one is unknown.
    pub fn bound_at(&self) -> Option<Timestamp> {
        let later = self.operator.max(*self.server.present()?);
        later.round(TimestampRound::new().smallest(Unit::Second).mode(RoundMode::Ceil)).ok()
    }
}

/// `moment + span`; the latest representable moment if that overflows, never an earlier one.
pub fn after(moment: Timestamp, span: Span) -> Timestamp {
    let seconds = i64::try_from(span.seconds()).unwrap_or(i64::MAX);
    moment.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX)
}

/// The floor of a lease: `boundAt + max(minimumDuration, 24 h)`. A stored text that is no duration counts as
/// the longest allowed one below which nobody could have meant it: 24 h, never less.
pub fn floor(bound_at: Timestamp, minimum: &str) -> Timestamp {
    after(bound_at, minimum.parse().unwrap_or(FLOOR).max(FLOOR))
}

/// RFC 3339 in UTC with whole seconds, as Kubernetes prints times.
pub fn rfc3339(moment: Timestamp) -> String {
    moment.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// A time span for people: `23h51m`, `4m`, `12s`.
pub fn span_words(from: Timestamp, to: Timestamp) -> String {
    let seconds = to.duration_since(from).as_secs().max(0);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        _ => format!("{}h{}m", seconds / 3600, seconds / 60 % 60),
    }
}

/// A moment as Kubernetes writes it.
pub fn time(moment: Timestamp) -> Time {
    Time(moment)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn the_floor_is_at_least_a_day_whatever_is_stored() {
        let bound = at("2026-03-02T09:00:00Z");
        for (minimum, floor_at) in [
            ("24h", "2026-03-03T09:00:00Z"),
            ("36h30m", "2026-03-03T21:30:00Z"),
            ("1s", "2026-03-03T09:00:00Z"),
            ("one day", "2026-03-03T09:00:00Z"),
            ("", "2026-03-03T09:00:00Z"),
            ("99999999999999999999h", "2026-03-03T09:00:00Z"),
        ] {
            assert_eq!(floor(bound, minimum), at(floor_at), "{minimum:?}");
        }
    }

    #[test]
    fn bound_at_is_the_later_clock_rounded_up_and_needs_both() {
        let clocks =
            Clocks { operator: at("2026-03-02T09:00:00.2Z"), server: Seen::Present(at("2026-03-02T08:00:00Z")) };
        assert_eq!(clocks.bound_at(), Some(at("2026-03-02T09:00:01Z")));
        assert!(!clocks.both_past(at("2026-03-02T08:30:00Z")), "the server's clock is behind");
        assert!(clocks.both_past(at("2026-03-02T08:00:00Z")));
        let blind = Clocks { server: Seen::Unknown("timeout".into()), ..clocks };
        assert_eq!(blind.bound_at(), None);
        assert!(!blind.both_past(at("2020-01-01T00:00:00Z")));
    }
}
