//! Whole lives, with a crash after each step of each pass.

use dockerios_api::machine::macos_machine::MachinePhase as Phase;
use serde_json::{Value, json};

use crate::world::{BOOT, SYSTEM, VM, World};

#[test]
fn a_machine_is_guarded_first_and_gets_identity_then_everything_together() {
    let mut world = World::new();
    world.settle();
    assert_eq!(
        world.done,
        [
            "guard MacOSMachine m".to_owned(),
            "replace MachineIdentity c02aaaaaaaa1".into(),
            "create ConfigMap macs-m-2f0c9a51-hook".into(),
            "create Secret macs-m-2f0c9a51-config".into(),
            format!("create DataVolume {SYSTEM}"),
            format!("create DataVolume {BOOT}"),
            format!("create VirtualMachine {VM}"),
        ]
    );
    assert_eq!(
        (world.phase(), world.reason("Ready")),
        (Phase::Cloning, "Cloning".into())
    );
}

#[test]
fn the_first_use_of_an_identity_is_stored_before_the_machine_is_ready() {
    let mut world = World::new();
    world.settle();
    world.cloned();
    world.instance("Running");
    world.settle();
    assert_eq!(
        (world.phase(), world.reason("Ready")),
        (Phase::Starting, "Booting".into())
    );
    world.wait(10);
    world.report(true);
    world.pass(usize::MAX);
    assert_eq!(world.phase(), Phase::Starting, "its use is being recorded");
    assert!(world.get("MachineIdentity", "c02aaaaaaaa1").expect("there")["status"]["usedAt"].is_string());
    world.pass(usize::MAX);
    assert_eq!(world.phase(), Phase::Ready);
}

/// Every way to die in any pass on the way ends where the undisturbed way ends.
#[test]
fn a_crash_after_any_step_of_birth_or_end_leaves_nothing_and_takes_nothing_twice() {
    for pass in 0..12 {
        for steps in 0..6 {
            let mut world = World::new();
            world.identity("C02AAAAAAAA2");
            for _ in 0..pass {
                world.pass(usize::MAX);
            }
            world.pass(steps);
            world.bring_to_ready();
            assert_eq!(world.phase(), Phase::Ready, "crash after step {steps} of pass {pass}");
            let taken = world
                .names("MachineIdentity")
                .into_iter()
                .filter(|name| world.get("MachineIdentity", name).expect("there")["status"]["claimRef"].is_object());
            assert_eq!(
                taken.count(),
                1,
                "one identity, crash after step {steps} of pass {pass}"
            );

            delete(&mut world);
            for _ in 0..pass {
                if world.get("MacOSMachine", "m").is_some() {
                    world.pass(usize::MAX);
                }
            }
            if world.get("MacOSMachine", "m").is_some() {
                world.pass(steps);
            }
            end(&mut world);
            for kind in [
                "VirtualMachine",
                "VirtualMachineInstance",
                "Pod",
                "DataVolume",
                "PersistentVolumeClaim",
                "Secret",
                "ConfigMap",
                "MacOSMachine",
            ] {
                assert!(
                    world.names(kind).is_empty(),
                    "{kind} left, crash after step {steps} of pass {pass}"
                );
            }
            assert!(world.get("MachineIdentity", "c02aaaaaaaa1").expect("there")["status"]["claimRef"].is_null());
        }
    }
}

pub fn delete(world: &mut World) {
    let now = world.now.to_string();
    world.edit("MacOSMachine", "m", |machine| {
        machine["metadata"]["deletionTimestamp"] = now.into()
    });
}

/// The guest shuts down when it is told to.
pub fn end(world: &mut World) {
    world.settle();
    world.wait(70);
    world.settle();
    if world.get("VirtualMachineInstance", VM).is_some() {
        world.instance("Succeeded");
    }
    for _ in 0..3 {
        world.settle();
    }
}

#[test]
fn an_identity_stays_with_its_machine_through_stops_a_lost_status_and_a_deleted_virtual_machine() {
    let mut world = World::ready();
    world.identity("C02AAAAAAAA2");
    let has = |world: &World| world.status().identity_ref.map(|name| name.to_string());
    let mine = Some("c02aaaaaaaa1".to_owned());

    power(&mut world, "Stopped");
    world.settle();
    world.wait(61);
    world.settle();
    world.instance("Succeeded");
    world.settle();
    world.settle();
    assert_eq!((world.phase(), has(&world)), (Phase::Stopped, mine.clone()));
    power(&mut world, "Running");
    world.settle();
    assert_eq!(
        world.get("VirtualMachine", VM).expect("there")["spec"]["runStrategy"],
        "Once"
    );
    world.instance("Running");
    world.wait(20);
    world.report(true);
    world.settle();
    assert_eq!((world.phase(), has(&world)), (Phase::Ready, mine.clone()));

    world.remove("VirtualMachine", VM);
    world.remove("VirtualMachineInstance", VM);
    world.remove("Pod", "launcher");
    world.settle();
    assert!(world.get("VirtualMachine", VM).is_some(), "it is made again");
    assert_eq!(world.names("DataVolume").len(), 2, "with its own disks");
    world.instance("Running");
    world.settle();
    world.wait(20);
    world.report(true);
    world.settle();

    world.edit("MacOSMachine", "m", |machine| machine["status"] = Value::Null);
    world.settle();
    assert_eq!(has(&world), mine, "found again through claimRef.uid");

    let mut facts = world.facts();
    facts.held = dockerios_core::Seen::Present(Vec::new());
    let plan = dockerios_core::decide::machine::decide(&facts, world.now);
    assert!(
        plan.steps.is_empty(),
        "a cache that shows it free takes no second one: {:?}",
        plan.steps
    );
}

pub fn power(world: &mut World, state: &str) {
    world.edit("MacOSMachine", "m", |machine| {
        machine["spec"]["powerState"] = state.into()
    });
}

#[test]
fn a_stop_that_began_is_carried_to_its_end_before_the_machine_runs_again() {
    let mut world = World::ready();
    power(&mut world, "Stopped");
    world.settle();
    assert!(world.status().stop_requested_at.is_some(), "the guest is told");
    power(&mut world, "Running");
    world.settle();
    assert_eq!(world.phase(), Phase::Stopping);
    world.instance("Succeeded");
    world.settle();
    world.settle();
    assert!(
        world.status().stop_requested_at.is_none(),
        "the next guest is not told to stop"
    );
    assert_eq!(
        world.get("VirtualMachine", VM).expect("there")["spec"]["runStrategy"],
        "Once"
    );
}

#[test]
fn a_guest_that_shut_itself_down_is_not_started_again() {
    let mut world = World::ready();
    world.instance("Succeeded");
    world.settle();
    assert_eq!(
        (world.phase(), world.reason("Ready")),
        (Phase::Stopped, "GuestShutDown".into())
    );
    assert!(world.plan().steps.is_empty());
}

#[test]
fn an_instance_that_its_virtual_machine_left_behind_is_removed_once_it_is_down() {
    for powered in ["Running", "Stopped"] {
        let mut world = World::ready();
        world.remove("VirtualMachine", VM);
        power(&mut world, powered);
        world.pass(usize::MAX);
        world.instance("Succeeded");
        world.done.clear();
        world.pass(usize::MAX);
        assert_eq!(world.done, [format!("delete VirtualMachineInstance {VM}")], "{powered}");
        world.remove("Pod", "launcher");
        world.settle();
        let made = world.get("VirtualMachine", VM).is_some();
        assert_eq!(made, powered == "Running", "{}", world.message("Ready"));
        assert!(
            world.status().stop_requested_at.is_none(),
            "{powered}: the stop is over"
        );
    }
    // its guest had shut itself down before
    let mut world = World::ready();
    world.instance("Succeeded");
    world.pass(usize::MAX);
    world.remove("VirtualMachine", VM);
    world.done.clear();
    world.pass(usize::MAX);
    assert_eq!(world.done, [format!("delete VirtualMachineInstance {VM}")]);
}

#[test]
fn a_machine_that_somebody_else_halted_is_started_again_once_it_is_down() {
    let mut world = World::ready();
    world.edit("VirtualMachine", VM, |vm| vm["spec"]["runStrategy"] = json!("Halted"));
    world.settle();
    assert!(
        world.names("VirtualMachineInstance").len() == 1 && world.plan().steps.is_empty(),
        "not under its feet"
    );
    world.instance("Succeeded");
    world.settle();
    world.settle();
    assert_eq!(
        world.get("VirtualMachine", VM).expect("there")["spec"]["runStrategy"],
        "Once"
    );
}

#[test]
fn a_machine_whose_disks_carry_an_identity_takes_no_other_while_the_record_of_it_is_not_seen() {
    let mut world = World::ready();
    world.identity("C02AAAAAAAA2");
    for (kind, name) in [
        ("VirtualMachine", VM),
        ("VirtualMachineInstance", VM),
        ("Pod", "launcher"),
    ] {
        world.remove(kind, name);
    }
    world.edit("MachineIdentity", "c02aaaaaaaa1", |identity| {
        identity["status"] = Value::Null
    });
    world.settle();
    assert_eq!(
        world.reason("Ready"),
        "AllocatingIdentity",
        "{}",
        world.message("Ready")
    );
    assert!(world.get("MachineIdentity", "c02aaaaaaaa2").expect("there")["status"]["claimRef"].is_null());
}
