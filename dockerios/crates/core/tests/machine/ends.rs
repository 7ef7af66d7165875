//! How a machine goes, and what must not go with it.

use dockerios_api::machine::macos_machine::MachinePhase as Phase;
use dockerios_core::Kind;
use serde_json::json;

use crate::{
    lives::{delete, end},
    world::{BOOT, SYSTEM, UID, VM, World},
};

#[test]
fn the_end_goes_guest_acpi_machine_volumes_configuration_identity_finalizer() {
    let mut world = World::ready();
    world.done.clear();
    delete(&mut world);
    world.settle();
    assert!(
        world.done.is_empty(),
        "the guest is asked first, by the status: {:?}",
        world.done
    );
    assert!(world.status().stop_requested_at.is_some());
    assert_eq!(world.reason("Ready"), "ShuttingDown");
    end(&mut world);
    let expected = [
        format!("merge VirtualMachine {VM}"),
        format!("delete VirtualMachine {VM}"),
        format!("delete DataVolume {BOOT}"),
        format!("delete DataVolume {SYSTEM}"),
        "delete Secret ".into(),
        "delete ConfigMap ".into(),
        "replace MachineIdentity c02aaaaaaaa1".into(),
        "delete Secret ".into(),
        "delete ConfigMap ".into(),
        "release MacOSMachine m".into(),
    ];
    assert_eq!(world.done, expected);
}

#[test]
fn a_guest_that_ignores_acpi_is_cut_off_by_kubevirt_alone_and_that_is_said() {
    let mut world = World::ready();
    world.done.clear();
    delete(&mut world);
    world.settle();
    world.wait(61);
    world.settle();
    world.wait(239);
    world.settle();
    assert_eq!(
        world.done,
        [format!("merge VirtualMachine {VM}")],
        "no volume and no pod is touched in the grace period"
    );
    world.instance("Failed");
    world.settle();
    world.settle();
    assert!(
        world.news.iter().any(|news| news.starts_with("UncleanShutdown")),
        "{:?}",
        world.news
    );
    assert!(world.get("MacOSMachine", "m").is_none());
}

#[test]
fn an_instance_that_outlives_its_grace_period_has_its_virtual_machine_deleted_and_says_so() {
    let mut world = World::ready();
    delete(&mut world);
    world.settle();
    world.wait(61);
    world.settle();
    world.done.clear();
    world.wait(240 + 59);
    world.settle();
    assert!(world.done.is_empty(), "{:?}", world.done);
    world.wait(2);
    world.settle();
    assert_eq!(world.done, [format!("delete VirtualMachine {VM}")]);
    assert_eq!(world.reason("Ready"), "WaitingForInstance");
}

#[test]
fn a_silent_guest_gets_no_window_of_its_own() {
    let mut world = World::ready();
    world.wait(600);
    world.done.clear();
    delete(&mut world);
    world.pass(usize::MAX);
    assert_eq!(world.done, [format!("merge VirtualMachine {VM}")]);
}

#[test]
fn a_retained_disk_stays_and_the_clone_of_the_bootdisk_does_not() {
    let mut world = World::new();
    world.edit("MacOSMachineClass", "mac", |class| {
        class["spec"]["systemDisk"]["reclaimPolicy"] = json!("Retain")
    });
    world.bring_to_ready();
    delete(&mut world);
    end(&mut world);
    assert!(world.get("MacOSMachine", "m").is_none());
    assert_eq!(
        (world.names("DataVolume"), world.names("PersistentVolumeClaim")),
        (vec![SYSTEM.into()], vec![SYSTEM.into()])
    );
    for kind in ["DataVolume", "PersistentVolumeClaim"] {
        assert_eq!(
            world.get(kind, SYSTEM).expect("kept")["metadata"]["labels"]["machine.dockerios.io/retained"],
            "true"
        );
    }
    assert!(
        world.news.iter().any(|news| news.starts_with("VolumeRetained")),
        "{:?}",
        world.news
    );
}

#[test]
fn a_disk_that_was_made_to_be_retained_stays_whatever_its_class_says_later() {
    let policy = |world: &mut World, policy: &str| {
        world.edit("MacOSMachineClass", "mac", |class| {
            class["spec"]["systemDisk"]["reclaimPolicy"] = json!(policy)
        });
    };
    for fails in [false, true] {
        let mut world = World::new();
        policy(&mut world, "Retain");
        world.bring_to_ready();
        if fails {
            world.instance("Failed");
            for _ in 0..6 {
                world.settle();
            }
            assert!(
                world.message("Ready").contains("but its disk, which is kept"),
                "{}",
                world.message("Ready")
            );
        }
        policy(&mut world, "Delete");
        delete(&mut world);
        end(&mut world);
        assert!(world.get("MacOSMachine", "m").is_none());
        assert_eq!(world.names("PersistentVolumeClaim"), [SYSTEM], "failed before: {fails}");
    }
    // one that was made to go stays once its class retains it
    let mut world = World::ready();
    policy(&mut world, "Retain");
    delete(&mut world);
    end(&mut world);
    assert_eq!(world.names("PersistentVolumeClaim"), [SYSTEM]);
}

#[test]
fn a_datavolume_that_cdi_removed_is_not_made_again_and_its_volume_is_removed_with_the_machine() {
    let mut world = World::ready();
    world.remove("DataVolume", SYSTEM);
    world.done.clear();
    world.settle();
    assert_eq!((world.phase(), world.done.len()), (Phase::Ready, 0));
    delete(&mut world);
    end(&mut world);
    assert!(
        world.done.contains(&format!("delete PersistentVolumeClaim {SYSTEM}")),
        "{:?}",
        world.done
    );
    assert!(world.get("MacOSMachine", "m").is_none());
}

fn claim(world: &mut World) {
    world.put(
        "MacOSMachineClaim",
        json!({"metadata": {"name": "c", "namespace": "team-a", "uid": "claim"},
        "spec": {"poolName": "ci"}, "status": {"machineRef": {"name": "m", "uid": UID}}}),
    );
    world.edit("MacOSMachine", "m", |machine| {
        machine["spec"]["claimRef"] = json!({"name": "c", "uid": "claim"})
    });
}

#[test]
fn a_claim_holds_its_machine_and_one_made_again_under_its_name_does_not() {
    let mut world = World::ready();
    claim(&mut world);
    world.done.clear();
    delete(&mut world);
    world.settle();
    assert_eq!((world.reason("Ready"), world.done.len()), ("HeldByClaim".into(), 0));
    world.unreadable = vec!["MacOSMachineClaim"];
    world.settle();
    assert_eq!((world.reason("Ready"), world.done.len()), ("Unreadable".into(), 0));
    world.unreadable.clear();
    world.edit("MacOSMachineClaim", "c", |claim| {
        claim["metadata"]["uid"] = json!("another")
    });
    world.settle();
    assert_eq!(world.reason("Ready"), "ShuttingDown");
}

#[test]
fn a_failed_machine_that_its_claim_still_holds_does_not_say_that_it_waits_for_an_identity() {
    let mut world = World::ready();
    world.instance("Failed");
    for _ in 0..6 {
        world.settle();
    }
    assert_eq!(world.reason("IdentityAllocated"), "GivenBack");
    claim(&mut world);
    delete(&mut world);
    world.settle();
    assert_eq!(world.reason("Ready"), "HeldByClaim");
    let said = world.message("IdentityAllocated");
    assert_eq!(world.reason("IdentityAllocated"), "GivenBack", "{said}");
}

#[test]
fn a_machine_whose_claim_is_gone_is_deleted_and_one_whose_claim_cannot_be_read_is_not() {
    let mut world = World::ready();
    claim(&mut world);
    world.settle();
    world.unreadable = vec!["MacOSMachineClaim"];
    assert!(world.plan().steps.is_empty());
    world.unreadable.clear();
    world.remove("MacOSMachineClaim", "c");
    world.pass(usize::MAX);
    assert!(world.machine().metadata.deletion_timestamp.is_some());
}

#[test]
fn what_cannot_be_read_frees_nothing_and_deletes_nothing() {
    for kind in [
        "VirtualMachine",
        "VirtualMachineInstance",
        "Pod",
        "DataVolume",
        "PersistentVolumeClaim",
        "MachineIdentity",
        "MacOSMachineClass",
    ] {
        let mut world = World::ready();
        delete(&mut world);
        world.settle();
        world.wait(61);
        world.settle();
        world.instance("Succeeded");
        world.unreadable = vec![kind];
        for _ in 0..5 {
            world.settle();
        }
        assert!(world.get("MacOSMachine", "m").is_some(), "{kind}");
        assert!(
            world.get("MachineIdentity", "c02aaaaaaaa1").expect("there")["status"]["claimRef"].is_object(),
            "{kind}"
        );
        assert_eq!(world.reason("Ready"), "Unreadable", "{kind}");
    }
}

#[test]
fn a_node_that_does_not_answer_frees_nothing_until_it_is_known_what_became_of_the_guest() {
    let mut world = World::ready();
    world.done.clear();
    let ready = |status: &str| json!({"conditions": [{"type": "Ready", "status": status}]});
    world.edit("Node", "n1", |node| node["status"] = ready("Unknown"));
    world.settle();
    assert_eq!(
        (world.phase(), world.reason("Ready")),
        (Phase::Unknown, "NodeLost".into())
    );
    let now = world.now.to_string();
    world.edit("Pod", "launcher", |pod| {
        pod["metadata"]["deletionTimestamp"] = now.into()
    });
    // KubeVirt gives an instance up whose node is silent; its guest may run on
    world.edit("VirtualMachineInstance", VM, |vmi| {
        vmi["status"]["phase"] = json!("Failed")
    });
    for _ in 0..30 {
        world.wait(60);
        world.settle();
    }
    assert_eq!(
        (world.phase(), world.done.len()),
        (Phase::Unknown, 0),
        "{:?}",
        world.done
    );
    world.edit("Node", "n1", |node| node["status"] = ready("True"));
    world.instance("Failed");
    world.settle();
    world.settle();
    assert_eq!(
        (world.phase(), world.reason("Ready")),
        (Phase::Failed, "InstanceFailed".into())
    );
    let released = world
        .done
        .iter()
        .filter(|step| step.contains("MachineIdentity"))
        .count();
    assert_eq!(released, 1, "given back exactly once: {:?}", world.done);
}

#[test]
fn a_drained_node_is_left_by_a_bare_machine_and_a_claim_is_waited_for() {
    let mut world = World::ready();
    world.edit("Node", "n1", |node| node["spec"]["unschedulable"] = json!(true));
    world.edit("VirtualMachineInstance", VM, |vmi| {
        vmi["status"]["evacuationNodeName"] = json!("n1")
    });
    let mut claimed = world.clone();
    world.settle();
    assert_eq!(
        (world.phase(), world.reason("Draining")),
        (Phase::Stopping, "Draining".into())
    );

    claim(&mut claimed);
    claimed.settle();
    assert_eq!(
        (claimed.phase(), claimed.reason("Draining")),
        (Phase::Ready, "WaitingForClaim".into())
    );
    let mut used_again = claimed.clone();
    claimed.wait(3601);
    claimed.report(true);
    claimed.settle();
    assert!(
        claimed.machine().metadata.deletion_timestamp.is_some(),
        "past the deadline it is stopped"
    );
    assert!(
        claimed.status().stop_requested_at.is_some(),
        "though its claim still stands"
    );

    used_again.wait(60);
    used_again.report(true);
    used_again.edit("Node", "n1", |node| node["spec"]["unschedulable"] = json!(false));
    used_again.settle();
    assert!(used_again.done.contains(&format!("cancel VirtualMachineInstance {VM}")));
    assert_eq!(
        (used_again.phase(), used_again.reason("Draining")),
        (Phase::Ready, "NotDraining".into())
    );
}

#[test]
fn a_drain_deadline_that_cannot_be_read_has_not_passed() {
    let mut world = World::ready();
    claim(&mut world);
    world.edit("Node", "n1", |node| node["spec"]["unschedulable"] = json!(true));
    world.edit("VirtualMachineInstance", VM, |vmi| {
        vmi["status"]["evacuationNodeName"] = json!("n1")
    });
    world.settle();
    world.wait(100_000);
    world.report(true);
    world.unreadable = vec!["PlatformConfig"];
    world.settle();
    assert_eq!(world.reason("Draining"), "WaitingForClaim");
    assert!(
        world.message("Draining").contains("cannot be read now"),
        "{}",
        world.message("Draining")
    );
    assert!(world.machine().metadata.deletion_timestamp.is_none() && world.plan().wake.is_some());
    world.unreadable.clear();
    world.settle();
    assert!(world.machine().metadata.deletion_timestamp.is_some(), "now it has");
}

#[test]
fn a_deleted_machine_that_its_claim_holds_leaves_a_drained_node_at_the_deadline_all_the_same() {
    let mut world = World::ready();
    claim(&mut world);
    delete(&mut world);
    world.settle();
    world.edit("VirtualMachineInstance", VM, |vmi| {
        vmi["status"]["evacuationNodeName"] = json!("n1")
    });
    world.edit("Node", "n1", |node| node["spec"]["unschedulable"] = json!(true));
    world.settle();
    assert_eq!(
        (world.reason("Ready"), world.reason("Draining")),
        ("HeldByClaim".into(), "WaitingForClaim".into())
    );
    world.wait(3601);
    world.settle();
    assert_eq!(world.reason("Ready"), "ShuttingDown");
    // its instance is down, and nothing marks the node any more
    world.remove("VirtualMachineInstance", VM);
    for pod in world.names("Pod") {
        world.remove("Pod", &pod);
    }
    world.settle();
    assert_eq!(
        world.names("MacOSMachine"),
        Vec::<String>::new(),
        "the claim does not hold what is left"
    );
}

#[test]
fn a_pod_on_a_cordoned_node_is_drained_before_kubevirt_takes_note_of_it() {
    let mut world = World::new();
    world.settle();
    world.cloned();
    world.instance("Scheduling");
    world.edit("Node", "n1", |node| node["spec"]["unschedulable"] = json!(true));
    world.settle();
    assert_eq!(world.reason("Draining"), "Draining");
}

#[test]
fn nothing_of_a_disk_is_touched_while_anything_of_the_virtual_machine_is_there() {
    let mut world = World::ready();
    delete(&mut world);
    world.settle();
    world.instance("Succeeded");
    world.done.clear();
    world.pass(usize::MAX);
    assert_eq!(
        world.done,
        [format!("delete VirtualMachine {VM}")],
        "and nothing with it"
    );
    let parts = [
        ("VirtualMachine", VM),
        ("VirtualMachineInstance", VM),
        ("Pod", "launcher"),
    ];
    for (kind, name) in parts {
        let steps = world.plan().steps;
        let others = steps
            .iter()
            .filter(|step| step.id().kind != Kind::VirtualMachineInstance);
        assert_eq!(others.count(), 0, "{kind} is still there: {steps:?}");
        world.remove(kind, name);
    }
    assert!(!world.plan().steps.is_empty(), "now the disks go");
}
