use dockerios_core::{
    Seen,
    admit::identity::{Facts, PoolFacts, judge, judge_pool},
};
use serde_json::json;

use crate::things::{blind, broken, class, identity, image, pool, read, unseen};

fn facts() -> Facts {
    Facts {
        identity: identity(1),
        others: Seen::Present(vec![identity(2)]),
        pool: Seen::Present(pool("iMacPro1,1")),
    }
}

#[test]
fn each_value_exists_once_in_whatever_case_and_pool() {
    let plain = judge(&facts());
    assert!(plain.admits(), "{}", plain.reason());
    for field in ["mlb", "rom", "systemUUID", "macAddress"] {
        let mut double = serde_json::to_value(identity(2)).expect("JSON");
        let mine = serde_json::to_value(identity(1)).expect("JSON");
        double["spec"][field] = json!(mine["spec"][field].as_str().unwrap_or_default().to_lowercase());
        double["spec"]["poolName"] = json!("another");
        let mut asked = facts();
        asked.others = Seen::Present(vec![read(double)]);
        let verdict = judge(&asked);
        assert_eq!(broken(&verdict), ["identity-unique"], "{field}");
        let reason = verdict.reason();
        assert!(
            reason.contains(&format!("spec.{field}")) && reason.contains(&*identity(2).spec.serial.to_lowercase()),
            "{reason}"
        );
    }
}

#[test]
fn an_identity_is_no_double_of_itself() {
    let mut asked = facts();
    asked.others = Seen::Present(vec![identity(1)]);
    assert!(judge(&asked).admits());
}

#[test]
fn a_full_pool_a_pool_of_another_model_and_a_broken_value_are_refused() {
    let mut full = facts();
    full.others = Seen::Present(vec![identity(2), identity(3)]);
    assert_eq!(broken(&judge(&full)), ["identity-pool-full"]);
    let mut other = facts();
    other.pool = Seen::Present(pool("MacPro7,1"));
    assert_eq!(broken(&judge(&other)), ["identity-of-pool"]);
    let mut wrong = facts();
    wrong.identity.spec.mlb = "C02000000000000AA".into();
    wrong.identity.spec.mac_address = "02:00:5e:10:00:01".into();
    let verdict = judge(&wrong);
    assert_eq!(
        broken(&verdict),
        ["identity-valid", "identity-valid"],
        "every fault at once"
    );
    assert!(verdict.refusals.iter().all(|refusal| !refusal.way_out.is_empty()));
}

#[test]
fn without_the_others_or_the_pool_in_sight_none_is_admitted() {
    blind(
        &judge(&Facts {
            others: unseen(),
            ..facts()
        }),
        "the other identities",
    );
    blind(
        &judge(&Facts {
            pool: unseen(),
            ..facts()
        }),
        "IdentityPool macs",
    );
    assert!(
        judge(&Facts {
            pool: Seen::Absent,
            ..facts()
        })
        .admits(),
        "a pool may come later"
    );
}

#[test]
fn a_pool_of_a_model_that_cannot_be_made_is_refused_and_one_that_no_class_can_use_is_warned_of() {
    let mut per_machine = class();
    per_machine.spec.identity = read(json!({"type": "PerMachine", "perMachine": {"poolName": "macs"}}));
    let asked = |model: &str, version: &str| PoolFacts {
        pool: pool(model),
        classes: Seen::Present(vec![per_machine.clone(), class()]),
        images: Seen::Present(vec![image(version)]),
    };
    for model in ["iMac20,2", "iMacPro9,9", "imacpro1,1"] {
        let verdict = judge_pool(&asked(model, "14.5"));
        assert_eq!(broken(&verdict), ["identity-model"], "{model}");
        assert!(verdict.reason().contains("choose one of"), "{}", verdict.reason());
    }
    let late = judge_pool(&asked("iMacPro1,1", "26.0"));
    assert!(late.admits() && late.warnings.len() == 1, "{late:?}");
    assert!(
        late.warnings[0].contains("class c boots macOS 26.0, which iMacPro1,1 does not run"),
        "{late:?}"
    );
    assert!(judge_pool(&asked("MacPro7,1", "26.0")).warnings.is_empty());
    let mut cards = asked("MacPro7,1", "26.0");
    cards.pool.spec.boot_disk.template = dockerios_api::identity::pool::BootDiskTemplate::GPU;
    let unfit = judge_pool(&cards);
    assert!(
        unfit.admits() && unfit.warnings[0].contains("class c names this pool, and its machines do not fit"),
        "{unfit:?}"
    );
    let blinded = judge_pool(&PoolFacts {
        classes: unseen(),
        ..asked("iMacPro1,1", "26.0")
    });
    assert!(
        blinded.admits() && blinded.warnings[0].contains("cannot see the classes"),
        "{blinded:?}"
    );
}
