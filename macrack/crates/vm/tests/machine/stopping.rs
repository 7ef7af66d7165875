//! How a VM ends, and what it says about it.

use std::fs;
use std::time::{Duration, Instant};

use macrack_vm::sim::Fault;
use macrack_wire::client::{Client, connect};
use macrack_wire::link::Limits;
use macrack_wire::{ErrorClass, GuestReport, GuestVerb, Role, StopCause, VmState};
use rustix::process::{Pid, Signal, kill_process};

use crate::rack::Rack;

#[tokio::test]
async fn a_guest_that_obeys_ends_as_requested_long_before_the_grace() {
    let rack = Rack::new();
    let dir = rack.make("a");
    rack.start("a");
    rack.ready("a").await;
    let asked = Instant::now();
    let report = rack.stop("a", 600).await;
    assert_eq!((report.state, report.stop_cause), (VmState::Stopped, Some(StopCause::Requested)));
    assert!(asked.elapsed() < Duration::from_secs(60));
    assert_eq!(dir.read_state().unwrap().unwrap().report, report);
}

#[tokio::test]
async fn a_guest_that_ignores_its_shutdown_is_forced_after_the_grace() {
    let rack = Rack::new();
    rack.make("a");
    rack.start("a");
    rack.ready("a").await;
    rack.chassis.set_fault(Fault::IgnoreStop(true)).unwrap();
    let asked = Instant::now();
    let report = rack.stop("a", 2).await;
    assert_eq!((report.state, report.stop_cause), (VmState::Stopped, Some(StopCause::Forced)));
    assert!(asked.elapsed() >= Duration::from_secs(2), "not before the grace is over");
}

#[tokio::test]
async fn a_guest_that_is_slow_and_within_the_grace_is_not_forced() {
    let rack = Rack::new();
    rack.make("a");
    rack.chassis.set_fault(Fault::SlowStopMillis(1_000)).unwrap();
    rack.start("a");
    rack.ready("a").await;
    assert_eq!(rack.stop("a", 20).await.stop_cause, Some(StopCause::Requested));
}

#[tokio::test]
async fn a_second_stop_shortens_the_grace_and_never_lengthens_it() {
    let rack = Rack::new();
    rack.chassis.set_fault(Fault::IgnoreStop(true)).unwrap();
    for (uid, first, second) in [("a", 600, 0), ("b", 1, 600)] {
        rack.make(uid);
        rack.start(uid);
        rack.ready(uid).await;
        let mut client = rack.client(uid).await;
        client.stop(first).await.unwrap();
        client.stop(second).await.unwrap();
        assert_eq!(rack.ended(uid).await.stop_cause, Some(StopCause::Forced));
    }
}

#[tokio::test]
async fn a_guest_that_shuts_itself_down_is_told_from_one_that_was_asked_to() {
    let rack = Rack::new();
    let dir = rack.make("a");
    rack.start("a");
    rack.ready("a").await;
    // what a user does inside, through the one door that this guest has
    let inside = connect(&dir.guest_socket(), Duration::from_secs(5)).await.unwrap();
    let mut inside =
        Client::<_, GuestVerb, GuestReport>::greet(inside, Limits::GUEST, Role::Vm, Role::Guest).await.unwrap();
    inside.send(GuestVerb::Shutdown).await.unwrap();
    let report = rack.ended("a").await;
    assert_eq!((report.state, report.stop_cause), (VmState::Stopped, Some(StopCause::GuestShutdown)));
    assert_eq!(report.error, None);
}

#[tokio::test]
async fn a_guest_that_breaks_is_a_crash_with_an_error() {
    let rack = Rack::new();
    rack.make("a");
    let pid = rack.start("a");
    rack.ready("a").await;
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let guest = Pid::from_raw(children.trim().parse().unwrap()).unwrap();
    kill_process(guest, Signal::KILL).unwrap();
    let report = rack.ended("a").await;
    assert_eq!((report.state, report.stop_cause), (VmState::Failed, Some(StopCause::Crashed)));
    assert_eq!(report.error.unwrap().class, ErrorClass::Internal);
}

#[tokio::test]
async fn a_guest_that_cannot_be_asked_has_its_power_button_pressed() {
    let rack = Rack::new();
    rack.chassis.set_fault(Fault::LoseGuest(true)).unwrap();
    rack.make("a");
    rack.start("a");
    rack.running("a").await;
    let report = rack.stop("a", 4).await;
    assert_eq!(report.stop_cause, Some(StopCause::Requested));
}

#[tokio::test]
async fn a_stop_during_a_start_that_hangs_ends_with_the_grace() {
    let rack = Rack::new();
    rack.chassis.set_fault(Fault::StartDelayMillis(600_000)).unwrap();
    rack.make("a");
    rack.start("a");
    let report = rack.stop("a", 1).await;
    assert_eq!((report.state, report.stop_cause), (VmState::Stopped, Some(StopCause::Forced)));
}

#[tokio::test]
async fn a_stop_during_a_slow_start_is_carried_out_after_it() {
    let rack = Rack::new();
    rack.chassis.set_fault(Fault::StartDelayMillis(1_000)).unwrap();
    rack.make("a");
    rack.start("a");
    assert_eq!(rack.stop("a", 20).await.stop_cause, Some(StopCause::Requested));
}

#[tokio::test]
async fn sigterm_is_a_stop_like_any_other() {
    let rack = Rack::new();
    rack.make("a");
    let pid = rack.start("a");
    rack.ready("a").await;
    kill_process(Pid::from_raw(pid.try_into().unwrap()).unwrap(), Signal::TERM).unwrap();
    assert_eq!(rack.ended("a").await.stop_cause, Some(StopCause::Requested));
}
