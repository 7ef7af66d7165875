//! Hand-over cases 43 and 53: a stuck counter on the operator's side, from the report to the same tenant again.

use k8s_openapi::jiff::Timestamp;
use macrack_api::{
    config::rack_config::RebootPolicy,
    rack::node::{Approver, Order, QuarantineReason as Reason, Reboot, VmState::*},
};
use macrack_core::{check, decide::node, seen::Seen};

use super::rack::{Decided, Rack, at, time};

/// i1 runs; the kernel refused i2, twice.
fn stuck() -> Rack {
    let rack = Rack::leased().running("i1", "+1m").instance("i2", "+2m").slot("i2", Order::Run).vm("i2", Waiting);
    rack.with(|r| r.agent().quota.stuck = true).at("+1h")
}

fn automatic(mut rack: Rack) -> Rack {
    rack.config.quota.reboot = RebootPolicy::Automatic;
    rack.policy_reboots = Seen::Present(Vec::new());
    rack
}

/// What the operator decided is written, and the pass is done again at that moment.
fn on(mut rack: Rack, offset: &str) -> (Rack, Decided) {
    let pass = rack.node_pass();
    let status = pass.plan.status.clone().unwrap();
    let field = |name: &str| status[name].clone();
    rack.status().reboot = serde_json::from_value(field("reboot")).unwrap();
    rack.status().policy_reboot_at = serde_json::from_value(field("policyRebootAt")).unwrap();
    rack.status().quarantine = serde_json::from_value(field("quarantine")).unwrap_or_default();
    for step in &pass.plan.steps {
        if let macrack_core::plan::Step::SetSlots { to, .. } = step {
            rack.status().slots.clone_from(to);
        }
    }
    let rack = rack.at(offset);
    let pass = rack.node_pass();
    (rack, pass)
}

fn reboot(pass: &Decided) -> Option<Reboot> {
    serde_json::from_value(pass.plan.status.clone().unwrap()["reboot"].clone()).unwrap()
}

fn back(rack: Rack, boot: &str) -> Rack {
    rack.with(|r| {
        r.agent().boot_id = boot.into();
        r.agent().quota.stuck = false;
    })
}

fn checked(rack: Rack, boot: &str) -> Rack {
    rack.with(|r| r.agent().quota.checked_boot_id = Some(boot.into()))
}

/// Quarantined, stopped, asked for and approved by the policy.
fn approved() -> Rack {
    let (rack, _) = on(automatic(stuck()), "+1h1m");
    let (rack, _) = on(rack.vm("i1", Stopped), "+1h2m");
    let (rack, pass) = on(rack, "+1h2m");
    assert_eq!(pass.says("RebootSettled"), "False Rebooting", "{}", pass.message("RebootSettled"));
    rack
}

#[test]
fn what_runs_is_stopped_first_and_only_then_is_a_reboot_asked_for() {
    let (rack, pass) = on(stuck(), "+1h1m");
    assert_eq!(pass.slots(), ["i1:Stop", "i2:Run"], "what runs stops, what waits goes on waiting");
    assert_eq!(pass.says("RebootSettled"), "False StopsFirst");
    assert_eq!(reboot(&pass), None, "asked for while a VM runs");
    for still in [Starting, Stopping, Cloning, Wiping] {
        let pass = rack.clone().vm("i1", still).node_pass();
        assert_eq!(reboot(&pass), None, "asked for while a VM is {still:?}");
    }
    let (rack, pass) = on(rack.vm("i1", Stopped), "+1h2m");
    let asked = reboot(&pass).unwrap();
    assert_eq!((asked.reason.as_str(), asked.requested_at.clone()), ("QuotaStuck", time("+1h1m")));
    assert_eq!((asked.boot_id.as_deref(), asked.approved_at), (Some("boot-1"), None));
    assert_eq!(pass.slots(), ["i1:Stop", "i2:Run"], "i1 stays stopped for the reboot");
    assert_eq!((pass.phase().as_str(), pass.says("Ready").as_str()), ("Quarantined", "False QuotaStuck"));
    let words = rack.node_pass().message("RebootSettled");
    assert!(words.contains("kubectl macrack reboot zzserialn1") && words.contains("2026-03-02T10:01:00Z"), "{words}");
}

#[test]
fn a_vm_that_cannot_be_reached_is_neither_stopped_nor_cut_off_by_a_reboot() {
    let (_, pass) = on(automatic(stuck().vm("i1", Unknown)), "+1h1m");
    assert_eq!(pass.slots(), ["i1:Run", "i2:Run"]);
    assert_eq!(reboot(&pass), None);
    assert!(pass.message("RebootSettled").contains("i1"), "{}", pass.message("RebootSettled"));
}

#[test]
fn only_the_echo_of_this_very_request_approves_it() {
    let (rack, _) = on(stuck(), "+1h1m");
    let (rack, _) = on(rack.vm("i1", Stopped), "+1h2m");
    let stale = rack.clone().with(|r| r.node.spec.approved_reboot = Some(time("+30m"))).node_pass();
    assert_eq!(stale.says("RebootSettled"), "False AwaitsApproval");
    let words = stale.message("RebootSettled");
    assert!(words.contains("names 2026-03-02T09:30:00Z, which is another request"), "{words}");
    let echoed = rack.with(|r| r.node.spec.approved_reboot = Some(time("+1h1m"))).node_pass();
    let asked = reboot(&echoed).unwrap();
    assert_eq!((asked.approved_at, asked.approved_by), (Some(time("+1h2m")), Some(Approver::Admin)));
    assert_eq!(echoed.wakes(), Some(at("+1h32m")), "the deadline is looked at when it passes");
}

#[test]
fn the_same_tenant_has_it_back_after_one_reboot_and_a_start_that_succeeds() {
    let rack = approved();
    let requested = rack.node.status.as_ref().unwrap().reboot.clone().unwrap().requested_at;
    // back, not checked: started again, still quarantined
    let (rack, pass) = on(back(rack, "boot-2"), "+1h10m");
    assert_eq!(pass.slots(), ["i1:Run", "i2:Run"], "what was stopped for the reboot comes back by itself");
    assert_eq!(pass.says("RebootSettled"), "False AwaitsSelfTest");
    assert_eq!(pass.phase(), "Quarantined");
    assert_eq!(reboot(&pass).unwrap().done_boot_id.as_deref(), Some("boot-2"));
    let (rack, pass) = on(checked(rack, "boot-2").vm("i1", Running).vm("i2", Running), "+1h12m");
    assert_eq!((pass.phase().as_str(), pass.says("Ready").as_str()), ("Leased", "True Leased"));
    assert_eq!(pass.says("RebootSettled"), "True NotAsked");
    let done = reboot(&pass).unwrap();
    assert_eq!((done.requested_at, done.done_boot_id.as_deref()), (requested, Some("boot-2")), "one request in all");
    assert_eq!(rack.node.status.unwrap().lease_ref.unwrap().earliest_release_at, time("+24h"), "the floor stands");
}

#[test]
fn a_counter_that_sticks_again_after_its_reboot_waits_for_an_admin() {
    let (rack, _) = on(back(approved(), "boot-2"), "+1h4m");
    let again = rack.with(|r| r.agent().quota.stuck = true);
    let (rack, _) = on(again, "+1h5m");
    let (rack, pass) = on(rack, "+1h30m");
    let asked = reboot(&pass).unwrap();
    assert_eq!((asked.boot_id.as_deref(), asked.approved_at.clone()), (Some("boot-2"), None), "a reboot loop");
    assert_eq!(pass.says("RebootSettled"), "False AwaitsApproval");
    assert!(pass.message("RebootSettled").contains("stuck again"), "{}", pass.message("RebootSettled"));
    let day_later = rack.at("+26h").node_pass();
    assert!(reboot(&day_later).unwrap().approved_by == Some(Approver::Policy), "after a day the policy may again");
}

/// Found by the model: nothing was heard of the Mac between its return and its counter sticking again.
#[test]
fn a_reboot_is_written_as_done_before_another_is_asked_for() {
    let again = back(approved(), "boot-2").with(|r| r.agent().quota.stuck = true).at("+1h5m");
    let first = reboot(&again.node_pass()).unwrap();
    assert_eq!((first.boot_id.as_deref(), first.done_boot_id.as_deref()), (Some("boot-1"), Some("boot-2")));
    let (_, pass) = on(again, "+1h6m");
    let second = reboot(&pass).unwrap();
    assert_eq!((second.boot_id.as_deref(), second.approved_at), (Some("boot-2"), None));
}

#[test]
fn a_mac_that_does_not_come_back_is_said_so_once_and_neither_rebooted_again_nor_taken_from_its_tenant() {
    let rack = approved();
    let was = rack.node.status.as_ref().unwrap().reboot.clone();
    let (rack, before) = on(rack, "+1h30m");
    assert_eq!(before.says("RebootSettled"), "False Rebooting");
    let (rack, pass) = on(rack, "+1h33m");
    assert_eq!(pass.says("RebootSettled"), "False RebootTimedOut");
    assert!(pass.message("RebootSettled").contains("not rebooted again"), "{}", pass.message("RebootSettled"));
    assert!(pass.message("Ready").contains("start it by hand"), "{}", pass.message("Ready"));
    assert_eq!((reboot(&pass), pass.phase().as_str()), (was, "Quarantined"));
    assert!(pass.steps().iter().all(|step| step != "clear lease" && step != "mark releasing"), "{:?}", pass.steps());
    // a heartbeat of the old boot is no return
    let (rack, pass) = on(rack, "+1h40m");
    assert_eq!(pass.says("RebootSettled"), "False RebootTimedOut");
    let (_, pass) = on(checked(back(rack, "boot-2"), "boot-2"), "+2h");
    assert_eq!(pass.phase(), "Leased", "started by hand at last");
}

#[test]
fn an_operator_that_restarts_asks_and_approves_nothing_a_second_time() {
    let rack = approved();
    let before = rack.node.status.as_ref().unwrap().reboot.clone();
    for offset in ["+1h3m", "+1h4m", "+1h20m"] {
        assert_eq!(reboot(&rack.clone().at(offset).node_pass()), before);
    }
}

#[test]
fn the_policy_keeps_to_its_budget_over_all_macs_and_says_when_it_has_room_again() {
    let ready = |others: Seen<Vec<Timestamp>>| {
        let (rack, _) = on(automatic(stuck()), "+1h1m");
        let mut rack = rack.vm("i1", Stopped).at("+2h");
        rack.policy_reboots = others;
        let pass = rack.node_pass();
        (reboot(&pass).unwrap().approved_by, pass.message("RebootSettled"), pass.wakes())
    };
    let policy = Some(Approver::Policy);
    assert_eq!(ready(Seen::Present(vec![])).0, policy);
    assert_eq!(ready(Seen::Present(vec![at("+1h")])).0, policy);
    assert_eq!(ready(Seen::Present(vec![at("-23h"), at("+1h")])).0, policy, "one is a day old and counts no more");
    let (by, words, wake) = ready(Seen::Present(vec![at("+1h"), at("+30m")]));
    assert_eq!((by, wake), (None, Some(at("+24h30m"))));
    assert!(words.contains("2 reboots within 24h") && words.contains("kubectl macrack reboot"), "{words}");
    let (by, words, _) = ready(Seen::Unknown("timeout".into()));
    assert_eq!(by, None, "a budget that cannot be read is spent");
    assert!(words.contains("timeout"), "{words}");
}

#[test]
fn a_mac_that_would_not_come_back_by_itself_asks_for_hands() {
    let (rack, _) = on(automatic(stuck()), "+1h1m");
    let rack = rack.vm("i1", Stopped).with(|r| r.agent().host.as_mut().unwrap().auto_login = false);
    let (_, pass) = on(rack, "+2h");
    assert_eq!(reboot(&pass).unwrap().approved_at, None);
    assert!(pass.message("RebootSettled").contains("somebody must be at hand"), "{}", pass.message("RebootSettled"));
}

#[test]
fn a_quarantine_that_is_cleared_by_hand_takes_its_request_with_it() {
    let (rack, _) = on(stuck(), "+1h1m");
    let (rack, _) = on(rack.vm("i1", Stopped), "+1h2m");
    let token = rack.node.status.as_ref().unwrap().quarantine[0].token();
    let cleared = rack.with(|r| {
        r.node.spec.cleared_quarantine = Some(token);
        r.agent().quota.stuck = false;
    });
    let pass = cleared.node_pass();
    assert_eq!((reboot(&pass), pass.says("RebootSettled").as_str()), (None, "True NotAsked"));
    assert_eq!(pass.slots(), ["i1:Run", "i2:Run"]);
}

#[test]
fn a_plan_that_reboots_twice_or_believes_a_counter_without_proof_is_refused() {
    let rack = approved();
    let facts = rack.node_facts();
    let broken = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut plan = node::decide(&facts);
        change(plan.status.as_mut().unwrap());
        check::node(&facts, &plan).unwrap_err()
    };
    let other = "2026-03-02T12:00:00Z";
    assert!(broken(&|s| s["reboot"]["requestedAt"] = other.into()).contains("while another is not done"));
    assert!(broken(&|s| s["reboot"]["approvedAt"] = other.into()).contains("approved twice"));
    assert!(broken(&|s| s["quarantine"] = serde_json::Value::Null).contains("without a new boot"));
    let manual = on(stuck().vm("i1", Stopped), "+1h2m").0;
    let facts = manual.node_facts();
    let mut plan = node::decide(&facts);
    plan.status.as_mut().unwrap()["reboot"]["approvedAt"] = other.into();
    assert!(check::node(&facts, &plan).unwrap_err().contains("nobody approved"));
}

#[test]
fn an_unasked_boot_stops_nothing_and_asks_nothing() {
    let rack = Rack::leased().running("i1", "+1m").with(|r| r.agent().boot_id = "boot-2".into()).at("+1h");
    let pass = rack.vm("i1", Stopped).node_pass();
    assert_eq!((pass.slots(), reboot(&pass)), (vec!["i1:Run".to_owned()], None));
    let stuck = Rack::leased().quarantined(Reason::QuotaStuck).with(|r| r.agent().boot_id = "boot-2".into());
    assert_eq!(reboot(&stuck.at("+2h").node_pass()), None, "the new boot is there already");
}

#[test]
fn in_maintenance_what_runs_is_stopped_and_kept_and_runs_again_after_it() {
    let drain = |r: &mut Rack| (r.node.spec.unschedulable, r.node.spec.drain) = (true, true);
    let rack = Rack::leased().running("i1", "+1m").instance("i2", "+2m").slot("i2", Order::Run).vm("i2", Waiting);
    let rack = rack.instance("i3", "+3m").at("+1h").with(drain);
    let (rack, pass) = on(rack, "+1h1m");
    assert_eq!(pass.slots(), ["i1:Stop", "i2:Stop"], "what waits is not started either");
    assert_eq!((pass.phase().as_str(), pass.says("Ready").as_str()), ("Leased", "False Draining"));
    assert!(pass.message("Ready").contains("1 of 2"), "{}", pass.message("Ready"));
    let (rack, pass) = on(rack.vm("i1", Stopped), "+1h2m");
    assert!(pass.message("Ready").contains("nothing runs on it"), "{}", pass.message("Ready"));
    let told = rack.instance_pass("i1");
    assert_eq!((told.phase().as_str(), told.says("Ready").as_str()), ("Stopped", "False ChassisInMaintenance"));
    let lost = rack.clone().vm("i1", Unknown).with(|r| r.status().slots[0].order = Order::Run).node_pass();
    assert_eq!(lost.slots(), ["i1:Run", "i2:Stop"], "one that cannot be reached is not forced");
    let back = rack.with(|r| (r.node.spec.unschedulable, r.node.spec.drain) = (false, false)).node_pass();
    assert_eq!(back.slots(), ["i1:Run", "i2:Run"]);
}

#[test]
fn a_vm_that_was_stopped_for_a_reboot_says_so_and_that_it_comes_back() {
    let (rack, _) = on(stuck(), "+1h1m");
    let told = rack.vm("i1", Stopped).instance_pass("i1");
    assert_eq!((told.phase().as_str(), told.says("Ready").as_str()), ("Stopped", "False ChassisQuarantined"));
    assert!(told.message("Ready").contains("runs again by itself"), "{}", told.message("Ready"));
}
