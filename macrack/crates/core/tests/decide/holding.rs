//! From the deletion of a lease to its end: the floor, what runs until then, and what goes at it.

use macrack_api::{
    instance::macos_instance::PowerState,
    rack::node::{Order::*, VmState::*},
};
use macrack_core::seen::Seen;

use super::rack::{Rack, at, time};

const RELEASE: [&str; 5] =
    ["delete RoleBinding", "delete Role", "mark releasing", "patch Node macrack.io/unleased=true", "clear lease"];

/// Hand-over case 57, the boundary table: a lease deleted at each moment, seen right then.
#[test]
fn a_lease_deleted_before_its_floor_is_held_and_one_deleted_after_it_is_released_at_once() {
    for (deleted, phase, ready, released) in [
        ("+0s", "Held", "False HeldUntilFloor", false),
        ("+3h", "Held", "False HeldUntilFloor", false),
        ("+10h", "Held", "False HeldUntilFloor", false),
        ("+23h59m59s", "Held", "False HeldUntilFloor", false),
        ("+24h", "Held", "False StillOccupied", true),
        ("+25h", "Held", "False StillOccupied", true),
    ] {
        let rack = Rack::leased().lease_deleted(deleted).at(deleted);
        let lease = rack.lease_pass();
        assert_eq!((lease.phase().as_str(), lease.says("Ready").as_str()), (phase, ready), "{deleted}");
        assert!(lease.steps().is_empty(), "{deleted}: the chassis lets go first: {:?}", lease.steps());
        assert_eq!(lease.text("earliestReleaseAt"), "2026-03-03T09:00:00Z", "{deleted}");
        let node = rack.node_pass();
        let expect: &[&str] = if released { &RELEASE } else { &[] };
        assert_eq!(node.steps(), expect, "{deleted}");
        assert_eq!(node.wakes(), (!released).then(|| at("+24h")), "{deleted}");
    }
}

#[test]
fn a_held_lease_says_until_when_it_stays_the_tenants() {
    let pass = Rack::leased().lease_deleted("+3h").at("+3h").lease_pass();
    let words = pass.message("Ready");
    assert!(words.contains("until 2026-03-03T09:00:00Z") && words.contains("takes new instances"), "{words}");
    assert_eq!(pass.says("FloorElapsed"), "False FloorNotElapsed");
    assert_eq!(pass.says("Bound"), "True Bound");
}

#[test]
fn instances_older_than_the_deletion_are_stopped_and_newer_ones_run() {
    let rack = Rack::leased().lease_deleted("+3h").running("old", "+1h").instance("new", "+10h").at("+10h");
    assert_eq!(rack.node_pass().steps(), ["slots [old:Stop new:Run]"]);
}

#[test]
fn an_instance_made_in_the_very_second_of_the_deletion_is_older() {
    let rack = Rack::leased().lease_deleted("+3h").instance("same", "+3h").instance("next", "+3h1s").at("+4h");
    assert_eq!(rack.node_pass().slots(), ["next:Run"]);
    let pass = rack.instance_pass("same");
    assert_eq!((pass.phase().as_str(), pass.says("Ready").as_str()), ("Stopped", "False LeaseHeld"));
}

#[test]
fn a_stopped_old_instance_keeps_its_slot_until_it_is_deleted() {
    let rack = Rack::leased()
        .lease_deleted("+3h")
        .instance("one", "+1h")
        .instance("two", "+1h")
        .slot("one", Stop)
        .slot("two", Stop)
        .vm("one", Stopped)
        .vm("two", Stopped)
        .instance("new", "+10h")
        .at("+10h");
    assert!(rack.node_pass().steps().is_empty());
    assert_eq!(rack.instance_pass("new").says("Ready"), "False LeaseFull");
    let rack = rack.instance_deleted("one", "+10h");
    assert_eq!(rack.node_pass().slots(), ["one:Wipe", "two:Stop"]);
    assert_eq!(rack.instance_pass("new").says("Ready"), "False WaitingForSlot");
}

/// Case 57, occupied.jsonl.
#[test]
fn past_the_floor_with_a_vm_that_does_not_stop_the_lease_is_still_occupied() {
    let rack = Rack::leased().lease_deleted("+3h").instance("i1", "+1h").slot("i1", Stop).vm("i1", Stopping);
    let rack = rack.at("+24h5m");
    assert!(rack.node_pass().steps().is_empty(), "nothing is forced past a VM that still runs");
    let lease = rack.lease_pass();
    assert_eq!(lease.phase(), "Held");
    assert_eq!(lease.says("Ready"), "False StillOccupied");
    assert!(lease.message("Ready").contains("1 of its VMs"), "{}", lease.message("Ready"));
    assert_eq!(lease.says("FloorElapsed"), "True FloorElapsed");
    // it stops: wiped, emptied, released
    let rack = rack.at("+24h10m").vm("i1", Stopped);
    assert_eq!(rack.node_pass().steps(), ["slots [i1:Wipe]"]);
    let rack = rack.with(|r| r.status().slots[0].order = Wipe);
    assert!(rack.node_pass().steps().is_empty(), "ordered, not reported yet");
    let rack = rack.vm("i1", Wiped);
    assert_eq!(rack.node_pass().steps(), ["slots []"]);
    let rack = rack.with(|r| r.status().slots.clear());
    assert_eq!(rack.node_pass().steps(), RELEASE);
}

/// Case 57, restart-over-boundary.jsonl: nothing is remembered, so nothing can be forgotten.
#[test]
fn an_operator_that_was_down_over_the_floor_releases_at_its_first_look() {
    let rack = Rack::leased().lease_deleted("+3h").at("+26h");
    assert_eq!(rack.node_pass().steps(), RELEASE);
}

/// Case 57, undelete.jsonl.
#[test]
fn until_the_floor_new_instances_start_at_the_floor_they_are_stopped_and_after_it_none_is_taken() {
    let rack = Rack::leased().lease_deleted("+3h").instance("i9", "+10h").at("+10h1m");
    assert_eq!(rack.node_pass().slots(), ["i9:Run"]);
    let rack = rack.slot("i9", Run).vm("i9", Running).instance("i10", "+23h59m").at("+23h59m");
    assert_eq!(rack.node_pass().slots(), ["i9:Run", "i10:Run"]);
    let rack = rack.slot("i10", Run).vm("i10", Starting).at("+24h");
    assert_eq!(rack.node_pass().slots(), ["i9:Stop", "i10:Stop"]);
    let rack = rack.instance("i11", "+24h6m").at("+24h7m");
    assert_eq!(rack.node_pass().slots(), ["i9:Stop", "i10:Stop"], "i11 gets no slot");
    let rack = rack.with(|r| {
        r.status().slots.clear();
        r.agent().vms.clear();
    });
    assert!(rack.node_pass().slots().is_empty(), "not even an empty chassis");
    let late = rack.instance_pass("i11");
    assert_eq!((late.phase().as_str(), late.says("Ready").as_str()), ("Failed", "False LeaseEnded"));
}

#[test]
fn an_operator_whose_clock_is_a_day_ahead_releases_nothing() {
    for (server, again) in [
        (Seen::Present("+0s"), "+25h1m"),
        (Seen::Present("+23h59m59s"), "+25h0m1s"),
        (Seen::Absent, "+25h"),
        (Seen::Unknown("timeout".into()), "+25h"),
    ] {
        let rack = Rack::leased().lease_deleted("+0s").clocks("+25h", server.clone());
        let pass = rack.node_pass();
        assert!(pass.steps().is_empty(), "{server:?}: {:?}", pass.steps());
        assert_eq!(pass.wakes(), Some(at(again)), "{server:?}: asked again, not forgotten, and not every moment");
        let lease = rack.lease_pass();
        assert_eq!(lease.wakes(), Some(at(again)), "{server:?}");
        assert_eq!(
            (lease.says("Ready").as_str(), lease.says("FloorElapsed").as_str()),
            ("False HeldUntilFloor", "False FloorNotElapsed")
        );
    }
}

#[test]
fn an_operator_whose_clock_is_behind_releases_nothing_either() {
    let rack = Rack::leased().lease_deleted("+3h").clocks("+23h", Seen::Present("+25h"));
    assert!(rack.node_pass().steps().is_empty());
}

#[test]
fn a_raised_minimum_raises_the_floor_and_a_deletion_freezes_it() {
    let raise = |rack: Rack| rack.with(|r| r.the_lease().spec.minimum_duration = "48h".into());
    let rack = raise(Rack::leased()).at("+1h");
    assert_eq!(rack.node_pass().steps(), ["raise floor to 2026-03-04T09:00:00Z"]);
    let rack = raise(Rack::leased()).lease_deleted("+1h").at("+2h");
    assert!(rack.node_pass().steps().is_empty());
    let rack = Rack::leased().with(|r| {
        r.the_lease().spec.minimum_duration = "48h".into();
        r.status().lease_ref.as_mut().unwrap().earliest_release_at = time("+72h");
    });
    assert!(rack.at("+1h").node_pass().steps().is_empty(), "a floor never falls");
}

#[test]
fn a_stored_minimum_that_is_no_duration_is_a_day_and_is_told() {
    for text in ["one day", "1d", "", "99999999999999999999h", "1s"] {
        let rack = Rack::leased().with(|r| r.the_lease().spec.minimum_duration = text.into()).lease_deleted("+1h");
        assert!(rack.clone().at("+23h59m59s").node_pass().steps().is_empty(), "{text:?}");
        assert_eq!(rack.at("+24h").node_pass().steps(), RELEASE, "{text:?}");
    }
    let rack = Rack::leased().with(|r| r.the_lease().spec.minimum_duration = "one day".into()).at("+1h");
    assert_eq!(rack.lease_pass().says("DurationsReadable"), "False DurationUnreadable");
}

#[test]
fn a_lease_past_its_maximum_ends_by_itself_and_its_object_stays_to_say_so() {
    let rack = Rack::leased().with(|r| r.the_lease().spec.maximum_duration = Some("30h".into())).running("i1", "+1h");
    let early = rack.clone().at("+29h");
    assert!(early.node_pass().steps().is_empty());
    assert_eq!(early.node_pass().wakes(), Some(at("+30h")));
    assert_eq!(early.lease_pass().wakes(), Some(at("+30h")));
    let rack = rack.at("+30h");
    assert_eq!(rack.node_pass().slots(), ["i1:Stop"]);
    let lease = rack.lease_pass();
    assert_eq!((lease.phase().as_str(), lease.says("Ready").as_str()), ("Releasing", "False Expired"));
    assert!(lease.steps().is_empty(), "its end is on record before its last hold goes");
    let rack = rack.with(|r| {
        r.the_lease().status.as_mut().unwrap().end =
            serde_json::from_str(r#"{"reason":"Expired","at":"2026-03-03T15:00:00Z"}"#).ok()
    });
    let rack = rack.with(|r| {
        r.status().slots.clear();
        r.agent().vms.clear();
    });
    assert_eq!(rack.node_pass().steps(), RELEASE);
    let rack = rack.with(|r| r.status().lease_ref = None);
    let lease = rack.lease_pass();
    assert_eq!(lease.phase(), "Expired");
    assert_eq!(lease.steps(), ["remove rack.macrack.io/release"]);
    assert!(lease.bound().is_none(), "an ended lease takes no other chassis");
}

#[test]
fn a_maximum_that_only_the_operators_clock_has_reached_ends_nothing() {
    let rack = Rack::leased().with(|r| r.the_lease().spec.maximum_duration = Some("30h".into())).running("i1", "+1h");
    let rack = rack.clocks("+31h", Seen::Unknown("timeout".into()));
    assert_eq!(rack.node_pass().slots(), ["i1:Run"]);
    assert_eq!(rack.lease_pass().text("end"), "null");
}

#[test]
fn a_powered_off_instance_is_stopped_and_keeps_its_slot() {
    let rack = Rack::leased().running("i1", "+1h").change("i1", |i| i.spec.power_state = PowerState::Stopped);
    assert_eq!(rack.clone().at("+2h").node_pass().steps(), ["slots [i1:Stop]"]);
    let rack = rack.with(|r| r.status().slots[0].order = Stop).vm("i1", Stopped).at("+2h");
    assert!(rack.node_pass().steps().is_empty());
    assert_eq!(rack.instance_pass("i1").says("Ready"), "False PoweredOff");
    let rack = rack.change("i1", |i| i.spec.power_state = PowerState::Running);
    assert_eq!(rack.node_pass().slots(), ["i1:Run"]);
}

#[test]
fn a_namespace_on_its_way_out_stops_and_wipes_everything_in_it() {
    let rack = Rack::leased().running("i1", "+1h").running("i2", "+1h").at("+3h");
    let ending = rack.clone().with(|r| r.namespace_ending = Seen::Present(true));
    assert_eq!(ending.node_pass().steps(), ["slots [i1:Stop i2:Stop]"]);
    let stopped =
        ending.with(|r| r.status().slots.iter_mut().for_each(|s| s.order = Stop)).vm("i1", Stopped).vm("i2", Stopped);
    assert_eq!(stopped.node_pass().steps(), ["slots [i1:Wipe i2:Wipe]"]);
    // Held there means empty: the chassis waits for its floor
    let empty = Rack::leased().lease_deleted("+3h").instance("i3", "+4h").at("+5h");
    let empty = empty.with(|r| r.namespace_ending = Seen::Present(true));
    assert!(empty.node_pass().steps().is_empty());
    let unreadable = rack.with(|r| r.namespace_ending = Seen::Unknown("timeout".into()));
    assert!(unreadable.node_pass().steps().is_empty(), "a namespace that cannot be read ends nothing");
}
