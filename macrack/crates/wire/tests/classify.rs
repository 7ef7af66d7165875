//! Every failure of a hypervisor has one class and one action, and the documentation says which.

#![allow(clippy::unwrap_used, reason = "a test ends where its premise fails")]

use std::collections::BTreeSet;
use std::fmt::Write;

use macrack_wire::ErrorClass;
use macrack_wire::classify::{Action, CODES, MACRACK_DOMAIN, POSIX_DOMAIN, VZ_DOMAIN, WORDS, classify};

#[test]
fn errors_of_the_hypervisor_fall_into_the_class_that_says_what_can_be_done() {
    use ErrorClass::*;
    // as the framework words it, with its underlying errors
    let locked = "Invalid virtual machine configuration. Failed to lock auxiliary storage. (NSPOSIXErrorDomain code \
                  35: Resource temporarily unavailable)";
    let unsigned = "Invalid virtual machine configuration. The process doesn’t have the \
                    “com.apple.security.virtualization” entitlement.";
    let no_key = "Unable to access security information. (NSPOSIXErrorDomain code 22: Failed to get current host key.)";
    let keychain = "The virtual machine failed to start. (NSOSStatusErrorDomain code -25308)";
    let table = [
        (VZ_DOMAIN, 1, "Internal Virtualization error. The virtual machine failed to start.", Internal),
        (VZ_DOMAIN, 1, keychain, HostSession),
        (VZ_DOMAIN, -9, "", HostSession),
        (VZ_DOMAIN, -9, no_key, HostSession),
        (VZ_DOMAIN, 2, "Invalid virtual machine configuration.", InvalidConfiguration),
        (VZ_DOMAIN, 2, unsigned, NotEntitled),
        (VZ_DOMAIN, 2, locked, AlreadyRunning),
        (POSIX_DOMAIN, 35, locked, AlreadyRunning),
        (POSIX_DOMAIN, 35, "Resource temporarily unavailable", Other),
        (VZ_DOMAIN, 5, "The disk image is invalid.", DiskImage),
        (VZ_DOMAIN, 6, "The maximum supported number of active virtual machines has been reached.", Limit),
        (VZ_DOMAIN, 6, "", Limit),
        (POSIX_DOMAIN, 6, "Device not configured", Other),
        (VZ_DOMAIN, 7, "Network error.", Network),
        (VZ_DOMAIN, 8, "Out of disk space.", NoSpace),
        (VZ_DOMAIN, 1, "The virtual machine stopped. (NSPOSIXErrorDomain code 28: No space left on device)", NoSpace),
        (POSIX_DOMAIN, 28, "", NoSpace),
        (VZ_DOMAIN, 28, "", Other),
        (VZ_DOMAIN, 10_006, "A software update is required.", HostTooOld),
        (MACRACK_DOMAIN, 2, "vm.json: uid", InvalidConfiguration),
        (MACRACK_DOMAIN, 4, "held", AlreadyRunning),
        (MACRACK_DOMAIN, 5, "disk.img: 511 bytes", DiskImage),
        (MACRACK_DOMAIN, 6, "the maximum supported number", Other),
        (MACRACK_DOMAIN, 10_006, "the golden's hardware model", HostTooOld),
        ("", i64::MIN, "", Other),
    ];
    for (domain, code, message, class) in table {
        assert_eq!(classify(domain, code, message), class, "{domain} {code} {message}");
    }
}

/// `VZError.h` of the macOS 27 SDK, counted by hand.
#[test]
fn every_code_of_the_framework_stands_in_the_table_once() {
    let header = (1..=12).chain(10_001..=10_007).chain(20_001..=20_002).chain(30_001..=30_004);
    let header: BTreeSet<i64> = header.chain(40_001..=40_003).chain(50_001..=50_002).chain([-9]).collect();
    let known: BTreeSet<i64> = CODES.iter().map(|known| known.code).collect();
    assert_eq!(known, header);
    assert_eq!(known.len(), CODES.len(), "a code stands twice");
    for known in CODES {
        assert_ne!(known.class, ErrorClass::Other, "{} has no class", known.name);
        assert_eq!(classify(VZ_DOMAIN, known.code, ""), known.class);
    }
}

#[test]
fn words_that_tell_more_than_a_code_win_whatever_the_code() {
    for (words, class) in WORDS {
        assert_eq!(words, words.to_ascii_lowercase(), "words are compared in lower case");
        for code in [1, 2, 6, 10_007, 77] {
            assert_eq!(classify(VZ_DOMAIN, code, &words.to_ascii_uppercase()), class, "{words} {code}");
        }
    }
}

#[test]
fn only_the_limit_makes_the_agent_count_and_only_a_held_vm_is_attached_to() {
    let with = |action| ErrorClass::ALL.into_iter().filter(move |class| class.action() == action).collect::<Vec<_>>();
    assert_eq!(with(Action::Count), [ErrorClass::Limit]);
    assert_eq!(with(Action::Attach), [ErrorClass::AlreadyRunning]);
    assert_eq!(ErrorClass::ALL.iter().collect::<std::collections::HashSet<_>>().len(), ErrorClass::ALL.len());
}

#[test]
fn a_class_of_a_later_release_is_read_as_other() {
    let read: ErrorClass = serde_json::from_str("\"Quantum\"").unwrap();
    assert_eq!(read, ErrorClass::Other);
    for class in ErrorClass::ALL {
        let written = serde_json::to_string(&class).unwrap();
        assert_eq!(serde_json::from_str::<ErrorClass>(&written).unwrap(), class);
    }
}

fn table() -> String {
    let mut table = String::from("| Class | `VZErrorDomain` | Action | Way out |\n|---|---|---|---|\n");
    for class in ErrorClass::ALL {
        let codes =
            CODES.iter().filter(|known| known.class == class).map(|known| format!("{} {}", known.code, known.name));
        let words = WORDS.iter().filter(|(_, of)| *of == class).map(|(words, _)| format!("“{words}”"));
        let from = codes.chain(words).collect::<Vec<_>>().join(", ");
        writeln!(table, "| {class:?} | {from} | {:?} | {} |", class.action(), class.way_out()).unwrap();
    }
    table
}

#[test]
fn the_documented_table_is_this_one() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/errors.md");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains(&table()), "docs/errors.md: the table must be\n{}", table());
}
