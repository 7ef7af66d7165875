//! What a build without the feature `sim` does on Linux.

#![cfg(not(feature = "sim"))]
#![allow(clippy::unwrap_used, reason = "a test ends where its premise fails")]

use std::process::Command;

#[test]
fn a_build_that_knows_no_mac_refuses_to_run_and_says_what_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_macrack-agent"))
        .args(["run", "--bootstrap", "/nowhere.json", "--image-store", "dir:/tmp", "--state-dir"])
        .arg(dir.path())
        .output()
        .unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("holds no hypervisor for linux") && said.contains("feature `sim`"), "{said}");
}
