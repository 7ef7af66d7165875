use macrack_api::Word;
use macrack_api::image::macos_image::MacOSImageReason;
use macrack_api::instance::macos_instance::MacOSInstanceReason;
use macrack_api::rack::lease::MacNodeLeaseReason;
use macrack_api::rack::node::MacNodeReason;
use serde_json::{Value, json};

use super::*;

/// Reasons whose own message, as the operator writes it, says the way out.
const SAID: &[&str] = &[
    "AgentNotReported",
    "Differs",
    "ClassNotFound",
    "EntitlementMissing",
    "KeychainLocked",
    "AutoLoginOff",
    "Unschedulable",
    "Quarantined",
    "Retired",
    "NoChassisOfClass",
    "Broken",
    "LeaseNotFound",
    "LeaseEnded",
    "LeaseFull",
    "LeaseHeld",
    "ChassisRetired",
    "NotFound",
    "StoreUnreachable",
    "NotPrepared",
    "AwaitsApproval",
    "RebootTimedOut",
    "ClockSkewed",
    "Draining",
];
/// Reasons that stand where nothing is waited for, or never on Ready.
const FINE: &[&str] = &[
    "Available",
    "Leased",
    "Heartbeating",
    "Matches",
    "Prepared",
    "Counting",
    "Attached",
    "Bound",
    "FloorNotElapsed",
    "FloorElapsed",
    "NotBound",
    "Healthy",
    "ChassisUnreachable",
    "ChassisQuarantined",
    "DurationUnreadable",
    "Ready",
    "Cached",
    "Cloned",
    "Running",
    "NotAsked",
    "ScriptDone",
    "ScriptPending",
    "ScriptFailed",
    "NotYet",
    "Resolved",
    "InStep",
    "AsDeclared",
    "ContentsDiffer",
    // of RebootSettled; the summary is QuotaStuck, and its message says them
    "StopsFirst",
    "Rebooting",
    "AwaitsSelfTest",
];

#[test]
fn every_reason_has_a_way_out_in_one_place() {
    type WayOut = fn(&str) -> Option<&'static str>;
    let kinds: [(&[Word], WayOut); 4] = [
        (MacNodeReason::ALL, way_out),
        (MacNodeLeaseReason::ALL, way_out),
        (MacOSImageReason::ALL, way_out),
        (MacOSInstanceReason::ALL, instance_way_out),
    ];
    for (words, way_out) in kinds {
        for word in words.iter().map(|w| w.word) {
            let here = way_out(word).is_some();
            let elsewhere = SAID.contains(&word) || FINE.contains(&word);
            assert!(here || elsewhere, "{word} has no way out: say it in sentence.rs, or list it in SAID");
        }
    }
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

const NOW: &str = "2026-11-30T14:00:00Z";

fn ready(status: &str, reason: &str, message: &str) -> Value {
    json!({ "type": "Ready", "status": status, "reason": reason, "message": message,
        "lastTransitionTime": "2026-11-30T13:59:51Z" })
}

fn lease_with(phase: &str, conditions: Value) -> MacNodeLease {
    serde_json::from_value(json!({
        "apiVersion": "rack.macrack.io/v1alpha1", "kind": "MacNodeLease",
        "metadata": { "name": "more", "namespace": "team-b", "creationTimestamp": "2026-11-30T13:59:50Z", "generation": 1 },
        "spec": { "nodeClassName": "mini", "minimumDuration": "24h" },
        "status": { "observedGeneration": 1, "phase": phase, "conditions": conditions },
    }))
    .unwrap()
}

fn instance_with(phase: &str, status: Value) -> MacOSInstance {
    let mut status = status;
    status["phase"] = json!(phase);
    serde_json::from_value(json!({
        "apiVersion": "instance.macrack.io/v1alpha1", "kind": "MacOSInstance",
        "metadata": { "name": "build-1", "namespace": "team-b", "generation": 1 },
        "spec": { "leaseName": "more", "instanceClassName": "half", "imageName": "tahoe" },
        "status": status,
    }))
    .unwrap()
}

#[test]
fn a_pending_lease_says_when_a_mac_can_come_free_and_how_far_that_is_now() {
    let message = "all 4 mini are leased; the first can come free at 2026-12-01T14:02:07Z (23h59m)";
    let pending = lease_with("Pending", json!([ready("False", "NoChassisFree", message)]));
    assert_eq!(
        lease(&pending, at(NOW)),
        "MacNodeLease team-b/more is Pending (NoChassisFree), not Ready since 2026-11-30T13:59:51Z (9s ago): all 4 mini \
         are leased; the first can come free at 2026-12-01T14:02:07Z (in 24h2m). It is bound by itself as soon as one is \
         free; another class may have one now: kubectl get mnc."
    );
    let waits = instance_with(
        "Pending",
        json!({ "conditions": [ready("False", "LeasePending", "lease more waits for a Mac")] }),
    );
    let words = instance(&waits, Some(&pending), at(NOW));
    assert!(
        words.contains("lease more waits for a Mac. It starts by itself") && words.contains("all 4 mini"),
        "{words}"
    );
    assert!(!instance(&waits, None, at(NOW)).contains("all 4 mini"));
}

#[test]
fn a_lease_that_is_well_waits_for_nothing_and_one_on_a_sick_mac_says_so() {
    let well = ready("True", "Bound", "H4XK29Q0LW is yours until at least 2026-12-01T13:59:51Z");
    let words = lease(&lease_with("Bound", json!([well])), at(NOW));
    assert!(words.contains("is Bound and waits for nothing, since 2026-11-30T13:59:51Z (9s ago)"), "{words}");
    assert!(words.ends_with("until at least 2026-12-01T13:59:51Z (in 23h59m)."), "{words}");
    let sick = json!({ "type": "ChassisHealthy", "status": "False", "reason": "ChassisUnreachable",
        "message": "H4XK29Q0LW does not answer; its VMs are not moved, the lease stays", "lastTransitionTime": NOW });
    let words = lease(&lease_with("Bound", json!([well, sick])), at(NOW));
    assert!(!words.contains("waits for nothing"), "{words}");
    assert!(
        words.ends_with("But H4XK29Q0LW does not answer; its VMs are not moved, the lease stays (ChassisUnreachable)."),
        "{words}"
    );
}

#[test]
fn what_the_operator_has_not_seen_points_at_the_operator() {
    let mut fresh = lease_with("Pending", json!([]));
    let words = lease(&fresh, at(NOW));
    assert!(words.contains("2026-11-30T13:59:50Z (10s ago)") && words.contains("-n macrack-system"), "{words}");
    fresh = lease_with("Pending", json!([ready("False", "NoChassisFree", "all 4 mini are leased")]));
    fresh.metadata.generation = Some(2);
    assert!(lease(&fresh, at(NOW)).ends_with("The operator has not looked at its latest edit yet."));
}

#[test]
fn an_instance_says_what_went_wrong_in_its_vm_and_in_its_script() {
    let failed = ready("False", "VMFailed", "the VM could not be started");
    let status = json!({ "conditions": [failed], "vm": { "error": "VZErrorDomain 6" } });
    let words = instance(&instance_with("Failed", status), None, at(NOW));
    assert!(words.ends_with("Delete it and make it anew. The framework said VZErrorDomain 6."), "{words}");
    let script = json!({ "type": "FirstBootDone", "status": "False", "reason": "ScriptFailed", "message": "",
        "lastTransitionTime": NOW });
    let status = json!({ "conditions": [ready("True", "Ready", "ready for work"), script],
        "guest": { "firstBoot": { "state": "Failed", "exitCode": 3 } } });
    let words = instance(&instance_with("Ready", status), None, at(NOW));
    assert!(words.contains("waits for nothing") && words.contains("failed with exit code 3"), "{words}");
}

#[test]
fn a_reason_that_is_the_phase_is_said_once_and_an_unknown_one_is_repeated_as_it_is() {
    let words = instance(
        &instance_with("Pulling", json!({ "conditions": [ready("False", "Pulling", "2.1 of 5.0 GB")] })),
        None,
        at(NOW),
    );
    assert!(words.starts_with("MacOSInstance team-b/build-1 is Pulling, not Ready since"), "{words}");
    assert!(words.ends_with("(9s ago): 2.1 of 5.0 GB. Nothing to do: it goes on by itself."), "{words}");
    let words = lease(&lease_with("Pending", json!([ready("False", "FromTheFuture", "something new.")])), at(NOW));
    assert!(words.contains("(FromTheFuture)") && words.ends_with(": something new."), "{words}");
}

#[test]
fn a_mac_that_is_deleted_while_leased_says_that_it_waits() {
    let node: MacNode = serde_json::from_value(json!({
        "apiVersion": "rack.macrack.io/v1alpha1", "kind": "MacNode",
        "metadata": { "name": "h4xk29q0lw", "deletionTimestamp": "2026-11-30T13:00:00Z", "generation": 1 },
        "spec": { "serial": "H4XK29Q0LW", "nodeClassName": "mini" },
        "status": { "phase": "Quarantined", "slots": [], "conditions": [ready("False", "QuotaStuck", "quarantined since 2026-11-30T13:59:51Z")] },
    }))
    .unwrap();
    let words = mac_node(&node, at(NOW));
    assert!(words.starts_with("MacNode h4xk29q0lw is Quarantined (QuotaStuck), not Ready since"), "{words}");
    assert!(
        words.contains("a reboot of the Mac") && words.contains("deleted at 2026-11-30T13:00:00Z (1h0m ago)"),
        "{words}"
    );
}
