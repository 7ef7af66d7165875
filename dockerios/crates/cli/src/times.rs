//! Times for people: how long ago and when.

use std::time::Duration;

use anyhow::Result;
use jiff::{SignedDuration, Timestamp};

use crate::answer::wrong_words;

/// `4m ago (09:31:02Z)`, `in 1h30m (11:05:00Z)`.
pub(crate) fn relative(at: Timestamp, now: Timestamp) -> String {
    format!("{} ({})", distance(at, now), clock(at, now))
}

/// `since 09:31:02Z (4m ago)`.
pub(crate) fn since(at: Timestamp, now: Timestamp) -> String {
    format!("since {} ({})", clock(at, now), distance(at, now))
}

fn distance(at: Timestamp, now: Timestamp) -> String {
    if at <= now {
        format!("{} ago", short(now.duration_since(at)))
    } else {
        format!("in {}", short(at.duration_since(now)))
    }
}

/// The time of day; with the day when that is not told by it.
fn clock(at: Timestamp, now: Timestamp) -> String {
    let form = match now.duration_since(at).abs() < SignedDuration::from_hours(20) {
        true => "%H:%M:%SZ",
        false => "%Y-%m-%d %H:%MZ",
    };
    at.strftime(form).to_string()
}

/// The two largest units: `3d4h`, `1h30m`, `2m5s`, `7s`.
pub(crate) fn short(span: SignedDuration) -> String {
    let seconds = span.as_secs().max(0);
    let units = [("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)];
    let largest = units.iter().position(|(_, size)| seconds >= *size).unwrap_or(3);
    let mut left = seconds;
    let mut text = String::new();
    for (word, size) in units.iter().skip(largest).take(2) {
        let count = left / size;
        left %= size;
        if count > 0 || text.is_empty() {
            text.push_str(&format!("{count}{word}"));
        }
    }
    text
}

/// The platform's own form of a duration, by its one parser.
pub(crate) fn duration(flag: &str, text: &str) -> Result<Duration> {
    let span: dockerios_api::Span = text
        .parse()
        .map_err(|why| wrong_words(format!("{flag} {text:?}: {why}")))?;
    Ok(Duration::from_secs(span.seconds()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_the_platforms_one_form() {
        assert_eq!(duration("--timeout", "1h30m").unwrap(), Duration::from_secs(5_400));
        let refused = duration("--timeout", "1d").unwrap_err().to_string();
        assert!(refused.starts_with("--timeout \"1d\""), "{refused}");
    }

    #[test]
    fn a_span_is_told_by_its_two_largest_units() {
        for (seconds, text) in [
            (0, "0s"),
            (7, "7s"),
            (125, "2m5s"),
            (120, "2m"),
            (5_400, "1h30m"),
            (277_200, "3d5h"),
        ] {
            assert_eq!(short(SignedDuration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn the_past_and_the_future_are_told_apart_with_the_clock() {
        let now: Timestamp = "2026-03-01T12:00:00Z".parse().unwrap();
        let at = |text: &str| relative(text.parse().unwrap(), now);
        assert_eq!(at("2026-03-01T11:56:00Z"), "4m ago (11:56:00Z)");
        assert_eq!(at("2026-03-01T13:30:00Z"), "in 1h30m (13:30:00Z)");
        assert_eq!(at("2026-02-26T12:00:00Z"), "3d ago (2026-02-26 12:00Z)");
        let from = |text: &str| since(text.parse().unwrap(), now);
        assert_eq!(from("2026-03-01T11:56:00Z"), "since 11:56:00Z (4m ago)");
        assert_eq!(from("2026-02-26T12:00:00Z"), "since 2026-02-26 12:00Z (3d ago)");
    }
}
