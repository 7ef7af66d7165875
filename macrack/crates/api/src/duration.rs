//! Durations: one form, one parser, the same verdict in schema, webhook, controller and CLI.
//!
//! `24h`, `90m`, `1h30m`, `86400s`. Nothing else: `1d`, `24`, `-1h`, `1.5h` are refused, never
//! guessed at. (Kubernetes' `format: duration` accepts `1d`, so it is not used.)

use std::{fmt, str::FromStr};

/// The pattern that every duration field's schema carries. Its minLength is 2.
pub const PATTERN: &str = r"^([0-9]{1,5}h)?([0-9]{1,6}m)?([0-9]{1,7}s)?$";
/// CEL: the text has the form of a duration. Said in words beside the schema's own pattern.
pub(crate) fn of_duration_form() -> String {
    format!("self.matches('{PATTERN}')")
}

/// CEL: a rule about a duration, judged only of what has the form of one: CEL itself answers anything else with an
/// error that tells a person nothing.
pub(crate) fn well_formed(rule: &str) -> String {
    format!("!self.matches('{PATTERN}') || ({rule})")
}

/// CEL: a duration is not lowered. One that was stored without the form of a duration may be mended.
pub(crate) fn never_lowered() -> String {
    well_formed(&format!("!oldSelf.matches('{PATTERN}') || duration(self) >= duration(oldSelf)"))
}

/// CEL, on a lease's spec: the maximum is not below the minimum.
pub(crate) fn maximum_not_below_minimum() -> String {
    format!(
        "!has(self.maximumDuration) || ![self.maximumDuration, self.minimumDuration].all(d, d.matches('{PATTERN}')) || \
         duration(self.maximumDuration) >= duration(self.minimumDuration)"
    )
}

/// Longest accepted text.
pub const MAX_LENGTH: usize = 16;
/// Longest accepted duration: 366 days.
pub const MAX: Span = Span(8784 * 3600);
/// Apple's floor: a lease is for at least 24 consecutive hours (macOS licence, section 3).
pub const FLOOR: Span = Span(24 * 3600);

/// A whole number of seconds, zero or more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(pub u64);

impl Span {
    /// Seconds.
    pub fn seconds(self) -> u64 {
        self.0
    }
}

/// Why a text is no duration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotADuration(pub String);

impl fmt::Display for NotADuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is no duration; write hours, minutes, seconds in that order: 24h, 90m, 1h30m", self.0)
    }
}

impl std::error::Error for NotADuration {}

impl FromStr for Span {
    type Err = NotADuration;

    fn from_str(text: &str) -> Result<Self, NotADuration> {
        let refused = || NotADuration(text.chars().take(40).collect());
        if text.len() < 2 || text.len() > MAX_LENGTH {
            return Err(refused());
        }
        let mut rest = text;
        let mut total = 0u64;
        for (unit, seconds, digits) in [('h', 3600, 5), ('m', 60, 6), ('s', 1, 7)] {
            let Some((number, after)) = rest.split_once(unit) else {
                continue;
            };
            if number.is_empty() || number.len() > digits || !number.bytes().all(|b| b.is_ascii_digit()) {
                return Err(refused());
            }
            total += number.parse::<u64>().map_err(|_| refused())? * seconds;
            rest = after;
        }
        if !rest.is_empty() || total > MAX.0 {
            return Err(refused());
        }
        Ok(Span(total))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (h, m, s) = (self.0 / 3600, self.0 / 60 % 60, self.0 % 60);
        let mut some = false;
        for (n, unit) in [(h, 'h'), (m, 'm'), (s, 's')] {
            if n > 0 {
                write!(f, "{n}{unit}")?;
                some = true;
            }
        }
        if some { Ok(()) } else { write!(f, "0s") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The hand-over table of durations, as (text, seconds if it is one at all).
    /// Those below the floor parse here and are refused by the lease's own rule.
    pub(crate) const TABLE: &[(&str, Option<u64>)] = &[
        ("24h", Some(86400)),
        ("86400s", Some(86400)),
        ("1440m", Some(86400)),
        ("24h0m0s", Some(86400)),
        ("48h", Some(172800)),
        ("24h30m", Some(88200)),
        ("23h60m", Some(86400)),
        ("23h59m59s", Some(86399)),
        ("86399s", Some(86399)),
        ("0s", Some(0)),
        ("8784h", Some(8784 * 3600)),
        ("8785h", None),
        ("+24h", None),
        ("1d", None),
        ("-24h", None),
        ("0", None),
        ("", None),
        ("24", None),
        ("P1D", None),
        ("PT24H", None),
        ("24H", None),
        (" 24h", None),
        ("24h ", None),
        ("24 h", None),
        ("\u{ff12}\u{ff14}h", None),
        ("1.0e2h", None),
        ("0x18h", None),
        ("24h-1s", None),
        ("NaNh", None),
        ("infh", None),
        ("2562048h", None),
        ("99999999999999999999h", None),
        ("86399999ms", None),
        ("86400000ms", None),
        ("24h\n", None),
        ("1440m0.5s", None),
        ("1m1h", None),
        ("hms", None),
        ("one day", None),
    ];

    #[test]
    fn every_text_of_the_table_gets_its_verdict() {
        for (text, seconds) in TABLE {
            assert_eq!(text.parse::<Span>().ok().map(Span::seconds), *seconds, "{text:?}");
        }
    }

    #[test]
    fn a_duration_is_printed_as_it_is_read() {
        for text in ["24h", "1h30m", "90m", "1s"] {
            let span: Span = text.parse().unwrap();
            assert_eq!(span.to_string().parse::<Span>().unwrap(), span);
        }
        assert_eq!(Span(5400).to_string(), "1h30m");
    }
}
