//! One pass over one pool.

use std::{collections::BTreeSet, sync::Arc};

use dockerios_api::{MacOSMachine, MachineIdentity};
use dockerios_core::{
    Kind, Plan, Seen, Step,
    decide::identity_pool::{BATCH, Facts, decide, mint},
};
use serde_json::{Value, json};

use crate::build::*;

fn facts(fleet: Vec<Value>) -> Facts {
    Facts {
        pool: Arc::new(pool("Quarantine")),
        fleet: Seen::Present(fleet.into_iter().map(|one| Arc::new(typed(one))).collect()),
        platform: Seen::Present(Arc::new(platform())),
        machines: Seen::Present(Vec::new()),
        seed: [9; 32],
    }
}

fn pass(facts: &Facts) -> (Plan, Value) {
    let plan = judged(decide(facts, now()));
    let status = plan.status.clone().unwrap_or_default();
    (plan, status)
}

fn minted(plan: &Plan) -> Vec<MachineIdentity> {
    let made = plan.steps.iter().filter_map(|step| match step {
        Step::Create(object) if object.kind == Kind::MachineIdentity => Some(typed(object.body.clone())),
        _ => None,
    });
    made.collect()
}

fn with_reason(seed: u8, reason: &str) -> Value {
    let mut identity = available(seed);
    identity["status"]["conditions"][1] = condition("Ready", "False", reason);
    identity
}

#[test]
fn what_is_missing_is_made_ahead_and_named_by_its_serial() {
    let (plan, status) = pass(&facts(vec![available(1), available(2)]));
    let made = minted(&plan);
    assert_eq!(made.len(), 3);
    for identity in &made {
        assert_eq!(identity.metadata.name, Some(identity.spec.serial.to_lowercase()));
        assert_eq!(
            (identity.spec.pool_name.0.as_str(), identity.spec.model.as_str()),
            ("imacpro", "iMacPro1,1")
        );
    }
    assert_eq!(said(&status, "Replenished"), ("False".into(), "Replenishing".into()));
    assert_eq!(said(&status, "Ready"), ("True".into(), "Available".into()));
}

#[test]
fn never_more_than_max_size_exist_and_quarantined_ones_count() {
    let fleet = (1..=6).map(|seed| with_reason(seed, "QuarantinedByPolicy")).collect();
    let (plan, status) = pass(&facts(fleet));
    assert_eq!(minted(&plan).len(), 2, "{status}");
    let fleet = (1..=8).map(|seed| with_reason(seed, "QuarantinedByPolicy")).collect();
    let (plan, status) = pass(&facts(fleet));
    assert!(minted(&plan).is_empty());
    assert_eq!(said(&status, "Available"), ("False".into(), "Quarantined".into()));
    assert_eq!(said(&status, "Replenished").1, "AtMaxSize");
}

#[test]
fn an_exhausted_pool_says_its_numbers_and_who_waits_and_mints_none() {
    let mut facts = facts((1..=8).map(|seed| allocated(seed, &format!("m{seed}"), true)).collect());
    let waits = json!({"metadata": {"name": "b-6", "namespace": "team-a"}, "spec": {"machineClassName": "c"},
        "status": {"conditions": [condition("IdentityAllocated", "False", "IdentityExhausted")]}});
    facts.machines = Seen::Present(vec![Arc::new(typed::<MacOSMachine>(waits))]);
    let (plan, status) = pass(&facts);
    assert!(minted(&plan).is_empty());
    assert_eq!(said(&status, "Ready"), ("False".into(), "Exhausted".into()));
    assert_eq!((&status["waiting"], &status["allocated"]), (&json!(1), &json!(8)));
    let message = message(&status, "Ready");
    assert!(
        message.contains("0 of 8") && message.contains("raise spec.maxSize"),
        "{message}"
    );
    assert!(
        plan.news.iter().any(|news| news.warning && news.reason == "Exhausted"),
        "{:?}",
        plan.news
    );
}

#[test]
fn nothing_is_minted_while_the_fleet_cannot_be_read() {
    let mut facts = facts(Vec::new());
    facts.fleet = Seen::Unknown("the first list has not arrived".into());
    let (plan, status) = pass(&facts);
    assert!(plan.steps.is_empty());
    assert_eq!(said(&status, "Ready"), ("Unknown".into(), "Unreadable".into()));
}

#[test]
fn a_broken_builder_does_not_fill_the_pool() {
    let (plan, status) = pass(&facts((1..=5).map(|seed| with_reason(seed, "BuildFailed")).collect()));
    assert!(minted(&plan).is_empty());
    assert_eq!(said(&status, "Replenished").1, "BuildsFailing");
}

#[test]
fn a_pass_mints_a_bounded_batch_and_comes_back_for_the_rest() {
    let mut facts = facts(Vec::new());
    let mut large = pool("Recycle");
    (large.spec.min_available, large.spec.max_size) = (200, 400);
    facts.pool = Arc::new(large);
    let (plan, _) = pass(&facts);
    assert_eq!(minted(&plan).len(), BATCH);
    assert!(plan.wake.is_some());
}

#[test]
fn a_batch_shares_no_value_with_the_fleet_in_whatever_case_and_whatever_pool_that_is() {
    let seed = [3; 32];
    let first = mint("iMacPro1,1", 12, &[], seed).made;
    // an identity of another pool, long retired, that has one value of what the generator says next
    let mut retired = new_identity(200);
    retired["spec"]["poolName"] = "another".into();
    retired["spec"]["systemUUID"] = first[3].system_uuid().to_lowercase().into();
    let fleet: Vec<Arc<MachineIdentity>> = vec![Arc::new(typed(retired))];
    let filled = mint("iMacPro1,1", 12, &fleet, seed);
    assert_eq!((filled.made.len(), filled.dropped.len()), (12, 1));
    assert!(filled.made.iter().all(|one| one.serial() != first[3].serial()));
    let mlbs: BTreeSet<_> = filled.made.iter().map(|one| one.mlb().to_owned()).collect();
    assert_eq!(mlbs.len(), 12);
}

#[test]
fn two_that_mint_the_same_batch_make_objects_of_the_same_names() {
    let name = |identity: &MachineIdentity| identity.metadata.name.clone();
    let [one, other] = [(); 2].map(|()| minted(&pass(&facts(Vec::new())).0));
    assert_eq!(
        one.iter().map(name).collect::<Vec<_>>(),
        other.iter().map(name).collect::<Vec<_>>()
    );
}

#[test]
fn a_model_that_has_no_identities_is_said_and_nothing_is_made() {
    let mut facts = facts(Vec::new());
    let mut odd = pool("Recycle");
    odd.spec.model = "MacBookPro16,4".into();
    facts.pool = Arc::new(odd);
    let (plan, status) = pass(&facts);
    assert!(minted(&plan).is_empty());
    assert_eq!(said(&status, "Ready").1, "ModelUnknown");
    assert!(message(&status, "Ready").contains("choose one of"), "{status}");
}

#[test]
fn a_pool_for_cards_names_the_template_that_is_missing() {
    let mut facts = facts((1..=5).map(new_identity).collect());
    let mut cards = pool("Recycle");
    cards.spec.boot_disk.template = dockerios_api::identity::pool::BootDiskTemplate::GPU;
    facts.pool = Arc::new(cards);
    let (_, status) = pass(&facts);
    assert_eq!(said(&status, "Ready").1, "TemplateMissing");
    assert!(
        message(&status, "Ready").contains("spec.bootDiskBuilder.gpuTemplate"),
        "{status}"
    );
}

#[test]
fn without_a_builder_the_pool_names_what_is_missing() {
    let mut facts = facts((1..=5).map(new_identity).collect());
    let mut bare = platform();
    bare.spec.boot_disk_builder = None;
    facts.platform = Seen::Present(Arc::new(bare));
    assert_eq!(said(&pass(&facts).1, "Ready").1, "BuilderMissing");
}
