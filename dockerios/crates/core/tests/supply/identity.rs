//! One pass over one identity.

use std::sync::Arc;

use dockerios_api::identity::{machine_identity::IdentityClaimRef, pool::IdentityReclaimPolicy};
use dockerios_core::{
    Guard, Kind, Plan, Seen, Step,
    decide::identity::{Carrier, Facts, NotTakeable, Standing, decide, give_back, standing, take, used},
    plan::{Refusal, RefusalCause},
};
use serde_json::{Value, json};

use crate::build::*;

pub fn pass(facts: &Facts) -> Plan {
    let plan = judged(decide(facts, now()));
    assert_eq!(
        plan.status, None,
        "an identity's status is only ever written at its resourceVersion"
    );
    plan
}

/// The one write of the status.
pub fn written(plan: &Plan) -> (Value, Option<Guard>) {
    match plan.steps.first() {
        Some(Step::ReplaceStatus(object, guard)) => (object.body["status"].clone(), guard.clone()),
        other => panic!("no status was written first: {other:?}"),
    }
}

fn carrier(uid: &str, stored: bool) -> Carrier {
    let machine = IdentityClaimRef {
        namespace: "team-a".into(),
        name: "mac-1".into(),
        uid: uid.into(),
    };
    Carrier {
        object: "VirtualMachine team-a/macs-mac-1".into(),
        machine: Some(machine),
        stored,
    }
}

fn unused(guard: Option<&Guard>) -> bool {
    matches!(guard, Some(Guard::IdentityUnused { .. }))
}

#[test]
fn a_new_identity_goes_on_only_after_a_proof_made_after_its_creation() {
    let (status, guard) = written(&pass(&facts(new_identity(1))));
    assert!(matches!(guard, Some(Guard::IdentityUnique { .. })), "{guard:?}");
    assert_eq!(said(&status, "Unique").1, "Unique");
    assert_eq!(status["phase"], "BuildingBootDisk");
}

#[test]
fn colliding_identities_are_both_kept_aside_and_name_each_other() {
    let (one, mut other) = (new_identity(1), new_identity(2));
    other["spec"]["mlb"] = one["spec"]["mlb"].clone();
    let fleet: Vec<_> = [&one, &other].map(|identity| Arc::new(typed(identity.clone()))).into();
    for (mine, its) in [(&one, &other), (&other, &one)] {
        let mut facts = facts(mine.clone());
        facts.fleet = Seen::Present(fleet.clone());
        let plan = pass(&facts);
        let (status, _) = written(&plan);
        assert_eq!(
            (said(&status, "Ready").1.as_str(), &status["phase"]),
            ("Collision", &json!("Quarantined"))
        );
        assert!(
            message(&status, "Ready").contains(its["metadata"]["name"].as_str().expect("name")),
            "{status}"
        );
        assert!(plan.wake.is_some(), "it looks again, since the other may be deleted");
    }
}

#[test]
fn values_collide_in_whatever_case_they_are_written() {
    let (one, mut other) = (new_identity(1), new_identity(2));
    other["spec"]["rom"] = one["spec"]["rom"].as_str().expect("a rom").to_lowercase().into();
    let mut facts = facts(one);
    facts.fleet = Seen::Present(vec![facts.identity.clone(), Arc::new(typed(other))]);
    assert!(message(&written(&pass(&facts)).0, "Unique").contains("has the same rom"));
}

#[test]
fn a_machine_s_identity_is_not_taken_from_it_for_a_collision_that_is_found_later() {
    let mut other = new_identity(2);
    let mut facts = facts(allocated(1, "A", true));
    other["spec"]["mlb"] = facts.identity.spec.mlb.clone().into();
    facts.machine = Seen::Present(Arc::new(machine("A")));
    facts.fleet = Seen::Present(vec![facts.identity.clone(), Arc::new(typed(other))]);
    let (status, _) = written(&pass(&facts));
    assert_eq!(
        (said(&status, "Ready").1, said(&status, "Unique").1),
        ("Allocated".into(), "Collision".into())
    );
}

#[test]
fn a_collision_that_is_over_is_not_said_any_more() {
    let collided = |mut identity: Value| {
        identity["status"]["conditions"][2] = condition("Unique", "False", "Collision");
        facts(identity)
    };
    let mut held = collided(allocated(1, "A", true));
    held.machine = Seen::Present(Arc::new(machine("A")));
    for mut facts in [held, collided(available(1))] {
        let (status, _) = written(&pass(&facts));
        assert_eq!(said(&status, "Unique"), ("True".into(), "Unique".into()), "{status}");
        // nothing is known of the others
        facts.fleet = Seen::Unknown("the list failed".into());
        if let Some(Step::ReplaceStatus(object, _)) = pass(&facts).steps.first() {
            assert_eq!(said(&object.body["status"], "Unique").1, "Collision");
        }
    }
}

#[test]
fn a_collision_that_only_the_consistent_list_showed_is_said_and_not_tried_in_a_loop() {
    let mut facts = facts(new_identity(1));
    let of = dockerios_core::Id::new(Kind::MachineIdentity, "", "x");
    let message = "MachineIdentity/c02other has the same mlb".to_owned();
    facts.refusal = Some(Refusal {
        of,
        cause: RefusalCause::Unproven,
        message,
    });
    let (status, _) = written(&pass(&facts));
    assert_eq!(said(&status, "Unique"), ("False".into(), "Collision".into()));
    assert!(status["uniqueAt"].is_null());
}

#[test]
fn an_identity_that_breaks_a_published_rule_is_kept_aside_with_the_rule() {
    let mut identity = new_identity(1);
    let mlb = identity["spec"]["mlb"].as_str().expect("an mlb").to_owned();
    let other = if mlb.ends_with('7') { "8" } else { "7" };
    identity["spec"]["mlb"] = format!("{}{other}", &mlb[..16]).into();
    let (status, _) = written(&pass(&facts(identity)));
    assert_eq!(said(&status, "Ready").1, "Invalid");
    assert!(message(&status, "Ready").contains("mlb"), "{status}");
}

#[test]
fn the_finalizer_comes_after_the_proof_and_before_the_bootdisk() {
    let mut identity = available(1);
    identity["metadata"]["finalizers"] = json!([]);
    let plan = pass(&facts(identity));
    assert!(
        matches!(plan.steps.as_slice(), [Step::AddFinalizer(..)]),
        "{:?}",
        plan.steps
    );
}

#[test]
fn a_taken_identity_names_its_machine_and_is_taken_only_where_it_was_free_with_the_proof() {
    let free = typed(available(1));
    let step = take(&free, &machine("A"), now()).expect("free");
    let Step::ReplaceStatus(object, guard) = &step else {
        panic!("{step:?}")
    };
    assert!(unused(guard.as_ref()) && object.meta("resourceVersion") == Some("7"));
    assert_eq!(object.body["status"]["claimRef"]["uid"], "A");
    assert!(object.body["status"]["usedAt"].is_null());
    assert_eq!(standing(&typed(object.body.clone())), Standing::Allocated);
    let taken = take(&typed(allocated(1, "A", false)), &machine("B"), now());
    assert!(matches!(taken, Err(NotTakeable::Taken(by)) if by.uid == "A"));
    let mut quarantined = available(1);
    quarantined["status"]["conditions"][1] = condition("Ready", "False", "QuarantinedByPolicy");
    assert!(matches!(
        take(&typed(quarantined), &machine("B"), now()),
        Err(NotTakeable::NotAvailable(_))
    ));
}

#[test]
fn what_becomes_of_an_identity_depends_on_its_use_and_the_policy() {
    for (was_used, policy, phase, reason, still_used) in [
        (
            false,
            IdentityReclaimPolicy::Quarantine,
            "Released",
            "Reclaiming",
            false,
        ),
        (false, IdentityReclaimPolicy::Delete, "Released", "Reclaiming", false),
        (true, IdentityReclaimPolicy::Recycle, "Released", "Reclaiming", false),
        (
            true,
            IdentityReclaimPolicy::Quarantine,
            "Quarantined",
            "QuarantinedByPolicy",
            true,
        ),
        (true, IdentityReclaimPolicy::Delete, "Released", "Reclaiming", true),
    ] {
        let step = give_back(&typed(allocated(1, "A", was_used)), policy, now());
        let plan = judged(Plan {
            steps: vec![step],
            ..Plan::default()
        });
        let (status, guard) = written(&plan);
        assert!(unused(guard.as_ref()) && status["claimRef"].is_null(), "{status}");
        assert_eq!(
            (status["phase"].as_str(), status["usedAt"].is_string()),
            (Some(phase), still_used),
            "{policy:?}"
        );
        assert_eq!(said(&status, "Ready").1, reason);
    }
}

#[test]
fn the_first_use_is_noted_once() {
    let first = used(&typed(allocated(1, "A", false)), now());
    let again = used(&typed(allocated(1, "A", true)), now());
    let at = |step: &Step| match step {
        Step::ReplaceStatus(object, None) => object.body["status"]["usedAt"].clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        (at(&first), at(&again)),
        (json!("2026-03-02T09:00:00Z"), json!("2026-03-01T12:00:00Z"))
    );
}

#[test]
fn a_machine_made_again_under_the_name_is_another_and_its_predecessor_s_identity_goes_by_policy() {
    let mut facts = facts(allocated(1, "A", true));
    facts.machine = Seen::Present(Arc::new(machine("B")));
    let (status, guard) = written(&pass(&facts));
    assert!(unused(guard.as_ref()));
    assert_eq!(
        (&status["phase"], &status["claimRef"]),
        (&json!("Quarantined"), &Value::Null)
    );
}

#[test]
fn a_machine_that_is_gone_frees_nothing_while_its_virtual_machine_runs() {
    let mut facts = facts(allocated(1, "A", true));
    facts.carriers = Seen::Present(vec![carrier("A", false)]);
    let (status, _) = written(&pass(&facts));
    assert_eq!(
        (said(&status, "Ready").1.as_str(), &status["claimRef"]["uid"]),
        ("StillRunning", &json!("A"))
    );
    assert!(
        message(&status, "Ready").contains("VirtualMachine team-a/macs-mac-1"),
        "{status}"
    );
}

#[test]
fn what_cannot_be_read_frees_nothing() {
    let unknown = || "the list failed".to_owned();
    let blind: [fn(&mut Facts, String); 3] = [
        |facts, why| facts.machine = Seen::Unknown(why),
        |facts, why| facts.carriers = Seen::Unknown(why),
        |facts, why| facts.pool = Seen::Unknown(why),
    ];
    for blind in blind {
        let mut facts = facts(allocated(1, "A", true));
        blind(&mut facts, unknown());
        let (status, _) = written(&pass(&facts));
        assert_eq!(said(&status, "Ready"), ("Unknown".into(), "Unreadable".into()));
        assert_eq!(status["claimRef"]["uid"], "A");
    }
}

#[test]
fn an_empty_uid_is_no_wildcard() {
    let mut facts = facts(allocated(1, "", true));
    facts.machine = Seen::Present(Arc::new(machine("B")));
    let (status, _) = written(&pass(&facts));
    assert_eq!(said(&status, "Ready").1, "Unreadable");
    assert_eq!(status["claimRef"]["uid"], "");
}

#[test]
fn a_machine_keeps_its_identity_over_restarts_and_a_lost_machine_status() {
    // neither the VirtualMachine nor the machine's own status is what holds it
    let mut facts = facts(allocated(1, "A", true));
    facts.machine = Seen::Present(Arc::new(machine("A")));
    for carriers in [vec![carrier("A", true)], Vec::new()] {
        facts.carriers = Seen::Present(carriers);
        let plan = pass(&facts);
        let kept = plan
            .steps
            .iter()
            .all(|step| matches!(step, Step::ReplaceStatus(o, None) if o.body["status"]["claimRef"]["uid"] == "A"));
        assert!(kept, "{:?}", plan.steps);
    }
}

/// As a backup restores it: metadata and values, no status.
fn restored() -> Value {
    let mut identity = available(1);
    identity["status"] = Value::Null;
    identity
}

#[test]
fn a_lost_status_is_rebuilt_from_the_objects_that_carry_the_identity_and_counts_as_used() {
    let mut facts = facts(restored());
    facts.carriers = Seen::Present(vec![carrier("A", true)]);
    let (status, _) = written(&pass(&facts));
    assert_eq!(
        (&status["phase"], &status["claimRef"]["uid"]),
        (&json!("Allocated"), &json!("A"))
    );
    assert!(status["usedAt"].is_string(), "unknown means that the policy applies");
}

#[test]
fn a_used_identity_whose_claim_ref_alone_was_lost_goes_back_to_the_machine_that_runs_with_it() {
    let mut forged = allocated(1, "A", true);
    let used = forged["status"]["usedAt"].clone();
    forged["status"]["claimRef"] = Value::Null;
    let mut facts = facts(forged);
    facts.carriers = Seen::Present(vec![carrier("A", true)]);
    let (status, _) = written(&pass(&facts));
    assert_eq!(
        (&status["phase"], &status["claimRef"]["uid"], &status["usedAt"]),
        (&json!("Allocated"), &json!("A"), &used)
    );
}

#[test]
fn a_lost_status_with_nothing_that_runs_goes_by_policy_and_is_never_deleted_for_it() {
    for (policy, reason) in [
        ("Recycle", "Reclaiming"),
        ("Quarantine", "QuarantinedByPolicy"),
        ("Delete", "QuarantinedByPolicy"),
    ] {
        let mut facts = facts(restored());
        facts.pool = Seen::Present(Arc::new(pool(policy)));
        let (status, guard) = written(&pass(&facts));
        assert!(unused(guard.as_ref()), "{policy}");
        assert_eq!(said(&status, "Ready").1, reason, "{policy}");
    }
    let mut blind = facts(restored());
    blind.pool = Seen::Unknown("the list failed".into());
    assert!(
        pass(&blind).steps.is_empty(),
        "saying anything would hide that the status was lost"
    );
}

/// Used, taken back, kept aside.
fn quarantined() -> Value {
    let mut identity = available(1);
    identity["status"]["phase"] = "Quarantined".into();
    identity["status"]["usedAt"] = "2026-03-01T12:00:00Z".into();
    identity["status"]["conditions"][1] = condition("Ready", "False", "QuarantinedByPolicy");
    identity
}

#[test]
fn quarantine_outlives_a_change_of_the_policy_and_ends_by_the_annotation_alone() {
    let mut recycling = facts(quarantined());
    recycling.pool = Seen::Present(Arc::new(pool("Recycle")));
    assert!(pass(&recycling).steps.is_empty());
    let mut annotated = quarantined();
    annotated["metadata"]["annotations"] = json!({"identity.dockerios.io/release": "true"});
    let (status, guard) = written(&pass(&facts(annotated)));
    assert!(unused(guard.as_ref()) && status["usedAt"].is_null(), "{status}");
    // released: the annotation goes before it can release it a second time
    let mut free = available(1);
    free["metadata"]["annotations"] = json!({"identity.dockerios.io/release": "true"});
    let plan = pass(&facts(free));
    assert!(matches!(plan.steps.as_slice(), [Step::Merge(..)]), "{:?}", plan.steps);
}

#[test]
fn a_used_identity_of_a_deleting_policy_is_deleted_in_that_very_version() {
    let mut released = quarantined();
    released["status"]["phase"] = "Released".into();
    released["status"]["conditions"][1] = condition("Ready", "False", "Reclaiming");
    let mut facts = facts(released);
    facts.pool = Seen::Present(Arc::new(pool("Delete")));
    let plan = pass(&facts);
    assert!(
        matches!(plan.steps.as_slice(), [Step::Delete(t)] if t.resource_version.is_some()),
        "{:?}",
        plan.steps
    );
}

#[test]
fn a_deleted_identity_waits_for_its_machine_then_for_its_volume_and_lets_go_with_the_proof() {
    let deleted = |mut identity: Value| {
        identity["metadata"]["deletionTimestamp"] = "2026-03-02T08:00:00Z".into();
        identity
    };
    let mut held = facts(deleted(allocated(1, "A", true)));
    held.machine = Seen::Present(Arc::new(machine("A")));
    let (status, _) = written(&pass(&held));
    assert_eq!(
        (said(&status, "Ready").1.as_str(), &status["claimRef"]["uid"]),
        ("Deleting", &json!("A"))
    );

    let plan = pass(&facts(deleted(available(1))));
    assert!(matches!(plan.steps.as_slice(), [Step::Delete(t)] if t.id.kind == Kind::PersistentVolumeClaim));

    let mut empty = facts(deleted(available(1)));
    empty.volume = Seen::Absent;
    let plan = pass(&empty);
    assert!(matches!(plan.steps.as_slice(), [Step::RemoveFinalizer(.., guard)] if unused(guard.as_ref())));
    empty.volume = Seen::Unknown("the list failed".into());
    assert!(
        !pass(&empty)
            .steps
            .iter()
            .any(|step| matches!(step, Step::RemoveFinalizer(..)))
    );
}

#[test]
fn an_identity_whose_pool_is_gone_is_kept_and_given_to_nobody() {
    let mut facts = facts(available(1));
    facts.pool = Seen::Absent;
    let (status, _) = written(&pass(&facts));
    assert_eq!(said(&status, "Ready"), ("False".into(), "PoolNotFound".into()));
}

#[test]
fn an_available_identity_that_nothing_happened_to_is_left_alone() {
    let mut identity = available(1);
    let plan = pass(&facts(identity.clone()));
    if let Some(Step::ReplaceStatus(object, _)) = plan.steps.first() {
        identity = object.body.clone();
    }
    assert!(pass(&facts(identity)).idle());
}
