//! What a person reads.
//!
//! Invariant: a reader who has seen enough (`| head`) ends nothing in disorder. `println!` would panic on a closed pipe,
//! in the middle of what has to be removed again; here the rest is left unsaid and the verb goes on to its own end.

use std::io::{self, Write};

use anyhow::{Context as _, Result};
use kube::{Resource, ResourceExt as _};
use serde::Serialize;
use serde_json::json;

/// Prints on standard output, as it is.
///
/// # Errors
/// When it cannot be written for another reason than that nobody reads any more, such as a full disk.
pub(crate) fn print(text: &str) -> Result<()> {
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
    let _ = writeln!(io::stderr().lock(), "{text}");
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
        Output::Json => Some(format!("{}\n", serde_json::to_string_pretty(&value()?)?)),
        Output::Yaml => Some(serde_yaml::to_string(&value()?)?),
        Output::Name => {
            let kind = format!("{}.{}", K::kind(&()).to_ascii_lowercase(), K::group(&()));
            Some(
                objects
                    .iter()
                    .map(|one| format!("{kind}/{}\n", one.name_any()))
                    .collect(),
            )
        }
    })
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
    fn a_reader_that_has_gone_is_no_error_and_a_full_disk_is() {
        assert!(write(&mut Ends(io::ErrorKind::BrokenPipe), b"x").is_ok());
        let full = write(&mut Ends(io::ErrorKind::StorageFull), b"x").unwrap_err();
        assert!(format!("{full:#}").starts_with("standard output: "), "{full:#}");
    }
}
