//! What a person reads. Invariant: no line of ours is wider than [`WIDTH`] columns.

use std::io::Write as _;
use std::time::Duration;

/// Columns that are used.
pub(crate) const WIDTH: usize = 100;

/// Prints a line. A terminal that was closed is no reason to end in disorder: its signal is.
pub(crate) fn line(text: impl AsRef<str>) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{}", text.as_ref());
    let _ = out.flush();
}

/// Says what is no part of the story, on standard error.
pub(crate) fn aside(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// A step's heading.
pub(crate) fn step(number: u8, title: &str) {
    line(format!("\n{number}  {title}"));
}

/// A line below a heading, folded.
pub(crate) fn note(text: impl AsRef<str>) {
    for part in fold(&shortened(text.as_ref()), WIDTH - 5) {
        line(format!("     {part}"));
    }
}

/// What a command printed, each line as it is but for what does not fit.
pub(crate) fn output(text: &str) {
    for row in text.lines() {
        let short: String = row.chars().take(WIDTH - 1).collect();
        line(format!(" {}", short.trim_end()));
    }
}

/// A command, as a person would type it.
pub(crate) fn command(text: &str) {
    line(format!("     $ {text}"));
}

/// A part that was got ready, and how long it took.
pub(crate) fn part(name: &str, text: &str, took: Duration) {
    let text = format!("  {name:<14}{text} ");
    let dots = WIDTH.saturating_sub(text.chars().count() + 9);
    line(format!("{text}{} {}", ".".repeat(dots), seconds(took)));
}

/// Seconds with one digit; what is short, with two.
pub(crate) fn seconds(took: Duration) -> String {
    let seconds = took.as_secs_f64();
    if seconds < 1.0 {
        format!("{seconds:.2} s")
    } else {
        format!("{seconds:.1} s")
    }
}

/// Digests by their first digits: whole, they fill a line and tell a person nothing.
fn shortened(text: &str) -> String {
    const MARK: &str = "@sha256:";
    const KEPT: usize = 12;
    let mut parts = text.split(MARK);
    let mut short = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let digits = part.chars().take_while(char::is_ascii_hexdigit).count();
        short.push_str(MARK);
        short.extend(part.chars().take(digits.min(KEPT)));
        short.extend(part.chars().skip(digits));
    }
    short
}

/// Breaks text between words.
fn fold(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last().map_or(0, |line| line.chars().count());
        if last > 0 && last + 1 + word.chars().count() > width {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_shown_by_its_first_digits() {
        let whole = format!("a@sha256:{} b", "0f".repeat(32));
        assert_eq!(shortened(&whole), "a@sha256:0f0f0f0f0f0f b");
        assert_eq!(shortened("nothing of it"), "nothing of it");
    }

    #[test]
    fn text_is_broken_between_words_and_no_line_is_too_wide() {
        assert_eq!(fold("one two three", 7), ["one two", "three"]);
        assert_eq!(
            fold("unbreakable", 4),
            ["unbreakable"],
            "a word is never cut: it may be a command"
        );
    }
}
