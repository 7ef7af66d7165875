//! Durations: hours, minutes, seconds in that order. `2h`, `90m`, `1h30m`; never `1d`, `24`, `-1h`, `1.5h`.
//! (Kubernetes' `format: duration` accepts `1d`, so it is not used.)

use std::{borrow::Cow, fmt, str::FromStr};

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};

/// Form of the text; at least two characters.
const FORM: &str = r"^([0-9]{1,5}h)?([0-9]{1,6}m)?([0-9]{1,7}s)?$";
const LONGEST: usize = 20;
/// No duration of ours is longer: 366 days.
pub const MAX_SPAN: Span = Span(8784 * 3600);

/// A duration as it stands in a manifest. [`Text::span`] reads it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Text(pub String);

impl Text {
    /// What it says.
    ///
    /// # Errors
    /// The text has another form (it was stored past the schema), or is longer than [`MAX_SPAN`].
    pub fn span(&self) -> Result<Span, NotASpan> {
        self.0.parse()
    }
}

impl From<Span> for Text {
    fn from(span: Span) -> Self {
        Self(span.to_string())
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl JsonSchema for Text {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        // CEL answers duration('1d') with an error of its own that helps nobody: judge only what has the form
        super::string(
            FORM,
            (2, LONGEST as u32),
            &[(
                &format!("!self.matches('{FORM}') || duration(self) <= duration('8784h')"),
                "[duration-bound] a duration is at most 8784h (366 days); write hours, minutes, seconds: 2h, 90m, 1h30m",
            )],
        )
    }
}

/// Whole seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(pub u64);

impl Span {
    /// Whole seconds.
    pub const fn seconds(self) -> u64 {
        self.0
    }

    /// For arithmetic with times; exact, as no [`Span`] is longer than [`MAX_SPAN`].
    pub fn signed(self) -> jiff::SignedDuration {
        jiff::SignedDuration::from_secs(i64::try_from(self.0).unwrap_or(i64::MAX))
    }
}

/// The text is no duration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotASpan(String);

impl fmt::Display for NotASpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = &self.0;
        write!(
            f,
            "{text:?} is no duration: write hours, minutes, seconds in that order (2h, 90m, 1h30m), at most 8784h"
        )
    }
}

impl std::error::Error for NotASpan {}

impl FromStr for Span {
    type Err = NotASpan;

    fn from_str(text: &str) -> Result<Self, NotASpan> {
        let no = || NotASpan(text.chars().take(40).collect());
        if !(2..=LONGEST).contains(&text.len()) {
            return Err(no());
        }
        // (unit, its seconds, most digits); a unit that was passed cannot come again
        let mut units = [('h', 3600, 5), ('m', 60, 6), ('s', 1, 7)].into_iter();
        let (mut seconds, mut digits) = (0u64, String::new());
        for character in text.chars() {
            if character.is_ascii_digit() {
                digits.push(character);
                continue;
            }
            let (_, each, most) = units.find(|(unit, ..)| *unit == character).ok_or_else(no)?;
            if digits.len() > most {
                return Err(no());
            }
            let count: u64 = digits.parse().map_err(|_| no())?;
            seconds += count * each;
            digits.clear();
        }
        if digits.is_empty() && seconds <= MAX_SPAN.0 {
            Ok(Self(seconds))
        } else {
            Err(no())
        }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0 / 3600, self.0 / 60 % 60, self.0 % 60) {
            (0, 0, s) => write!(f, "{s}s"),
            (0, m, 0) => write!(f, "{m}m"),
            (0, m, s) => write!(f, "{m}m{s}s"),
            (h, 0, 0) => write!(f, "{h}h"),
            (h, m, 0) => write!(f, "{h}h{m}m"),
            (h, m, s) => write!(f, "{h}h{m}m{s}s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_gets_its_verdict() {
        let good = [
            ("2h", 7200),
            ("90m", 5400),
            ("1h30m", 5400),
            ("0s", 0),
            ("23h60m", 86400),
            ("8784h", MAX_SPAN.0),
        ];
        for (text, seconds) in good {
            assert_eq!(text.parse::<Span>(), Ok(Span(seconds)), "{text}");
        }
        let bad = [
            "",
            "h",
            "24",
            "1d",
            "-1h",
            "+1h",
            "1.5h",
            "P1D",
            "24H",
            " 2h",
            "2h ",
            "1m1h",
            "1h1h",
            "hms",
            "99999999h",
            "8785h",
            "1e3s",
            "\u{ff12}h",
            "2h\n",
            "00000000000000000000h",
            "100ms",
        ];
        for text in bad {
            let why = text.parse::<Span>().expect_err(text).to_string();
            assert!(why.contains("2h, 90m, 1h30m"), "{why}");
        }
    }

    #[test]
    fn a_printed_duration_reads_back_as_itself() {
        for seconds in [0, 1, 59, 60, 61, 3599, 3600, 3601, 3660, 5400, 86399, MAX_SPAN.0] {
            assert_eq!(Span(seconds).to_string().parse(), Ok(Span(seconds)), "{seconds}");
        }
    }
}
