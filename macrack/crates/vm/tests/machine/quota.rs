//! The simulated kernel's count.

use macrack_vm::sim::Fault;
use macrack_wire::{ErrorClass, StopCause, VmState};

use crate::rack::Rack;

async fn refused_by_the_kernel(rack: &Rack, uid: &str) {
    let report = rack.ended(uid).await;
    assert_eq!(report.state, VmState::Failed);
    assert_eq!(report.stop_cause, Some(StopCause::StartFailed));
    let error = report.error.unwrap();
    assert_eq!((error.domain.as_str(), error.code, error.class), ("VZErrorDomain", 6, ErrorClass::Limit));
    assert!(error.message.contains("maximum supported number"), "{error}");
}

#[tokio::test]
async fn two_start_and_the_third_gets_code_6_of_class_limit() {
    let rack = Rack::new();
    for uid in ["a", "b"] {
        rack.make(uid);
        rack.start(uid);
        rack.running(uid).await;
    }
    rack.make("c");
    rack.start("c");
    refused_by_the_kernel(&rack, "c").await;
    assert_eq!(rack.chassis.live().unwrap(), 2);
    let running: Vec<_> = rack.chassis.running().unwrap().into_iter().map(|(_, uid)| uid).collect();
    assert_eq!(running, ["a", "b"]);
}

#[tokio::test]
async fn ten_that_start_at_once_are_never_more_than_two() {
    let rack = Rack::new();
    let uids: Vec<String> = (0..10).map(|n| format!("vm-{n}")).collect();
    std::thread::scope(|threads| {
        for uid in &uids {
            rack.make(uid);
            threads.spawn(|| rack.start(uid));
        }
    });
    let mut running = 0;
    for uid in &uids {
        let settled = rack.until(uid, |report| report.state != VmState::Starting).await;
        running += usize::from(settled.state == VmState::Running);
    }
    assert_eq!((running, rack.chassis.live().unwrap()), (2, 2));
}

#[tokio::test]
async fn sigkill_of_a_vm_process_returns_its_slot() {
    let rack = Rack::new();
    for uid in ["a", "b", "c"] {
        rack.make(uid);
    }
    for uid in ["a", "b"] {
        rack.start(uid);
        rack.running(uid).await;
    }
    assert!(rack.chassis.kill("a").unwrap());
    assert_eq!(rack.chassis.live().unwrap(), 1);
    rack.start("c");
    rack.running("c").await;
    assert_eq!(rack.chassis.live().unwrap(), 2);
}

#[tokio::test]
async fn with_a_sticking_counter_an_ended_vm_stays_counted_until_the_next_boot() {
    let rack = Rack::new();
    rack.chassis.set_fault(Fault::StickCounter(true)).unwrap();
    for uid in ["a", "b", "c"] {
        rack.make(uid);
    }
    for uid in ["a", "b"] {
        rack.start(uid);
        rack.running(uid).await;
    }
    assert!(rack.chassis.kill("a").unwrap());
    assert_eq!(rack.stop("b", 10).await.stop_cause, Some(StopCause::Requested));
    rack.start("c");
    refused_by_the_kernel(&rack, "c").await;
    // ended by itself and out of the way, for its process goes after its last report
    rack.chassis.kill("b").unwrap();
    assert!(rack.chassis.running().unwrap().is_empty(), "nothing runs");
    assert_eq!(rack.chassis.live().unwrap(), 2, "and two are counted");

    rack.chassis.reboot().unwrap();
    assert_eq!(rack.chassis.live().unwrap(), 0);
    rack.start("c");
    rack.running("c").await;
}

#[tokio::test]
async fn a_counter_begins_to_stick_with_the_fault_and_stays_stuck_without_it() {
    let rack = Rack::new();
    rack.make("a");
    rack.start("a");
    rack.running("a").await;
    rack.chassis.kill("a").unwrap();
    rack.chassis.set_fault(Fault::StickCounter(true)).unwrap();
    assert_eq!(rack.chassis.live().unwrap(), 0, "it ended before");

    rack.start("a");
    rack.running("a").await;
    rack.chassis.kill("a").unwrap();
    rack.chassis.set_fault(Fault::StickCounter(false)).unwrap();
    assert_eq!(rack.chassis.live().unwrap(), 1, "nothing but a boot frees it");
}

#[tokio::test]
async fn a_reboot_ends_every_vm_the_starting_ones_too() {
    let rack = Rack::new();
    let before = rack.chassis.boot_id().unwrap();
    rack.make("a");
    rack.start("a");
    rack.running("a").await;
    rack.chassis.set_fault(Fault::StartDelayMillis(600_000)).unwrap();
    rack.make("b");
    rack.start("b");
    let mut reports = rack.client("b").await.watch().await.unwrap();
    assert_eq!(reports.next().await.unwrap().unwrap().state, VmState::Starting);

    rack.chassis.reboot().unwrap();
    assert_ne!(rack.chassis.boot_id().unwrap(), before);
    assert!(!matches!(reports.next().await, Ok(Some(_))), "b is gone without a word");
    assert!(rack.chassis.running().unwrap().is_empty());
    let last = rack.dir("a").read_state().unwrap().unwrap();
    assert_eq!(last.report.state, VmState::Running, "which tells the crash from a stop");
}

#[tokio::test]
async fn a_start_that_is_told_to_fail_says_the_code_and_its_class() {
    let rack = Rack::new();
    for (uid, code, class) in [
        ("limit", 6, ErrorClass::Limit),
        ("disk", 5, ErrorClass::DiskImage),
        ("space", 8, ErrorClass::NoSpace),
        ("old", 10006, ErrorClass::HostTooOld),
        ("internal", 1, ErrorClass::Internal),
    ] {
        rack.chassis.set_fault(Fault::FailStartWith(Some(code))).unwrap();
        rack.make(uid);
        rack.start(uid);
        let error = rack.ended(uid).await.error.unwrap();
        assert_eq!((error.code, error.class), (code, class));
        assert_eq!(rack.chassis.live().unwrap(), 0, "a failed start is not counted");
    }
}
