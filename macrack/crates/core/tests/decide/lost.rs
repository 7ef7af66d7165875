//! Nodes, MacNodes and Macs that go, and come back.

use k8s_openapi::api::core::v1::Taint;
use macrack_api::rack::node::{Order::*, VmState::*};
use macrack_core::seen::Seen;

use super::rack::{LEASE, Rack, SERIAL, bound_lease, lease_ref, time, uid};

/// A MacNode that was made again: nothing in its status, its agent not heard yet.
fn remade() -> Rack {
    let mut rack = Rack::leased().at("+3h");
    rack.node.metadata.uid = Some(uid("node-again"));
    rack.node.metadata.finalizers = None;
    rack.node.status = Some(Default::default());
    rack.claim = rack.lease;
    rack.lease = Seen::Absent;
    rack
}

/// Hand-over case 47, live.jsonl.
#[test]
fn a_node_that_was_deleted_is_made_again_with_the_taint_of_its_lease() {
    let rack = Rack::leased().running("i1", "+1h").at("+2h").with(|r| r.kube_node = Seen::Absent);
    let pass = rack.node_pass();
    assert_eq!(pass.steps(), ["create Node macrack.io/lease=ci"]);
    assert_eq!(pass.slots(), ["i1:Run"], "its VM is left alone");
    assert_eq!(pass.says("AgentReady"), "False NodeMissing");
    assert_eq!(rack.lease_pass().phase(), "Bound");
    let free = Rack::free().with(|r| r.kube_node = Seen::Absent).at("+2h");
    assert_eq!(free.node_pass().steps(), ["create Node macrack.io/unleased=true"]);
    let unread = Rack::leased().with(|r| r.kube_node = Seen::Unknown("timeout".into())).at("+2h");
    assert!(unread.node_pass().steps().is_empty(), "one that cannot be read is not made");
}

#[test]
fn taints_of_others_are_kept_and_ours_is_put_right() {
    let foreign = |key: &str| Taint { key: key.into(), effect: "NoExecute".into(), ..Default::default() };
    let unreachable = "node.kubernetes.io/unreachable";
    let put = |r: &mut Rack, taints: Vec<Taint>| {
        if let Seen::Present(node) = &mut r.kube_node {
            node.spec.get_or_insert_default().taints = Some(taints);
        }
    };
    let lost = Rack::leased().with(|r| put(r, vec![foreign(unreachable)])).at("+1h");
    assert_eq!(lost.node_pass().steps(), ["patch Node node.kubernetes.io/unreachable= macrack.io/lease=ci"]);
    let mut ours = Rack::leased().node_facts().kube_node.present().unwrap().spec.clone().unwrap().taints.unwrap();
    ours.insert(0, foreign(unreachable));
    let both = Rack::leased().with(|r| put(r, ours)).at("+1h");
    assert!(both.node_pass().steps().is_empty(), "nothing is written that is right already");
}

#[test]
fn a_cordon_is_lifted_only_if_it_was_ours() {
    let cordon = |r: &mut Rack, ours: bool| {
        if let Seen::Present(node) = &mut r.kube_node {
            node.spec.get_or_insert_default().unschedulable = Some(true);
            let mark = ("macrack.io/cordoned".to_owned(), "quarantined".to_owned());
            node.metadata.annotations = ours.then(|| [mark].into());
        }
    };
    let admin = Rack::leased().with(|r| cordon(r, false)).at("+1h");
    assert!(admin.node_pass().steps().is_empty(), "an admin's cordon is the admin's");
    let ours = Rack::leased().with(|r| cordon(r, true)).at("+1h").node_pass();
    assert_eq!(
        ours.steps(),
        [r#"patch Node {"metadata":{"annotations":{"macrack.io/cordoned":null}},"spec":{"unschedulable":null}}"#]
    );
    let lost = Rack::leased().running("i1", "+1h").vm("i1", Unknown).at("+2h").node_pass();
    assert_eq!(
        lost.steps(),
        [
            r#"patch Node {"metadata":{"annotations":{"macrack.io/cordoned":"quarantined"}},"spec":{"unschedulable":true}}"#
        ]
    );
    let cordoned = Rack::free().with(|r| cordon(r, false)).at("+1h");
    assert!(
        matches!(cordoned.leasable(), macrack_core::decide::node::Leasable::No(because, _) if because.as_str() == "Unschedulable")
    );
}

/// Case 47, dead.jsonl.
#[test]
fn a_mac_that_does_not_answer_keeps_everything_until_an_admin_retires_it() {
    let dead = Rack::leased().running("i1", "+0s").instance_deleted("i1", "+10m").with(|r| {
        r.agent_answers = false;
        if let Seen::Present(node) = &mut r.kube_node {
            let ready = &mut node.status.as_mut().unwrap().conditions.as_mut().unwrap()[0];
            ready.status = "Unknown".into();
            ready.last_transition_time = Some(time("+1m"));
        }
    });
    let dead = dead.with(|r| r.status().slots[0].order = Stop).at("+2h");
    let node = dead.node_pass();
    assert!(node.steps().is_empty(), "nothing is freed: {:?}", node.steps());
    assert_eq!((node.phase().as_str(), node.says("AgentReady").as_str()), ("Unreachable", "False NodeNotReady"));
    let instance = dead.instance_pass("i1");
    assert!(instance.steps().is_empty());
    assert_eq!((instance.phase().as_str(), instance.says("Ready").as_str()), ("Unknown", "False HostUnreachable"));
    let lease = dead.clone().with(|r| r.status().phase = serde_json::from_str("\"Unreachable\"").ok()).lease_pass();
    assert_eq!((lease.phase().as_str(), lease.says("ChassisHealthy").as_str()), ("Bound", "False ChassisUnreachable"));
    assert!(lease.bound().is_none(), "no other chassis is taken");
    let retired = dead.retired().at("+3h");
    assert_eq!(retired.node_pass().slots(), ["i1:Wipe"]);
    assert_eq!(retired.instance_pass("i1").steps(), ["remove instance.macrack.io/vm"]);
    // it comes back at +30h with the disk of i1 still on it
    let back = Rack::leased().lease_gone().slot("i1", Wipe).vm("i1", Stopped).at("+30h");
    assert!(back.node_pass().steps().is_empty(), "wiped before anything else");
    assert_eq!(
        back.leasable(),
        macrack_core::decide::node::Leasable::No(
            macrack_api::rack::node::MacNodeReason::Leased,
            "leased until at least 2026-03-03T09:00:00Z".into(),
        )
    );
}

#[test]
fn when_the_agent_falls_silent_the_pass_comes_back_at_the_timeout() {
    let silent = Rack::leased().with(|r| {
        if let Seen::Present(node) = &mut r.kube_node {
            let ready = &mut node.status.as_mut().unwrap().conditions.as_mut().unwrap()[0];
            ready.status = "False".into();
            ready.last_transition_time = Some(time("+1h"));
        }
    });
    let pass = silent.clone().at("+1h").node_pass();
    assert_eq!((pass.phase().as_str(), pass.wakes()), ("Leased", Some(super::rack::at("+1h1m"))));
    assert_eq!(silent.at("+1h1m").node_pass().phase(), "Unreachable");
}

#[test]
fn a_macnode_made_again_gets_its_lease_ref_back_with_the_same_clock() {
    let rack = remade();
    let pass = rack.node_pass();
    assert_eq!(pass.steps(), ["bind zzserialn1 to ci"], "and its Node keeps the tenant's taint meanwhile");
    assert_eq!(pass.bound(), Some(&lease_ref()));
    assert_eq!(pass.says("Leasable"), "False Reconciling");
    let missing = rack.clone().with(|r| r.kube_node = Seen::Absent).node_pass();
    assert_eq!(missing.steps(), ["bind zzserialn1 to ci", "create Node macrack.io/lease=ci"]);
    let raised = rack.clone().with(|r| match &mut r.claim {
        Seen::Present(lease) => lease.spec.minimum_duration = "48h".into(),
        _ => unreachable!(),
    });
    assert_eq!(raised.node_pass().bound().unwrap().earliest_release_at, time("+48h"));
    let bare = rack.clone().with(|r| r.node.status = None).node_pass();
    assert!(bare.bound().is_none() && bare.plan.status.is_some(), "first it gets a status at all");
    let ghost = rack.vm("i1", Running).node_pass();
    assert!(ghost.slots().is_empty(), "what is on its disk belongs to the lease that comes back");
}

#[test]
fn what_a_lease_that_is_on_its_way_out_still_claims() {
    use macrack_core::{
        clock::Clocks,
        decide::lease::{claims, wants_back},
    };
    let clocks = |operator: &str, server: Seen<&str>| Clocks {
        operator: super::rack::at(operator),
        server: server.map(super::rack::at),
    };
    let (live, mut deleted, mut expired, mut broken) = (bound_lease(), bound_lease(), bound_lease(), bound_lease());
    deleted.metadata.deletion_timestamp = Some(time("+3h"));
    let end = |reason: &str| serde_json::from_value(serde_json::json!({ "reason": reason, "at": time("+24h") })).ok();
    expired.status.as_mut().unwrap().end = end("Expired");
    broken.status.as_mut().unwrap().end = end("Broken");
    broken.metadata.finalizers = None;
    let mut let_go = expired.clone();
    let_go.metadata.finalizers = None;
    let mut bare = live.clone();
    bare.metadata.finalizers = None;
    for (what, lease, operator, server, claim, back) in [
        ("a live one, always", &live, "+99h", Seen::Absent, true, true),
        ("one without our finalizer is none of ours", &bare, "+1h", Seen::Absent, false, true),
        ("Held", &deleted, "+5h", Seen::Absent, true, true),
        ("deleted, released a moment ago", &deleted, "+25h", Seen::Absent, true, false),
        ("deleted, and the server's clock is behind", &deleted, "+25h", Seen::Present("+5h"), true, true),
        ("deleted, past by both", &deleted, "+25h", Seen::Present("+25h"), false, false),
        ("expired, released a moment ago", &expired, "+25h", Seen::Absent, true, false),
        ("expired and let go", &let_go, "+25h", Seen::Absent, false, false),
        ("broken, before its floor", &broken, "+5h", Seen::Absent, true, true),
        ("broken, after it", &broken, "+25h", Seen::Absent, false, false),
        ("broken, the server's clock behind", &broken, "+25h", Seen::Present("+5h"), true, true),
    ] {
        let clocks = clocks(operator, server);
        assert_eq!(claims(lease, &clocks), claim, "{what}");
        assert_eq!(wants_back(lease, &clocks).is_some(), back, "{what}");
    }
    assert_eq!((LEASE, SERIAL), ("ci", "ZZSERIALN1"));
}

/// Its lease is past its floor and lets go next: written back here, the chassis would be released again and again.
#[test]
fn a_chassis_that_was_released_a_moment_ago_is_not_bound_to_the_same_lease_again() {
    let mut rack = Rack::free().clocks("+25h", Seen::Absent);
    let mut lease = bound_lease();
    lease.metadata.deletion_timestamp = Some(time("+3h"));
    rack.claim = Seen::Present(lease);
    rack.node.metadata.finalizers = Some(vec![macrack_api::names::FINALIZER_NODE.into()]);
    let pass = rack.node_pass();
    assert!(pass.steps().is_empty(), "{:?}", pass.steps());
    assert_eq!(pass.says("Leasable"), "False Reconciling");
}

#[test]
fn a_lease_whose_macnode_is_missing_says_so_and_takes_no_other() {
    let rack = Rack::leased().at("+3h");
    let mut facts = rack.lease_facts();
    facts.holder = Seen::Absent;
    facts.named = Seen::Absent;
    let pass = super::rack::Decided::from(macrack_core::decide::lease::decide(&facts));
    assert_eq!((pass.phase().as_str(), pass.says("Ready").as_str()), ("Bound", "False ChassisMissing"));
    assert_eq!(pass.says("Bound"), "False ChassisMissing");
    assert!(pass.steps().is_empty() && pass.bound().is_none());
    assert_eq!(pass.text("earliestReleaseAt"), "2026-03-03T09:00:00Z");
    facts.holder = Seen::Unknown("timeout".into());
    let unread = super::rack::Decided::from(macrack_core::decide::lease::decide(&facts));
    assert!(unread.steps().is_empty() && unread.plan.status.is_none(), "what cannot be read changes no word");
}

#[test]
fn behind_a_macnode_that_is_gone_its_node_and_its_access_go() {
    let rack = Rack::leased();
    let existing = rack.node_facts().existing;
    let plan = macrack_core::decide::node::gone("zzserialn1", &rack.kube_node, &existing);
    assert_eq!(plan.steps.len(), existing.len() + 1);
    let unread = macrack_core::decide::node::gone("zzserialn1", &Seen::Unknown("timeout".into()), &existing);
    assert_eq!(unread.steps.len(), existing.len());
}

#[test]
fn retiring_ends_every_token_of_a_mac_and_taking_it_back_makes_accounts_anew() {
    use macrack_core::plan::Kind;
    let accounts = |facts: &macrack_core::decide::node::Facts| {
        facts.existing.keys().filter(|object| object.kind == Kind::ServiceAccount).count()
    };
    let retired = Rack::leased().retired().at("+3h");
    assert_eq!(accounts(&retired.node_facts()), 2, "the agent's and the enrolment's");
    assert_eq!(retired.node_pass().steps(), ["delete ServiceAccount", "delete ServiceAccount"]);
    let mut facts = retired.node_facts();
    facts.existing.retain(|object, _| object.kind != Kind::ServiceAccount);
    let rests = macrack_core::decide::node::decide(&facts);
    assert!(rests.steps.is_empty(), "they are not made again while it is retired: {:?}", rests.steps);
    facts.node.spec.retirement = None;
    let back = super::rack::Decided::from(macrack_core::decide::node::decide(&facts));
    assert_eq!(back.steps(), ["apply ServiceAccount", "apply ServiceAccount"]);
}

#[test]
fn a_leased_mac_whose_class_is_gone_is_not_ready_says_why_and_keeps_its_lease_and_its_vms() {
    let rack = Rack::leased().running("i1", "+1h").at("+2h");
    assert_eq!(rack.node_pass().says("Ready"), "True Leased");
    let mut facts = rack.node_facts();
    facts.class = Seen::Absent;
    let pass = super::rack::Decided::from(macrack_core::decide::node::decide(&facts));
    assert_eq!((pass.phase().as_str(), pass.says("Ready").as_str()), ("Leased", "False ClassNotFound"));
    assert!(pass.message("Ready").contains("create it again"), "{}", pass.message("Ready"));
    assert!(pass.steps().is_empty(), "{:?}", pass.steps());
    facts.class = Seen::Unknown("timeout".into());
    let unread = super::rack::Decided::from(macrack_core::decide::node::decide(&facts));
    assert_eq!(unread.says("Ready"), "True Leased", "one that cannot be read is not gone");
}
