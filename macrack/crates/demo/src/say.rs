//! What is printed: steps, moments, quotes. Colour on a terminal only, and nothing rests on it.

use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Widest line, in characters.
const WIDTH: usize = 112;
/// Where the command of a step begins.
const COMMAND_AT: usize = 42;
/// Where the text of a moment begins.
const TEXT_AT: usize = 9;

/// How a word is set off.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tone {
    /// As it should be.
    Good,
    /// Waits, or is on its way out.
    Wait,
    /// Refused.
    No,
    /// Beside the point.
    Dim,
    /// A heading.
    Strong,
}

/// The voice of the account.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Say {
    colour: bool,
}

impl Say {
    /// Colour on a terminal, unless NO_COLOR asks for none.
    pub(crate) fn new() -> Say {
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Say { colour: std::io::stdout().is_terminal() && !plain }
    }

    /// A word with a tone.
    pub(crate) fn paint(self, tone: Tone, text: impl Display) -> String {
        let code = match tone {
            Tone::Good => "32",
            Tone::Wait => "33",
            Tone::No => "31",
            Tone::Dim => "2",
            Tone::Strong => "1",
        };
        if self.colour { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_string() }
    }

    /// A line as it is. Whoever reads may have gone (`| head`): that ends nothing.
    pub(crate) fn line(self, text: impl Display) {
        let _ = writeln!(std::io::stdout(), "{text}");
    }

    /// A part of the stage: its name, what it is, how long it took.
    pub(crate) fn part(self, name: &str, text: impl Display, took: Duration) {
        let text = text.to_string();
        let seconds = format!("{:>5.1} s", took.as_secs_f64());
        self.line(format!("  {name:<14}{text:<80} {}", self.paint(Tone::Dim, seconds)));
    }

    /// The head of a step and the command that is run, as a person would type it.
    pub(crate) fn step(self, number: usize, title: &str, command: &str) {
        let head = format!("{number}  {title}");
        let gap = " ".repeat(COMMAND_AT.saturating_sub(head.chars().count()).max(2));
        let command = if command.is_empty() { String::new() } else { format!("{gap}$ {command}") };
        self.line(format!("\n{}{command}", self.paint(Tone::Strong, head)));
    }

    /// A further command within a step.
    pub(crate) fn command(self, command: &str) {
        self.line(format!("   $ {command}"));
    }

    /// Something that happened so long after the command.
    pub(crate) fn moment(self, began: Instant, text: impl Display) {
        let stamp = self.paint(Tone::Dim, format!("{:>6.2}", began.elapsed().as_secs_f64()));
        self.line(format!("{stamp}   {}", wrapped(&text.to_string(), TEXT_AT)));
    }

    /// What somebody else said, word for word.
    pub(crate) fn quote(self, text: impl Display) {
        for line in text.to_string().lines() {
            self.line(format!("   {}", wrapped(line, 3)));
        }
    }

    /// Who did something, and what.
    pub(crate) fn entry(self, who: &str, text: impl Display) {
        const AT: usize = 15;
        let who = self.paint(Tone::Strong, format!("{who:<0$}", AT - 4));
        self.line(format!("   {who} {}", wrapped(&text.to_string(), AT)));
    }

    /// A table of kubectl, as it is.
    pub(crate) fn table(self, text: &str) {
        for line in text.lines() {
            self.line(format!("   {}", line.trim_end()));
        }
    }
}

/// Breaks at blanks; further lines begin at column `indent`.
fn wrapped(text: &str, indent: usize) -> String {
    let mut out = String::new();
    let mut column = indent;
    for word in text.split_inclusive(' ') {
        let width = word.trim_end().chars().filter(|c| !c.is_control()).count();
        if column + width > WIDTH && column > indent {
            out.truncate(out.trim_end().len());
            out += "\n";
            out += &" ".repeat(indent);
            column = indent;
        }
        out += word;
        column += word.chars().count();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_is_broken_at_blanks_and_indented() {
        let text = wrapped(&"word ".repeat(50), 4);
        assert!(text.lines().all(|line| line.len() <= WIDTH), "{text}");
        assert!(text.lines().skip(1).all(|line| line.starts_with("    word")), "{text}");
        let long = "x".repeat(200);
        assert_eq!(wrapped(&long, 4), long, "a word that cannot be broken is not");
        assert_eq!(wrapped("short  text", 4), "short  text");
    }
}
