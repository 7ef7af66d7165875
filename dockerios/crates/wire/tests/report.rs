//! What a report may hold, and what it is refused for.

use dockerios_wire::{Report, Stage};
use proptest::prelude::*;
use serde_json::{Value, json};

fn good() -> Value {
    json!({"stage": "UserSession", "agentVersion": "0.1.0", "run": "a1", "sequence": 7, "ready": false,
           "osVersion": "15.6", "software": [{"name": "Tool", "version": "1.2"}], "diskFree": 10, "diskTotal": 20,
           "serial": "ZZTEST000001", "systemUUID": "6F0C1D1E-0000-4000-8000-000000000001"})
}

fn with(field: &str, value: Value) -> Value {
    let mut report = good();
    report[field] = value;
    report
}

fn refused(report: &Value) -> (String, String) {
    let refusal = Report::parse(report.to_string().as_bytes()).expect_err("must be refused");
    (refusal.field, refusal.message)
}

#[test]
fn a_report_passes_and_unknown_fields_are_ignored() {
    let mut report = with("colour", json!("blue"));
    report["software"][0]["vendor"] = json!("someone");
    let read = Report::parse(report.to_string().as_bytes()).expect("a good report");
    assert_eq!(read.stage, Stage::UserSession);
    assert_eq!(
        read.system_uuid.as_deref(),
        Some("6F0C1D1E-0000-4000-8000-000000000001")
    );
    let again = serde_json::to_vec(&read).expect("reports are JSON");
    assert_eq!(Report::parse(&again).expect("what was written is read"), read);
}

#[test]
fn every_bound_is_refused_with_its_field() {
    let many: Vec<Value> = (0..33)
        .map(|i| json!({"name": format!("n{i}"), "version": "1"}))
        .collect();
    let twice = json!([{"name": "a", "version": "1"}, {"name": "a", "version": "2"}]);
    for (field, value, named, rule) in [
        (
            "stage",
            json!("Booted"),
            "body",
            "stage `Booted` is unknown; the stages are AgentStarting, LoginWindow",
        ),
        ("stage", Value::Null, "body", "invalid type: null"),
        ("agentVersion", json!(""), "agentVersion", "at least one character"),
        (
            "agentVersion",
            json!("x".repeat(65)),
            "agentVersion",
            "65 bytes; at most 64",
        ),
        ("run", json!(""), "run", "at least one character"),
        ("osVersion", json!("1\u{7}5"), "osVersion", "control character"),
        ("osVersion", json!(15), "body", "expected a string"),
        ("software", json!(many), "software", "33 entries; at most 32"),
        ("software", twice, "software[1].name", "`a` stands there twice"),
        (
            "software",
            json!([{"name": "a", "version": ""}]),
            "software[0].version",
            "at least one character",
        ),
        ("software", json!([{"name": "a"}]), "body", "missing field `version`"),
        ("diskFree", json!(-1), "body", "invalid value"),
        ("diskFree", json!(21), "diskFree", "21 bytes are free of 20"),
        ("diskTotal", json!(u64::MAX), "diskTotal", "2^63"),
        ("ready", json!(true), "ready", "does not go with stage UserSession"),
        ("sequence", json!(1.5), "body", "invalid type"),
        ("serial", json!("x".repeat(65)), "serial", "at most 64"),
        ("seenRevision", json!("x".repeat(129)), "seenRevision", "at most 128"),
    ] {
        let (at, message) = refused(&with(field, value.clone()));
        assert_eq!(at, named, "{field} = {value}");
        assert!(message.contains(rule), "{field}: {message}");
    }
}

#[test]
fn a_ready_stage_that_is_not_ready_is_refused() {
    let (at, message) = refused(&with("stage", json!("Ready")));
    assert_eq!(at, "ready");
    assert!(message.contains("false does not go with stage Ready"), "{message}");
}

#[test]
fn a_long_stage_is_not_repeated_in_the_refusal() {
    let (_, message) = refused(&with("stage", json!("\u{1b}[31m".repeat(10_000))));
    assert!(message.len() < 500 && !message.contains('\u{1b}'), "{message}");
}

#[test]
fn what_is_no_json_object_is_refused_and_so_is_a_field_that_stands_twice() {
    for body in [
        "",
        "[]",
        "null",
        "{",
        "\u{feff}{}",
        "{\"stage\":\"Ready\"",
        r#"{"stage":"Ready","stage":"Ready"}"#,
    ] {
        let refusal = Report::parse(body.as_bytes()).expect_err("no report");
        assert_eq!(refusal.field, "body", "{body}");
    }
    assert!(Report::parse(&[0xff, 0xfe, 0x00]).is_err());
    let deep = "[".repeat(60_000);
    assert!(Report::parse(deep.as_bytes()).is_err());
}

proptest! {
    #[test]
    fn no_bytes_make_the_parser_panic(body in proptest::collection::vec(any::<u8>(), 0..512)) {
        let _ = Report::parse(&body);
    }

    #[test]
    fn what_passes_is_bounded(name in ".{0,90}", version in ".{0,90}", os in ".{0,90}", n in 0usize..40) {
        let software: Vec<Value> = (0..n).map(|i| json!({"name": format!("{i}{name}"), "version": version})).collect();
        let mut report = with("software", json!(software));
        report["osVersion"] = json!(os);
        if let Ok(read) = Report::parse(report.to_string().as_bytes()) {
            prop_assert!(read.software.len() <= Report::MOST_SOFTWARE);
            prop_assert!(read.software.iter().all(|s| s.name.len() <= 64 && s.version.len() <= 64));
            prop_assert!(serde_json::to_vec(&read).expect("JSON").len() < 16 * 1024);
        }
    }
}
