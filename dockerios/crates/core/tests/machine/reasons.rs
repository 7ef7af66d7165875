//! Why a machine is not Ready, and when it is given up.

use dockerios_api::{Verdict, machine::macos_machine::MachinePhase as Phase};
use dockerios_core::{
    Id, Kind,
    plan::{Refusal, RefusalCause},
};
use serde_json::json;

use crate::world::{SYSTEM, VM, World};

fn booted() -> World {
    let mut world = World::new();
    world.settle();
    world.cloned();
    world.instance("Running");
    world.settle();
    world
}

#[test]
fn past_the_readiness_timeout_it_fails_keeps_the_screen_and_gives_everything_back() {
    let mut world = booted();
    world.wait(899);
    world.settle();
    assert_eq!(world.phase(), Phase::Starting);
    world.done.clear();
    world.wait(2);
    world.pass(usize::MAX);
    assert_eq!(
        world.done,
        ["keep ConfigMap macs-m-2f0c9a51-screen"],
        "evidence first, alone"
    );
    assert_eq!(
        (world.phase(), world.reason("Ready")),
        (Phase::Failed, "ReadinessTimeout".into())
    );
    world.settle();
    world.instance("Failed");
    for _ in 0..3 {
        world.settle();
    }
    for kind in [
        "VirtualMachine",
        "VirtualMachineInstance",
        "Pod",
        "DataVolume",
        "PersistentVolumeClaim",
        "Secret",
    ] {
        assert!(world.names(kind).is_empty(), "{kind} is held by a failed machine");
    }
    let identity = world.get("MachineIdentity", "c02aaaaaaaa1").expect("there");
    assert_eq!(
        identity["status"]["phase"], "Released",
        "never used, so free again: {identity:#}"
    );
    assert_eq!(
        world.names("ConfigMap"),
        ["macs-m-2f0c9a51-screen"],
        "the screen stays, and the SMC's key does not"
    );
    let failure = world.status().failure.expect("it says why");
    assert_eq!(
        (failure.reason.as_str(), failure.screen.as_deref()),
        ("ReadinessTimeout", Some("macs-m-2f0c9a51-screen"))
    );
    assert!(world.plan().steps.is_empty(), "and rests");
}

#[test]
fn a_guest_that_was_ready_and_falls_silent_is_unknown_and_never_failed() {
    let mut world = World::ready();
    world.wait(181);
    world.settle();
    assert_eq!(
        (world.phase(), world.reason("Ready")),
        (Phase::Unknown, "GuestSilent".into())
    );
    world.wait(100_000);
    world.settle();
    assert_eq!(world.phase(), Phase::Unknown);
    world.report(true);
    world.settle();
    assert_eq!(world.phase(), Phase::Ready);
}

#[test]
fn a_report_of_an_earlier_run_makes_nothing_ready() {
    let mut world = World::ready();
    world.remove("VirtualMachineInstance", VM);
    world.wait(5);
    world.instance("Running");
    world.settle();
    assert_ne!(world.phase(), Phase::Ready, "{}", world.message("GuestReady"));
}

#[test]
fn what_keeps_a_running_guest_from_being_ready_is_said() {
    let paused = json!([{"type": "Paused", "status": "True", "reason": "PausedIOError", "message": "no space"}]);
    let mut world = World::ready();
    world.edit("VirtualMachineInstance", VM, |vmi| vmi["status"]["conditions"] = paused);
    world.settle();
    assert_eq!(
        (world.phase(), world.reason("InstanceRunning")),
        (Phase::Unknown, "Paused".into())
    );

    let mut world = World::ready();
    world.edit("MacOSMachine", "m", |machine| {
        machine["status"]["guest"]["identityMismatch"] = json!(true)
    });
    world.settle();
    assert_eq!(
        (world.phase(), world.reason("Ready")),
        (Phase::Starting, "IdentityMismatch".into())
    );

    let mut world = World::ready();
    world.report(false);
    world.settle();
    assert_eq!(
        (world.phase(), world.reason("Ready")),
        (Phase::Starting, "GuestNotReady".into())
    );
}

#[test]
fn the_scheduler_and_the_hook_are_quoted_and_held_to_a_deadline() {
    for (phase, condition, reason, failure) in [
        (
            "Scheduling",
            json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes have kvm"}),
            "Unschedulable",
            "SchedulingTimeout",
        ),
        (
            "Scheduled",
            json!({"type": "Synchronized", "status": "False", "reason": "Synchronizing with the Domain failed.", "message": "no free slot"}),
            "HookFailed",
            "HookFailed",
        ),
    ] {
        let mut world = World::new();
        world.settle();
        world.cloned();
        world.settle();
        world.instance(phase);
        let mut condition = condition;
        condition["lastTransitionTime"] = world.now.to_string().into();
        let told = condition["message"].as_str().expect("a text").to_owned();
        world.edit("VirtualMachineInstance", VM, |vmi| {
            vmi["status"]["conditions"] = json!([condition])
        });
        world.settle();
        assert_eq!(
            (world.phase(), world.reason("InstanceRunning")),
            (Phase::Starting, reason.into())
        );
        assert!(world.message("Ready").contains(&told), "{}", world.message("Ready"));
        world.wait(15 * 60 + 1);
        world.pass(usize::MAX);
        assert_eq!((world.phase(), world.reason("Ready")), (Phase::Failed, failure.into()));
    }
}

#[test]
fn an_instance_that_the_hook_ended_says_what_the_hook_said() {
    let mut world = World::new();
    world.settle();
    world.cloned();
    world.settle();
    world.instance("Scheduled");
    let condition = json!([{"type": "Synchronized", "status": "False", "message": "hook: two system disks"}]);
    world.edit("VirtualMachineInstance", VM, |vmi| {
        vmi["status"]["conditions"] = condition
    });
    world.settle();
    world.edit("VirtualMachineInstance", VM, |vmi| {
        vmi["status"]["conditions"] = json!([])
    });
    world.instance("Failed");
    world.pass(usize::MAX);
    assert_eq!(
        (world.phase(), world.reason("Ready")),
        (Phase::Failed, "HookFailed".into())
    );
    assert!(world.message("Ready").contains("two system disks"));
}

#[test]
fn a_clone_has_a_deadline_of_its_own_and_waiting_for_a_node_is_not_cloning() {
    let clone = |phase: &str| {
        let mut world = World::new();
        world.settle();
        let status = json!({"phase": phase, "progress": "12.5%", "conditions":
            [{"type": "Bound", "status": "False", "reason": "ErrExceededQuota", "message": "exceeded quota"}]});
        world.edit("DataVolume", SYSTEM, |volume| volume["status"] = status);
        world.settle();
        assert!(
            world.message("DiskCloned").contains("exceeded quota"),
            "{}",
            world.message("DiskCloned")
        );
        world.wait(30 * 60 + 1);
        world.pass(usize::MAX);
        world
    };
    let world = clone("CSICloneInProgress");
    assert_eq!(
        (world.phase(), world.reason("Ready")),
        (Phase::Failed, "CloneTimeout".into())
    );
    let world = clone("WaitForFirstConsumer");
    assert_ne!(world.reason("Ready"), "CloneTimeout");
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
fn what_the_api_server_refused_is_said_with_the_way_out() {
    for (kind, cause, reason) in [
        (Kind::Secret, RefusalCause::NameTaken, "NameTaken"),
        (Kind::DataVolume, RefusalCause::Forbidden, "CloneNotPermitted"),
        (Kind::VirtualMachine, RefusalCause::Forbidden, "CreationRefused"),
    ] {
        let mut world = World::new();
        world.pass(usize::MAX);
        world.pass(usize::MAX);
        world.refusal = Some(Refusal {
            of: Id::new(kind, "team-a", "x"),
            cause,
            message: "its own words".into(),
        });
        let plan = world.pass(0);
        assert!(!plan.steps.is_empty(), "it is tried again");
        let status: dockerios_api::MacOSMachineStatus = crate::world::read(&plan.status.expect("a status"));
        let ready = dockerios_api::condition::of(&status.conditions, "Ready").expect("said");
        assert_eq!((ready.reason.as_str(), status.phase), (reason, Some(Phase::Pending)));
        assert!(ready.message.contains("its own words"), "{}", ready.message);
    }
}

#[test]
fn what_cannot_be_read_is_said_and_the_phase_stays() {
    for kind in ["VirtualMachine", "DataVolume", "Pod"] {
        let mut world = World::ready();
        world.done.clear();
        world.unreadable = vec![kind];
        world.settle();
        assert_eq!(
            (world.phase(), world.reason("Ready"), world.verdict("Ready")),
            (Phase::Ready, "Unreadable".into(), Some(Verdict::Unknown))
        );
        assert!(world.done.is_empty());
        world.unreadable.clear();
        world.settle();
        assert_eq!(world.reason("Ready"), "Ready");
    }
}

#[test]
fn a_disk_that_was_copied_by_a_pod_is_told_once_with_the_way_out_and_one_that_the_driver_cloned_is_not() {
    let told = |world: &World| {
        world
            .news
            .iter()
            .filter(|news| news.starts_with("DiskCopied"))
            .cloned()
            .collect::<Vec<_>>()
    };
    let mut world = World::new();
    world.settle();
    world.cloned();
    world.instance("Running");
    world.settle();
    assert_eq!(told(&world), [""; 0]);
    assert!(
        world.message("DiskCloned").contains("by csi-clone"),
        "{}",
        world.message("DiskCloned")
    );

    let mut world = World::new();
    world.settle();
    world.cloned();
    world.edit("PersistentVolumeClaim", SYSTEM, |claim| {
        claim["metadata"]["annotations"] = json!({"cdi.kubevirt.io/cloneType": "copy",
            "cdi.kubevirt.io/cloneFallbackReason": "storage classes differ"});
    });
    world.instance("Running");
    world.settle();
    world.settle();
    let [one] = &told(&world)[..] else {
        panic!("{:?}", told(&world))
    };
    for part in [
        SYSTEM,
        "by copy (storage classes differ)",
        "one storage class whose driver clones",
    ] {
        assert!(one.contains(part), "{one}");
    }
}
