//! The placeholder pod of an instance, and who owns whom.

use k8s_openapi::api::core::v1::Pod;
use macrack_api::{
    names,
    rack::node::{Order::*, VmState::*},
};
use macrack_core::{decide::instance, seen::Seen};
use serde_json::json;

use super::rack::{Rack, time, uid};

fn pod(of: &str) -> Pod {
    serde_json::from_value(json!({ "metadata": {
        "name": names::placeholder("i1"), "namespace": "team-a", "uid": uid("pod"), "finalizers": [names::FINALIZER_POD],
        "labels": { names::LABEL_INSTANCE: uid(of) },
    } }))
    .unwrap()
}

fn owned(rack: Rack) -> Rack {
    rack.change("i1", |i| {
        let owner = json!([{ "apiVersion": "v1", "kind": "MacNodeLease", "name": "ci", "uid": uid("ci") }]);
        i.metadata.owner_references = serde_json::from_value(owner).unwrap();
    })
}

#[test]
fn with_a_slot_there_is_a_placeholder_and_without_one_there_is_none() {
    let rack = owned(Rack::leased().instance("i1", "+1h").at("+2h"));
    assert!(rack.instance_pass("i1").steps().is_empty(), "no slot, no pod");
    let rack = rack.slot("i1", Run);
    assert_eq!(rack.instance_pass("i1").steps(), ["create Pod"]);
    let there = rack.clone().with(|r| r.pod = Seen::Present(pod("i1")));
    assert!(there.instance_pass("i1").steps().is_empty());
    assert_eq!(there.instance_pass("i1").text("podName"), "macrack-vm-i1");
    let unread = rack.clone().with(|r| r.pod = Seen::Unknown("timeout".into()));
    assert!(unread.instance_pass("i1").steps().is_empty());
    let wiping = rack.with(|r| r.status().slots[0].order = Wipe);
    assert!(wiping.instance_pass("i1").steps().is_empty(), "one that is being wiped gets no new pod");
    let emptied = there.with(|r| r.status().slots.clear());
    assert_eq!(emptied.instance_pass("i1").steps(), ["delete Pod", "remove macrack.io/slot"]);
}

#[test]
fn in_a_namespace_that_ends_no_pod_is_made() {
    let rack =
        owned(Rack::leased().instance("i1", "+1h").slot("i1", Run)).with(|r| r.namespace_ending = Seen::Present(true));
    assert!(rack.at("+2h").instance_pass("i1").steps().is_empty());
}

#[test]
fn the_placeholder_of_an_earlier_instance_of_that_name_goes_once_its_vm_is_in_no_slot() {
    let rack = owned(Rack::leased().instance("i1", "+1h").slot("i1", Run).at("+2h"));
    let rack = rack.with(|r| r.pod = Seen::Present(pod("i1-before")));
    for (in_slot, steps) in [
        (Seen::Present(true), vec![]),
        (Seen::Unknown("timeout".into()), vec![]),
        (Seen::Present(false), vec!["delete Pod", "remove macrack.io/slot"]),
    ] {
        let pass = rack.clone().with(|r| r.pod_in_slot = in_slot.clone()).instance_pass("i1");
        assert_eq!(pass.steps(), steps, "{in_slot:?}");
        assert!(pass.message("Ready").contains("a pod of that name is still there"), "{}", pass.message("Ready"));
    }
    let plain = rack.with(|r| {
        r.pod = Seen::Present(Pod { metadata: Default::default(), ..pod("i1") });
        r.pod_in_slot = Seen::Present(false);
    });
    assert!(plain.instance_pass("i1").steps().is_empty(), "a pod that is no placeholder is not ours to remove");
}

#[test]
fn a_placeholder_whose_instance_is_gone_is_removed() {
    let plan = instance::orphaned(&pod("i1"));
    assert_eq!(super::rack::Decided::from(plan).steps(), ["delete Pod", "remove macrack.io/slot"]);
    let mut going = pod("i1");
    going.metadata.deletion_timestamp = Some(time("+1h"));
    assert_eq!(super::rack::Decided::from(instance::orphaned(&going)).steps(), ["remove macrack.io/slot"]);
}

#[test]
fn the_lease_owns_its_instances_but_none_that_was_made_after_its_deletion() {
    let rack = Rack::leased().instance("i1", "+1h").at("+2h");
    assert_eq!(rack.instance_pass("i1").steps(), ["own"]);
    assert!(owned(rack.clone()).instance_pass("i1").steps().is_empty());
    let held = rack.clone().lease_deleted("+30m");
    assert!(held.instance_pass("i1").steps().is_empty(), "a foreground deletion would take it at once");
    let other = rack.change("i1", |i| i.status.as_mut().unwrap().lease_uid = Some(uid("before")));
    assert!(other.instance_pass("i1").steps().is_empty());
    assert_eq!(other.instance_pass("i1").says("Ready"), "False LeaseEnded");
}

#[test]
fn an_instance_tells_how_far_it_is() {
    let rack = owned(Rack::leased().instance("i1", "+1h").slot("i1", Run).at("+2h"))
        .with(|r| r.pod = Seen::Present(pod("i1")));
    for (state, phase, reason) in [
        (Pulling, "Pulling", "False Pulling"),
        (Cloning, "Cloning", "False Cloning"),
        (Starting, "Starting", "False Starting"),
        (Running, "Ready", "True Ready"),
        (Stopping, "Stopping", "False Stopping"),
        (Failed, "Failed", "False VMFailed"),
        (Unknown, "Unknown", "False VMUnknown"),
        (WipeFailed, "Stopping", "False WipeFailed"),
        (Waiting, "Scheduled", "False WaitingForScheduler"),
    ] {
        let pass = rack.clone().vm("i1", state).instance_pass("i1");
        assert_eq!((pass.phase().as_str(), pass.says("Ready").as_str()), (phase, reason), "{state:?}");
    }
    let ended =
        rack.clone().vm("i1", Stopped).with(|r| r.agent().vms[0].message = Some("the guest shut itself down".into()));
    assert_eq!(ended.instance_pass("i1").says("Ready"), "False GuestShutdown");
    let going = rack.clone().vm("i1", Stopped).with(|r| r.status().slots[0].order = Stop);
    let going = going.instance_deleted("i1", "+2h").instance_pass("i1");
    assert_eq!((going.phase().as_str(), going.says("Ready").as_str()), ("Stopping", "False Stopping"));
    let booting = rack.vm("i1", Running).with(|r| r.agent().vms[0].guest_ready = false).instance_pass("i1");
    assert_eq!((booting.phase().as_str(), booting.says("Ready").as_str()), ("Starting", "False Booting"));
}

#[test]
fn a_placeholder_that_is_refused_is_the_reason_in_the_words_of_the_refusal() {
    let rack = owned(Rack::leased().instance("i1", "+1h").slot("i1", Run).at("+2h"));
    let mut pass = rack.instance_pass("i1");
    assert_eq!(pass.says("Ready"), "False WaitingForScheduler");
    let quota = "pods \"macrack-vm-i1\" is forbidden: exceeded quota: small";
    macrack_core::decide::instance::placeholder_refused(&mut pass.plan, quota);
    for type_ in ["Ready", "Scheduled"] {
        assert_eq!(pass.says(type_), "False PlaceholderRefused");
        assert!(pass.message(type_).contains(quota), "{}", pass.message(type_));
    }
    assert_eq!(pass.says("VMRunning"), "False WaitingForScheduler", "what comes later is no nearer");
}
