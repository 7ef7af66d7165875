//! Hand-over case 41: finalizers among those of others.

use macrack_api::{names, rack::node::VmState::*};
use macrack_core::{plan::Step, seen::Seen};

use super::rack::{Rack, new_lease, time, uid};

const OURS: &str = names::FINALIZER_LEASE;

fn deleted_with(finalizers: &[&str]) -> Rack {
    let mut lease = new_lease("team-a", "ci");
    lease.metadata.finalizers = Some(finalizers.iter().map(|f| (*f).to_owned()).collect());
    lease.metadata.deletion_timestamp = Some(time("+0s"));
    let mut rack = Rack::free().at("+1m");
    rack.lease = Seen::Present(lease);
    rack
}

#[test]
fn the_list_as_it_was_seen_goes_along_so_that_a_stale_one_fails() {
    let pass = deleted_with(&["a.example/x", OURS, "b.example/y"]).lease_pass();
    let [Step::RemoveFinalizer { finalizer, finalizers, uid: of, .. }] = pass.plan.steps.as_slice() else {
        panic!("{:?}", pass.steps());
    };
    assert_eq!(*finalizer, OURS);
    assert_eq!(*of, Some(uid("ci")), "and what is made again under this name keeps its own");
    assert_eq!(finalizers, &["a.example/x", OURS, "b.example/y"]);
}

#[test]
fn an_object_that_is_being_deleted_never_gets_our_finalizer() {
    let lease = deleted_with(&["b.example/y"]).lease_pass();
    assert!(lease.steps().is_empty(), "{:?}", lease.steps());
    let bare = |i: &mut macrack_api::MacOSInstance| i.metadata.finalizers = Some(vec!["b.example/y".into()]);
    let rack = Rack::leased().instance("i1", "+1h").change("i1", bare).instance_deleted("i1", "+1h").at("+2h");
    assert!(rack.instance_pass("i1").steps().is_empty(), "{:?}", rack.instance_pass("i1").steps());
    assert!(rack.node_pass().slots().is_empty(), "and nothing is made for it");
    let node = Rack::leased().at("+2h").with(|r| {
        r.node.metadata.finalizers = Some(vec!["b.example/y".into()]);
        r.node.metadata.deletion_timestamp = Some(time("+1h"));
    });
    assert!(node.node_pass().steps().is_empty(), "{:?}", node.node_pass().steps());
}

#[test]
fn a_double_entry_does_not_block() {
    let pass = deleted_with(&[OURS, OURS]).lease_pass();
    assert_eq!(pass.steps(), ["remove rack.macrack.io/release"]);
}

#[test]
fn a_macnode_carries_our_finalizer_exactly_while_it_has_a_lease_ref() {
    let bare = Rack::leased().at("+1h").with(|r| r.node.metadata.finalizers = None);
    assert_eq!(bare.node_pass().steps(), ["add rack.macrack.io/leased"]);
    let free = Rack::free().at("+1h").with(|r| r.node.metadata.finalizers = Some(vec![names::FINALIZER_NODE.into()]));
    assert_eq!(free.node_pass().steps(), ["remove rack.macrack.io/leased"]);
    let deleted = free.with(|r| r.node.metadata.deletion_timestamp = Some(time("+1h")));
    assert_eq!(deleted.node_pass().steps(), ["remove rack.macrack.io/leased"]);
    let leased = Rack::leased().running("i1", "+1h").at("+2h");
    let deleted = leased.with(|r| r.node.metadata.deletion_timestamp = Some(time("+1h")));
    assert!(deleted.node_pass().steps().is_empty(), "a leased Mac stays, and so do its VMs, until the lease ends");
}

#[test]
fn a_bound_lease_that_lost_our_finalizer_gets_it_back() {
    let rack = Rack::leased().with(|r| r.the_lease().metadata.finalizers = None).at("+1h");
    assert_eq!(rack.lease_pass().steps(), ["add rack.macrack.io/release"]);
}

#[test]
fn an_instance_goes_only_when_it_is_certain_that_nothing_of_it_is_left() {
    let going = Rack::leased().instance("i1", "+1h").instance_deleted("i1", "+2h").at("+2h");
    assert_eq!(going.instance_pass("i1").steps(), ["remove instance.macrack.io/vm"]);
    let on_disk = going.clone().vm("i1", Running);
    assert!(on_disk.instance_pass("i1").steps().is_empty(), "in no slot, but on the disk: it is wiped first");
    assert_eq!(on_disk.node_pass().slots(), ["i1:Wipe"]);
    let mut facts = going.instance_facts("i1");
    facts.chassis = Seen::Unknown("timeout".into());
    assert!(macrack_core::decide::instance::decide(&facts).steps.is_empty());
    facts = going.instance_facts("i1");
    facts.pod = Seen::Unknown("timeout".into());
    assert!(macrack_core::decide::instance::decide(&facts).steps.is_empty(), "its placeholder would be left behind");
}
