//! What of a report is written down, and when. Pure.
//!
//! Invariants: a change of what people and controllers wait for is written at once; two writes that carry nothing of
//! that kind are at least [`QUIET`] apart; after any report, what is written is younger than [`QUIET`].

use dockerios_api::machine::macos_machine::{Guest, GuestStage, Software};
use dockerios_wire::{Report, Stage};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::machines::Expected;

/// Disk space and the time of the last report are written at most this often.
pub const QUIET: SignedDuration = SignedDuration::from_secs(60);

/// The status that this report would leave, taken at `now` by the collector's clock.
#[must_use]
pub fn guest_of(report: &Report, expected: Option<&Expected>, now: Timestamp) -> Guest {
    let some = |text: &String| Some(text.clone()).filter(|t| !t.is_empty());
    Guest {
        stage: Some(stage_of(report.stage)),
        ready: report.ready,
        agent_version: Some(report.agent_version.clone()),
        os_version: report.os_version.as_ref().and_then(some),
        software: report
            .software
            .iter()
            .map(|s| Software {
                name: s.name.clone(),
                version: s.version.clone(),
            })
            .collect(),
        disk_free: report.disk_free.and_then(|bytes| i64::try_from(bytes).ok()),
        clean_shutdown: report.clean_shutdown,
        identity_mismatch: expected.is_some_and(|e| differs(report, e)).then_some(true),
        // status keeps whole seconds, and what is compared later has been through it
        last_report: Some(Time(whole_seconds(now))),
    }
}

/// Whether the guest shows a serial or UUID other than the one it was given. One that it does not show is no lie.
fn differs(report: &Report, expected: &Expected) -> bool {
    let other = |shown: Option<&String>, given: Option<&String>| match (shown, given) {
        (Some(shown), Some(given)) => !shown.trim().eq_ignore_ascii_case(given.trim()),
        _ => false,
    };
    other(report.serial.as_ref(), Some(&expected.serial))
        || other(report.system_uuid.as_ref(), expected.system_uuid.as_ref())
}

fn stage_of(stage: Stage) -> GuestStage {
    match stage {
        Stage::AgentStarting => GuestStage::AgentStarting,
        Stage::LoginWindow => GuestStage::LoginWindow,
        Stage::UserSession => GuestStage::UserSession,
        Stage::Ready => GuestStage::Ready,
        Stage::ShuttingDown => GuestStage::ShuttingDown,
    }
}

fn whole_seconds(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

/// Whether `heard` is written over `recorded`.
#[must_use]
pub fn worth_writing(recorded: Option<&Guest>, heard: &Guest) -> bool {
    let Some(recorded) = recorded else { return true };
    if at_once(recorded) != at_once(heard) {
        return true;
    }
    let (Some(then), Some(now)) = (&recorded.last_report, &heard.last_report) else {
        return true;
    };
    // a record from far in the future is a clock that went wrong, and would silence us for as long
    now.0.duration_since(then.0).abs() >= QUIET
}

/// The part of a status whose change does not wait.
fn at_once(guest: &Guest) -> Guest {
    Guest {
        disk_free: None,
        last_report: None,
        ..guest.clone()
    }
}

/// The younger of what this replica wrote and what the status shows, which another replica may have written.
#[must_use]
pub fn younger<'a>(ours: Option<&'a Guest>, shown: Option<&'a Guest>) -> Option<&'a Guest> {
    let at = |guest: &Guest| guest.last_report.as_ref().map(|t| t.0);
    match (ours, shown) {
        (Some(ours), Some(shown)) if at(shown) > at(ours) => Some(shown),
        (Some(ours), _) => Some(ours),
        (None, shown) => shown,
    }
}
