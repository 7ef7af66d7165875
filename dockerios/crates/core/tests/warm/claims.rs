//! One pass over a claim.

use std::sync::Arc;

use dockerios_api::{
    Verdict,
    names::{CLAIMED, POOL_UID},
    text::SpanText,
};
use dockerios_core::{Kind, Seen, Step, decide::claim};
use kube::ResourceExt;
use serde_json::json;

use crate::world::{World, condition, deleted, made, say};

/// A pool with `warm` Ready machines.
fn pool(warm: i32) -> World {
    let mut world = World::new();
    world.pool("ci", warm, 12);
    world.run_pool("ci");
    for machine in world.view.machines.clone() {
        world.pass_time(1);
        world.ready(&machine.name_any());
    }
    world
}

fn on_pool() -> serde_json::Value {
    json!({"poolName": "ci", "ttl": "1h"})
}

#[test]
fn a_claim_takes_the_oldest_warm_machine_in_one_write_and_is_told_when_it_is_its_own() {
    let mut world = pool(2);
    world.claim("job", on_pool());
    let oldest = world.view.machines[0].clone();
    let plan = world.run_claim("job");
    let [Step::Replace(object)] = plan.steps.as_slice() else {
        panic!("{plan:?}")
    };
    assert_eq!(object.id().name, oldest.name_any());
    assert_eq!(object.meta("resourceVersion"), oldest.resource_version().as_deref());
    assert_eq!(object.label(CLAIMED), Some("true"));
    assert_eq!(object.body["metadata"]["ownerReferences"], json!([]));
    assert!(object.body.get("status").is_none(), "{object:?}");
    assert_eq!(condition(&plan, "Ready").1, "MachineNotReady");

    let plan = world.run_claim("job");
    assert_eq!(condition(&plan, "Ready").0, Verdict::True);
    let status = world.find_claim("job").status.expect("a status");
    assert_eq!(status.machine_ref.expect("bound").uid, oldest.uid().unwrap_or_default());
    assert_eq!(status.bound_at.map(|at| at.0), Some(world.now));
    let expires = status.expires_at.expect("an end").0;
    assert_eq!(expires.duration_since(world.now).as_secs(), 3600);
    assert_eq!(plan.wake.map(|wake| expires.duration_since(wake).as_secs()), Some(300));
    assert!(plan.news.iter().any(|news| news.reason == "Bound" && !news.warning));
    assert!(world.decide_claim("job", &world.view).steps.is_empty());
}

#[test]
fn claims_are_served_in_the_order_in_which_they_came() {
    let mut world = pool(2);
    for name in ["c", "a", "b"] {
        world.claim(name, on_pool());
        world.pass_time(1);
    }
    // the second pass first: it does not take what the first will
    for (claim, machine) in [("a", 1), ("c", 0)] {
        let plan = world.decide_claim(claim, &world.view);
        let wanted = world.view.machines[machine].name_any();
        assert_eq!(plan.steps.first().map(|step| step.id().name), Some(wanted), "{claim}");
    }
    let plan = world.decide_claim("b", &world.view);
    assert!(plan.steps.is_empty(), "{plan:?}");
    assert!(condition(&plan, "Ready").2.contains("is being made"));
}

#[test]
fn a_warming_machine_is_taken_when_no_ready_one_is_left_and_bound_says_so_only_when_it_is_ready() {
    let mut world = World::new();
    world.pool("ci", 1, 12);
    world.run_pool("ci");
    world.claim("job", on_pool());
    world.run_claim("job");
    let machine = world.view.machines[0].name_any();
    let now = world.now;
    world.touch(&machine, |m| say(m, Verdict::False, "Cloning", "42%", now));
    let plan = world.run_claim("job");
    let (verdict, reason, message) = condition(&plan, "Ready");
    assert_eq!((verdict, reason.as_str()), (Verdict::False, "MachineNotReady"));
    assert!(message.contains("Cloning (42%)"), "{message}");
    assert!(world.find_claim("job").status.expect("a status").machine_ref.is_none());
    world.ready(&machine);
    assert_eq!(condition(&world.run_claim("job"), "Ready").1, "Bound");
}

#[test]
fn of_machines_that_are_not_ready_one_on_its_way_is_taken_before_one_that_does_not_answer_any_more() {
    let mut world = pool(1);
    let silent = world.view.machines[0].name_any();
    world.silence(&silent);
    world.touch_pool("ci", |pool| pool.spec.replicas = 2);
    world.pass_time(1);
    world.run_pool("ci");
    let coming = world.view.machines[1].name_any();
    for (claim, machine) in [("first", &coming), ("second", &silent)] {
        world.claim(claim, on_pool());
        world.pass_time(1);
        let plan = world.run_claim(claim);
        assert_eq!(
            plan.steps.first().map(|step| &step.id().name == machine),
            Some(true),
            "{claim}: {plan:?}"
        );
    }
}

#[test]
fn machines_that_are_claimed_failed_going_stopped_draining_or_of_another_pool_are_not_taken() {
    type Change = fn(&mut dockerios_api::MacOSMachine);
    let table: [(&str, Change); 4] = [
        ("going", |m| {
            m.metadata.deletion_timestamp = m.metadata.creation_timestamp.clone()
        }),
        ("stopped", |m| {
            m.spec.power_state = dockerios_api::machine::macos_machine::PowerState::Stopped
        }),
        ("draining", |m| {
            let status = m.status.get_or_insert_default();
            let mut draining = status.conditions[0].clone();
            draining.kind = "Draining".into();
            status.conditions.push(draining);
        }),
        ("of another pool", |m| {
            m.labels_mut().insert(POOL_UID.into(), "other".into());
        }),
    ];
    for (what, change) in table {
        let mut world = pool(1);
        let name = world.view.machines[0].name_any();
        world.touch(&name, change);
        world.claim("job", on_pool());
        let plan = world.decide_claim("job", &world.view);
        assert!(
            !plan.steps.iter().any(|step| matches!(step, Step::Replace(_))),
            "{what}: {plan:?}"
        );
    }
    let mut world = pool(1);
    let name = world.view.machines[0].name_any();
    world.fail(&name);
    world.claim("job", on_pool());
    assert!(world.decide_claim("job", &world.view).steps.is_empty(), "failed");
}

#[test]
fn a_claim_on_a_class_takes_from_any_pool_of_it_and_else_has_a_machine_made_once() {
    let mut world = pool(1);
    world.claim("first", json!({"machineClassName": "build"}));
    world.pass_time(1);
    world.claim("second", json!({"machineClassName": "build"}));
    assert!(matches!(world.run_claim("first").steps.as_slice(), [Step::Replace(_)]));
    let plan = world.decide_claim("second", &world.view);
    let uid = world.find_claim("second").uid();
    assert_eq!(made(&plan), [uid]);
    world.run_claim("second");
    world.run_claim("second");
    assert_eq!(world.machines_of(&world.find_claim("second")).len(), 1);
    let Some(Step::Create(object)) = plan.steps.first() else {
        panic!("{plan:?}")
    };
    assert_eq!(object.meta("name").map(|name| name.len()), Some(12));
    assert_eq!(object.label(POOL_UID), None);
}

#[test]
fn what_is_missing_is_named() {
    let mut world = World::new();
    world.claim("pool", on_pool());
    world.claim("class", json!({"machineClassName": "build"}));
    let (_, reason, message) = condition(&world.decide_claim("pool", &world.view), "Ready");
    assert!(
        reason == "PoolNotFound" && message.contains("MacOSMachinePool ci"),
        "{message}"
    );
    world.view.class = Seen::Absent;
    let plan = world.decide_claim("class", &world.view);
    assert_eq!(condition(&plan, "Ready").1, "ClassNotFound");
    assert!(plan.steps.is_empty());
}

#[test]
fn a_class_that_is_not_for_the_namespace_makes_no_machine() {
    let mut world = World::new();
    let class = world.view.class.present().expect("a class").as_ref().clone();
    let mut class = class;
    class.spec.allowed_namespaces = serde_json::from_value(json!({"matchLabels": {"team": "b"}})).expect("a selector");
    world.view.class = Seen::Present(Arc::new(class));
    world.claim("job", json!({"machineClassName": "build"}));
    let plan = world.decide_claim("job", &world.view);
    assert_eq!(condition(&plan, "Ready").1, "NamespaceNotAllowed");
    assert!(plan.steps.is_empty());
}

#[test]
fn a_full_pool_makes_claims_wait_and_says_how_many_are_before() {
    let mut world = World::new();
    world.pool("ci", 0, 1);
    for name in ["a", "b"] {
        world.claim(name, on_pool());
        world.pass_time(1);
    }
    let plan = world.run_pool("ci");
    assert_eq!(made(&plan), [world.find_claim("a").uid()]);
    let (_, reason, message) = condition(&world.run_claim("b"), "Ready");
    assert!(
        reason == "AtMaxMachines" && message.contains("1 machines of maxMachines 1"),
        "{message}"
    );
}

#[test]
fn time_runs_from_the_moment_of_binding_and_its_end_is_told_five_minutes_before() {
    let mut world = pool(1);
    world.claim("job", on_pool());
    world.pass_time(600);
    world.run_claim("job");
    world.run_claim("job");
    world.pass_time(3600 - 301);
    assert_eq!(condition(&world.run_claim("job"), "Expiring").0, Verdict::False);
    world.pass_time(1);
    let plan = world.run_claim("job");
    assert_eq!(plan.news.iter().filter(|news| news.reason == "ExpiresSoon").count(), 1);
    assert!(world.run_claim("job").news.is_empty(), "told once");
    world.touch_claim("job", |claim| claim.spec.ttl = Some(SpanText("2h".into())));
    assert_eq!(
        condition(&world.run_claim("job"), "Expiring").0,
        Verdict::False,
        "raised while bound"
    );
    world.pass_time(3600 + 300);
    let machine = world.view.machines[0].name_any();
    let plan = world.run_claim("job");
    assert_eq!(condition(&plan, "Ready").1, "Expired");
    assert_eq!(deleted(&plan), [machine]);
    world.sweep();
    assert!(world.view.machines.is_empty(), "never returned to the pool");
    world.pass_time(24 * 3600 - 1);
    assert!(world.run_claim("job").steps.is_empty());
    world.pass_time(1);
    let plan = world.run_claim("job");
    assert_eq!(plan.steps[0].id().kind, Kind::MacOSMachineClaim);
}

#[test]
fn a_pending_claim_expires_its_ttl_after_it_was_made() {
    let mut world = World::new();
    world.claim("job", on_pool());
    let plan = world.run_claim("job");
    assert_eq!(
        plan.wake.map(|wake| wake.duration_since(world.now).as_secs()),
        Some(3300)
    );
    world.pass_time(3600);
    assert_eq!(condition(&world.run_claim("job"), "Ready").1, "Expired");
}

#[test]
fn a_ttl_is_bounded_and_one_that_cannot_be_read_is_said() {
    let table = [
        (None, 7200, false),
        (Some("30m"), 1800, false),
        (Some("48h"), 86_400, false),
        (Some("1d"), 7200, true),
        (Some("1s"), 7200, true),
    ];
    for (ttl, seconds, said) in table {
        let mut world = World::new();
        world.claim("job", json!({"poolName": "ci", "ttl": ttl}));
        let plan = world.run_claim("job");
        let end = world
            .find_claim("job")
            .status
            .and_then(|s| s.expires_at)
            .expect("an end")
            .0;
        assert_eq!(end.duration_since(world.now).as_secs(), seconds, "{ttl:?}");
        let told = plan.news.iter().any(|news| news.reason == "TtlUnreadable");
        assert_eq!(told, said, "{ttl:?}: {:?}", plan.news);
        assert!(
            !world
                .run_claim("job")
                .news
                .iter()
                .any(|news| news.reason == "TtlUnreadable"),
            "said once"
        );
    }
}

#[test]
fn while_the_platform_cannot_be_read_no_claim_expires() {
    let mut world = pool(1);
    world.claim("job", on_pool());
    world.run_claim("job");
    world.run_claim("job");
    world.platform = Seen::Unknown("gone fishing".into());
    world.pass_time(999_999);
    assert_eq!(condition(&world.run_claim("job"), "Ready").1, "Bound");
}

#[test]
fn while_lists_cannot_be_read_a_bound_claim_stays_as_it_is_and_a_waiting_one_says_why() {
    let mut world = pool(1);
    world.claim("job", on_pool());
    let mut facts = world.claim_facts("job", &world.view).expect("facts");
    facts.machines = Seen::Unknown("machines: forbidden".into());
    let plan = claim::decide(&facts, world.now);
    let (verdict, reason, message) = condition(&plan, "Ready");
    assert!(
        verdict == Verdict::Unknown && reason == "Unreadable" && message.contains("forbidden"),
        "{message}"
    );
    assert!(plan.steps.is_empty());
    world.run_claim("job");
    world.run_claim("job");
    let mut facts = world.claim_facts("job", &world.view).expect("facts");
    facts.machines = Seen::Unknown("machines: forbidden".into());
    world.pass_time(999_999);
    assert!(claim::decide(&facts, world.now).idle());
}

#[test]
fn a_machine_that_is_gone_or_failed_ends_its_claim_and_a_failed_one_stays_as_evidence() {
    let mut world = pool(2);
    for name in ["gone", "failed"] {
        world.claim(name, on_pool());
        world.pass_time(1);
        world.run_claim(name);
        world.run_claim(name);
    }
    let failed = world.view.machines[1].name_any();
    world.view.machines.remove(0);
    world.fail(&failed);
    let plan = world.run_claim("gone");
    let (_, reason, message) = condition(&plan, "Ready");
    assert!(reason == "Lost" && message.contains("is gone"), "{message}");
    let plan = world.run_claim("failed");
    let (_, reason, message) = condition(&plan, "Ready");
    assert!(reason == "Lost" && message.contains("the guest hung"), "{message}");
    assert!(plan.steps.is_empty());
    world.sweep();
    assert_eq!(world.view.machines.len(), 1, "evidence");
    world.view.claims.clear();
    world.sweep();
    assert!(world.view.machines.is_empty(), "until its claim is removed");
}

#[test]
fn a_machine_that_does_not_answer_keeps_its_claim_bound() {
    let mut world = pool(1);
    world.claim("job", on_pool());
    world.run_claim("job");
    world.run_claim("job");
    let (name, now) = (world.view.machines[0].name_any(), world.now);
    world.touch(&name, |m| {
        say(m, Verdict::Unknown, "NodeLost", "kvm-2 does not answer", now)
    });
    let plan = world.run_claim("job");
    let (verdict, reason, message) = condition(&plan, "Ready");
    assert!(
        verdict == Verdict::Unknown && reason == "MachineUnreachable" && message.contains("kvm-2"),
        "{message}"
    );
    assert_eq!(plan.status.expect("a status")["phase"], "Bound");
    assert!(plan.steps.is_empty());
}

#[test]
fn of_two_machines_that_name_one_claim_the_one_it_was_told_of_stays_else_the_older() {
    for told in [false, true] {
        let mut world = pool(2);
        world.claim("job", on_pool());
        let reference = {
            let claim = world.find_claim("job");
            serde_json::from_value(json!({"name": "job", "uid": claim.uid()})).expect("a reference")
        };
        let names: Vec<String> = world.view.machines.iter().map(|m| m.name_any()).collect();
        if told {
            let reference = Clone::clone(&reference);
            world.touch(&names[1], |m| m.spec.claim_ref = Some(reference));
            world.run_claim("job");
        }
        for name in &names {
            let reference = Clone::clone(&reference);
            world.touch(name, |m| m.spec.claim_ref = Some(reference));
        }
        let plan = world.run_claim("job");
        assert_eq!(deleted(&plan), [names[usize::from(!told)].clone()], "told: {told}");
    }
}

#[test]
fn a_claim_holds_its_machine_until_it_is_over_and_never_by_not_being_read() {
    let mut world = pool(1);
    world.claim("job", on_pool());
    world.run_claim("job");
    world.run_claim("job");
    let machine = world.view.machines[0].clone();
    let bound = world.find_claim("job");
    let verdicts = |claim: Seen<dockerios_api::MacOSMachineClaim>| {
        (
            claim::let_go(&machine, &claim),
            claim::orphaned(&machine, &claim).is_some(),
        )
    };
    assert_eq!(verdicts(Seen::Present(bound.clone())), (false, false), "bound");
    assert_eq!(verdicts(Seen::Unknown("x".into())), (false, false), "unreadable");
    assert_eq!(verdicts(Seen::Absent), (true, true), "absent");
    let mut other = bound.clone();
    other.metadata.uid = Some("another".into());
    assert_eq!(verdicts(Seen::Present(other)), (true, true), "made again");
    let mut going = bound.clone();
    going.metadata.deletion_timestamp = going.metadata.creation_timestamp.clone();
    assert_eq!(verdicts(Seen::Present(going)), (true, true), "being deleted");
    let mut pending = bound;
    pending.status.as_mut().expect("a status").machine_ref = None;
    assert_eq!(verdicts(Seen::Present(pending)), (true, false), "not told yet");
}
