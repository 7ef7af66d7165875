//! The page of condition types and reasons, from the doc comments where they are defined.

use std::fmt::Write as _;

use dockerios_api::{
    Entry,
    condition::{Wanted, wanted},
    config::platform_config::{PlatformCondition, PlatformReason},
    identity::{
        machine_identity::{IdentityCondition, IdentityReason},
        pool::{IdentityPoolCondition, IdentityPoolReason},
    },
    image::macos_image::{ImageCondition, ImageReason},
    machine::{
        claim::{ClaimCondition, ClaimReason},
        class::{ClassCondition, ClassReason},
        macos_machine::{MachineCondition, MachineReason},
        pool::{MachinePoolCondition, MachinePoolReason},
    },
};

type Words = &'static [Entry];

/// Kind, what it is, its condition types, its reasons.
const KINDS: &[(&str, &str, Words, Words)] = &[
    (
        "PlatformConfig",
        "how the platform behaves",
        PlatformCondition::ENTRIES,
        PlatformReason::ENTRIES,
    ),
    (
        "MacOSImage",
        "a golden disk",
        ImageCondition::ENTRIES,
        ImageReason::ENTRIES,
    ),
    (
        "IdentityPool",
        "identities made ahead of demand",
        IdentityPoolCondition::ENTRIES,
        IdentityPoolReason::ENTRIES,
    ),
    (
        "MachineIdentity",
        "one identity",
        IdentityCondition::ENTRIES,
        IdentityReason::ENTRIES,
    ),
    (
        "MacOSMachineClass",
        "a shape of machine",
        ClassCondition::ENTRIES,
        ClassReason::ENTRIES,
    ),
    (
        "MacOSMachine",
        "one machine",
        MachineCondition::ENTRIES,
        MachineReason::ENTRIES,
    ),
    (
        "MacOSMachinePool",
        "warm machines",
        MachinePoolCondition::ENTRIES,
        MachinePoolReason::ENTRIES,
    ),
    (
        "MacOSMachineClaim",
        "what a tenant asks with",
        ClaimCondition::ENTRIES,
        ClaimReason::ENTRIES,
    ),
];

const HEAD: &str =
    "<!-- Written by `cargo run -p xtask -- generate` from the doc comments in crates/api; change them there. -->
# Conditions and reasons

Every kind has the summary condition `Ready`; its reason is the REASON column of `kubectl get`, its message the MESSAGE
column of `kubectl get -o wide`. A condition that is `Unknown` was not seen, and nothing is decided from it.
`observedGeneration` says which spec was judged. *Wanted* is the verdict that is good news; where nothing stands, neither
is a fault.

macOS on hardware that is not Apple's is outside Apple's licence: [licence.md](licence.md).
";

pub(crate) fn page() -> String {
    let mut page = HEAD.to_owned();
    for (kind, what, conditions, reasons) in KINDS {
        let _ = write!(page, "\n## {kind}: {what}\n");
        let _ = write!(page, "\n| Condition | Wanted | Meaning |\n|---|---|---|\n");
        for entry in *conditions {
            let wanted = match wanted(entry.word) {
                Wanted::True => "True",
                Wanted::False => "False",
                Wanted::Either => "",
            };
            let _ = writeln!(page, "| `{}` | {wanted} | {} |", entry.word, cell(entry));
        }
        let _ = write!(page, "\n| Reason | Meaning |\n|---|---|\n");
        for entry in *reasons {
            let _ = writeln!(page, "| `{}` | {} |", entry.word, cell(entry));
        }
    }
    page
}

fn cell(entry: &Entry) -> String {
    entry.meaning.trim().replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use dockerios_api::condition::WANTED;

    use super::*;
    use crate::{root, sources::rust_files};

    #[test]
    fn what_is_wanted_of_each_condition_is_said_once_and_of_no_other() {
        let said: Vec<_> = WANTED.iter().map(|(kind, _)| *kind).collect();
        let documented: BTreeSet<_> = KINDS
            .iter()
            .flat_map(|(_, _, conditions, _)| conditions.iter())
            .map(|entry| entry.word)
            .collect();
        assert_eq!(
            said,
            documented.into_iter().collect::<Vec<_>>(),
            "sorted, none left out"
        );
    }

    #[test]
    fn no_vocabulary_of_the_api_is_left_out() {
        let mut defined = 0;
        for file in rust_files(&root().join("crates/api/src")).expect("sources") {
            let text = std::fs::read_to_string(&file).expect("a source");
            let listed = "vocabulary! {\n";
            defined += text.matches(listed).count();
        }
        assert_eq!(
            defined,
            KINDS.len() * 2,
            "a vocabulary of crates/api is not on the page, or one is there no more"
        );
    }

    #[test]
    fn every_kind_sums_up_in_ready_and_every_meaning_is_a_sentence() {
        for (kind, _, conditions, reasons) in KINDS {
            assert!(conditions.iter().any(|entry| entry.word == "Ready"), "{kind}");
            for entry in conditions.iter().chain(*reasons) {
                let meaning = entry.meaning.trim();
                assert!(
                    meaning.ends_with('.') && meaning.len() > 10,
                    "{kind}: {}: {meaning:?}",
                    entry.word
                );
            }
        }
    }

    #[test]
    fn every_defined_kind_is_on_the_page() {
        let page = page();
        for crd in dockerios_api::crds().expect("kinds") {
            assert!(
                page.contains(&format!("\n## {}: ", crd.spec.names.kind)),
                "{}",
                crd.spec.names.kind
            );
        }
    }
}
