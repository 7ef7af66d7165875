//! Whatever a guest sends: it is refused, or what is kept of it is within the bounds.

#![allow(clippy::unwrap_used, reason = "a test ends where its premise fails")]

use macrack_wire::guest::{MAX_ADDRESSES, MAX_MESSAGE, MAX_VERSION, printable};
use macrack_wire::link::parse;
use macrack_wire::message::{Body, Reply};
use macrack_wire::{FirstBoot, GuestReport, GuestStage, ReadinessState};
use proptest::prelude::*;
use serde_json::{Value, json};

/// Text that is fit, too long, or made to harm a terminal.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        40 => "[0-9.]{1,8}",
        1 => "[ -~]{0,80}",
        1 => "\\PC{0,300}",
        1 => any::<String>(),
        1 => prop::sample::select(vec![64, 65, 256, 257, 70_000]).prop_map(|length| "x".repeat(length)),
    ]
}

/// A value where text is due.
fn textual() -> impl Strategy<Value = Value> {
    prop_oneof![40 => text().prop_map(Value::from), 1 => any::<i64>().prop_map(Value::from), 1 => Just(Value::Null)]
}

fn one_of(words: &'static [&'static str]) -> impl Strategy<Value = Value> {
    prop_oneof![40 => prop::sample::select(words).prop_map(Value::from), 1 => textual()]
}

fn first_boot() -> impl Strategy<Value = Value> {
    let states = &["NotAsked", "NotNeeded", "Waiting", "Running", "Done", "Interrupted", "Failed"];
    (one_of(states), prop::sample::select(vec![0, 0, 0, 7, 137, 1_i64 << 40]), textual())
        .prop_map(|(state, code, message)| json!({"state": state, "exitCode": code, "message": message}))
}

fn readiness() -> impl Strategy<Value = Value> {
    let states = &["Waiting", "Running", "Ready", "NotReady", "TimedOut", "Failed"];
    prop_oneof![
        Just(Value::Null),
        (one_of(states), any::<i32>(), textual())
            .prop_map(|(state, code, message)| json!({"state": state, "exitCode": code, "message": message})),
    ]
}

/// Something that is shaped like a report.
fn shaped() -> impl Strategy<Value = Value> {
    let stages = &["AgentStarting", "LoginWindow", "UserSession", "Ready"];
    let address = prop_oneof![80 => Just("10.0.0.1".to_owned()), 1 => text()];
    (
        textual(),
        one_of(stages),
        textual(),
        textual(),
        prop_oneof![20 => any::<u64>().prop_map(Value::from), 1 => textual()],
        prop::collection::vec(address, 0..20),
        first_boot(),
        readiness(),
        prop_oneof![20 => any::<bool>().prop_map(Value::from), 1 => textual()],
    )
        .prop_map(|(agent, stage, os, xcode, free, addresses, first_boot, readiness, accepted)| {
            json!({
                "agentVersion": agent, "stage": stage, "osVersion": os, "xcodeVersion": xcode,
                "diskFreeBytes": free, "addresses": addresses, "firstBoot": first_boot, "readiness": readiness,
                "firstLaunchAccepted": accepted, "somethingElse": "a later guest may know more",
            })
        })
}

fn bounded(text: &str, most: usize) -> bool {
    text.len() <= most && printable(text).len() == text.trim().len()
}

/// The bounds, told anew: not by the code that is tested.
fn is_fit(report: &GuestReport) -> bool {
    let versions = [Some(&report.agent_version), report.os_version.as_ref(), report.xcode_version.as_ref()];
    let script = match &report.first_boot {
        FirstBoot::Failed { message } => bounded(message, MAX_MESSAGE),
        _ => true,
    };
    let command = report.readiness.as_ref();
    let ready = matches!(report.first_boot, FirstBoot::NotNeeded | FirstBoot::Done { exit_code: 0 })
        && command.is_none_or(|said| said.state == ReadinessState::Ready);
    versions.into_iter().flatten().all(|version| bounded(version, MAX_VERSION))
        && script
        && command.and_then(|said| said.message.as_ref()).is_none_or(|message| bounded(message, MAX_MESSAGE))
        && report.addresses.len() <= MAX_ADDRESSES
        && (report.stage != GuestStage::Ready || ready)
        && serde_json::to_vec(report).unwrap().len() < 4096
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn what_is_believed_of_a_report_is_within_every_bound(report in shaped()) {
        if let Ok(report) = parse::<GuestReport>(report.to_string().as_bytes(), "a report")
            && let Ok(believed) = report.believe()
        {
            prop_assert!(is_fit(&believed), "{believed:?}");
        }
    }

    #[test]
    fn a_frame_of_anything_is_a_reply_or_an_error_and_never_a_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..512), report in shaped(), id in any::<u64>(), cut in 0usize..200,
    ) {
        let _ = parse::<Reply<GuestReport>>(&bytes, "a reply");
        let frame = json!({"id": id, "event": report}).to_string();
        let whole = parse::<Reply<GuestReport>>(frame.as_bytes(), "a reply");
        let mistaken = matches!(whole, Ok(Reply { body: Body::Report(_), .. }));
        prop_assert!(!mistaken);
        let _ = parse::<Reply<GuestReport>>(&frame.as_bytes()[..frame.len().saturating_sub(cut)], "a reply");
    }

    #[test]
    fn what_was_made_printable_is_believed(text in any::<String>()) {
        let first_boot = FirstBoot::Failed { message: printable(&text) };
        prop_assert!(GuestReport::new("0.1.0", GuestStage::UserSession, first_boot).believe().is_ok());
    }
}

/// The generator above would prove nothing if it made only what is refused.
#[test]
fn the_reports_that_are_made_up_are_of_both_kinds() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let strategy = shaped();
    let believed = |_: &i32| {
        let report = strategy.new_tree(&mut runner).unwrap().current().to_string();
        parse::<GuestReport>(report.as_bytes(), "a report").is_ok_and(|report| report.believe().is_ok())
    };
    let believed = (0..1_000).filter(believed).count();
    assert!((100..900).contains(&believed), "{believed} of 1000 were believed");
}
