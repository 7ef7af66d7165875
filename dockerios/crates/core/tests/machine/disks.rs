//! How disks come, how that is told, and what becomes of one that is gone.

use dockerios_api::machine::macos_machine::{Disk, MachinePhase as Phase};
use serde_json::{Value, json};

use crate::world::{BOOT, SYSTEM, UID, VM, World};

#[test]
fn a_clone_has_a_deadline_of_its_own_and_waiting_for_a_node_is_not_cloning() {
    let clone = |phase: &str| {
        let mut world = World::new();
        world.settle();
        world.edit("MacOSMachineClass", "mac", |class| {
            class["spec"]["cloneTimeout"] = "45m".into()
        });
        let status = json!({"phase": phase, "progress": "12.5%", "conditions":
            [{"type": "Bound", "status": "False", "reason": "ErrExceededQuota",
                "message": format!("exceeded quota: {}", "many words ".repeat(200))}]});
        world.edit("DataVolume", SYSTEM, |volume| volume["status"] = status);
        world.settle();
        assert!(
            world.message("DiskCloned").contains("exceeded quota"),
            "{}",
            world.message("DiskCloned")
        );
        world.wait(45 * 60 - 1);
        world.pass(usize::MAX);
        if phase == "CSICloneInProgress" {
            assert_eq!(world.phase(), Phase::Cloning, "within the cloneTimeout of its class");
        }
        world.wait(2);
        world.pass(usize::MAX);
        world
    };
    let world = clone("CSICloneInProgress");
    assert_eq!(
        (world.phase(), world.reason("Ready")),
        (Phase::Failed, "CloneTimeout".into())
    );
    let told = world.message("Ready");
    assert!(told.contains("2700s") && told.contains("12.5%"), "{told}");
    assert!(
        told.contains("See the DataVolume"),
        "the way out is not cut off: {told}"
    );
    assert!(
        world.news.iter().any(|news| news.starts_with("CloneTimeout")),
        "{:?}",
        world.news
    );
    for waits in ["WaitForFirstConsumer", "PendingPopulation"] {
        assert_ne!(clone(waits).reason("Ready"), "CloneTimeout", "{waits}");
    }
}

#[test]
fn a_clone_that_reports_an_error_is_begun_anew_once() {
    let mut world = World::new();
    world.settle();
    let fail = |world: &mut World| {
        let now = world.now.to_string();
        let status = json!({"phase": "CloneScheduled", "conditions": [{"type": "Running", "status": "False",
            "reason": "Error", "message": "token is expired", "lastTransitionTime": now}]});
        world.edit("DataVolume", SYSTEM, |volume| volume["status"] = status);
    };
    fail(&mut world);
    world.settle();
    world.done.clear();
    world.wait(301);
    world.settle();
    let step = |verb: &str| format!("{verb} DataVolume {SYSTEM}");
    assert!(
        world.done.contains(&step("delete")) && world.done.contains(&step("create")),
        "{:?}",
        world.done
    );
    assert_eq!(world.names("DataVolume").len(), 2);
    fail(&mut world);
    world.done.clear();
    world.wait(301);
    world.settle();
    assert!(world.done.is_empty(), "once: {:?}", world.done);
}

#[test]
fn a_volume_that_is_gone_is_lost_and_never_cloned_again() {
    for powered in ["Running", "Stopped"] {
        let mut world = World::ready();
        if powered == "Stopped" {
            crate::lives::power(&mut world, powered);
            world.settle();
            world.wait(61);
            world.settle();
            world.instance("Succeeded");
            world.settle();
            world.settle();
        }
        world.done.clear();
        world.remove("DataVolume", SYSTEM);
        world.remove("PersistentVolumeClaim", SYSTEM);
        crate::lives::power(&mut world, "Running");
        world.settle();
        assert_eq!(
            (world.reason("DiskCloned"), world.done.len()),
            ("VolumeLost".into(), 0),
            "{:?}",
            world.done
        );
        world.wait(61);
        world.pass(usize::MAX);
        assert_eq!(
            (world.phase(), world.reason("Ready")),
            (Phase::Failed, "VolumeLost".into())
        );
        assert!(
            !world.done.iter().any(|step| step.starts_with("create")),
            "{:?}",
            world.done
        );
    }
    let mut world = World::ready();
    world.edit("PersistentVolumeClaim", SYSTEM, |claim| {
        claim["status"]["phase"] = json!("Lost")
    });
    world.settle();
    world.wait(61);
    world.pass(usize::MAX);
    assert_eq!(world.phase(), Phase::Failed);
}

#[test]
fn a_volume_that_was_made_again_after_the_machine_was_in_use_is_lost_and_not_booted() {
    // CDI made it anew: filled already, or still at it
    for phase in ["Bound", "Pending"] {
        let mut world = World::ready();
        world.wait(3600);
        world.report(true);
        world.settle();
        world.remove("PersistentVolumeClaim", SYSTEM);
        world.put(
            "PersistentVolumeClaim",
            json!({"metadata": {"name": SYSTEM, "namespace": "team-a", "labels": {"machine.dockerios.io/uid": UID}},
                "spec": {}, "status": {"phase": phase}}),
        );
        world.settle();
        assert_eq!(
            world.reason("DiskCloned"),
            "VolumeLost",
            "{phase}: {}",
            world.message("DiskCloned")
        );
        assert!(
            world.message("DiskCloned").contains("is another disk"),
            "{}",
            world.message("DiskCloned")
        );
        world.wait(61);
        world.pass(usize::MAX);
        assert_eq!(
            (world.phase(), world.reason("Ready")),
            (Phase::Failed, "VolumeLost".into()),
            "{phase}"
        );
    }
    // before anybody used it there was nothing to lose
    let mut world = World::new();
    world.settle();
    world.cloned();
    world.instance("Running");
    world.settle();
    world.wait(60);
    world.remove("PersistentVolumeClaim", SYSTEM);
    world.cloned();
    world.report(true);
    world.settle();
    assert_eq!(world.phase(), Phase::Ready, "{}", world.message("Ready"));
}

#[test]
fn a_volume_that_has_no_data_volume_and_is_not_bound_has_the_deadline_of_a_clone() {
    let mut world = World::new();
    world.settle();
    world.cloned();
    world.edit("PersistentVolumeClaim", SYSTEM, |claim| {
        claim["status"]["phase"] = json!("Pending")
    });
    world.remove("DataVolume", SYSTEM);
    world.settle();
    assert_eq!(world.phase(), Phase::Cloning);
    world.wait(30 * 60 + 1);
    world.pass(usize::MAX);
    assert_eq!(
        (world.phase(), world.reason("Ready")),
        (Phase::Failed, "CloneTimeout".into())
    );
}

#[test]
fn a_lost_virtual_machine_does_not_hide_that_its_disk_is_lost_too() {
    let mut world = World::ready();
    for (kind, name) in [
        ("VirtualMachine", VM),
        ("VirtualMachineInstance", VM),
        ("Pod", "launcher"),
        ("DataVolume", SYSTEM),
        ("PersistentVolumeClaim", SYSTEM),
    ] {
        world.remove(kind, name);
    }
    world.done.clear();
    world.settle();
    assert_eq!(
        (world.reason("DiskCloned"), world.done.len()),
        ("VolumeLost".into(), 0),
        "{:?}",
        world.done
    );
}

#[test]
fn a_machine_whose_disks_are_there_is_made_again_without_the_right_to_clone() {
    let mut world = World::ready();
    for (kind, name) in [
        ("VirtualMachine", VM),
        ("VirtualMachineInstance", VM),
        ("Pod", "launcher"),
    ] {
        world.remove(kind, name);
    }
    world.clone_right = dockerios_core::Seen::Present(false);
    world.settle();
    assert_eq!(
        world.reason("DiskCloned"),
        "Cloned",
        "what was cloned once stays known: nothing else tells that it can be lost"
    );
    assert_eq!(world.names("VirtualMachine"), [VM], "{}", world.message("Ready"));
}

#[test]
fn a_data_volume_that_was_collected_leaves_a_machine_that_goes_on_and_a_volume_that_goes_with_it() {
    let mut world = World::ready();
    let gone = |world: &mut World| {
        for name in world.names("DataVolume") {
            world.remove("DataVolume", &name);
        }
    };
    gone(&mut world);
    world.done.clear();
    world.wait(240);
    world.report(true);
    world.settle();
    assert_eq!(world.phase(), Phase::Ready, "{}", world.message("Ready"));
    assert!(world.done.is_empty(), "none is made again: {:?}", world.done);
    crate::lives::delete(&mut world);
    crate::lives::end(&mut world);
    assert!(
        world.names("PersistentVolumeClaim").is_empty(),
        "its volumes are deleted"
    );
    let volume = world
        .done
        .iter()
        .rposition(|step| step.starts_with("delete PersistentVolumeClaim"));
    let identity = world
        .done
        .iter()
        .rposition(|step| step.starts_with("replace MachineIdentity"));
    assert!(volume.is_some() && volume < identity, "{:?}", world.done);

    // collected before anybody saw that it had ended: bound and ours is cloned
    let mut world = World::new();
    world.settle();
    world.cloned();
    gone(&mut world);
    world.instance("Scheduling");
    world.settle();
    assert_eq!(world.reason("DiskCloned"), "Cloned");
    assert!(world.names("DataVolume").is_empty(), "none is made again");
}

/// A machine whose disks are there; the system disk's volume has these annotations.
fn cloned(notes: Value) -> World {
    let mut world = World::new();
    world.settle();
    world.cloned();
    world.edit("PersistentVolumeClaim", SYSTEM, |claim| {
        claim["metadata"]["annotations"] = notes
    });
    world.instance("Running");
    world.settle();
    world.settle();
    world
}

fn told(world: &World) -> Vec<&String> {
    world
        .news
        .iter()
        .filter(|news| news.starts_with("DiskCopied"))
        .collect()
}

#[test]
fn the_way_that_each_disk_was_really_made_stands_in_the_status_whatever_its_words_hold() {
    let why = "storage classes differ, sizes differ by copy, and more";
    for (notes, disk) in [
        (
            json!({"cdi.kubevirt.io/cloneType": "csi-clone"}),
            Some(("csi-clone", None)),
        ),
        (
            json!({"cdi.kubevirt.io/cloneType": "snapshot"}),
            Some(("snapshot", None)),
        ),
        (
            json!({"cdi.kubevirt.io/cloneType": "copy", "cdi.kubevirt.io/cloneFallbackReason": why}),
            Some(("copy", Some(why))),
        ),
        // a driver's clone whose reason speaks of copies is no copy
        (
            json!({"cdi.kubevirt.io/cloneType": "csi-clone", "cdi.kubevirt.io/cloneFallbackReason": "x, y by copy"}),
            Some(("csi-clone", Some("x, y by copy"))),
        ),
        (json!({}), None),
    ] {
        let world = cloned(notes.clone());
        let shown = world.status().disks.into_iter().find(|disk| disk.name == SYSTEM);
        let expected = disk.map(|(strategy, reason)| Disk {
            name: SYSTEM.into(),
            strategy: strategy.into(),
            fallback_reason: reason.map(Into::into),
        });
        assert_eq!(shown, expected, "{notes}");
        let copied = disk.is_some_and(|(strategy, _)| strategy == "copy");
        assert_eq!(told(&world).len(), usize::from(copied), "{notes}: {:?}", world.news);
        let boot = world.status().disks.into_iter().find(|disk| disk.name == BOOT);
        assert_eq!(boot.map(|disk| disk.strategy), Some("csi-clone".into()));
    }
}

#[test]
fn a_disk_that_was_copied_by_a_pod_is_told_once_with_the_way_out_and_one_that_the_driver_cloned_is_not() {
    let world = cloned(json!({"cdi.kubevirt.io/cloneType": "csi-clone"}));
    assert!(told(&world).is_empty(), "{:?}", world.news);
    assert!(
        world.message("DiskCloned").contains("by csi-clone"),
        "{}",
        world.message("DiskCloned")
    );
    let world = cloned(json!({"cdi.kubevirt.io/cloneType": "copy",
        "cdi.kubevirt.io/cloneFallbackReason": "storage classes differ"}));
    let [one] = told(&world)[..] else {
        panic!("{:?}", world.news)
    };
    for part in [
        SYSTEM,
        "by copy (storage classes differ)",
        "one storage class whose driver clones",
    ] {
        assert!(one.contains(part), "{one}");
    }
    assert!(!one.contains(BOOT), "what was cloned is not called copied: {one}");
}

#[test]
fn what_cdi_writes_on_a_volume_stays_within_the_bounds_of_the_status() {
    let long = "ü".repeat(10_000);
    let world = cloned(json!({"cdi.kubevirt.io/cloneType": long, "cdi.kubevirt.io/cloneFallbackReason": long}));
    let disk = world
        .status()
        .disks
        .into_iter()
        .find(|disk| disk.name == SYSTEM)
        .expect("it is told of");
    assert!(disk.strategy.len() <= 32 && disk.fallback_reason.is_some_and(|why| why.len() <= 256));
}
