//! What of a report is written down, and when.

use dockerios_api::machine::macos_machine::{Guest, GuestStage, Software};
use dockerios_collector::{
    Expected,
    policy::{QUIET, guest_of, worth_writing, younger},
};
use dockerios_wire::{Report, Stage};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_772_442_000 + second).expect("a time")
}

fn heard(second: i64, change: impl FnOnce(&mut Guest)) -> Guest {
    let mut guest = Guest {
        stage: Some(GuestStage::UserSession),
        ready: false,
        agent_version: Some("1".into()),
        os_version: Some("15.6".into()),
        software: vec![Software {
            name: "Tool".into(),
            version: "1".into(),
        }],
        disk_free: Some(1000),
        clean_shutdown: None,
        identity_mismatch: None,
        last_report: Some(Time(at(second))),
    };
    change(&mut guest);
    guest
}

fn report() -> Report {
    let json = r#"{"stage":"Ready","ready":true,"agentVersion":"1","run":"r","sequence":1,"diskFree":5,"osVersion":"",
                   "serial":"ZZTEST000001","systemUUID":"6F0C1D1E-0000-4000-8000-000000000001"}"#;
    Report::parse(json.as_bytes()).expect("a report")
}

#[test]
fn news_is_written_at_once_and_the_rest_once_a_minute() {
    type Change = fn(&mut Guest);
    let table: [(&str, i64, Change, bool); 15] = [
        ("nothing new", 1, |_| {}, false),
        ("stage", 1, |g| g.stage = Some(GuestStage::Ready), true),
        ("ready", 1, |g| g.ready = true, true),
        ("agent version", 1, |g| g.agent_version = Some("2".into()), true),
        ("system version", 1, |g| g.os_version = None, true),
        ("a program's version", 1, |g| g.software[0].version = "2".into(), true),
        ("a program gone", 1, |g| g.software.clear(), true),
        ("clean shutdown", 1, |g| g.clean_shutdown = Some(true), true),
        ("identity", 1, |g| g.identity_mismatch = Some(true), true),
        ("disk", 1, |g| g.disk_free = Some(1), false),
        ("disk, just before the minute", 59, |g| g.disk_free = Some(1), false),
        ("disk, after a minute", 60, |g| g.disk_free = Some(1), true),
        ("nothing new, after a minute", 60, |_| {}, true),
        ("a record a little ahead: another replica's clock", -5, |_| {}, false),
        ("a record far ahead: a clock went wrong", -3600, |_| {}, true),
    ];
    for (what, second, change, written) in table {
        assert_eq!(
            worth_writing(Some(&heard(0, |_| {})), &heard(second, change)),
            written,
            "{what}"
        );
    }
    assert!(worth_writing(None, &heard(0, |_| {})), "the first");
    assert!(
        worth_writing(Some(&heard(0, |g| g.last_report = None)), &heard(0, |_| {})),
        "one without its time"
    );
}

#[test]
fn the_identity_that_is_shown_has_to_be_the_one_that_was_given() {
    let expected = |serial: &str, uuid: Option<&str>| Expected {
        serial: serial.into(),
        system_uuid: uuid.map(Into::into),
    };
    let right = "6f0c1d1e-0000-4000-8000-000000000001";
    for (what, given, mismatch) in [
        ("a shared identity", None, None),
        (
            "the same, in the object's case",
            Some(expected("zztest000001", Some(right))),
            None,
        ),
        ("its UUID not known", Some(expected("zztest000001", None)), None),
        (
            "another serial",
            Some(expected("zztest000002", Some(right))),
            Some(true),
        ),
        (
            "another UUID",
            Some(expected("zztest000001", Some("6f0c1d1e-0000-4000-8000-000000000002"))),
            Some(true),
        ),
    ] {
        assert_eq!(
            guest_of(&report(), given.as_ref(), at(0)).identity_mismatch,
            mismatch,
            "{what}"
        );
    }
    let mut silent = report();
    (silent.serial, silent.system_uuid) = (None, None);
    let given = expected("zztest000002", Some(right));
    assert_eq!(
        guest_of(&silent, Some(&given), at(0)).identity_mismatch,
        None,
        "what is not shown is no lie"
    );
}

#[test]
fn a_report_becomes_a_status_with_the_collector_s_time() {
    let guest = guest_of(&report(), None, at(0) + SignedDuration::from_millis(700));
    assert_eq!(
        (guest.stage, guest.ready, guest.disk_free),
        (Some(GuestStage::Ready), true, Some(5))
    );
    assert_eq!(guest.os_version, None, "an empty text is none");
    assert_eq!(
        guest.last_report,
        Some(Time(at(0))),
        "whole seconds, as the API server keeps them"
    );
    for stage in Stage::ALL {
        let mut report = report();
        report.stage = stage;
        assert_eq!(
            format!("{:?}", guest_of(&report, None, at(0)).stage),
            format!("Some({stage:?})")
        );
    }
}

#[test]
fn the_largest_status_is_small() {
    let wide = "x".repeat(64);
    let software: Vec<_> = (0..32)
        .map(|i| serde_json::json!({"name": format!("{i:064}"), "version": wide}))
        .collect();
    let json = serde_json::json!({"stage": "Ready", "ready": true, "agentVersion": wide, "run": wide, "sequence": u64::MAX,
        "osVersion": wide, "software": software, "diskFree": i64::MAX, "serial": wide, "systemUUID": wide});
    let report = Report::parse(json.to_string().as_bytes()).expect("all at its bound");
    let status = serde_json::to_vec(&guest_of(&report, None, at(0))).expect("JSON");
    assert!(status.len() < 8 * 1024, "{}", status.len());
}

#[test]
fn of_two_records_the_younger_is_believed() {
    let (old, new) = (heard(0, |_| {}), heard(9, |_| {}));
    assert_eq!(
        younger(Some(&old), Some(&new)),
        Some(&new),
        "another replica wrote since"
    );
    assert_eq!(younger(Some(&new), Some(&old)), Some(&new), "the cache lags");
    assert_eq!(younger(None, Some(&old)), Some(&old));
    assert_eq!(younger(Some(&old), None), Some(&old));
    assert_eq!(younger(None, None), None);
}

proptest! {
    /// Any stream of reports, any rhythm, and a cache that lags or does not.
    #[test]
    fn news_never_waits_quiet_writes_are_rare_and_the_record_never_ages(
        steps in proptest::collection::vec((0i64..40, 0u8..3, 0i64..4), 1..200)
    ) {
        let mut now = 0;
        let mut record: Option<Guest> = None;
        let mut last_quiet_write: Option<i64> = None;
        for (wait, kind, disk) in steps {
            now += wait;
            let said = heard(now, |g| {
                g.disk_free = Some(disk);
                if kind == 0 { g.stage = Some(GuestStage::Ready); g.ready = true; }
            });
            let news = record.as_ref().is_none_or(|r| r.stage != said.stage);
            let written = worth_writing(record.as_ref(), &said);
            prop_assert!(written || !news, "news waits");
            if written {
                if !news && let Some(last) = last_quiet_write {
                    prop_assert!(now - last >= QUIET.as_secs(), "two quiet writes {} s apart", now - last);
                }
                last_quiet_write = Some(now);
                record = Some(said);
            }
            let age = now - record.as_ref().and_then(|r| r.last_report.as_ref()).map_or(0, |t| t.0.as_second() - at(0).as_second());
            prop_assert!(age < QUIET.as_secs(), "after a report the record is {age} s old");
        }
    }
}
