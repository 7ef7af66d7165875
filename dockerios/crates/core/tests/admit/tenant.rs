use dockerios_core::{
    Seen,
    admit::{
        LICENCE, SUNSET, image, machine,
        machine::{Asked, ClaimFacts, judge_claim},
        platform,
    },
};
use serde_json::json;

use crate::things::{self, blind, broken, claim, class, namespace, read, unseen};

fn asked(team: &str) -> Asked {
    let mut blue = class();
    blue.spec.allowed_namespaces = Some(read(json!({"matchLabels": {"team": "blue"}})));
    Asked {
        class: Seen::Present(blue),
        namespace: Seen::Present(namespace(team)),
    }
}

fn facts(old: Option<Option<&str>>, new: Option<&str>) -> ClaimFacts {
    ClaimFacts {
        claim: claim(new),
        old: old.map(claim),
        asked: asked("blue"),
        platform: Seen::Present(things::platform()),
    }
}

#[test]
fn a_class_is_for_the_namespaces_that_it_allows() {
    assert!(machine::judge(&things::machine(), &asked("blue")).admits());
    let verdict = machine::judge(&things::machine(), &asked("red"));
    assert_eq!(broken(&verdict), ["class-allows-namespace"]);
    assert!(
        verdict
            .reason()
            .starts_with("[class-allows-namespace] macosmachine red/m spec.machineClassName")
    );
    let open = Asked {
        class: Seen::Present(class()),
        namespace: unseen(),
    };
    assert!(
        machine::judge(&things::machine(), &open).admits(),
        "an open class needs no look at the namespace"
    );
    let later = Asked {
        class: Seen::Absent,
        namespace: Seen::Present(namespace("red")),
    };
    assert!(machine::judge(&things::machine(), &later).admits());
    blind(
        &machine::judge(
            &things::machine(),
            &Asked {
                class: unseen(),
                ..asked("blue")
            },
        ),
        "MacOSMachineClass c",
    );
    blind(
        &machine::judge(
            &things::machine(),
            &Asked {
                namespace: unseen(),
                ..asked("blue")
            },
        ),
        "the namespace's labels",
    );
    let gone = Asked {
        namespace: Seen::Absent,
        ..asked("blue")
    };
    assert!(
        machine::judge(&things::machine(), &gone).admits(),
        "nothing can be made in a namespace that is not there"
    );
}

#[test]
fn a_ttl_is_bounded_and_may_be_raised_but_never_lowered() {
    type Row<'a> = (Option<Option<&'a str>>, Option<&'a str>, &'a [&'a str]);
    let table: &[Row<'_>] = &[
        (None, None, &[]),
        (None, Some("60s"), &[]),
        (None, Some("59s"), &["ttl-bounds"]),
        (None, Some("8h"), &[]),
        (None, Some("8h1s"), &["ttl-bounds"]),
        (None, Some("1d"), &["ttl-bounds"]),
        (Some(Some("3h")), Some("3h"), &[]),
        (Some(Some("3h")), Some("180m"), &[]),
        (Some(Some("3h")), Some("4h"), &[]),
        (Some(Some("3h")), Some("2h59m"), &["ttl-never-lowered"]),
        (Some(Some("3h")), None, &["ttl-never-lowered"]),
        (Some(Some("1h")), None, &[]),
        (Some(None), Some("1h"), &["ttl-never-lowered"]),
        (Some(None), Some("3h"), &[]),
        (Some(Some("3h")), Some("9h"), &["ttl-bounds"]),
        // a maximum that was lowered since judges no claim that stays as it is
        (Some(Some("9h")), Some("9h"), &[]),
    ];
    for (old, new, expected) in table {
        let verdict = judge_claim(&facts(*old, *new));
        assert_eq!(broken(&verdict), *expected, "{old:?} → {new:?}: {}", verdict.reason());
    }
}

#[test]
fn without_a_platform_the_usual_limits_hold_and_without_sight_of_it_none_is_guessed() {
    let alone = |ttl| ClaimFacts {
        platform: Seen::Absent,
        ..facts(None, Some(ttl))
    };
    assert!(judge_claim(&alone("24h")).admits());
    assert_eq!(broken(&judge_claim(&alone("25h"))), ["ttl-bounds"]);
    blind(
        &judge_claim(&ClaimFacts {
            platform: unseen(),
            ..facts(None, Some("1h"))
        }),
        "PlatformConfig default",
    );
    assert!(
        judge_claim(&ClaimFacts {
            platform: unseen(),
            ..facts(None, None)
        })
        .admits(),
        "the default needs no look"
    );
}

#[test]
fn a_claim_that_is_changed_is_not_judged_by_its_class_again() {
    let mut raised = facts(Some(Some("1h")), Some("2h"));
    raised.asked = asked("red");
    assert!(judge_claim(&raised).admits());
    raised.old = None;
    assert_eq!(broken(&judge_claim(&raised)), ["class-allows-namespace"]);
}

#[test]
fn the_platform_says_the_licence_and_the_end_each_time_and_whom_a_change_hits() {
    let mut hit = class();
    hit.spec.gpu = read(json!({"deviceName": "amd.com/w6600"}));
    let judged = |platform| {
        platform::judge(&platform::Facts {
            platform,
            classes: Seen::Present(vec![hit.clone()]),
        })
    };
    let verdict = judged(things::platform());
    assert!(verdict.admits());
    assert_eq!(verdict.warnings[..2], [LICENCE, SUNSET]);
    assert!(
        verdict
            .warnings
            .iter()
            .any(|one| one.contains("lacks the card of class c")),
        "{verdict:?}"
    );
    let mut hookless = things::platform();
    hookless.spec.domain_hook = None;
    assert!(
        judged(hookless)
            .warnings
            .iter()
            .any(|one| one.contains("bus nvme of class c needs it"))
    );
    let mut short = things::platform();
    short.spec.claims.default_ttl = read(json!("59s"));
    assert_eq!(broken(&judged(short)), ["ttl-bounds"]);
}

#[test]
fn an_image_says_which_classes_it_does_not_fit() {
    let mut old = class();
    old.spec.cpu.model = "Penryn".into();
    old.spec.system_disk.size = "1Gi".into();
    old.spec.identity = read(json!({"type": "PerMachine", "perMachine": {"poolName": "macs"}}));
    let judged = |version| {
        image::judge(&image::Facts {
            image: things::image(version),
            classes: Seen::Present(vec![old.clone()]),
            pools: Seen::Present(vec![things::pool("iMacPro1,1")]),
        })
    };
    let verdict = judged("26.0");
    assert!(verdict.admits());
    for part in ["its CPU has no AVX2", "its disk is smaller", "whose last macOS is 15"] {
        assert!(
            verdict
                .warnings
                .iter()
                .any(|one| one.contains(part) && one.contains("class c")),
            "{part}: {verdict:?}"
        );
    }
    assert_eq!(judged("12.7").warnings.len(), 1, "the disk alone");
    assert_eq!(broken(&judged("27")), ["image-for-intel"]);
}
