//! What the types take and refuse, and what they look like on the wire.

#![allow(clippy::unwrap_used, reason = "a test ends where its premise fails")]

use macrack_wire::classify::VZ_DOMAIN;
use macrack_wire::message::{Body, Reply, Request, read_request};
use macrack_wire::{
    FirstBoot, GuestReport, GuestStage, LastState, MacAddress, Readiness, ReadinessState, RefusalKind, StopCause,
    VmError, VmReport, VmState, VmVerb,
};
use serde_json::json;

#[test]
fn a_mac_address_is_local_unicast_and_well_formed_or_refused_with_the_rule() {
    for good in ["02:00:5e:10:00:01", "fe:FF:ff:ff:ff:ff"] {
        let address: MacAddress = good.parse().unwrap();
        assert_eq!(address.to_string(), good.to_lowercase());
    }
    for malformed in [
        "",
        "02:00:5e:10:00",
        "02:00:5e:10:00:01:02",
        "2:0:5e:10:0:1",
        "02-00-5e-10-00-01",
        "02:00:5e:10:00:0g",
        "+2:00:5e:10:00:01",
        "٠٢:00:5e:10:00:01",
    ] {
        let refused = malformed.parse::<MacAddress>().unwrap_err();
        assert!(refused.to_string().contains("six pairs"), "{malformed}: {refused}");
    }
    for foreign in ["00:1b:63:00:00:01", "03:00:00:00:00:01"] {
        let refused = foreign.parse::<MacAddress>().unwrap_err();
        assert!(refused.to_string().contains("locally administered"), "{foreign}: {refused}");
    }
    let minted = MacAddress::locally_administered([0xff, 1, 2, 3, 4, 5]);
    assert_eq!(minted.to_string().parse(), Ok(minted));
}

fn honest() -> GuestReport {
    let ready = Readiness { state: ReadinessState::Ready, exit_code: Some(0), message: Some("ok".into()) };
    GuestReport {
        os_version: Some("26.1".into()),
        disk_free_bytes: Some(1),
        addresses: vec!["192.168.64.7".parse().unwrap()],
        readiness: Some(ready),
        ..GuestReport::new("0.1.0", GuestStage::Ready, FirstBoot::Done { exit_code: 0 })
    }
}

#[test]
fn a_guest_is_believed_within_its_bounds_and_the_refusal_names_the_field() {
    assert!(honest().believe().is_ok());
    type Lie = fn(&mut GuestReport);
    let lies: [(&str, Lie); 9] = [
        ("agentVersion", |g| g.agent_version = "9".repeat(65)),
        ("osVersion", |g| g.os_version = Some("x".repeat(1 << 15))),
        ("xcodeVersion", |g| g.xcode_version = Some("\u{1b}[2J".into())),
        ("addresses", |g| g.addresses = vec![[10, 0, 0, 1].into(); 17]),
        ("firstBoot.message", |g| {
            g.first_boot = FirstBoot::Failed { message: "x".repeat(257) };
            g.stage = GuestStage::UserSession;
        }),
        ("stage is Ready while its first-boot", |g| g.first_boot = FirstBoot::Done { exit_code: 1 }),
        ("readiness.message", |g| {
            let message = Some("x".repeat(257));
            g.readiness = Some(Readiness { state: ReadinessState::Ready, exit_code: None, message });
        }),
        ("osVersion holds", |g| g.os_version = Some("26.1\u{202e}1.62".into())),
        ("stage is Ready while its readiness", |g| {
            g.readiness = Some(Readiness { state: ReadinessState::NotReady, exit_code: Some(7), message: None });
        }),
    ];
    for (field, lie) in lies {
        let mut report = honest();
        lie(&mut report);
        let refused = report.believe().unwrap_err().to_string();
        assert!(refused.contains(field), "{field}: {refused}");
    }
}

#[test]
fn requests_and_replies_look_as_the_contract_shows_them() {
    let stop = Request { id: 7, verb: VmVerb::Stop { grace_seconds: 30 } };
    let text = json!({"id": 7, "verb": "Stop", "graceSeconds": 30});
    assert_eq!(serde_json::to_value(&stop).unwrap(), text);
    let error = VmError::new(VZ_DOMAIN, 6, "full");
    let report = VmReport {
        uid: "u".into(),
        pid: 1,
        state: VmState::Failed,
        error: Some(error),
        started_at: "2026-11-30T01:00:00Z".parse().unwrap(),
        guest: None,
        guest_problem: None,
        stop_cause: Some(StopCause::StartFailed),
    };
    let shown = json!({
        "uid": "u", "pid": 1, "state": "Failed", "startedAt": "2026-11-30T01:00:00Z",
        "stopCause": "StartFailed",
        "error": {"domain": "VZErrorDomain", "code": 6, "class": "Limit", "message": "full"},
    });
    let reply = Reply { id: Some(7), body: Body::Report(report.clone()) };
    assert_eq!(serde_json::to_value(&reply).unwrap(), json!({"id": 7, "report": shown}));
    let state = LastState { report: report.clone(), first_boot_handed: true };
    let stored = serde_json::to_string(&state).unwrap();
    assert_eq!(serde_json::from_str::<LastState>(&stored).unwrap(), state);
    assert_eq!(serde_json::from_str::<VmReport>(&stored).unwrap(), report);
}

#[test]
fn a_request_that_is_not_understood_is_refused_with_its_id_where_it_had_one() {
    use RefusalKind::*;
    let nested = format!("{{\"id\":1,\"verb\":{}1{}}}", "[".repeat(9_000), "]".repeat(9_000));
    let table: [(&str, Option<u64>, RefusalKind); 10] = [
        ("", None, Malformed),
        ("\u{0}\u{0}", None, Malformed),
        ("[]", None, Malformed),
        ("{}", None, Malformed),
        (r#"{"verb":"Describe"}"#, None, Malformed),
        (r#"{"id":-1,"verb":"Describe"}"#, None, Malformed),
        (&nested, None, Malformed),
        (r#"{"id":5,"verb":"Fly"}"#, Some(5), UnknownVerb),
        (r#"{"id":6,"verb":"Stop"}"#, Some(6), UnknownVerb),
        (r#"{"id":7,"verb":"Stop","graceSeconds":-1}"#, Some(7), UnknownVerb),
    ];
    for (text, id, kind) in table {
        let (found, refusal) = read_request::<VmVerb>(text.as_bytes()).unwrap_err();
        assert_eq!((found, refusal.kind), (id, kind), "{text:.60}");
        assert!(refusal.message.chars().count() <= 512);
    }
}

#[test]
fn a_refusal_is_bounded_and_on_one_line_also_when_a_peer_has_made_it() {
    let message = format!("\u{1b}]0;root\u{7}no\n\u{202e}{}", "x".repeat(9_000));
    let sent = json!({"id": 3, "error": {"kind": "Denied", "message": message}}).to_string();
    let Reply { body: Body::Error(refusal), .. } = serde_json::from_str::<Reply<GuestReport>>(&sent).unwrap() else {
        panic!("no refusal")
    };
    assert!(refusal.message.starts_with("]0;rootnoxx") && refusal.message.len() == 512, "{refusal}");
}
