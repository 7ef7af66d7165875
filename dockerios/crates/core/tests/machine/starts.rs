//! What keeps a machine from starting: the launcher, the right to clone, a node; and what is never taken away for it.

use dockerios_api::machine::macos_machine::MachinePhase as Phase;
use dockerios_core::{
    Id, Kind, Seen,
    plan::{Refusal, RefusalCause},
};
use serde_json::{Value, json};

use crate::{
    lives::power,
    world::{VM, World},
};

/// A launcher of which PlatformConfig says that.
fn launcher(world: &mut World, status: &str, reason: &str, message: &str) {
    let condition = json!({"type": "LauncherCapable", "status": status, "reason": reason, "message": message,
        "lastTransitionTime": "2026-03-02T08:00:00Z"});
    world.edit("PlatformConfig", "default", |platform| {
        platform["status"]["conditions"] = json!([condition]);
    });
}

#[test]
fn a_launcher_without_a_device_starts_nothing_that_needs_it_and_the_machine_repeats_device_and_page() {
    let nvme = (
        "False",
        "NvmeMissing",
        "the QEMU of r/l has no nvme device; see docs/launcher.md",
    );
    let smc = (
        "False",
        "SmcMissing",
        "the QEMU of r/l has no isa-applesmc device; see docs/launcher.md",
    );
    let probing = ("Unknown", "NotProbed", "r/l is being probed");
    let unseen = ("Unknown", "Unreadable", "cannot see KubeVirt's own object now");
    for (bus, (status, reason, message), waits) in [
        ("nvme", nvme, true),
        // all that a SATA disk needs is there
        ("sata", nvme, false),
        ("nvme", smc, true),
        ("sata", smc, true),
        // a VirtualMachine is rendered once, for what its launcher can do
        ("nvme", probing, true),
        ("sata", probing, true),
        // what is known stays known
        ("nvme", unseen, false),
    ] {
        let mut world = World::new();
        launcher(&mut world, status, reason, message);
        world.edit("MacOSMachineClass", "mac", |class| {
            class["spec"]["systemDisk"]["bus"] = bus.into()
        });
        world.settle();
        let made = !world.names("VirtualMachine").is_empty();
        assert_eq!(made, !waits, "{bus}, {reason}: {}", world.message("Ready"));
        if waits {
            assert_eq!(
                (world.phase(), world.reason("Ready")),
                (Phase::Pending, "PlatformNotReady".into())
            );
            assert!(world.message("Ready").contains(message), "{}", world.message("Ready"));
            let event = world.news.iter().find(|news| news.starts_with("PlatformNotReady"));
            assert!(event.is_some_and(|event| event.contains(message)), "{:?}", world.news);
        }
    }
}

#[test]
fn a_stopped_machine_is_not_started_on_a_launcher_that_lost_what_it_was_made_for() {
    let mut world = stopped();
    launcher(
        &mut world,
        "False",
        "SmcMissing",
        "has no isa-applesmc device; see docs/launcher.md",
    );
    power(&mut world, "Running");
    world.settle();
    assert_eq!(
        (world.phase(), world.reason("Ready")),
        (Phase::Pending, "PlatformNotReady".into())
    );
    assert_eq!(
        world.get("VirtualMachine", VM).expect("there")["spec"]["runStrategy"],
        "Halted"
    );
    launcher(&mut world, "True", "Capable", "has both");
    world.settle();
    assert_eq!(
        world.get("VirtualMachine", VM).expect("there")["spec"]["runStrategy"],
        "Once"
    );
}

/// A machine that was Ready and is off.
fn stopped() -> World {
    let mut world = World::ready();
    power(&mut world, "Stopped");
    world.settle();
    world.wait(61);
    world.settle();
    world.instance("Succeeded");
    world.settle();
    world.settle();
    assert_eq!(world.phase(), Phase::Stopped);
    world
}

fn said(world: &mut World, condition: Value) {
    let mut condition = condition;
    condition["lastTransitionTime"] = world.now.to_string().into();
    world.edit("VirtualMachineInstance", VM, |vmi| {
        vmi["status"]["conditions"] = json!([condition])
    });
}

fn refused_by_qemu(world: &mut World, device: &str) {
    world.instance("Scheduled");
    said(
        world,
        json!({"type": "Synchronized", "status": "False", "reason": "Synchronizing with the Domain failed.",
            "message": format!("define failed: device model {device} unknown to this emulator {}", "y".repeat(3000))}),
    );
    world.edit("VirtualMachineInstance", VM, |vmi| {
        vmi["status"]["launcherContainerImageVersion"] = "r/other@sha256:1".into();
    });
}

#[test]
fn qemu_that_lacks_a_device_though_the_probe_found_it_is_the_machines_failure_and_is_tried_once() {
    for device in ["nvme", "isa-applesmc"] {
        let mut world = World::new();
        world.settle();
        world.cloned();
        world.settle();
        refused_by_qemu(&mut world, device);
        world.settle();
        assert_eq!(world.reason("InstanceRunning"), "DeviceMissing");
        world.done.clear();
        // what KubeVirt said is gone from the instance when it has given up
        world.edit("VirtualMachineInstance", VM, |vmi| {
            vmi["status"]["conditions"] = json!([])
        });
        world.wait(60);
        world.instance("Failed");
        for _ in 0..4 {
            world.settle();
        }
        assert_eq!(
            (world.phase(), world.reason("Ready")),
            (Phase::Failed, "DeviceMissing".into())
        );
        let told = world.status().failure.expect("it says why").message;
        for part in [
            format!("has no {device} device"),
            "docs/launcher.md".into(),
            "r/other@sha256:1".into(),
        ] {
            assert!(told.contains(&part), "{part}: {told}");
        }
        assert!(
            world.news.iter().any(|news| news.starts_with("DeviceMissing")),
            "{:?}",
            world.news
        );
        world.wait(1800);
        world.settle();
        let again = world
            .done
            .iter()
            .any(|step| step.starts_with("create") || step.starts_with("merge"));
        assert!(!again, "started again: {:?}", world.done);
    }
}

#[test]
fn a_machine_that_was_in_use_and_cannot_be_started_keeps_disk_and_identity_until_somebody_mends_it() {
    let mut world = stopped();
    power(&mut world, "Running");
    world.settle();
    refused_by_qemu(&mut world, "nvme");
    world.settle();
    world.instance("Failed");
    world.settle();
    assert_eq!(
        (world.phase(), world.reason("Ready")),
        (Phase::Stopped, "DeviceMissing".into())
    );
    assert!(
        world.message("Ready").contains("Disk and identity are kept"),
        "{}",
        world.message("Ready")
    );
    assert_eq!(world.names("PersistentVolumeClaim").len(), 2);
    assert!(world.plan().steps.is_empty(), "nothing is started again by itself");
    // the first start of a machine is another matter: nothing is on its disk
    let mut fresh = World::new();
    fresh.settle();
    fresh.cloned();
    fresh.settle();
    refused_by_qemu(&mut fresh, "nvme");
    fresh.settle();
    fresh.instance("Failed");
    fresh.settle();
    assert_eq!(fresh.phase(), Phase::Failed);
}

#[test]
fn only_a_machine_that_was_never_ready_is_given_up_for_want_of_a_node() {
    let unplaced = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": "0/3 nodes are available: 3 Insufficient memory"});
    let unschedulable = |world: &mut World| {
        world.instance("Scheduling");
        said(world, unplaced.clone());
        world.settle();
        world.wait(100_000);
        world.settle();
        (world.phase(), world.reason("Ready"))
    };
    let mut fresh = World::new();
    fresh.settle();
    fresh.cloned();
    fresh.settle();
    assert_eq!(unschedulable(&mut fresh), (Phase::Failed, "SchedulingTimeout".into()));

    let waits = (Phase::Starting, "Unschedulable".to_owned());
    let kept = |world: &World| {
        assert_eq!(world.names("PersistentVolumeClaim").len(), 2, "its disk is kept");
        assert!(
            world.message("Ready").contains("Insufficient memory"),
            "{}",
            world.message("Ready")
        );
    };
    let mut world = stopped();
    assert!(world.status().first_ready_at.is_some());
    power(&mut world, "Running");
    world.settle();
    assert_eq!(unschedulable(&mut world), waits);
    kept(&world);

    // an operator that kept no such mark wrote its status, and no identity knows of its use: its guest spoke once
    let mut world = stopped();
    world.edit("MachineIdentity", "c02aaaaaaaa1", |identity| {
        identity["status"]["usedAt"] = Value::Null
    });
    world.edit("MacOSMachine", "m", |machine| {
        machine["status"]["firstReadyAt"] = Value::Null;
        machine["status"]["phaseSince"] = Value::Null;
    });
    power(&mut world, "Running");
    world.settle();
    assert_eq!(unschedulable(&mut world), waits);
    kept(&world);

    // the status was lost meanwhile: the identity knows of its use
    let mut world = stopped();
    world.edit("MacOSMachine", "m", |machine| {
        machine["status"]["firstReadyAt"] = Value::Null
    });
    power(&mut world, "Running");
    world.settle();
    assert_eq!(unschedulable(&mut world), waits);
    kept(&world);

    // and where there is no identity that could, what is not known counts as use
    let mut world = stopped();
    world.edit("MachineIdentity", "c02aaaaaaaa1", |identity| {
        identity["status"]["usedAt"] = Value::Null
    });
    world.edit("MacOSMachine", "m", |machine| machine["status"] = Value::Null);
    world.settle();
    assert!(world.status().first_ready_at.is_some());
    power(&mut world, "Running");
    world.settle();
    assert_eq!(unschedulable(&mut world), waits);
    kept(&world);
}

#[test]
fn a_disk_that_was_there_once_is_not_begun_anew_whatever_its_data_volume_says() {
    let mut world = stopped();
    power(&mut world, "Running");
    world.settle();
    world.edit("DataVolume", crate::world::SYSTEM, |volume| {
        volume["status"] = json!({"phase": "Failed", "conditions": [{"type": "Running", "status": "False",
            "reason": "Error", "lastTransitionTime": "2026-03-02T09:00:00Z"}]});
    });
    world.wait(10_000);
    world.settle();
    assert_eq!(world.names("PersistentVolumeClaim").len(), 2, "{:?}", world.done);
}

#[test]
fn a_machine_whose_start_is_its_first_has_no_mark_of_use() {
    let mut world = World::new();
    world.settle();
    world.cloned();
    world.instance("Running");
    world.settle();
    assert_eq!(world.status().first_ready_at, None);
    world.wait(10);
    world.report(true);
    world.settle();
    let first = world.status().first_ready_at.expect("it is Ready");
    world.wait(100);
    world.report(true);
    world.settle();
    assert_eq!(world.status().first_ready_at, Some(first), "written once");
}

#[test]
fn without_the_right_to_clone_nothing_is_made_or_taken_and_what_grants_it_is_printed() {
    let mut world = World::new();
    world.clone_right = Seen::Present(false);
    world.settle();
    assert_eq!(
        (world.phase(), world.reason("Ready")),
        (Phase::Pending, "CloneNotPermitted".into())
    );
    assert_eq!(world.reason("DiskCloned"), "CloneNotPermitted");
    assert!(
        !world.done.iter().any(|step| step.starts_with("create")),
        "{:?}",
        world.done
    );
    assert_eq!(world.status().identity_ref, None, "it takes no identity meanwhile");
    let told = world.message("Ready");
    for part in [
        "kind: Role\n",
        "datavolumes/source",
        "kind: RoleBinding\n",
        "namespace: dockerios-system",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    // a right that cannot be looked at is not one that is denied
    world.clone_right = Seen::Unknown("the API server timed out".into());
    world.settle();
    assert_eq!(world.reason("Ready"), "Unreadable");
    assert_eq!(world.verdict("Ready"), Some(dockerios_api::Verdict::Unknown));
    world.clone_right = Seen::Present(true);
    world.settle();
    assert_eq!(world.phase(), Phase::Cloning);
}

#[test]
fn cdis_own_refusal_has_the_same_words_and_a_quota_is_not_taken_for_it() {
    for (words, reason) in [
        (
            "User system:serviceaccount:dockerios-system:dockerios-operator has insufficient permissions in clone source \
             namespace dockerios-system",
            "CloneNotPermitted",
        ),
        ("no permission to clone from namespace images", "CloneNotPermitted"),
        ("exceeded quota: tenant-a limits", "CreationRefused"),
    ] {
        let mut world = World::new();
        world.pass(usize::MAX);
        world.pass(usize::MAX);
        world.refusal = Some(Refusal {
            of: Id::new(Kind::DataVolume, "team-a", "x"),
            cause: RefusalCause::Forbidden,
            message: words.into(),
        });
        let plan = world.pass(0);
        assert!(!plan.steps.is_empty(), "it is tried again");
        let status: dockerios_api::MacOSMachineStatus = crate::world::read(&plan.status.expect("a status"));
        let ready = dockerios_api::condition::of(&status.conditions, "Ready").expect("said");
        assert_eq!((ready.reason.as_str(), status.phase), (reason, Some(Phase::Pending)));
        assert!(ready.message.contains(words), "{}", ready.message);
        assert_eq!(
            ready.message.contains("kind: RoleBinding"),
            reason == "CloneNotPermitted",
            "{}",
            ready.message
        );
    }
}
