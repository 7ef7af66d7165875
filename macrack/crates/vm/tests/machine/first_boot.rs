//! The first-boot script: once in the life of a disk.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Command;

use macrack_wire::{FirstBoot, GuestStage, VmReport};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::rack::{PATIENCE, Rack, stage};

fn first_boot(report: &VmReport) -> Option<&FirstBoot> {
    report.guest.as_ref().map(|guest| &guest.first_boot)
}

#[tokio::test]
async fn a_script_runs_once_over_restarts_of_the_vm_and_is_gone_once_handed_over() {
    let rack = Rack::new();
    let dir = rack.make_with_script("a", "echo ran >> runs\n");
    for _ in 0..3 {
        rack.start("a");
        let ready = rack.ready("a").await;
        assert_eq!(first_boot(&ready), Some(&FirstBoot::Done { exit_code: 0 }));
        assert!(!dir.first_boot().exists(), "it may hold secrets");
        // the next start meets a process that has said its last word and not yet ended
        rack.stop("a", 20).await;
    }
    assert_eq!(fs::read_to_string(dir.guest_root().join("runs")).unwrap(), "ran\n");
    let kept = dir.guest_root().join("Library/Application Support/MacRack/first-boot.sh");
    assert!(!kept.exists(), "nor does the guest keep it");
}

#[tokio::test]
async fn a_script_that_was_cut_short_is_interrupted_dies_with_its_vm_and_never_runs_again() {
    let rack = Rack::new();
    let dir =
        rack.make_with_script("a", "#!/bin/sh\necho ran >> runs; exec 3> alive; echo begun >&3; exec sleep 600\n");
    fs::create_dir_all(dir.guest_root()).unwrap();
    let alive = dir.guest_root().join("alive");
    assert!(Command::new("mkfifo").arg(&alive).status().unwrap().success());
    rack.start("a");
    let (said, mut script) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in BufReader::new(fs::File::open(alive).unwrap()).lines() {
            said.send(line.unwrap()).unwrap();
        }
    });
    let begun = timeout(PATIENCE, script.recv()).await.unwrap();
    assert_eq!(begun.as_deref(), Some("begun"));
    let during = rack.until("a", |report| first_boot(report) == Some(&FirstBoot::Running)).await;
    assert_eq!(stage(&during), Some(GuestStage::UserSession));

    rack.chassis.kill("a").unwrap();
    let rest = timeout(PATIENCE, script.recv()).await;
    assert_eq!(rest, Ok(None), "the end of the script closes its pipe");

    for _ in 0..2 {
        rack.start("a");
        let told = rack
            .until("a", |report| {
                first_boot(report) == Some(&FirstBoot::Interrupted) && stage(report) == Some(GuestStage::UserSession)
            })
            .await;
        assert_eq!(told.guest_problem, None);
        rack.chassis.kill("a").unwrap();
    }
    assert_eq!(fs::read_to_string(dir.guest_root().join("runs")).unwrap(), "ran\n");
}

#[tokio::test]
async fn a_script_that_fails_says_its_exit_code_and_keeps_the_guest_from_ready() {
    let rack = Rack::new();
    for (uid, script, exit_code) in [("a", "exit 3\n", 3), ("b", "kill -9 $$\n", 137)] {
        rack.make_with_script(uid, script);
        rack.start(uid);
        let done = Some(FirstBoot::Done { exit_code });
        let report = rack.until(uid, |report| first_boot(report) == done.as_ref()).await;
        assert_eq!(stage(&report), Some(GuestStage::UserSession));
    }
}

#[tokio::test]
async fn a_script_whose_interpreter_is_missing_fails_with_the_reason_and_is_not_tried_again() {
    let rack = Rack::new();
    rack.make_with_script("a", "#!/no/such/interpreter\n");
    rack.start("a");
    let report = rack
        .until("a", |report| matches!(first_boot(report), Some(FirstBoot::Done { .. } | FirstBoot::Failed { .. })))
        .await;
    assert_ne!(first_boot(&report), Some(&FirstBoot::Done { exit_code: 0 }));
    assert_eq!(stage(&report), Some(GuestStage::UserSession));
}

#[tokio::test]
async fn a_script_that_was_acknowledged_before_a_crash_is_deleted_and_not_handed_over_again() {
    let rack = Rack::new();
    let dir = rack.make_with_script("a", "echo ran >> runs\n");
    rack.start("a");
    rack.ready("a").await;
    rack.chassis.kill("a").unwrap();
    // the crash came after the acknowledgement was put down and before the script was deleted
    fs::write(dir.first_boot(), "echo again >> runs\n").unwrap();
    rack.start("a");
    rack.ready("a").await;
    assert!(!dir.first_boot().exists());
    assert_eq!(fs::read_to_string(dir.guest_root().join("runs")).unwrap(), "ran\n");
}

#[tokio::test]
async fn a_script_that_was_acknowledged_and_not_noted_is_asked_again_and_runs_once() {
    let rack = Rack::new();
    let dir = rack.make_with_script("a", "echo ran >> runs\n");
    rack.start("a");
    rack.ready("a").await;
    rack.chassis.kill("a").unwrap();
    // the crash came before the acknowledgement was put down: only the guest's disk knows
    let mut state = dir.read_state().unwrap().unwrap();
    state.first_boot_handed = false;
    dir.write_state(&state).unwrap();
    fs::write(dir.first_boot(), "echo again >> runs\n").unwrap();
    rack.start("a");
    let ready = rack.ready("a").await;
    assert_eq!(first_boot(&ready), Some(&FirstBoot::Done { exit_code: 0 }));
    assert_eq!(fs::read_to_string(dir.guest_root().join("runs")).unwrap(), "ran\n");
}
