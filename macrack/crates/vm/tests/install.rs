//! `macrack-vm install` and `finish` on a machine that is no Mac: what is wrong is said first, then that this is none.

#![allow(clippy::unwrap_used, reason = "a test ends where its premise fails")]
#![cfg(not(target_os = "macos"))]

use std::path::Path;
use std::process::{Command, Output};

fn vm(arguments: &[&str]) -> (Option<i32>, String) {
    let Output { status, stderr, .. } =
        Command::new(env!("CARGO_BIN_EXE_macrack-vm")).args(arguments).output().unwrap();
    (status.code(), String::from_utf8(stderr).unwrap())
}

fn install(into: &Path, disk: &str) -> (Option<i32>, String) {
    vm(&["install", "--ipsw", "latest", "--into", into.to_str().unwrap(), "--disk-size", disk])
}

#[test]
fn what_is_asked_wrongly_is_refused_with_the_argument_and_the_rule() {
    // a folder with something in it, which is nowhere near what the system tidies up, wherever this tree lies
    let here = Path::new("/usr");
    for (disk, words) in [("120GB", "as in 120G"), ("-1G", "as in 120G"), ("10G", "--disk-size 10000000000: at least")]
    {
        let (code, said) = vm(&["install", "--ipsw=latest", "--into=/nonexistent/b", &format!("--disk-size={disk}")]);
        assert!(code != Some(0) && said.contains(words), "{disk}: {said}");
    }
    let (code, said) = install(here, "120G");
    assert!(code == Some(1) && said.contains("is not empty; choose a new folder"), "{said}");
    let (code, said) = install(Path::new("/tmp/golden"), "120G");
    assert!(code == Some(1) && said.contains("lost when the system tidies up"), "{said}");
    let (code, said) = vm(&["finish", "--bundle", here.to_str().unwrap()]);
    assert!(code == Some(1) && said.contains("bundle.json"), "{said}");
}

#[test]
fn a_machine_that_is_no_mac_says_so_and_makes_nothing() {
    let into = Path::new("/nonexistent/golden");
    let (code, said) = install(into, "120G");
    assert!(code == Some(1) && said.contains("do this on a Mac"), "{said}");
    assert!(!into.exists());
}
