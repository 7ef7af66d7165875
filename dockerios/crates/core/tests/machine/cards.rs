//! Machines with a card: one that finds none free waits with the count, and takes nothing meanwhile.

use std::collections::BTreeMap;

use dockerios_api::machine::macos_machine::MachinePhase as Phase;
use dockerios_core::{
    Seen,
    decide::machine::{Capacity, Cards, Line, Waiter},
};
use serde_json::json;

use crate::{
    waits::{GI, waiter},
    world::{UID, World},
};

#[test]
fn a_machine_with_a_card_takes_no_identity_of_a_pool_whose_bootdisks_lack_the_boot_args_of_one() {
    let mut world = with_card("Default");
    world.settle();
    assert_eq!(
        (world.reason("Ready"), world.phase()),
        ("PoolUnfit".to_owned(), Phase::Pending)
    );
    let said = world.message("Ready");
    for part in ["class mac", "pool imac", "template: GPU"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(world.names("VirtualMachine").is_empty() && world.status().identity_ref.is_none());
    // the pool changes, and it goes on
    world.edit("IdentityPool", "imac", |pool| {
        pool["spec"]["bootDisk"]["template"] = "GPU".into();
    });
    world.settle();
    assert_ne!(world.reason("Ready"), "PoolUnfit");
}

fn with_card(template: &str) -> World {
    let mut world = World::new();
    world.edit("IdentityPool", "imac", |pool| {
        pool["spec"]["bootDisk"]["template"] = template.into();
    });
    world.edit("MacOSMachineClass", "mac", |class| {
        class["spec"]["gpu"] = json!({"deviceName": CARD});
    });
    world.edit("PlatformConfig", "default", |platform| {
        platform["spec"]["permittedGPUs"] = json!([{"deviceName": CARD, "vendorReset": "NotNeeded"}]);
    });
    world.edit("MachineIdentity", "c02aaaaaaaa1", |identity| {
        identity["status"]["bootDisk"]["template"] = template.into();
    });
    world
}

/// A machine of a class with a card, two of which exist.
fn carded(others: Vec<Waiter>, cards: Seen<Cards>) -> World {
    let mut world = with_card("GPU");
    world.line = Some(line(others, cards));
    world.settle();
    world
}

const CARD: &str = "amd.com/polaris";

fn line(mut waiters: Vec<Waiter>, cards: Seen<Cards>) -> Line {
    waiters.push(Waiter {
        gpu: Some(CARD.into()),
        ..waiter(UID, 0, "fast", 1, Some("imac"), false)
    });
    let identities = with_card("GPU").facts().line.identities;
    Line {
        waiters: Seen::Present(waiters),
        identities,
        capacity: BTreeMap::new(),
        strategy: BTreeMap::new(),
        cards: BTreeMap::from([(CARD.to_owned(), cards)]),
    }
}

#[test]
fn a_machine_with_a_card_waits_with_the_count_while_none_is_free_and_takes_nothing_meanwhile() {
    let cards = |total, used| Seen::Present(Cards { total, used, shut: 0 });
    let other = |uid: &str, age: i64, begun: bool| Waiter {
        gpu: Some(CARD.into()),
        ..waiter(uid, age, "fast", 1, None, begun)
    };
    let shut = |total, used, shut| Seen::Present(Cards { total, used, shut });
    let free = "AllocatingIdentity";
    for (name, others, cards, reason, message) in [
        ("one of two is free", vec![], cards(2, 1), free, ""),
        (
            "both are taken",
            vec![],
            cards(2, 2),
            "NoCardFree",
            "0 of 2 cards amd.com/polaris are free, 2 are other",
        ),
        (
            "an older one comes first",
            vec![other("a", 50, false)],
            cards(2, 1),
            "NoCardFree",
            "0 of 2 cards",
        ),
        (
            "one that is being made has its card",
            vec![other("a", -50, true)],
            cards(2, 1),
            "NoCardFree",
            "0 of 2 cards",
        ),
        (
            "a younger one does not",
            vec![other("a", -50, false)],
            cards(2, 1),
            free,
            "",
        ),
        (
            "there is none at all",
            vec![],
            cards(0, 0),
            "NoCardFree",
            "no node offers a card amd.com/polaris",
        ),
        (
            "some are on nodes that take no machine",
            vec![],
            shut(1, 1, 2),
            "NoCardFree",
            "0 of 1 cards amd.com/polaris are free, 1 are other machines' (2 more are on nodes that are cordoned or not ready",
        ),
        (
            "all are",
            vec![],
            shut(0, 0, 2),
            "NoCardFree",
            "no node that takes machines offers a card amd.com/polaris; 2 are on nodes that are cordoned or not ready: uncordon",
        ),
        (
            "nodes cannot be seen",
            vec![],
            Seen::Unknown("forbidden".into()),
            "Unreadable",
            "forbidden",
        ),
    ] {
        let world = carded(others, cards);
        if reason == free {
            assert!(
                !world.names("VirtualMachine").is_empty(),
                "{name}: {}",
                world.message("Ready")
            );
            continue;
        }
        assert_eq!(
            (world.reason("Ready"), world.phase()),
            (reason.to_owned(), Phase::Pending),
            "{name}"
        );
        assert!(
            world.message("Ready").contains(message),
            "{name}: {}",
            world.message("Ready")
        );
        assert!(
            world.names("VirtualMachine").is_empty() && world.names("DataVolume").is_empty(),
            "{name}"
        );
        assert_eq!(
            world.status().identity_ref,
            None,
            "{name}: it took an identity and waits"
        );
    }
}

#[test]
fn a_machine_that_waits_for_a_card_or_an_identity_is_told_of_room_and_not_that_it_was_let_in() {
    let with_rule = |cards, identities: bool| {
        let mut world = with_card("GPU");
        world.edit("PlatformConfig", "default", |platform| {
            platform["spec"]["storage"] = json!({"headroom": [
                {"storageClassName": "fast", "minFreePercent": 20, "source": {"csiCapacity": {}}}]});
        });
        let mut line = line(vec![], Seen::Present(cards));
        let plenty = Capacity {
            free: 900 * GI,
            total: 1000 * GI,
        };
        line.capacity = BTreeMap::from([("fast".to_owned(), Seen::Present(plenty))]);
        if !identities {
            line.identities = Seen::Present(Vec::new());
        }
        world.line = Some(line);
        world.settle();
        (
            world.reason("Ready"),
            world.reason("StorageHeadroom"),
            world.message("StorageHeadroom"),
        )
    };
    let one = |used| Cards {
        total: 1,
        used,
        shut: 0,
    };
    for (cards, identities, waits, want) in [
        (one(1), true, "NoCardFree", "for want of a card"),
        (one(0), false, "IdentityExhausted", "for want of an identity"),
    ] {
        let (ready, reason, message) = with_rule(cards, identities);
        assert_eq!((ready.as_str(), reason.as_str()), (waits, "Sufficient"));
        assert!(
            message.contains("not let in yet") && message.contains(want) && !message.contains("was let in"),
            "{message}"
        );
    }
    let (_, _, message) = with_rule(one(0), true);
    assert!(message.contains("was let in"), "{message}");
}

/// One card, and nobody before the machine in the line.
fn one_card_is_free(world: &mut World) {
    let one = Cards {
        total: 1,
        used: 0,
        shut: 0,
    };
    world.line = Some(Line {
        identities: world.facts().line.identities,
        ..line(vec![], Seen::Present(one))
    });
}

#[test]
fn an_identity_that_was_built_before_its_pool_was_one_for_cards_is_not_given_to_a_machine_with_a_card() {
    let digest = format!("sha256:{}", "0".repeat(64));
    for (built, identity, said) in [
        ("0", None, "IdentityExhausted"),
        ("1", Some("c02aaaaaaaa1"), "AllocatingIdentity"),
    ] {
        let mut world = with_card("GPU");
        world.edit("PlatformConfig", "default", |platform| {
            platform["spec"]["bootDiskBuilder"] = json!({"image": format!("r/b@{digest}"),
                "template": {"image": format!("r/t@{digest}"), "sha256": "0".repeat(64)},
                "gpuTemplate": {"image": format!("r/g@{digest}"), "sha256": "1".repeat(64)}});
        });
        world.edit("MachineIdentity", "c02aaaaaaaa1", |identity| {
            identity["status"]["bootDisk"]["templateSha256"] = built.repeat(64).into();
        });
        one_card_is_free(&mut world);
        let before = world.done.len();
        // the finalizer, then the turn
        world.pass(usize::MAX);
        let plan = world.pass(usize::MAX);
        let taken = world.done[before..]
            .iter()
            .find_map(|step| step.strip_prefix("replace MachineIdentity "));
        assert_eq!(taken, identity, "built from {built}: {plan:#?}");
        assert_eq!(world.reason("Ready"), said, "{}", world.message("Ready"));
    }
    // while no builder is named, what was built says for what it is
    for (template, said) in [("Default", "IdentityExhausted"), ("GPU", "AllocatingIdentity")] {
        let mut world = with_card("GPU");
        world.edit("MachineIdentity", "c02aaaaaaaa1", |identity| {
            identity["status"]["bootDisk"]["template"] = template.into();
        });
        one_card_is_free(&mut world);
        world.pass(usize::MAX);
        world.pass(usize::MAX);
        assert_eq!(world.reason("Ready"), said, "{template}: {}", world.message("Ready"));
    }
    // and of a pool that cannot be read nobody knows what it is for
    let mut world = with_card("Default");
    world.unreadable = vec!["IdentityPool"];
    world.settle();
    assert_eq!(world.reason("Ready"), "Unreadable", "{}", world.message("Ready"));
    assert_eq!(world.phase(), Phase::Pending);
}
