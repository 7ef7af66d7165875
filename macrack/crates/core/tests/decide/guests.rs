//! What is said of a guest: how far it is, what it lacks, whether it is what its image declares; and of a
//! Mac that cannot run a golden.

use macrack_api::{
    MacOSImageSpec,
    instance::macos_instance::MacOSInstanceStatus,
    rack::node::{Order::*, VmState::*},
};
use macrack_core::seen::Seen;
use serde_json::{Value, json};

use super::rack::Rack;

fn image(minimum: Option<&str>) -> Seen<MacOSImageSpec> {
    let spec = json!({
        "source": {"oci": {"image": "r.example/m@sha256:0"}},
        "contents": [
            {"kind": "macOS", "version": "26.1"}, {"kind": "Xcode", "version": "26.1"},
            {"kind": "GuestAgent", "version": "0.1.0"},
        ],
        "minimumHostVersion": minimum,
    });
    Seen::Present(serde_json::from_value(spec).unwrap())
}

/// One running instance whose agent wrote this.
fn with(status: Value) -> Rack {
    let said: MacOSInstanceStatus = serde_json::from_value(status).unwrap();
    let rack = Rack::leased().running("i1", "+1h").at("+2h").with(|r| {
        r.image = image(None);
        r.agent().vms[0].guest_ready = false;
    });
    rack.change("i1", |i| {
        let status = i.status.get_or_insert_default();
        (status.vm, status.guest) = (said.vm.clone(), said.guest.clone());
    })
}

#[test]
fn a_guest_on_its_way_to_ready_says_what_it_waits_for() {
    for (status, expected) in [
        (json!({}), "False Booting|the guest boots"),
        (json!({"guest": {"stage": "Booting"}}), "False Booting|the guest boots"),
        (
            json!({"guest": {"stage": "Booting"}, "vm": {"message": "addresses has 17 entries"}}),
            "False GuestNotHeard|the guest is not heard: addresses has 17 entries",
        ),
        (json!({"guest": {"stage": "AgentStarting"}}), "False GuestNotReady|the guest agent answers"),
        (json!({"guest": {"stage": "LoginWindow"}}), "False AtLoginWindow|the guest is at the login window"),
        (
            json!({"guest": {"stage": "UserSession"}, "vm": {"message": "the first-boot script was not taken: disk full"}}),
            "False GuestNotReady|the first-boot script was not taken: disk full",
        ),
        (
            json!({"guest": {"stage": "UserSession", "firstBoot": {"state": "Running"}}}),
            "False ScriptPending|the first-boot script runs",
        ),
        (
            json!({"guest": {"stage": "UserSession", "firstBoot": {"state": "Failed", "exitCode": 3}}}),
            "False ScriptFailed|the first-boot script ended with exit code 3; it is not run again",
        ),
        (
            json!({"guest": {"stage": "UserSession", "firstBoot": {"state": "Interrupted"}}}),
            "False ScriptFailed|the first-boot script was cut off",
        ),
        (
            json!({"guest": {"stage": "UserSession", "firstBoot": {"state": "Done", "exitCode": 0},
                "readiness": {"state": "NotReady", "exitCode": 7, "message": "no licence yet"}}}),
            "False ReadinessPending|the golden's readiness command ended with exit code 7: no licence yet; it is run",
        ),
        (
            json!({"guest": {"stage": "UserSession", "readiness": {"state": "Failed", "message": "no such file"}}}),
            "False ReadinessPending|the golden's readiness command cannot be run: no such file",
        ),
    ] {
        let pass = with(status.clone()).instance_pass("i1");
        for type_ in ["Ready", "GuestReady"] {
            let said = format!("{}|{}", pass.says(type_), pass.message(type_));
            assert!(said.starts_with(expected), "{status}: {type_} {said}");
        }
    }
}

#[test]
fn a_guest_that_is_not_what_its_image_declares_is_told_of_and_runs_on() {
    let guest = |os: &str, xcode: &str, agent: &str| json!({"guest": {"stage": "Ready", "osVersion": os, "xcodeVersion": xcode, "agentVersion": agent}});
    let of = |rack: Rack| {
        let pass = rack.with(|r| r.agent().vms[0].guest_ready = true).instance_pass("i1");
        assert_eq!(pass.says("Ready"), "True Ready", "nothing is refused for it");
        (pass.says("ContentsMatch"), pass.message("ContentsMatch"))
    };
    assert_eq!(of(with(guest("26.1", "26.1", "0.1.0"))).0, "True AsDeclared");
    assert_eq!(of(with(guest("26.1.0", "26.1", "0.1.0"))).0, "True AsDeclared", "the same version, written longer");
    let (says, words) = of(with(guest("26.2", "26.1", "0.2.0")));
    assert_eq!(says, "False ContentsDiffer");
    assert!(words.contains("macOS is 26.2, declared 26.1; GuestAgent is 0.2.0, declared 0.1.0"), "{words}");
}

#[test]
fn what_is_not_known_does_not_differ() {
    let says = |rack: Rack| rack.instance_pass("i1").says("ContentsMatch");
    let quiet = says(with(json!({"guest": {"stage": "Booting"}})));
    let partly = json!({"guest": {"stage": "UserSession", "agentVersion": "0.1.0"}});
    assert_eq!(says(with(partly.clone())), "True AsDeclared", "a version that is not reported is no other version");
    for image in [Seen::Absent, Seen::Unknown("timeout".into())] {
        assert_eq!(says(with(partly.clone()).with(|r| r.image = image.clone())), quiet, "{image:?}");
    }
}

#[test]
fn a_golden_that_is_newer_than_its_mac_waits_and_starts_by_itself_after_an_upgrade() {
    let waits = "MacOSImage needs a newer host";
    let rack = Rack::leased().instance("i1", "+1h").slot("i1", Run).vm("i1", Waiting).at("+2h").with(|r| {
        r.agent().vms[0].message = Some(waits.into());
        r.image = image(Some("26.0"));
    });
    for (host, expected) in [
        (
            Some("15.5"),
            "False HostTooOld|image m needs macOS 26.0 or newer on its Mac, which has 15.5; it starts by itself",
        ),
        (Some("26.0-beta3"), "False HostTooOld|image m cannot be judged: its Mac has macOS \"26.0-beta3\""),
        // the agent's own words, while its Mac has not said what it has
        (None, "False Scheduled|MacOSImage needs a newer host"),
        (Some("26.1"), "False Scheduled|MacOSImage needs a newer host"),
    ] {
        let pass = rack.clone().with(|r| r.agent().host_version = host.map(str::to_owned)).instance_pass("i1");
        let said = format!("{}|{}", pass.says("Ready"), pass.message("Ready"));
        let expected = expected.replace("image m ", &format!("image {} ", rack.instances[0].spec.image_name));
        assert!(said.starts_with(&expected), "{host:?}: {said}");
        let phase = if expected.contains("HostTooOld") { "Pending" } else { "Scheduled" };
        assert_eq!(pass.phase(), phase, "{host:?}");
    }
}

#[test]
fn an_instance_is_ready_once_it_says_so_itself_and_stays_it_when_a_guest_logs_out() {
    let phase = |status: Value, was: Option<&str>| {
        let rack = with(status).with(|r| r.agent().vms[0].guest_ready = true);
        let was = was.map(|was| serde_json::from_value(json!(was)).unwrap());
        rack.change("i1", |i| i.status.get_or_insert_default().phase = was).instance_pass("i1").phase()
    };
    let session = || json!({"guest": {"stage": "UserSession"}});
    assert_eq!(phase(session(), None), "Starting", "its Mac has not written the guest's last words yet");
    assert_eq!(phase(json!({"guest": {"stage": "Ready"}}), None), "Ready");
    assert_eq!(phase(json!({}), None), "Ready", "a Mac without the right to write there holds nobody up");
    assert_eq!(phase(session(), Some("Ready")), "Ready");
}
