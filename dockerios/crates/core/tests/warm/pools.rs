//! One pass over a pool.

use std::sync::Arc;

use dockerios_api::{
    Verdict,
    names::{POOL_UID, TEMPLATE_HASH},
    text::SpanText,
};
use dockerios_core::{
    Id, Kind, Seen,
    decide::pool::{self, BATCH},
    plan::{Refusal, RefusalCause},
};
use kube::ResourceExt;
use serde_json::json;

use crate::world::{World, condition, deleted, made};

fn world(replicas: i32, most: i32) -> World {
    let mut world = World::new();
    world.pool("ci", replicas, most);
    world
}

fn all_ready(world: &mut World) {
    for machine in world.view.machines.clone() {
        world.pass_time(1);
        world.ready(&machine.name_any());
    }
}

fn change_class(world: &mut World) {
    let mut class = world.view.class.present().expect("a class").as_ref().clone();
    class.spec.cpu.cores *= 2;
    world.view.class = Seen::Present(Arc::new(class));
}

#[test]
fn machines_are_made_with_owner_labels_and_hash_until_they_are_enough() {
    let mut world = world(3, 12);
    let plan = world.run_pool("ci");
    assert_eq!(made(&plan), [None, None, None]);
    assert_eq!(condition(&plan, "Ready").1, "Warming");
    let machine = world.view.machines[0].clone();
    let pool = world.find_pool("ci");
    assert!(machine.name_any().starts_with("ci-"));
    assert_eq!(machine.labels().get(POOL_UID), pool.metadata.uid.as_ref());
    let hash = pool::template_hash(world.view.class.present().expect("a class"));
    assert_eq!(machine.labels().get(TEMPLATE_HASH), Some(&hash));
    assert_eq!(Some(&machine.owner_references()[0].uid), pool.metadata.uid.as_ref());
    assert!(world.run_pool("ci").steps.is_empty());
    all_ready(&mut world);
    let plan = world.run_pool("ci");
    let (verdict, reason, message) = condition(&plan, "Ready");
    assert_eq!(
        (verdict, reason.as_str(), message.as_str()),
        (Verdict::True, "Warm", "3 of 3 warm")
    );
    let status = world.find_pool("ci").status.expect("a status");
    assert_eq!(
        (status.replicas, status.warm, status.claimed, status.waiting),
        (3, 3, 0, 0)
    );
    assert_eq!(
        status.selector,
        pool.uid()
            .map(|uid| format!("machine.dockerios.io/pool-uid={uid},machine.dockerios.io/claimed notin (true)"))
    );
}

#[test]
fn one_pass_makes_no_more_than_its_batch() {
    let mut world = world(50, 100);
    assert_eq!(made(&world.run_pool("ci")).len(), BATCH);
    assert_eq!(made(&world.run_pool("ci")).len(), BATCH);
    assert_eq!(made(&world.run_pool("ci")).len(), 50 - 2 * BATCH);
}

#[test]
fn a_claimed_machine_is_replaced_and_counted_and_max_machines_holds_over_all() {
    let mut world = world(2, 3);
    world.run_pool("ci");
    all_ready(&mut world);
    for name in ["a", "b"] {
        world.claim(name, json!({"poolName": "ci"}));
        world.pass_time(1);
        world.run_claim(name);
        world.run_claim(name);
    }
    let plan = world.run_pool("ci");
    assert_eq!(made(&plan).len(), 1, "2 claimed and 1 make 3");
    world.run_pool("ci");
    let plan = world.run_pool("ci");
    let (_, reason, message) = condition(&plan, "Ready");
    assert!(
        reason == "AtMaxMachines" && message.contains("raise maxMachines"),
        "{reason}: {message}"
    );
    assert_eq!(world.find_pool("ci").status.expect("a status").claimed, 2);
}

#[test]
fn claims_without_a_machine_come_before_the_stock() {
    let mut world = world(3, 4);
    for name in ["a", "b"] {
        world.claim(name, json!({"poolName": "ci"}));
        world.pass_time(1);
    }
    let plan = world.run_pool("ci");
    let uid = |name: &str| world.find_claim(name).uid();
    assert_eq!(made(&plan), [uid("a"), uid("b"), None, None]);
    assert_eq!(world.find_pool("ci").status.expect("a status").waiting, 2);
    assert_eq!(
        world.view.machines[0].owner_references().len(),
        0,
        "a claimed machine stays when the pool goes"
    );
}

#[test]
fn scaling_down_deletes_the_unready_first_then_the_youngest_in_the_version_seen() {
    let mut world = world(4, 12);
    for most in 1..=4 {
        world.touch_pool("ci", |pool| pool.spec.replicas = most);
        world.pass_time(1);
        world.run_pool("ci");
    }
    let names: Vec<String> = world.view.machines.iter().map(|m| m.name_any()).collect();
    for name in [0, 2, 3].map(|at| names[at].clone()) {
        world.ready(&name);
    }
    world.touch_pool("ci", |pool| pool.spec.replicas = 2);
    let plan = world.decide_pool("ci", &world.view);
    assert_eq!(deleted(&plan), [names[1].clone(), names[3].clone()]);
    // a machine that waiting claims are about to take is no surplus
    world.claim("job", json!({"poolName": "ci"}));
    assert_eq!(deleted(&world.decide_pool("ci", &world.view)).len(), 1);
}

#[test]
fn a_changed_class_rolls_a_third_of_the_warm_at_a_time_and_no_claimed_machine() {
    let mut world = world(6, 12);
    world.run_pool("ci");
    all_ready(&mut world);
    world.claim("job", json!({"poolName": "ci"}));
    world.run_claim("job");
    world.run_claim("job");
    world.run_pool("ci");
    all_ready(&mut world);
    change_class(&mut world);
    let claimed = world.machines_of(&world.find_claim("job"))[0].name_any();
    let mut rounds = 0;
    loop {
        let plan = world.run_pool("ci");
        let warm = world
            .view
            .machines
            .iter()
            .filter(|m| m.metadata.deletion_timestamp.is_none());
        let warm = warm
            .filter(|m| m.spec.claim_ref.is_none())
            .filter(|m| m.status.is_some())
            .count();
        assert!(warm >= 4, "{warm} warm");
        assert!(!deleted(&plan).contains(&claimed));
        if plan.steps.is_empty() {
            break;
        }
        assert!(matches!(
            condition(&plan, "Ready").1.as_str(),
            "Rolling" | "Warming" | "Warm"
        ));
        rounds += 1;
        assert!(rounds < 20, "{plan:?}");
        world.sweep();
        world.run_pool("ci");
        all_ready(&mut world);
    }
    let hash = pool::template_hash(world.view.class.present().expect("a class"));
    let old = world
        .view
        .machines
        .iter()
        .filter(|m| m.labels().get(TEMPLATE_HASH) != Some(&hash));
    assert_eq!(old.map(|m| m.name_any()).collect::<Vec<_>>(), [claimed]);
}

#[test]
fn who_may_use_a_class_and_how_long_is_waited_is_no_reason_to_roll() {
    let world = world(1, 1);
    let mut class = world.view.class.present().expect("a class").as_ref().clone();
    let before = pool::template_hash(&class);
    class.spec.allowed_namespaces = Some(dockerios_api::machine::class::NamespaceSelector::default());
    assert_eq!(pool::template_hash(&class), before);
    // nor is how long is waited for what
    class.spec.clone_timeout = SpanText("45m".into());
    class.spec.readiness_timeout = SpanText("25m".into());
    assert_eq!(pool::template_hash(&class), before);
    class.spec.memory.size = "16Gi".into();
    assert_ne!(pool::template_hash(&class), before);
}

#[test]
fn failing_machines_are_replaced_ever_more_slowly_and_three_are_kept() {
    let mut world = world(1, 12);
    let mut pauses = Vec::new();
    for _ in 0..9 {
        let plan = world.run_pool("ci");
        if let Some(wake) = plan.wake {
            assert!(made(&plan).is_empty(), "too early");
            let (verdict, reason, message) = condition(&plan, "Degraded");
            assert!(
                verdict == Verdict::True && reason == "MachinesFailing" && message.contains("the guest hung"),
                "{message}"
            );
            pauses.push(wake.duration_since(world.now).as_secs());
            world.now = wake;
            world.run_pool("ci");
        }
        let living = world
            .view
            .machines
            .iter()
            .find(|m| m.status.is_none())
            .expect("one was made")
            .name_any();
        world.pass_time(5);
        world.fail(&living);
        world.run_pool("ci");
        world.sweep();
        let failed = world.view.machines.len();
        assert!(failed <= 3, "{failed} kept");
    }
    assert_eq!(pauses[..3], [10, 30, 70], "{pauses:?}");
    assert!(pauses.is_sorted() && pauses.last() == Some(&600), "{pauses:?}");

    world.pass_time(600);
    world.run_pool("ci");
    let living = world
        .view
        .machines
        .iter()
        .find(|m| m.status.is_none())
        .expect("one was made")
        .name_any();
    world.pass_time(5);
    world.ready(&living);
    let plan = world.run_pool("ci");
    assert_eq!(condition(&plan, "Degraded").1, "AsExpected");
    assert_eq!(condition(&plan, "Ready").1, "Warm");
}

#[test]
fn machines_whose_qemu_lacks_a_device_are_not_replaced_in_vain_and_the_pool_names_it() {
    let mut world = world(3, 12);
    world.run_pool("ci");
    let failed: Vec<String> = world.view.machines.iter().map(|machine| machine.name_any()).collect();
    for name in &failed {
        world.fail(name);
        world.touch(name, |machine| {
            let failure = machine
                .status
                .as_mut()
                .and_then(|status| status.failure.as_mut())
                .expect("it failed");
            failure.reason = "DeviceMissing".into();
            failure.message = "the QEMU of r/l has no nvme device".into();
        });
    }
    for _ in 0..29 {
        world.pass_time(60);
        let plan = world.run_pool("ci");
        assert!(
            made(&plan).is_empty() && plan.wake.is_some(),
            "a device does not come by waiting"
        );
        let (verdict, reason, message) = condition(&plan, "Ready");
        assert_eq!((verdict, reason.as_str()), (Verdict::False, "MachinesFailing"));
        assert!(
            message.contains("no nvme device") && message.contains("once the failed ones are deleted"),
            "{message}"
        );
    }
    world.pass_time(60);
    assert_eq!(made(&world.run_pool("ci")).len(), 1, "one is tried now and then");
}

#[test]
fn a_pool_whose_failed_machines_were_deleted_makes_others_at_once() {
    let mut world = world(3, 12);
    world.run_pool("ci");
    for machine in world.view.machines.clone() {
        world.fail(&machine.name_any());
    }
    assert!(made(&world.run_pool("ci")).is_empty());
    world.view.machines.clear();
    assert_eq!(made(&world.run_pool("ci")).len(), 3);
}

#[test]
fn when_all_fail_at_once_one_is_tried_at_a_time() {
    let mut world = world(3, 12);
    world.run_pool("ci");
    for machine in world.view.machines.clone() {
        world.fail(&machine.name_any());
    }
    assert!(made(&world.run_pool("ci")).is_empty());
    world.pass_time(10);
    assert_eq!(made(&world.run_pool("ci")).len(), 1);
    world.pass_time(999);
    assert!(made(&world.run_pool("ci")).is_empty(), "the one on its way will show");
}

#[test]
fn a_machine_that_was_warm_and_fell_silent_keeps_no_pool_from_trying_again() {
    for claimed in [true, false] {
        let mut world = world(2, 12);
        world.run_pool("ci");
        let names: Vec<String> = world.view.machines.iter().map(|m| m.name_any()).collect();
        world.ready(&names[0]);
        if claimed {
            world.claim("job", json!({"poolName": "ci"}));
            world.run_claim("job");
            world.run_claim("job");
        }
        world.pass_time(60);
        world.fail(&names[1]);
        world.silence(&names[0]);
        world.pass_time(600);
        let plan = world.run_pool("ci");
        assert_eq!(made(&plan).len(), 1, "claimed: {claimed}, {plan:?}");
        world.pass_time(600);
        assert!(made(&world.run_pool("ci")).is_empty(), "the one on its way will show");
    }
}

#[test]
fn a_pool_says_which_of_its_machines_were_warm_and_do_not_answer() {
    let mut world = world(2, 12);
    world.run_pool("ci");
    all_ready(&mut world);
    let name = world.view.machines[0].name_any();
    world.silence(&name);
    let (verdict, reason, message) = condition(&world.run_pool("ci"), "Ready");
    assert_eq!((verdict, reason.as_str()), (Verdict::False, "Warming"));
    assert!(
        message.starts_with("1 of 2 warm, 0 on their way; 1 were warm and are not Ready now"),
        "{message}"
    );
    // and it is the first to go when there are too many
    world.touch_pool("ci", |pool| pool.spec.replicas = 3);
    world.run_pool("ci");
    world.touch_pool("ci", |pool| pool.spec.replicas = 2);
    assert_eq!(deleted(&world.run_pool("ci")), [name], "before one on its way");
}

#[test]
fn what_hinders_is_said_in_the_words_of_whoever_refused() {
    let mut world = world(1, 12);
    let mut facts = world.pool_facts("ci", &world.view).expect("facts");
    facts.refusal = Some(Refusal {
        of: Id::new(Kind::MacOSMachine, "team-a", ""),
        cause: RefusalCause::Forbidden,
        message: "exceeded quota: macs, used: 4".into(),
    });
    let plan = pool::decide(&facts, world.now);
    let (verdict, reason, message) = condition(&plan, "Ready");
    assert!(
        verdict == Verdict::False && reason == "CreationRefused" && message.contains("exceeded quota"),
        "{message}"
    );
    assert_eq!(made(&plan).len(), 1, "tried again when it is looked at again");
    world.view.class = Seen::Absent;
    let plan = world.decide_pool("ci", &world.view);
    assert_eq!(condition(&plan, "Ready").1, "ClassNotFound");
    assert!(plan.steps.is_empty());
}

#[test]
fn a_pool_that_is_deleted_makes_and_deletes_nothing_itself() {
    let mut world = world(2, 12);
    world.run_pool("ci");
    world.touch_pool("ci", |pool| {
        pool.spec.replicas = 5;
        pool.metadata.deletion_timestamp = pool.metadata.creation_timestamp.clone();
    });
    let plan = world.decide_pool("ci", &world.view);
    assert!(plan.steps.is_empty());
    assert_eq!(condition(&plan, "Ready").1, "Deleting");
}

#[test]
fn nothing_is_counted_from_lists_that_could_not_be_read() {
    let mut world = world(2, 12);
    world.run_pool("ci");
    world.run_pool("ci");
    for blind in 0..3 {
        let mut facts = world.pool_facts("ci", &world.view).expect("facts");
        match blind {
            0 => facts.machines = Seen::Unknown("machines: forbidden".into()),
            1 => facts.claims = Seen::Unknown("claims: forbidden".into()),
            _ => facts.pools = Seen::Unknown("pools: forbidden".into()),
        }
        let plan = pool::decide(&facts, world.now);
        assert!(plan.steps.is_empty(), "{plan:?}");
        let (verdict, reason, message) = condition(&plan, "Ready");
        assert!(
            verdict == Verdict::Unknown && reason == "Unreadable" && message.contains("forbidden"),
            "{message}"
        );
        assert_eq!(plan.status.expect("a status")["replicas"], 2, "the counts stay");
    }
    let mut facts = world.pool_facts("ci", &world.view).expect("facts");
    facts.class = Seen::Unknown("classes: forbidden".into());
    assert!(pool::decide(&facts, world.now).steps.is_empty());
}
