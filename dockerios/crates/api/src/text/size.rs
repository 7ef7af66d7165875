//! Sizes in bytes, as Kubernetes quantities of which only whole, positive ones make sense here.

use std::{borrow::Cow, fmt, str::FromStr};

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};

const FORM: &str = r"^[1-9][0-9]{0,14}(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?$";

/// Bytes as a Kubernetes quantity (`200Gi`, `32G`, `402653184`), kept as it was written. No fractions, no exponents.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Size(pub String);

/// The text is no size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotASize(String);

impl fmt::Display for NotASize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is no size: write a whole number with Ki, Mi, Gi, Ti, k, M, G or T (200Gi, 384Mi)",
            self.0
        )
    }
}

impl std::error::Error for NotASize {}

impl Size {
    /// In bytes.
    ///
    /// # Errors
    /// The text has another form (it was stored past the schema), or exceeds 64 bits.
    pub fn bytes(&self) -> Result<u64, NotASize> {
        let no = || NotASize(self.0.chars().take(40).collect());
        let digits = self.0.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.0.len());
        let (number, unit) = self.0.split_at(digits);
        let unit = match unit {
            "" => 1,
            "k" => 1000,
            "M" => 1_000_000,
            "G" => 1_000_000_000,
            "T" => 1_000_000_000_000,
            "P" => 1_000_000_000_000_000,
            "Ki" => 1 << 10,
            "Mi" => 1 << 20,
            "Gi" => 1 << 30,
            "Ti" => 1 << 40,
            "Pi" => 1 << 50,
            _ => return Err(no()),
        };
        let number: u64 = number.parse().map_err(|_| no())?;
        number.checked_mul(unit).filter(|bytes| *bytes > 0).ok_or_else(no)
    }

    /// Written in the largest binary unit that divides it.
    pub fn of_bytes(bytes: u64) -> Self {
        for (unit, shift) in [("Pi", 50), ("Ti", 40), ("Gi", 30), ("Mi", 20), ("Ki", 10)] {
            if bytes > 0 && bytes.trailing_zeros() >= shift {
                return Self(format!("{}{unit}", bytes >> shift));
            }
        }
        Self(bytes.to_string())
    }
}

impl FromStr for Size {
    type Err = NotASize;

    fn from_str(text: &str) -> Result<Self, NotASize> {
        let size = Self(text.to_owned());
        size.bytes().map(|_| size)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&str> for Size {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl JsonSchema for Size {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Size".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({"type": "string", "minLength": 1, "maxLength": 18, "pattern": FORM})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written() {
        for (text, bytes) in [
            ("200Gi", 200 << 30),
            ("384Mi", 384 << 20),
            ("32G", 32_000_000_000),
            ("7", 7),
        ] {
            assert_eq!(Size::from(text).bytes(), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "0",
            "0Gi",
            "-1Gi",
            "1.5Gi",
            "1e3",
            "Gi",
            "1 Gi",
            "1gi",
            "99999999999999Pi",
            "12E",
        ] {
            assert!(
                Size::from(text).bytes().expect_err(text).to_string().contains("200Gi"),
                "{text}"
            );
        }
        assert_eq!(Size::of_bytes(402_653_184).0, "384Mi");
        assert_eq!(Size::of_bytes(1000).0, "1000");
    }
}
