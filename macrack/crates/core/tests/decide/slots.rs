//! Who gets a slot, who waits, and who never gets one.

use macrack_api::{
    instance::macos_instance::PowerState,
    names,
    rack::node::{Order::*, QuarantineReason, VmState::*},
};
use macrack_core::{clock::time as moment, seen::Seen};

use super::rack::{Decided, Rack, TEAM, at, time, uid};

fn large(rack: Rack, name: &str) -> Rack {
    rack.change(name, |i| i.spec.instance_class_name = "large".into())
}

#[test]
fn the_two_oldest_win_and_no_third() {
    let rack = Rack::leased().instance("young", "+3h").instance("old", "+1h").instance("middle", "+2h").at("+4h");
    assert_eq!(rack.node_pass().steps(), ["slots [old:Run middle:Run]"]);
    let full = rack.slot("old", Run).slot("middle", Run).vm("old", Running).vm("middle", Running);
    assert!(full.node_pass().steps().is_empty());
    let loser = full.instance_pass("young");
    assert_eq!((loser.phase().as_str(), loser.says("Ready").as_str()), ("Failed", "False LeaseFull"));
    assert_eq!(loser.text("leaseFull"), "true");
    let words = loser.message("Ready");
    assert!(words.contains("old and middle") && words.contains("never more"), "{words}");
}

#[test]
fn of_two_made_in_the_same_second_the_first_by_name_wins() {
    let rack = Rack::leased().running("held", "+1h").instance("b", "+2h").instance("a", "+2h").at("+3h");
    assert_eq!(rack.node_pass().slots(), ["held:Run", "a:Run"]);
}

#[test]
fn while_a_holder_goes_a_newcomer_waits_instead_of_failing() {
    let rack = Rack::leased().running("one", "+1h").running("two", "+1h").instance("new", "+2h").at("+3h");
    assert_eq!(rack.instance_pass("new").says("Ready"), "False LeaseFull");
    for going in [
        rack.clone().instance_deleted("one", "+3h"),
        rack.clone().with(|r| r.status().slots[0].order = Wipe),
        rack.clone().with(|r| r.instances.retain(|i| i.metadata.name.as_deref() != Some("one"))),
    ] {
        let pass = going.instance_pass("new");
        assert_eq!((pass.phase().as_str(), pass.says("Ready").as_str()), ("Pending", "False WaitingForSlot"));
    }
}

#[test]
fn a_stopped_or_failed_holder_counts() {
    for state in [Stopped, Failed] {
        let rack = Rack::leased().running("one", "+1h").running("two", "+1h").vm("two", state).instance("new", "+2h");
        assert_eq!(rack.at("+3h").instance_pass("new").says("Ready"), "False LeaseFull", "{state:?}");
    }
}

#[test]
fn one_that_lost_stays_lost() {
    let lost = |i: &mut macrack_api::MacOSInstance| i.status.as_mut().unwrap().lease_full = true;
    let rack = Rack::leased().instance("lost", "+1h").change("lost", lost).instance("new", "+2h").at("+3h");
    assert_eq!(rack.node_pass().slots(), ["new:Run"]);
    assert_eq!(rack.instance_pass("lost").says("Ready"), "False LeaseFull");
}

#[test]
fn what_goes_what_has_no_finalizer_and_what_is_foreign_gets_no_slot() {
    let bare = |i: &mut macrack_api::MacOSInstance| i.metadata.finalizers = None;
    let rack = Rack::leased().instance("going", "+1h").instance_deleted("going", "+1h");
    let rack = rack.instance("bare", "+1h").change("bare", bare).instance("foreign", "+1h");
    let rack = rack.change("foreign", |i| i.metadata.namespace = Some("team-b".into())).at("+2h");
    assert!(rack.node_pass().slots().is_empty());
    assert_eq!(rack.instance_pass("bare").steps(), ["add instance.macrack.io/vm"]);
}

#[test]
fn a_plan_that_gives_a_slot_to_another_namespace_is_refused() {
    let mut rack = Rack::leased().instance("i1", "+1h").at("+2h");
    let facts = rack.node_facts();
    rack.node.status.as_mut().unwrap().lease_ref.as_mut().unwrap().namespace = "team-b".into();
    let plan = macrack_core::decide::node::decide(&facts);
    let verdict = macrack_core::check::node(&rack.node_facts(), &plan);
    assert_eq!(verdict, Err("a slot given to another namespace than that of the lease".into()));
    assert_eq!(TEAM, "team-a");
}

#[test]
fn two_that_do_not_fit_together_do_not_run_together() {
    let rack = large(Rack::leased().running("big", "+1h").instance("big-too", "+2h"), "big");
    let rack = large(rack, "big-too").at("+3h");
    assert_eq!(rack.node_pass().slots(), ["big:Run"]);
    let pass = rack.instance_pass("big-too");
    assert_eq!((pass.phase().as_str(), pass.says("Ready").as_str()), ("Pending", "False DoesNotFit"));
    let words = pass.message("Ready");
    assert!(words.contains("16 cores of CPU wanted, 12 cores there beside the host's reserve"), "{words}");
    let beside = rack.instance("small", "+2h");
    assert_eq!(beside.node_pass().slots(), ["big:Run", "small:Run"], "the smaller one does");
}

#[test]
fn beside_a_vm_of_unknown_size_nothing_fits() {
    let rack = Rack::leased().running("one", "+1h").instance("new", "+2h").at("+3h");
    assert_eq!(rack.node_pass().slots(), ["one:Run", "new:Run"]);
    let unread = rack.clone().with(|r| r.unreadable.push("one".into()));
    assert_eq!(unread.node_pass().slots(), ["one:Run"]);
    let again = rack.clone().change("one", |i| i.metadata.uid = Some(uid("one-again")));
    assert_eq!(again.node_pass().slots(), ["one:Stop"], "its namesake's size is another's; and the VM is nobody's now");
    let unsized_ = rack.with(|r| drop(r.sizes.remove("small")));
    assert_eq!(unsized_.node_pass().slots(), ["one:Run"]);
}

#[test]
fn an_instance_without_its_class_says_so() {
    let rack =
        Rack::leased().instance("i1", "+1h").change("i1", |i| i.spec.instance_class_name = "huge".into()).at("+2h");
    assert!(rack.node_pass().slots().is_empty());
    assert_eq!(rack.instance_pass("i1").says("Ready"), "False ClassNotFound");
}

#[test]
fn a_quarantined_chassis_gives_no_slot_and_touches_no_vm_that_runs() {
    let rack = Rack::leased().running("one", "+1h").instance("new", "+2h").quarantined(QuarantineReason::WipeFailed);
    let rack = rack.at("+3h");
    let pass = rack.node_pass();
    assert_eq!(pass.slots(), ["one:Run"]);
    assert_eq!(pass.phase(), "Quarantined");
    let waits = rack.instance_pass("new");
    assert_eq!((waits.phase().as_str(), waits.says("Ready").as_str()), ("Pending", "False ChassisQuarantined"));
    assert!(waits.message("Ready").contains("WipeFailed"), "{}", waits.message("Ready"));
    assert_eq!(rack.lease_pass().says("ChassisHealthy"), "False ChassisQuarantined");
}

/// Hand-over case 46, cannot-reattach.jsonl.
#[test]
fn while_a_vm_cannot_be_reached_nothing_extra_starts_and_it_is_not_killed() {
    let rack = Rack::leased().running("i1", "+1h").vm("i1", Unknown).instance("i2", "+2h").at("+2h");
    let pass = rack.node_pass();
    assert_eq!(pass.slots(), ["i1:Run"], "in the very pass that reads it");
    assert_eq!((pass.phase().as_str(), pass.says("VMsAttached").as_str()), ("Quarantined", "False ReattachFailed"));
    assert!(pass.message("VMsAttached").contains(&uid("i1")), "{}", pass.message("VMsAttached"));
    assert_eq!(rack.instance_pass("i1").says("Ready"), "False VMUnknown");
    assert_eq!(rack.instance_pass("i2").phase(), "Pending");
}

#[test]
fn an_instance_is_stopped_then_wiped_then_its_slot_is_empty_then_it_goes() {
    let rack = Rack::leased().running("i1", "+1h").instance_deleted("i1", "+2h").at("+2h");
    assert_eq!(rack.node_pass().steps(), ["slots [i1:Stop]"]);
    assert!(rack.instance_pass("i1").steps().iter().all(|s| !s.starts_with("remove")));
    let stopping = rack.with(|r| r.status().slots[0].order = Stop).vm("i1", Stopping);
    assert!(stopping.node_pass().steps().is_empty(), "a process of it still runs");
    let stopped = stopping.vm("i1", Stopped);
    assert_eq!(stopped.node_pass().steps(), ["slots [i1:Wipe]"]);
    let wiping = stopped.with(|r| r.status().slots[0].order = Wipe);
    for state in [Stopped, Wiping, WipeFailed] {
        assert!(wiping.clone().vm("i1", state).node_pass().slots() == ["i1:Wipe"], "{state:?}");
    }
    let wiped = wiping.vm("i1", Wiped);
    assert_eq!(wiped.node_pass().steps(), ["slots []"]);
    assert!(wiped.instance_pass("i1").steps().is_empty(), "its slot is not empty yet");
    let empty = wiped.with(|r| r.status().slots.clear());
    assert_eq!(empty.instance_pass("i1").steps(), ["remove instance.macrack.io/vm"]);
}

/// The report is older than the order: an agent that saw the order Run does not say Wiped.
#[test]
fn a_report_wiped_that_is_older_than_the_order_run_is_not_believed() {
    let off = Rack::leased().instance("i1", "+1h").change("i1", |i| i.spec.power_state = PowerState::Stopped).at("+2h");
    assert_eq!(off.node_pass().slots(), ["i1:Stop"]);
    let on = off.slot("i1", Run).vm("i1", Wiped).change("i1", |i| i.spec.power_state = PowerState::Running);
    let deleted = on.instance_deleted("i1", "+2h");
    assert!(deleted.node_pass().steps().is_empty(), "the agent may be starting it right now");
    assert_eq!(deleted.clone().vm("i1", Cloning).node_pass().slots(), ["i1:Stop"]);
    assert_eq!(deleted.vm("i1", Waiting).node_pass().slots(), ["i1:Stop"]);
}

#[test]
fn a_vm_does_not_leave_a_slot_and_enter_it_in_one_write() {
    let rack = Rack::leased().instance("i1", "+1h").slot("i1", Wipe).vm("i1", Wiped).at("+2h");
    assert_eq!(rack.node_pass().steps(), ["slots []"]);
    let rack = rack.with(|r| r.status().slots.clear());
    assert_eq!(rack.node_pass().slots(), ["i1:Run"]);
}

#[test]
fn a_vm_on_the_disk_that_is_nobodys_is_given_a_slot_to_be_wiped_in() {
    let rack = Rack::leased().running("i1", "+1h").vm("ghost", Running).at("+2h");
    assert_eq!(rack.node_pass().slots(), ["i1:Run", "ghost:Wipe"]);
    let full = rack.clone().running("i2", "+1h");
    assert!(full.node_pass().steps().is_empty(), "without a free slot it waits: the agent starts no third");
    let told = full.node_pass().message("Ready");
    assert!(told.contains(&format!("VM {} (Running) has no slot yet", uid("ghost"))), "{told}");
    let wiped = Rack::leased().vm("ghost", Wiped).at("+2h");
    assert!(wiped.node_pass().steps().is_empty(), "what is gone needs none");
    let free = Rack::free().vm("ghost", Stopped).at("+2h");
    assert_eq!(free.node_pass().steps(), ["slots [ghost:Wipe]"]);
}

/// An instance that cannot be read stands in no list: its VM would be wiped as nobody's.
#[test]
fn while_the_instances_are_not_known_no_vm_is_taken_for_nobodys() {
    let mut facts = Rack::leased().vm("ghost", Running).at("+2h").node_facts();
    facts.instances = Seen::Unknown("one cannot be read".into());
    let pass = Decided::from(macrack_core::decide::node::decide(&facts));
    assert!(pass.steps().is_empty(), "{:?}", pass.steps());
}

#[test]
fn a_vm_that_is_still_wanted_gets_its_own_slot_back_before_all_others() {
    let remade = Rack::leased().instance("older", "+0s").instance("alive", "+1h").vm("alive", Running);
    let remade = remade.instance("alive-too", "+2h").vm("alive-too", Running).at("+3h");
    assert_eq!(remade.node_pass().slots(), ["alive:Run", "alive-too:Run"]);
    // under a Held lease it can never run again: stopped and wiped like any orphan
    let held = Rack::leased().lease_deleted("+2h").instance("old", "+1h").vm("old", Running).at("+3h");
    assert_eq!(held.node_pass().slots(), ["old:Wipe"]);
    let silent = Rack::leased().instance("i1", "+1h").with(|r| r.status().agent = None).at("+3h");
    assert!(silent.node_pass().slots().is_empty(), "before the agent has reported nobody knows what is there");
}

#[test]
fn an_instance_made_again_under_its_name_is_another() {
    let rack = Rack::leased().running("i1", "+1h").change("i1", |i| i.metadata.uid = Some(uid("i1-again"))).at("+2h");
    assert_eq!(rack.node_pass().slots(), ["i1:Stop"], "the VM of the first uid goes, the second waits");
    assert_eq!(moment(at("+2h")), time("+2h"));
    assert_eq!(names::VMS_PER_MAC, 2);
    let lease_missing = rack.with(|r| r.lease = Seen::Absent);
    assert_eq!(lease_missing.node_pass().slots(), ["i1:Stop"]);
}

#[test]
fn remains_that_keep_a_slot_are_named_where_somebody_waits_for_it() {
    let remains = |slot: &mut macrack_api::rack::node::Slot| {
        (slot.namespace, slot.name) = ("none".into(), "orphan".into());
    };
    let rack = Rack::leased().running("i1", "+1h").slot("ghost", Wipe).vm("ghost", Running).instance("new", "+2h");
    let rack = rack.with(|r| r.status().slots.iter_mut().filter(|s| s.uid == uid("ghost")).for_each(remains)).at("+3h");
    let kept = format!("slot 1 is kept by the remains of VM {} (Running), which are wiped first", uid("ghost"));
    let pass = rack.instance_pass("new");
    assert_eq!(pass.says("Ready"), "False WaitingForSlot");
    let words = pass.message("Ready");
    assert!(words.contains("slot 0 is held by i1 (Running, ordered Run)") && words.contains(&kept), "{words}");
    let words = rack.node_pass().message("Ready");
    assert!(words.starts_with("1 of 2 VMs") && words.contains(&kept), "{words}");
    let foreign = rack.with(|r| r.status().slots[0].namespace = "team-b".into()).instance_pass("new").message("Ready");
    assert!(foreign.contains("slot 0 is held;") && !foreign.contains("i1"), "{foreign}");
    let free = Rack::free().vm("ghost", Stopped).at("+2h").node_pass().message("Leasable");
    assert!(free.contains(&format!("VM {} (Stopped) has no slot yet", uid("ghost"))), "{free}");
}
