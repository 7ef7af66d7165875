//! What a machine waits for before anything is made, and in which order.

use std::collections::BTreeMap;

use dockerios_api::{MacOSMachine, machine::macos_machine::MachinePhase as Phase};
use dockerios_core::{
    Seen,
    decide::machine::{Capacity, Line, Waiter},
};
use serde_json::{Value, json};

use crate::world::{UID, World};

#[test]
fn each_gate_is_named_and_nothing_is_made_behind_it() {
    type Shut = (&'static str, &'static str, fn(&mut World));
    let rows: [Shut; 9] = [
        ("ClassNotFound", "create it", |w| w.remove("MacOSMachineClass", "mac")),
        ("NamespaceNotAllowed", "allowedNamespaces", |w| {
            w.edit("MacOSMachineClass", "mac", |c| {
                c["spec"]["allowedNamespaces"] = json!({"matchLabels": {"team": "b"}})
            });
        }),
        ("ImageNotReady", "does not exist", |w| w.remove("MacOSImage", "tahoe")),
        ("ImageNotReady", "not Ready yet", |w| {
            w.edit("MacOSImage", "tahoe", |i| i["status"] = Value::Null)
        }),
        ("PlatformNotReady", "create it", |w| {
            w.remove("PlatformConfig", "default")
        }),
        ("PlatformNotReady", "no virt-launcher image has been probed", |w| {
            w.edit("PlatformConfig", "default", |p| p["status"] = Value::Null);
        }),
        ("PlatformNotReady", "oskSecretRef", |w| {
            w.edit("PlatformConfig", "default", |p| p["spec"]["smc"] = Value::Null)
        }),
        ("PlatformNotReady", "no nvme device", |w| {
            w.edit("PlatformConfig", "default", |p| {
                p["status"]["launchers"][0]["nvme"] = json!("Missing")
            });
        }),
        ("Unreadable", "cannot be listed", |w| w.unreadable = vec!["MacOSImage"]),
    ];
    for (reason, told, shut) in rows {
        let mut world = World::new();
        shut(&mut world);
        world.settle();
        assert_eq!(
            (world.phase(), world.reason("Ready").as_str()),
            (Phase::Pending, reason),
            "{}",
            world.message("Ready")
        );
        assert!(world.message("Ready").contains(told), "{}", world.message("Ready"));
        assert!(
            !world.done.iter().any(|step| step.starts_with("create")),
            "{reason}: {:?}",
            world.done
        );
    }
}

#[test]
fn an_exhausted_pool_makes_it_wait_with_the_pools_numbers_and_mints_nothing() {
    let mut world = World::new();
    world.remove("MachineIdentity", "c02aaaaaaaa1");
    world.edit("IdentityPool", "imac", |pool| {
        pool["status"] = json!({"total": 5, "available": 0, "allocated": 5})
    });
    world.settle();
    assert_eq!(
        (world.phase(), world.reason("Ready")),
        (Phase::Pending, "IdentityExhausted".into())
    );
    let told = "pool imac has 0 of 5 identities available (5 allocated";
    assert!(world.news.iter().any(|news| news.contains(told)), "{:?}", world.news);
    assert!(
        world.plan().wake.is_some(),
        "its turn may come without a change that it would see"
    );
    world.wait(1_000_000);
    world.settle();
    assert_eq!(world.phase(), Phase::Pending, "never Failed");
    world.identity("C02AAAAAAAA9");
    world.settle();
    assert_eq!(world.phase(), Phase::Cloning);
}

#[test]
fn a_machine_made_again_under_the_name_does_not_get_the_others_identity() {
    let mut world = World::new();
    world.edit("MachineIdentity", "c02aaaaaaaa1", |identity| {
        identity["status"]["claimRef"] = json!({"namespace": "team-a", "name": "m", "uid": "A"});
    });
    world.settle();
    assert_eq!(world.reason("Ready"), "IdentityExhausted");
    world.edit("MachineIdentity", "c02aaaaaaaa1", |identity| {
        identity["status"]["claimRef"]["uid"] = json!("")
    });
    world.settle();
    assert_eq!(world.reason("Ready"), "IdentityExhausted", "an empty uid is nobody's");
}

pub const GI: u64 = 1 << 30;

pub fn waiter(uid: &str, age: i64, class: &str, gib: u64, pool: Option<&str>, begun: bool) -> Waiter {
    Waiter {
        uid: uid.into(),
        since: jiff::Timestamp::from_second(1_700_000_000 - age).expect("a time"),
        begun,
        held: None,
        disks: vec![(class.into(), gib * GI)],
        pool: pool.map(Into::into),
        gpu: None,
    }
}

/// A Shared machine of 100 GiB in `fast`, of which 20 % of 1000 GiB must stay free.
fn short(others: Vec<Waiter>, capacity: Seen<Capacity>) -> World {
    held(others, capacity, None)
}

/// The same, of a machine that was held back before in that storage class, or in none.
fn held(others: Vec<Waiter>, capacity: Seen<Capacity>, before: Option<&str>) -> World {
    let mut world = World::new();
    world.edit("MacOSMachineClass", "mac", |class| {
        class["spec"]["identity"] =
            json!({"type": "Shared", "shared": {"bootDiskImage": format!("r/b@sha256:{}", "0".repeat(64))}});
    });
    world.edit("PlatformConfig", "default", |platform| {
        platform["spec"]["storage"] = json!({"headroom": [{"storageClassName": "fast", "minFreePercent": 20, "source": {"csiCapacity": {}}}]});
    });
    let mut waiters = others;
    let own = waiter(UID, 0, "fast", 100, None, false);
    waiters.push(Waiter {
        held: before.map(Into::into),
        ..own
    });
    world.line = Some(Line {
        waiters: Seen::Present(waiters),
        identities: Seen::Present(Vec::new()),
        capacity: BTreeMap::from([("fast".to_owned(), capacity)]),
        strategy: BTreeMap::from([("fast".to_owned(), "copy".to_owned())]),
        cards: BTreeMap::new(),
    });
    world.settle();
    world
}

#[test]
fn room_is_what_is_free_less_what_is_being_made_and_who_came_first() {
    let free = |gib: u64| {
        Seen::Present(Capacity {
            free: gib * GI,
            total: 1000 * GI,
        })
    };
    let made = |gib| waiter("a", 100, "fast", gib, None, true);
    let older = |gib| waiter("b", 50, "fast", gib, None, false);
    let younger = waiter("c", -50, "fast", 500, None, false);
    let rows = [
        ("alone", vec![], free(300), "Sufficient"),
        (
            "alone, one byte too little",
            vec![],
            Seen::Present(Capacity {
                free: 300 * GI - 1,
                total: 1000 * GI,
            }),
            "BelowThreshold",
        ),
        ("one is being made", vec![made(100)], free(399), "BelowThreshold"),
        (
            "one is being made, and there is room",
            vec![made(100)],
            free(400),
            "Sufficient",
        ),
        (
            "an older one takes its part first",
            vec![older(100)],
            free(399),
            "BelowThreshold",
        ),
        ("a younger one does not", vec![younger], free(300), "Sufficient"),
        (
            "an older one that does not fit is not overtaken",
            vec![older(500)],
            free(350),
            "BelowThreshold",
        ),
        (
            "another storage class is another matter",
            vec![waiter("d", 50, "slow", 500, None, false)],
            free(300),
            "Sufficient",
        ),
        (
            "not known",
            vec![],
            Seen::Unknown("the query timed out".into()),
            "CapacityUnknown",
        ),
        ("not told", vec![], Seen::Absent, "CapacityUnknown"),
    ];
    for (name, others, capacity, reason) in rows {
        let world = short(others, capacity);
        assert_eq!(
            world.reason("StorageHeadroom"),
            reason,
            "{name}: {}",
            world.message("StorageHeadroom")
        );
        let made = world.names("DataVolume").len();
        assert_eq!(made, usize::from(reason == "Sufficient"), "{name}");
    }
}

#[test]
fn a_class_that_was_closed_opens_again_two_points_above_its_threshold() {
    let free = |gib: u64| {
        Seen::Present(Capacity {
            free: gib * GI,
            total: 1000 * GI,
        })
    };
    // 100 GiB of its own, 20 % that must stay free, 2 % more for who was held back
    for (gib, before, reason) in [
        (300, None, "Sufficient"),
        (300, Some("fast"), "BelowThreshold"),
        (319, Some("fast"), "BelowThreshold"),
        (320, Some("fast"), "Sufficient"),
        // it waited for room elsewhere, and its class names another storage class now
        (300, Some("slow"), "Sufficient"),
        (299, Some("slow"), "BelowThreshold"),
    ] {
        let world = held(vec![], free(gib), before);
        assert_eq!(
            world.reason("StorageHeadroom"),
            reason,
            "{gib} GiB free, held back before in: {before:?}"
        );
    }
    // nobody younger slips in below it
    let older = Waiter {
        held: Some("fast".into()),
        ..waiter("b", 50, "fast", 100, None, false)
    };
    let world = short(vec![older], free(310));
    assert_eq!(world.reason("StorageHeadroom"), "BelowThreshold");
}

#[test]
fn who_was_held_back_is_told_from_who_asks_for_the_first_time() {
    let world = short(
        vec![],
        Seen::Present(Capacity {
            free: 250 * GI,
            total: 1000 * GI,
        }),
    );
    assert_eq!(world.reason("StorageHeadroom"), "BelowThreshold");
    let class = world.get("MacOSMachineClass", "mac").expect("the class");
    let class = serde_json::from_value(class.clone()).expect("a class");
    let mut machine = world.machine();
    let stands = |machine: &MacOSMachine| Waiter::of(machine, Some(&class), false).expect("it stands in the line");
    assert_eq!(stands(&machine).held.as_deref(), Some("fast"));
    machine.status = None;
    assert_eq!(stands(&machine).held, None);
}

#[test]
fn room_is_reserved_where_the_disks_are_made_and_no_more_once_they_are_filled() {
    let mut world = World::new();
    // the masters of its bootdisks are kept elsewhere
    world.edit("IdentityPool", "imac", |pool| {
        pool["spec"]["bootDisk"]["storageClassName"] = json!("masters");
    });
    let disks = |world: &World| {
        let class = world.get("MacOSMachineClass", "mac").expect("the class");
        let class = serde_json::from_value(class.clone()).expect("a class");
        let stands = Waiter::of(&world.machine(), Some(&class), true);
        stands.map(|waiter| waiter.disks)
    };
    world.bring_to_ready();
    let made: Vec<_> = world.names("DataVolume");
    let home =
        |name: &String| world.get("DataVolume", name).expect("made")["spec"]["storage"]["storageClassName"].clone();
    assert_eq!(
        made.iter().map(home).collect::<Vec<_>>(),
        [json!("fast"), json!("fast")]
    );
    assert_eq!(disks(&world), None, "it is Ready");
    // its guest is silent: it stands in the line again, and its disks have what they take
    world.wait(181);
    world.settle();
    assert_eq!(world.phase(), Phase::Unknown);
    assert_eq!(disks(&world), Some(Vec::new()));
    world.edit("MacOSMachine", "m", |machine| machine["status"] = Value::Null);
    let both = vec![("fast".to_owned(), 100 * GI), ("fast".to_owned(), 384 << 20)];
    assert_eq!(disks(&world), Some(both));
}

#[test]
fn a_class_stays_closed_while_its_capacity_is_not_known_and_open_once_it_let_the_machine_in() {
    let free = |gib: u64| {
        Seen::Present(Capacity {
            free: gib * GI,
            total: 1000 * GI,
        })
    };
    let tell = |world: &mut World, capacity: Seen<Capacity>| {
        let line = world.line.as_mut().expect("the line");
        line.capacity.insert("fast".to_owned(), capacity);
        world.settle();
        world.status().awaits_room_in.map(|class| class.to_string())
    };
    let mut world = short(vec![], free(250));
    assert_eq!(world.status().awaits_room_in.as_deref(), Some("fast"));
    let unknown = tell(&mut world, Seen::Unknown("the query timed out".into()));
    assert_eq!(world.reason("StorageHeadroom"), "CapacityUnknown");
    assert_eq!(unknown.as_deref(), Some("fast"), "what is not known opens nothing");
    crate::lives::power(&mut world, "Stopped");
    world.settle();
    assert_eq!(
        world.status().awaits_room_in,
        None,
        "who is to be off waits for no room"
    );
    crate::lives::power(&mut world, "Running");
    assert_eq!(tell(&mut world, free(250)).as_deref(), Some("fast"));
    assert_eq!(
        tell(&mut world, free(400)),
        None,
        "{}",
        world.message("StorageHeadroom")
    );
    assert_eq!(world.reason("StorageHeadroom"), "Sufficient");
}

#[test]
fn a_closed_class_says_its_threshold_and_at_what_it_opens_again() {
    let free = |gib: u64| {
        Seen::Present(Capacity {
            free: gib * GI,
            total: 1000 * GI,
        })
    };
    for (before, told) in [
        (
            None,
            "is below the 200.0 GiB (20 %) that must stay free; it opens again at 220.0 GiB (22 %)",
        ),
        (
            Some("fast"),
            "is below the 220.0 GiB (22 %) at which it opens again, closed as it was below its threshold of 200.0 GiB (20 %)",
        ),
    ] {
        let world = held(vec![], free(250), before);
        let message = world.message("StorageHeadroom");
        assert!(message.contains(told), "{message}");
    }
}

#[test]
fn the_event_about_room_has_both_numbers() {
    let world = short(
        vec![],
        Seen::Present(Capacity {
            free: 250 * GI,
            total: 1000 * GI,
        }),
    );
    let told = world
        .news
        .iter()
        .find(|news| news.starts_with("BelowThreshold"))
        .expect("an event");
    assert!(
        told.contains("250.0 GiB free") && told.contains("200.0 GiB (20 %) that must stay free"),
        "{told}"
    );
}

#[test]
fn a_phase_has_the_time_it_began_and_the_first_began_with_the_machine() {
    let mut world = World::new();
    world.edit("MacOSMachine", "m", |machine| {
        machine["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
    });
    world.remove("MacOSImage", "tahoe");
    let since = |world: &World| world.status().phase_since.expect("since when").0.to_string();
    world.settle();
    assert_eq!(
        (world.phase(), &*since(&world)),
        (Phase::Pending, "2026-01-01T00:00:00Z")
    );
    world.wait(100);
    world.settle();
    assert_eq!(&*since(&world), "2026-01-01T00:00:00Z", "it is in it still");
    let image = World::new().get("MacOSImage", "tahoe").cloned();
    world.put("MacOSImage", image.expect("the image"));
    world.settle();
    assert_eq!(world.phase(), Phase::Cloning);
    let cloning = world.status().phase_since.expect("since when").0;
    assert!(
        world.now.duration_since(cloning).as_secs() < 60,
        "{cloning} of {}",
        world.now
    );
}

#[test]
fn an_event_tells_how_the_guest_gets_its_system_disk() {
    for (bus, mode, told) in [
        ("nvme", "Native", "NVMe (Native, by libvirt itself)"),
        (
            "nvme",
            "Override",
            "NVMe (Override: QEMU's frontend of a SATA disk is replaced)",
        ),
        ("sata", "Native", "SATA, as its class says"),
    ] {
        let mut world = World::new();
        world.edit("MacOSMachineClass", "mac", |class| {
            class["spec"]["systemDisk"]["bus"] = json!(bus);
        });
        world.edit("PlatformConfig", "default", |platform| {
            platform["status"]["launchers"][0]["nvme"] = json!(mode);
        });
        world.settle();
        assert!(
            world.news.iter().any(|news| news.contains(told)),
            "{told}: {:?}",
            world.news
        );
    }
}

#[test]
fn the_kth_that_waits_takes_the_kth_identity() {
    let mut world = World::new();
    world.identity("C02AAAAAAAA2");
    world.others = vec![waiter("a", 100, "fast", 1, Some("imac"), false)];
    world.settle();
    assert_eq!(world.status().identity_ref.as_deref(), Some("c02aaaaaaaa2"));
    let mut world = World::new();
    world.others = vec![waiter("a", 100, "fast", 1, Some("imac"), false)];
    world.settle();
    assert_eq!(
        world.reason("Ready"),
        "IdentityExhausted",
        "the only one is the older machine's"
    );
}

#[test]
fn a_machine_that_is_to_be_off_is_not_made() {
    let mut world = World::new();
    crate::lives::power(&mut world, "Stopped");
    world.settle();
    assert_eq!(
        (world.phase(), world.done.len()),
        (Phase::Stopped, 1),
        "{:?}",
        world.done
    );
}

#[test]
fn a_nic_that_the_launcher_lacks_is_said_before_anything_is_made_and_one_that_it_has_is_given() {
    let mut world = World::new();
    world.edit("MacOSMachineClass", "mac", |class| {
        class["spec"]["network"] = json!({"model": "e1000-82545em"});
    });
    let has = |models: Value| move |platform: &mut Value| platform["status"]["launchers"][0]["nicModels"] = models;
    world.edit("PlatformConfig", "default", has(json!(["e1000", "virtio"])));
    world.settle();
    assert_eq!(
        (world.reason("Ready"), world.phase()),
        ("PlatformNotReady".to_owned(), Phase::Pending)
    );
    let said = world.message("Ready");
    assert!(
        said.contains("class mac wants the NIC e1000-82545em, which the QEMU of the virt-launcher image sha256:"),
        "{said}"
    );
    assert!(world.names("VirtualMachine").is_empty() && world.status().identity_ref.is_none());
    world.edit("PlatformConfig", "default", has(json!(["e1000", "e1000-82545em"])));
    world.settle();
    assert!(!world.names("VirtualMachine").is_empty(), "{}", world.message("Ready"));
}
