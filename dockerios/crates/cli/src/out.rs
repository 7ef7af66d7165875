//! What a person reads.
//!
//! Invariant: a reader who has seen enough (`| head`) ends nothing in disorder. `println!` would panic on a closed pipe,
//! in the middle of what has to be removed again; here the rest is left unsaid and the verb goes on to its own end.
//! What is for people does nothing to their terminal, whatever a server put into a name or a reason; what is for
//! programs ([`program`]) stays as it is.

use std::io::{self, Write};

use anyhow::{Context as _, Result};
use kube::{Resource, ResourceExt as _};
use serde::Serialize;
use serde_json::json;

use crate::answer::{harmless, plain};

/// Prints lines for people on standard output.
///
/// # Errors
/// When it cannot be written for another reason than that nobody reads any more, such as a full disk.
pub(crate) fn print(text: &str) -> Result<()> {
    program(&harmless(text))
}

/// Prints what a program reads on standard output, as it is.
///
/// # Errors
/// As [`print`].
pub(crate) fn program(text: &str) -> Result<()> {
    write(&mut io::stdout().lock(), text.as_bytes())
}

/// Prints a line on standard output.
///
/// # Errors
/// As [`print`].
pub(crate) fn line(text: &str) -> Result<()> {
    print(&format!("{text}\n"))
}

/// Prints bytes that are no text on standard output.
///
/// # Errors
/// As [`print`].
pub(crate) fn bytes(bytes: &[u8]) -> Result<()> {
    write(&mut io::stdout().lock(), bytes)
}

/// Says something beside the answer, on standard error. That nobody hears it holds nothing up.
pub(crate) fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", harmless(text));
}

/// How objects are printed, as by kubectl's own `-o`.
#[derive(clap::ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Output {
    /// For people
    #[default]
    Text,
    /// JSON
    Json,
    /// YAML
    Yaml,
    /// KIND.GROUP/NAME, a line each
    Name,
}

/// Objects as a program reads them; `None` when they are for people.
///
/// # Errors
/// When they cannot be written as text, which is a fault of this program.
pub(crate) fn objects<K>(objects: &[K], output: Output) -> Result<Option<String>>
where
    K: Resource<DynamicType = ()> + Serialize,
{
    // one object is itself, as kubectl prints it
    let value = || match objects {
        [one] => serde_json::to_value(one),
        all => Ok(json!({"apiVersion": "v1", "kind": "List", "items": all})),
    };
    Ok(match output {
        Output::Text => None,
        Output::Json => Some(as_json(&value()?)?),
        // its library writes controls as escapes
        Output::Yaml => Some(serde_yaml::to_string(&value()?)?),
        Output::Name => {
            let kind = format!("{}.{}", K::kind(&()).to_ascii_lowercase(), K::group(&()));
            Some(
                objects
                    .iter()
                    .map(|one| format!("{kind}/{}\n", plain(&one.name_any())))
                    .collect(),
            )
        }
    })
}

/// JSON that says the same and holds no control character: serde_json leaves those above ASCII's as they are.
///
/// # Errors
/// As [`objects`].
pub(crate) fn as_json(value: &impl Serialize) -> Result<String> {
    let mut text = String::new();
    for c in serde_json::to_string_pretty(value)?.chars() {
        match c {
            c if c != '\n' && c.is_control() => text.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => text.push(c),
        }
    }
    Ok(text + "\n")
}

fn write(out: &mut impl Write, bytes: &[u8]) -> Result<()> {
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.context("standard output"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Ends(io::ErrorKind);

    impl Write for Ends {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn one_object_is_itself_and_several_are_a_list() {
        let claim = |name: &str| -> dockerios_api::MacOSMachineClaim {
            serde_json::from_value(
                json!({"apiVersion": "machine.dockerios.io/v1alpha1", "kind": "MacOSMachineClaim",
                "metadata": {"name": name}, "spec": {"poolName": "ci"}}),
            )
            .unwrap()
        };
        let of = |claims: &[_], output| objects(claims, output).unwrap().unwrap();
        let one: serde_json::Value = serde_json::from_str(&of(&[claim("a")], Output::Json)).unwrap();
        assert_eq!(
            (&one["kind"], &one["metadata"]["name"]),
            (&json!("MacOSMachineClaim"), &json!("a"))
        );
        let none: serde_json::Value = serde_yaml::from_str(&of(&[], Output::Yaml)).unwrap();
        assert_eq!(none, json!({"apiVersion": "v1", "kind": "List", "items": []}));
        assert_eq!(
            of(&[claim("a"), claim("b")], Output::Name),
            "macosmachineclaim.machine.dockerios.io/a\nmacosmachineclaim.machine.dockerios.io/b\n"
        );
        assert_eq!(objects(&[claim("a")], Output::Text).unwrap(), None);
    }

    #[test]
    fn json_says_what_a_server_wrote_without_doing_it_to_a_terminal() {
        let evil = json!({"reason": "a\u{9b}31m\u{1b}[2J\u{7f}", "face": "\u{1f469}\u{200d}\u{1f4bb}"});
        let text = as_json(&evil).unwrap();
        assert!(!text.chars().any(|c| c != '\n' && c.is_control()), "{text:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), evil);
    }

    #[test]
    fn a_reader_that_has_gone_is_no_error_and_a_full_disk_is() {
        assert!(write(&mut Ends(io::ErrorKind::BrokenPipe), b"x").is_ok());
        let full = write(&mut Ends(io::ErrorKind::StorageFull), b"x").unwrap_err();
        assert!(format!("{full:#}").starts_with("standard output: "), "{full:#}");
    }
}
