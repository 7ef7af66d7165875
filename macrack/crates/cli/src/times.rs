//! Times for people: absolute, and how far away.
//!
//! The operator writes messages with absolute times, true for ever; how far away they are is true only when it is
//! read, so it is said here ([`in_words`]) and what a message says of it is replaced.

use k8s_openapi::jiff::Timestamp;

/// Length of [`absolute`].
const LENGTH: usize = 20;

/// `2026-11-30T14:02:07Z`, as Kubernetes prints times.
pub(crate) fn absolute(moment: Timestamp) -> String {
    moment.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// `2026-11-30T14:02:07Z (in 23h51m)`, `… (9s ago)`.
pub(crate) fn relative(moment: Timestamp, now: Timestamp) -> String {
    format!("{} ({})", absolute(moment), away(moment, now))
}

/// `in 23h51m`, `9s ago`, `now`.
pub(crate) fn away(moment: Timestamp, now: Timestamp) -> String {
    let seconds = moment.as_second() - now.as_second();
    match seconds {
        0 => "now".to_owned(),
        1.. => format!("in {}", span(seconds)),
        _ => format!("{} ago", span(-seconds)),
    }
}

fn span(seconds: i64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..172_800 => format!("{}h{}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// A message with each absolute time followed by how far away it is now; what it said of that itself is replaced.
pub(crate) fn in_words(message: &str, now: Timestamp) -> String {
    let mut out = String::new();
    let mut rest = message;
    while let Some((before, moment, after)) = next_time(rest) {
        out += before;
        out += &relative(moment, now);
        rest = without_old_span(after);
    }
    out + rest
}

/// The text before the first time, the time, the text after it.
fn next_time(text: &str) -> Option<(&str, Timestamp, &str)> {
    text.char_indices().find_map(|(at, c)| {
        let candidate = text.get(at..at + LENGTH).filter(|t| c.is_ascii_digit() && t.ends_with('Z'))?;
        // `QuotaStuck@2026-…` is to be typed as it is
        if text[..at].ends_with('@') {
            return None;
        }
        Some((&text[..at], candidate.parse().ok()?, &text[at + LENGTH..]))
    })
}

/// Without the ` (23h51m)` that it begins with.
fn without_old_span(text: &str) -> &str {
    let inner = text.strip_prefix(" (").and_then(|rest| rest.split_once(')'));
    match inner {
        Some((span, rest)) if span.ends_with(['h', 'm', 's']) && span.starts_with(|c: char| c.is_ascii_digit()) => rest,
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn a_moment_is_said_with_its_distance() {
        let now = at("2026-11-30T14:00:00Z");
        for (moment, words) in [
            ("2026-11-30T14:00:00Z", "now"),
            ("2026-11-30T14:00:09Z", "in 9s"),
            ("2026-11-30T13:57:30Z", "2m ago"),
            ("2026-12-01T13:51:00Z", "in 23h51m"),
            ("2026-11-29T14:00:00Z", "24h0m ago"),
            ("2026-12-05T16:00:00Z", "in 5d2h"),
        ] {
            assert_eq!(away(at(moment), now), words);
        }
    }

    #[test]
    fn each_time_in_a_message_gets_its_distance_as_of_now() {
        let now = at("2026-11-30T14:00:00Z");
        for (message, words) in [
            (
                "the first can come free at 2026-12-01T14:02:07Z (23h59m)",
                "the first can come free at 2026-12-01T14:02:07Z (in 24h2m)",
            ),
            ("since 2026-11-30T13:00:00Z; é", "since 2026-11-30T13:00:00Z (1h0m ago); é"),
            ("2026-11-30T13:00:00Z (QuotaStuck)", "2026-11-30T13:00:00Z (1h0m ago) (QuotaStuck)"),
            (
                "until 2026-99-30T13:00:00Z and 12345678901234567890Z",
                "until 2026-99-30T13:00:00Z and 12345678901234567890Z",
            ),
            ("set it to \"QuotaStuck@2026-11-30T13:00:00Z\"", "set it to \"QuotaStuck@2026-11-30T13:00:00Z\""),
            ("no time at all, ünïcode 2026", "no time at all, ünïcode 2026"),
        ] {
            assert_eq!(in_words(message, now), words);
        }
    }
}
