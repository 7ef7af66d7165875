//! How a chassis is taken back: in which order, from whom, and what stands in the way.

use macrack_api::rack::node::{Order::*, VmState::*};
use macrack_core::seen::Seen;

use super::rack::{LEASE, Rack, TEAM, new_lease, time, uid};

fn end(reason: &str) -> Option<macrack_api::rack::lease::LeaseEnd> {
    serde_json::from_value(serde_json::json!({ "reason": reason, "at": time("+3h") })).ok()
}

/// Hand-over case 29, lease.jsonl: the uid is the lease, not its name.
#[test]
fn a_lease_removed_by_force_leaves_a_chassis_that_nobody_gets_before_its_floor() {
    let gone = Rack::leased().running("i1", "+1h").lease_gone().at("+3h");
    assert_eq!(gone.node_pass().steps(), ["slots [i1:Stop]"], "its orphans are stopped and wiped at once");
    let again = gone.with(|r| {
        let mut lease = new_lease(TEAM, LEASE);
        lease.metadata.uid = Some(uid("again"));
        r.lease = Seen::Present(lease);
        r.status().slots.clear();
        r.agent().vms.clear();
    });
    let again = again.at("+3h2m");
    let pass = again.node_pass();
    assert!(pass.steps().is_empty(), "a lease of the same name and another uid is another lease: {:?}", pass.steps());
    assert!(pass.message("Ready").contains("given to nobody before 2026-03-03T09:00:00Z"), "{}", pass.message("Ready"));
    let lease = again.lease_pass();
    assert_eq!((lease.phase().as_str(), lease.says("Ready").as_str()), ("Pending", "False NoChassisFree"));
    assert!(lease.steps().is_empty());
    let steps = again.at("+24h").node_pass().steps();
    assert_eq!(steps.last().map(String::as_str), Some("clear lease"));
}

/// Case 29, empty-uid: not a wildcard.
#[test]
fn an_empty_uid_in_a_lease_ref_matches_no_lease() {
    let rack =
        Rack::leased().instance("i1", "+1h").with(|r| r.status().lease_ref.as_mut().unwrap().uid = String::new());
    let pass = rack.at("+2h").node_pass();
    assert!(pass.slots().is_empty(), "no slot is given for it");
    assert!(!pass.steps().contains(&"clear lease".into()), "and nothing is freed for it");
    assert!(pass.message("Ready").contains("its lease is gone"), "{}", pass.message("Ready"));
}

#[test]
fn a_lease_of_the_same_name_deleted_in_another_namespace_changes_nothing() {
    let mut rack = Rack::leased().running("i1", "+1h").at("+25h");
    assert!(rack.node_pass().steps().is_empty());
    let mut other = new_lease("team-b", LEASE);
    other.metadata.uid = Some(uid("other"));
    other.metadata.deletion_timestamp = Some(time("+3h"));
    rack.lease = Seen::Present(other.clone());
    let mut facts = rack.node_facts();
    // gather looks in the namespace of leaseRef; were it to look elsewhere, the uid still tells them apart
    facts.lease = Rack::leased().lease;
    assert!(macrack_core::decide::node::decide(&facts).steps.is_empty());
    assert_eq!(rack.lease_pass().steps(), ["remove rack.macrack.io/release"], "that one was never bound");
}

#[test]
fn a_lease_that_cannot_be_read_frees_nothing() {
    let rack = Rack::leased().running("i1", "+1h").at("+48h").with(|r| r.lease = Seen::Unknown("not a lease".into()));
    let pass = rack.node_pass();
    assert!(pass.steps().is_empty(), "{:?}", pass.steps());
    assert!(pass.message("Ready").starts_with("1 of 2 VMs"), "{}", pass.message("Ready"));
    let rack = rack.instance_deleted("i1", "+47h");
    assert!(rack.node_pass().steps().is_empty(), "not even what goes is touched");
}

#[test]
fn an_instance_that_cannot_be_read_keeps_its_order() {
    let rack = Rack::leased().running("i1", "+1h").at("+2h").with(|r| r.unreadable.push("i1".into()));
    assert!(rack.node_pass().steps().is_empty());
}

#[test]
fn the_taint_is_turned_before_the_chassis_is_given_back() {
    let over = Rack::leased().lease_deleted("+3h").at("+24h");
    // something else about the Node is to be written in this pass: that write still has the tenant's taint
    let busy = over.clone().with(|r| r.agent().host_version = Some("26.1".into()));
    let steps = busy.node_pass().steps();
    assert_eq!(steps.last().map(String::as_str), Some("mark releasing"), "{steps:?}");
    let next = busy.with(|r| r.status().lease_ref.as_mut().unwrap().releasing = true);
    let steps = next.node_pass().steps();
    assert!(steps[0].starts_with("patch Node") && steps[0].contains("unleased"), "{steps:?}");
    assert_eq!(steps.last().map(String::as_str), Some("clear lease"));
    let blind = over.clone().with(|r| r.kube_node = Seen::Unknown("timeout".into()));
    assert!(!blind.node_pass().steps().contains(&"clear lease".into()), "its taint may still be the tenant's");
    let missing = over.with(|r| r.kube_node = Seen::Absent);
    assert!(!missing.node_pass().steps().contains(&"clear lease".into()), "it was just made with the tenant's taint");
}

#[test]
fn a_release_that_has_begun_is_carried_on_and_not_taken_back() {
    let begun = Rack::leased().with(|r| r.status().lease_ref.as_mut().unwrap().releasing = true);
    let pass = begun.clone().at("+25h").node_pass();
    assert_eq!(
        pass.steps(),
        ["patch Node macrack.io/unleased=true", "delete RoleBinding", "delete Role", "clear lease"]
    );
    let unread = begun.clone().clocks("+25h", Seen::Unknown("timeout".into())).node_pass();
    assert!(!unread.steps().contains(&"clear lease".into()));
    let waiting = begun.instance("i1", "+1h").at("+25h");
    assert!(waiting.node_pass().slots().is_empty(), "no slot is given on it any more");
    assert_eq!(waiting.lease_pass().phase(), "Releasing");
}

#[test]
fn with_anything_left_on_its_disk_a_chassis_is_not_given_back() {
    let over = Rack::leased().lease_deleted("+3h").at("+25h");
    for state in [Running, Stopped, Stopping, Starting, Cloning, Wiping, WipeFailed, Unknown, Failed, Waiting] {
        let pass = over.clone().vm("ghost", state).node_pass();
        assert!(!pass.steps().contains(&"clear lease".into()), "{state:?}");
        assert_eq!(pass.slots(), ["ghost:Wipe"], "{state:?}: it is given a slot to be wiped in");
    }
    let silent = over.with(|r| r.status().agent = None).node_pass();
    assert!(
        !silent.steps().contains(&"clear lease".into()),
        "an agent that has not reported has not said that it is empty"
    );
}

/// The Role may have been applied a moment before the release, unseen by a cache that was behind.
#[test]
fn access_that_was_left_behind_goes_when_it_is_seen() {
    let leased = Rack::leased().at("+1h");
    let mut facts = Rack::free().node_facts();
    facts.existing = leased.node_facts().existing;
    let plan = super::rack::Decided::from(macrack_core::decide::node::decide(&facts));
    assert_eq!(plan.steps(), ["delete Role", "delete RoleBinding"]);
    assert!(leased.node_pass().steps().is_empty(), "the tenant's own stays");
}

#[test]
fn a_retired_chassis_breaks_its_lease_at_once_and_keeps_its_lease_ref() {
    let rack = Rack::leased().running("i1", "+1h").retired().at("+3h");
    let pass = rack.node_pass();
    assert_eq!((pass.phase().as_str(), pass.slots()), ("Retired", vec!["i1:Wipe".to_owned()]));
    assert!(pass.message("Ready").contains("HardwareFailure"), "{}", pass.message("Ready"));
    let lease = rack.lease_pass();
    assert_eq!((lease.phase().as_str(), lease.says("Ready").as_str()), ("Broken", "False Broken"));
    assert!(lease.steps().is_empty(), "first it is on record");
    let rack = rack.with(|r| r.the_lease().status.as_mut().unwrap().end = end("Broken"));
    assert_eq!(rack.lease_pass().steps(), ["remove rack.macrack.io/release"], "then it goes without its chassis");
    let instance = rack.instance_pass("i1");
    assert_eq!((instance.phase().as_str(), instance.says("Ready").as_str()), ("Failed", "False ChassisRetired"));
    let going = rack.clone().instance_deleted("i1", "+3h").instance_pass("i1");
    assert_eq!(going.steps(), ["remove instance.macrack.io/vm"], "it does not wait for a Mac that may never return");
    let dead = rack.with(|r| r.status().slots[0].order = Wipe).at("+200h");
    assert!(!dead.node_pass().steps().contains(&"clear lease".into()), "retired is never given back");
}

#[test]
fn a_chassis_that_is_taken_back_from_retirement_waits_for_its_floor_and_for_its_wipe() {
    let back = Rack::leased()
        .with(|r| r.the_lease().status.as_mut().unwrap().end = end("Broken"))
        .instance("i1", "+1h")
        .slot("i1", Wipe)
        .vm("i1", Stopped);
    assert!(back.clone().at("+10h").node_pass().steps().is_empty(), "ordered, not reported");
    let wiped = back.clone().vm("i1", Wiped).at("+10h");
    assert_eq!(wiped.node_pass().steps(), ["slots []"]);
    let empty = wiped.with(|r| {
        r.status().slots.clear();
        r.agent().vms.clear();
    });
    assert!(empty.node_pass().steps().is_empty(), "wiped, but before its floor");
    assert!(empty.node_pass().slots().is_empty(), "and the tenant's instance does not come back to it");
    assert_eq!(empty.clone().at("+24h").node_pass().steps().last().map(String::as_str), Some("clear lease"));
    let unwiped = back.at("+30h").node_pass();
    assert!(unwiped.steps().is_empty(), "past its floor, but not wiped");
    let object_gone = empty.lease_gone();
    assert!(object_gone.node_pass().steps().is_empty());
    assert_eq!(object_gone.at("+24h").node_pass().steps().last().map(String::as_str), Some("clear lease"));
}

#[test]
fn a_deleted_lease_goes_when_its_chassis_has_let_go_and_its_floor_has_passed() {
    let free = |rack: Rack| rack.with(|r| r.status().lease_ref = None);
    let rack = free(Rack::leased().lease_deleted("+3h"));
    assert_eq!(rack.clone().at("+24h").lease_pass().steps(), ["remove rack.macrack.io/release"]);
    let early = rack.clone().at("+5h").lease_pass();
    assert!(early.steps().is_empty(), "its MacNode was made again: it gets its leaseRef back first");
    assert_eq!(early.wakes(), Some(super::rack::at("+24h")));
    let blind = rack.clone().at("+25h");
    let mut facts = blind.lease_facts();
    facts.holder = Seen::Unknown("timeout".into());
    let pass = super::rack::Decided::from(macrack_core::decide::lease::decide(&facts));
    assert!(pass.steps().is_empty(), "a chassis that cannot be read may still hold it");
    assert!(pass.plan.status.is_none(), "and no word is changed for it");
    let never = rack.with(|r| r.the_lease().status = None).at("+1h");
    assert_eq!(
        never.lease_pass().steps(),
        ["remove rack.macrack.io/release"],
        "one that was never bound waits for nothing"
    );
}
