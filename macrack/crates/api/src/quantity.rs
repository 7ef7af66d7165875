//! Kubernetes quantities, as text with a bounded schema and one parser.

use std::{borrow::Cow, fmt};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// Bytes, or bits per second: a Kubernetes quantity such as `28Gi`, `1T`, `10G`, kept as it was written.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Quantity(pub String);

const UNITS: &[(&str, u128)] = &[
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("Pi", 1 << 50),
    ("k", 1_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
    ("P", 1_000_000_000_000_000),
    ("", 1),
];

impl Quantity {
    /// The number meant, in units of one (bytes, bits per second), rounded down; `None` if the text is no quantity.
    pub fn value(&self) -> Option<u64> {
        let (number, scale) = UNITS.iter().find_map(|(suffix, scale)| Some((self.0.strip_suffix(suffix)?, *scale)))?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
        if whole.is_empty() || whole.len() > 15 || fraction.len() > 3 || !digits(whole) || !digits(fraction) {
            return None;
        }
        let thousandths: u128 = format!("{whole}{fraction:0<3}").parse().ok()?;
        u64::try_from(thousandths * scale / 1000).ok()
    }

    /// A quantity of that many bytes in the largest unit that divides them, binary or decimal.
    pub fn bytes(n: u64) -> Self {
        let (suffix, scale) = [
            ("Ti", 1u64 << 40),
            ("T", 1_000_000_000_000),
            ("Gi", 1 << 30),
            ("G", 1_000_000_000),
            ("Mi", 1 << 20),
            ("M", 1_000_000),
            ("Ki", 1 << 10),
            ("k", 1_000),
        ]
        .into_iter()
        .find(|(_, scale)| n > 0 && n.is_multiple_of(*scale))
        .unwrap_or(("", 1));
        Self(format!("{}{suffix}", n / scale))
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&str> for Quantity {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl JsonSchema for Quantity {
    fn schema_name() -> Cow<'static, str> {
        "Quantity".into()
    }
    fn inline_schema() -> bool {
        true
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "maxLength": 20,
            "pattern": r"^[0-9]{1,15}(\.[0-9]{1,3})?(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?$"
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_said_in_the_unit_that_they_were_bought_in() {
        for (bytes, text) in
            [(64u64 << 30, "64Gi"), (2_000_000_000, "2G"), (250_000_000_000, "250G"), (1 << 20, "1Mi"), (7, "7")]
        {
            assert_eq!(Quantity::bytes(bytes).0, text);
            assert_eq!(Quantity::bytes(bytes).value(), Some(bytes));
        }
        assert_eq!(Quantity::bytes(0).0, "0");
    }

    #[test]
    fn quantities_mean_what_kubernetes_means() {
        for (text, value) in [
            ("64Gi", Some(64u64 << 30)),
            ("1T", Some(1_000_000_000_000)),
            ("10G", Some(10_000_000_000)),
            ("1.5Gi", Some(1_610_612_736)),
            ("0", Some(0)),
            ("", None),
            ("-1Gi", None),
            ("1e3", None),
            ("1GiB", None),
            (".5G", None),
            ("999999999999999P", None),
        ] {
            assert_eq!(Quantity::from(text).value(), value, "{text}");
        }
    }
}
