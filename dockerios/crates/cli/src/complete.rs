//! What a shell offers after `kubectl dockerios`: kubectl asks the script `kubectl_complete-dockerios`, which asks here.
//!
//! Invariant: whatever goes wrong, nothing is said but what can be chosen, and not for longer than a person waits.
//!
//! The answer is that of Cobra's `__complete`: a choice a line, `:` and a number at the end, whose bits are 2 "no space
//! behind it" and 4 "no names of files" (kubectl reads plugins' answers so since 1.26).

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Command, FromArgMatches as _};
use dockerios_api::{MacOSMachineClass, MacOSMachinePool};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::ListParams;
use kube::core::PartialObjectMeta;
use kube::discovery::ApiResource;
use kube::{Resource, ResourceExt as _};

use crate::access::{Access, is_name};
use crate::out;
use crate::target::{KINDS, Kind};

/// A person with a finger on the key waits no longer.
const PATIENCE: Duration = Duration::from_secs(3);
const NO_SPACE: u8 = 2;
const NO_FILES: u8 = 4;

/// The words so far, the last one being begun
#[derive(clap::Args, Debug)]
pub(crate) struct Complete {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

/// What the last word can be.
#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    /// A verb, an option, or a value that the command line itself knows.
    Known,
    /// A file.
    File,
    /// `KIND/`.
    Kinds,
    /// An object of a kind that is read here, behind that prefix.
    Object(&'static str, ApiResource, bool),
}

impl Complete {
    pub(crate) async fn run(&self, command: &mut Command) -> Result<ExitCode> {
        let (choices, bits) = match wanted(&self.words) {
            Wanted::File => (Vec::new(), 0),
            Wanted::Known => (known(command, &self.words), NO_FILES),
            Wanted::Kinds => (kinds(self.last()), NO_SPACE | NO_FILES),
            Wanted::Object(prefix, resource, namespaced) => {
                let listed = names(command, &self.words, &resource, namespaced);
                let names = tokio::time::timeout(PATIENCE, listed)
                    .await
                    .ok()
                    .flatten()
                    .unwrap_or_default();
                let all = names.into_iter().map(|name| format!("{prefix}{name}"));
                (all.filter(|choice| choice.starts_with(self.last())).collect(), NO_FILES)
            }
        };
        let lines: String = choices.iter().map(|choice| format!("{choice}\n")).collect();
        out::print(&format!("{lines}:{bits}\n"))?;
        Ok(ExitCode::SUCCESS)
    }

    fn last(&self) -> &str {
        self.words.last().map_or("", String::as_str)
    }
}

fn resource<K: Resource<DynamicType = ()>>() -> ApiResource {
    ApiResource::erase::<K>(&())
}

fn wanted(words: &[String]) -> Wanted {
    let [before @ .., last] = words else {
        return Wanted::Known;
    };
    let verb = verb(before);
    match before.last().map(String::as_str) {
        Some("-n" | "--namespace") => return Wanted::Object("", resource::<Namespace>(), false),
        Some("--pool") => return Wanted::Object("", resource::<MacOSMachinePool>(), true),
        Some("--class") => return Wanted::Object("", resource::<MacOSMachineClass>(), false),
        Some("--storage-class") => return Wanted::Object("", resource::<StorageClass>(), false),
        Some("--kubeconfig" | "-f" | "--filename") => return Wanted::File,
        Some("-o" | "--output") if verb == Some("screenshot") => return Wanted::File,
        _ => {}
    }
    if last.starts_with('-') {
        return Wanted::Known;
    }
    let machines = &KINDS[0];
    let object = |kind: &'static Kind, name: &'static str| Wanted::Object(name, (kind.resource)(), kind.namespaced);
    match (verb, last.split_once('/')) {
        (Some("why"), None) => Wanted::Kinds,
        (Some("screenshot" | "snapshot"), None) => object(machines, ""),
        (Some("why" | "screenshot" | "snapshot"), Some((kind, _))) => {
            let found = KINDS.iter().find_map(|known| {
                let name = known.names.iter().find(|name| **name == kind)?;
                Some((
                    known,
                    PREFIXES.iter().find(|prefix| prefix.trim_end_matches('/') == *name)?,
                ))
            });
            found.map_or(Wanted::Known, |(known, prefix)| object(known, prefix))
        }
        _ => Wanted::Known,
    }
}

/// The first word that is neither an option nor the value of one.
fn verb(words: &[String]) -> Option<&str> {
    let values = [
        "-n",
        "--namespace",
        "--context",
        "--cluster",
        "--user",
        "--kubeconfig",
        "--as",
        "--as-group",
    ];
    let mut words = words.iter().map(String::as_str);
    while let Some(word) = words.next() {
        if values.contains(&word) {
            words.next();
        } else if !word.starts_with('-') {
            return Some(word);
        }
    }
    None
}

/// The kinds as they are offered.
const PREFIXES: [&str; 8] = [
    "macs/",
    "macclaim/",
    "macpool/",
    "macclass/",
    "mimg/",
    "idpool/",
    "mid/",
    "platform/",
];

fn kinds(begun: &str) -> Vec<String> {
    let all = PREFIXES.iter().filter(|prefix| prefix.starts_with(begun));
    all.map(|prefix| (*prefix).to_owned()).collect()
}

/// What the command line itself knows, each with what it is for.
fn known(command: &mut Command, words: &[String]) -> Vec<String> {
    let mut line = vec![OsString::from(command.get_name())];
    line.extend(words.iter().map(OsString::from));
    let last = line.len() - 1;
    let found = clap_complete::engine::complete(command, line, last, None).unwrap_or_default();
    found
        .into_iter()
        .filter(|choice| !choice.is_hide_set())
        .map(|choice| {
            let value = choice.get_value().to_string_lossy().into_owned();
            match choice.get_help() {
                Some(help) => format!("{value}\t{}", help.to_string().lines().next().unwrap_or_default()),
                None => value,
            }
        })
        .collect()
}

/// The names that the cluster of these words has; `None` when they cannot be had.
async fn names(command: &Command, words: &[String], resource: &ApiResource, namespaced: bool) -> Option<Vec<String>> {
    let so_far = words.split_last().map_or(&[][..], |(_, before)| before);
    let line = std::iter::once(command.get_name().to_owned()).chain(so_far.iter().cloned());
    // half a command line: what can be read of it says which cluster is meant
    let read = command.clone().ignore_errors(true).try_get_matches_from(line).ok()?;
    let access = Access::from_arg_matches(&read).unwrap_or_default();
    let cluster = access.open().await.ok()?;
    let namespace = namespaced.then_some(&*cluster.namespace);
    let api = cluster.untyped(namespace, resource);
    let list = api.list_metadata(&ListParams::default()).await.ok()?;
    // a choice is a line: what is no name begins another
    let named = list.iter().map(PartialObjectMeta::name_any);
    Some(named.filter(|name| is_name(name)).collect())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn every_kind_that_can_be_asked_about_is_offered() {
        let offered: Vec<_> = PREFIXES.iter().map(|prefix| prefix.trim_end_matches('/')).collect();
        assert_eq!(offered, KINDS.iter().map(|kind| kind.names[0]).collect::<Vec<_>>());
        assert_eq!(kinds("mac"), ["macs/", "macclaim/", "macpool/", "macclass/"]);
    }

    #[test]
    fn what_is_offered_follows_from_the_words_before() {
        let object = |line: &str| match wanted(&words(line)) {
            Wanted::Object(prefix, resource, namespaced) => (prefix, resource.kind, namespaced),
            other => panic!("{line}: {other:?}"),
        };
        assert_eq!(object("why macs/"), ("macs/", "MacOSMachine".to_owned(), true));
        assert_eq!(object("-n team why mimg/se"), ("mimg/", "MacOSImage".to_owned(), false));
        assert_eq!(object("screenshot "), ("", "MacOSMachine".to_owned(), true));
        assert_eq!(object("claim --pool "), ("", "MacOSMachinePool".to_owned(), true));
        assert_eq!(object("status -n "), ("", "Namespace".to_owned(), false));
        for (line, expected) in [
            ("", Wanted::Known),
            ("st", Wanted::Known),
            ("status --", Wanted::Known),
            ("status -o ", Wanted::Known),
            ("why pod/", Wanted::Known),
            ("why ", Wanted::Kinds),
            ("why mac", Wanted::Kinds),
            ("screenshot macs/x -o ", Wanted::File),
            ("identities import -f ", Wanted::File),
        ] {
            assert_eq!(wanted(&words(line)), expected, "{line:?}");
        }
    }

    #[test]
    fn verbs_and_options_are_offered_with_what_they_are_for_and_hidden_ones_are_not() {
        let offered = |line: &str| known(&mut crate::Cli::command(), &words(line));
        let verbs = offered("");
        assert!(
            verbs.iter().any(|verb| verb.starts_with("status\tShow platform")),
            "{verbs:?}"
        );
        assert!(!verbs.iter().any(|verb| verb.contains("__complete")), "{verbs:?}");
        assert_eq!(offered("sta").len(), 1);
        assert!(
            offered("status -o ").iter().any(|value| value.starts_with("yaml")),
            "{:?}",
            offered("status -o ")
        );
    }
}
