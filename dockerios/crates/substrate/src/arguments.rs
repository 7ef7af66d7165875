//! A QEMU command line as data. Invariant: it has no `Display` and its `Debug` shows options by name alone, since one
//! of them holds the key.

use std::fmt;

use serde_json::{Map, Value};

use crate::{Outcome, Trouble};

/// Environment, program and arguments, in order.
#[derive(Clone, PartialEq, Eq)]
pub struct Arguments(Vec<String>);

impl fmt::Debug for Arguments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options = self.0.iter().filter(|word| word.starts_with('-'));
        f.debug_list().entries(options).finish()
    }
}

impl Arguments {
    /// Takes a line apart as a shell does: quotes of both kinds, and backslashes outside of single ones.
    pub fn parse(line: &str) -> Outcome<Self> {
        let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
        let mut rest = line.chars();
        while let Some(c) = rest.next() {
            match (quote, c) {
                (Some(open), c) if c == open => quote = None,
                (Some('\''), c) => word.get_or_insert_default().push(c),
                (_, '\\') => word.get_or_insert_default().extend(rest.next()),
                (Some(_), c) => word.get_or_insert_default().push(c),
                (None, '\'' | '"') => {
                    word.get_or_insert_default();
                    quote = Some(c);
                }
                (None, c) if c.is_whitespace() => words.extend(word.take()),
                (None, c) => word.get_or_insert_default().push(c),
            }
        }
        words.extend(word);
        if quote.is_some() || words.is_empty() {
            return Err(Trouble::new("libvirt's command line cannot be taken apart"));
        }
        Ok(Self(words))
    }

    /// The words, the environment's first.
    pub fn words(&self) -> &[String] {
        &self.0
    }

    /// Values of an option, such as `-device`.
    pub fn values(&self, option: &str) -> Vec<&str> {
        let pairs = self.0.iter().zip(self.0.iter().skip(1));
        let of_option = pairs.filter(|(name, _)| *name == option);
        of_option.map(|(_, value)| value.as_str()).collect()
    }

    /// Values of an option that are JSON objects: how libvirt writes devices and block nodes of its own.
    pub fn objects(&self, option: &str) -> Vec<Map<String, Value>> {
        let values = self.values(option).into_iter();
        values.filter_map(|value| serde_json::from_str(value).ok()).collect()
    }

    /// The one device of that driver.
    pub fn device(&self, driver: &str) -> Outcome<Map<String, Value>> {
        let mut found = self.objects("-device");
        found.retain(|device| device.get("driver").is_some_and(|name| name == driver));
        match (found.pop(), found.len()) {
            (Some(device), 0) => Ok(device),
            (last, more) => Err(Trouble::new(format_args!(
                "{} devices {driver:?} are on the command line, not one",
                more + usize::from(last.is_some())
            ))),
        }
    }

    /// The block node of that name.
    pub fn node(&self, name: &str) -> Outcome<Map<String, Value>> {
        let mut nodes = self.objects("-blockdev").into_iter();
        nodes
            .find(|node| node.get("node-name").is_some_and(|own| own == name))
            .ok_or_else(|| Trouble::new(format_args!("no block node {name:?} is on the command line")))
    }

    /// With every word changed.
    pub fn map(&self, change: impl FnMut(&String) -> String) -> Self {
        Self(self.0.iter().map(change).collect())
    }

    /// As one line that a shell takes apart into the same words.
    pub fn line(&self) -> String {
        let quoted = self.0.iter().map(|word| format!("'{}'", word.replace('\'', r"'\''")));
        quoted.collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_taken_apart_as_a_shell_does_and_put_together_again() {
        let line = r#"A=b /q -x '{"a":"b c"}' "d\"e" f\ g '' h"i"'j'"#;
        let parsed = Arguments::parse(line).expect("a line");
        assert_eq!(
            parsed.words(),
            ["A=b", "/q", "-x", r#"{"a":"b c"}"#, "d\"e", "f g", "", "hij"]
        );
        assert_eq!(Arguments::parse(&parsed.line()).expect("a line"), parsed);
        assert!(Arguments::parse("'open").is_err());
    }

    #[test]
    fn what_is_printed_of_a_line_holds_no_value() {
        let parsed = Arguments::parse("q -device isa-applesmc,osk=secret").expect("a line");
        assert_eq!(format!("{parsed:?}"), "[\"-device\"]");
    }
}
