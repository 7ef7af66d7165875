//! What a build without the feature `sim` does on Linux.

#![cfg(not(feature = "sim"))]
#![allow(clippy::unwrap_used, reason = "a test ends where its premise fails")]

use std::process::Command;

#[test]
fn a_build_without_a_hypervisor_refuses_to_run_and_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let output =
        Command::new(env!("CARGO_BIN_EXE_macrack-vm")).args(["run", "--dir"]).arg(directory.path()).output().unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("holds no hypervisor for linux"), "{said}");
    assert!(said.contains("feature `sim`"), "{said}");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}
