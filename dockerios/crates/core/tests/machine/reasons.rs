//! Why a machine is not Ready, and when it is given up.

use dockerios_api::{Verdict, machine::macos_machine::MachinePhase as Phase};
use dockerios_core::{
    Id, Kind,
    plan::{Refusal, RefusalCause},
};
use serde_json::json;

use crate::world::{VM, World};

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
    assert_eq!(world.reason("InstanceRunning"), "UncleanShutdown", "that is evidence");
    for kind in ["IdentityAllocated", "DiskCloned"] {
        assert_eq!(world.reason(kind), "GivenBack", "{kind}: {}", world.message(kind));
        let said = world.message(kind);
        assert!(said.contains("given back when the machine failed"), "{kind}: {said}");
    }
}

#[test]
fn no_machine_is_given_up_for_a_timeout_that_cannot_be_read() {
    let mut world = booted();
    world.wait(100_000);
    world.unreadable = vec!["MacOSMachineClass"];
    world.settle();
    assert_eq!(
        (world.phase(), world.reason("Ready")),
        (Phase::Starting, "Booting".into())
    );
    assert!(world.plan().wake.is_some(), "it is looked at again");
    world.unreadable.clear();
    world.pass(usize::MAX);
    assert_eq!(
        (world.phase(), world.reason("Ready")),
        (Phase::Failed, "ReadinessTimeout".into())
    );
    // the clone's, too
    let mut world = World::new();
    world.settle();
    world.edit("DataVolume", crate::world::SYSTEM, |volume| {
        volume["status"] = json!({"phase": "CSICloneInProgress"})
    });
    world.settle();
    world.wait(100_000);
    world.unreadable = vec!["MacOSMachineClass"];
    world.settle();
    assert_eq!(world.phase(), Phase::Cloning, "{}", world.message("Ready"));
    world.unreadable.clear();
    world.pass(usize::MAX);
    assert_eq!(
        (world.phase(), world.reason("Ready")),
        (Phase::Failed, "CloneTimeout".into())
    );
}

#[test]
fn that_a_class_shares_its_bootdisk_stays_said_while_the_class_cannot_be_read() {
    let mut world = World::new();
    world.edit("MacOSMachineClass", "mac", |class| {
        class["spec"]["identity"] =
            json!({"type": "Shared", "shared": {"bootDiskImage": format!("r/b@sha256:{}", "0".repeat(64))}});
    });
    world.bring_to_ready();
    world.unreadable = vec!["MacOSMachineClass"];
    world.settle();
    assert_eq!(world.reason("IdentityAllocated"), "SharedBootDisk");
    assert_eq!(world.verdict("IdentityAllocated"), Some(Verdict::True));
}

#[test]
fn an_instance_that_a_failed_machine_gave_back_is_not_said_to_shut_down_still() {
    let mut world = booted();
    world.wait(901);
    world.settle();
    assert_eq!(world.reason("InstanceRunning"), "ShuttingDown");
    world.instance("Succeeded");
    for _ in 0..3 {
        world.settle();
    }
    let said = world.message("InstanceRunning");
    assert_eq!(world.reason("InstanceRunning"), "GivenBack", "{said}");
    assert!(said.contains("given back when the machine failed"), "{said}");
}

#[test]
fn a_failed_machine_keeps_what_was_said_of_its_failure_as_evidence_and_says_it_once() {
    let mut world = World::ready();
    world.instance("Failed");
    for _ in 0..6 {
        world.settle();
    }
    assert_eq!(
        (world.phase(), world.reason("Ready")),
        (Phase::Failed, "InstanceFailed".into())
    );
    let instance = world.message("InstanceRunning");
    assert_eq!(world.reason("InstanceRunning"), "InstanceFailed");
    assert_eq!(
        instance.matches("as it was when the machine failed").count(),
        1,
        "{instance}"
    );
    let guest = world.message("GuestReady");
    assert!(
        guest.contains("last report, stage Ready at") && guest.contains("kept as evidence"),
        "{guest}"
    );
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
    assert_eq!(
        world.verdict("Ready"),
        Some(Verdict::False),
        "that it stands still is known"
    );
    world.edit("VirtualMachineInstance", VM, |vmi| {
        vmi["status"]["conditions"] = json!([])
    });
    world.settle();
    assert_eq!(
        (world.phase(), world.verdict("Ready")),
        (Phase::Ready, Some(Verdict::True))
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
fn a_guest_whose_run_before_was_cut_off_is_ready_and_that_is_said() {
    let mut world = World::ready();
    assert_eq!(world.message("GuestReady"), "the guest says that it is ready");
    world.edit("MacOSMachine", "m", |machine| {
        machine["status"]["guest"]["cleanShutdown"] = json!(false)
    });
    world.settle();
    assert_eq!(world.phase(), Phase::Ready);
    let said = world.message("GuestReady");
    assert!(said.contains("its run before was cut off"), "{said}");
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
fn what_the_api_server_refused_is_said_with_the_way_out() {
    for (kind, cause, reason) in [
        (Kind::Secret, RefusalCause::NameTaken, "NameTaken"),
        (Kind::DataVolume, RefusalCause::Forbidden, "CreationRefused"),
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
