//! What is swept of a machine that went without its teardown, and in which order.

use std::sync::Arc;

use dockerios_api::names::{MACHINE, MACHINE_UID, RECLAIM, RETAIN};
use dockerios_core::{Guard, Plan, Seen, Step, check::check, decide::orphan};
use dockerios_kubevirt::{DataVolume, VirtualMachine, VirtualMachineInstance, vm::RunStrategy};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::core::ObjectMeta;

fn meta(name: &str) -> ObjectMeta {
    let labels = [(MACHINE, "mac"), (MACHINE_UID, "u-1")].map(|(k, v)| (k.to_owned(), v.to_owned()));
    ObjectMeta {
        name: Some(name.into()),
        namespace: Some("team".into()),
        uid: Some(format!("uid-of-{name}")),
        labels: Some(labels.into()),
        ..ObjectMeta::default()
    }
}

fn retained(name: &str) -> ObjectMeta {
    let mut meta = meta(name);
    meta.labels
        .get_or_insert_default()
        .insert(RECLAIM.into(), RETAIN.into());
    meta
}

fn empty() -> orphan::Facts {
    orphan::Facts {
        labelled: meta("hook"),
        machine: Seen::Absent,
        vms: Seen::Present(vec![]),
        vmis: Seen::Present(vec![]),
        pods: Seen::Present(vec![]),
        data_volumes: Seen::Present(vec![]),
        volumes: Seen::Present(vec![]),
    }
}

fn vm(strategy: RunStrategy) -> Seen<Vec<Arc<VirtualMachine>>> {
    let mut vm = VirtualMachine {
        metadata: meta("vm"),
        ..VirtualMachine::default()
    };
    vm.spec.run_strategy = Some(strategy);
    Seen::Present(vec![Arc::new(vm)])
}

fn vmi() -> Seen<Vec<Arc<VirtualMachineInstance>>> {
    Seen::Present(vec![Arc::new(VirtualMachineInstance {
        metadata: meta("vm"),
        ..VirtualMachineInstance::default()
    })])
}

fn data_volume(meta: ObjectMeta) -> Seen<Vec<Arc<DataVolume>>> {
    Seen::Present(vec![Arc::new(DataVolume {
        metadata: meta,
        ..DataVolume::default()
    })])
}

fn claim(meta: ObjectMeta) -> Seen<Vec<Arc<PersistentVolumeClaim>>> {
    Seen::Present(vec![Arc::new(PersistentVolumeClaim {
        metadata: meta,
        ..PersistentVolumeClaim::default()
    })])
}

/// The plan's steps after the proof, which must come first.
fn swept(facts: &orphan::Facts) -> Vec<String> {
    let plan = orphan::decide(facts);
    check(&plan).expect("the plan keeps every rule");
    let Some((first, rest)) = plan.steps.split_first() else {
        return Vec::new();
    };
    let gone = Guard::MachineGone {
        namespace: "team".into(),
        name: "mac".into(),
        uid: "u-1".into(),
    };
    assert_eq!(*first, Step::Prove(gone), "nothing is touched before the proof");
    let say = |step: &Step| match step {
        Step::Delete(target) => format!("delete {}", target.id.kind),
        Step::Merge(target, patch) => format!("{} {patch}", target.id.kind),
        Step::DeleteLabelled { kind, label, .. } => format!("delete every {kind} of {}", label.1),
        other => format!("{other:?}"),
    };
    rest.iter().map(say).collect()
}

#[test]
fn a_machine_that_is_there_or_cannot_be_seen_keeps_all_it_has() {
    for machine in [Seen::Present(()), Seen::Unknown("a list failed".into())] {
        let facts = orphan::Facts {
            machine,
            vms: vm(RunStrategy::Once),
            ..empty()
        };
        assert_eq!(orphan::decide(&facts), Plan::default());
    }
}

#[test]
fn while_one_list_is_unreadable_nothing_is_swept() {
    let facts = orphan::Facts {
        vmis: Seen::Unknown("a list failed".into()),
        data_volumes: data_volume(meta("d")),
        ..empty()
    };
    assert_eq!(orphan::decide(&facts), Plan::default());
}

#[test]
fn the_guest_is_shut_down_in_order_before_anything_is_deleted() {
    let running = orphan::Facts {
        vms: vm(RunStrategy::Once),
        vmis: vmi(),
        data_volumes: data_volume(meta("d")),
        ..empty()
    };
    assert_eq!(swept(&running), [r#"VirtualMachine {"spec":{"runStrategy":"Halted"}}"#]);
    let stopping = orphan::Facts {
        vms: vm(RunStrategy::Halted),
        ..running
    };
    assert_eq!(swept(&stopping), [""; 0], "the grace is the guest's");
    let pod = Pod {
        metadata: meta("launcher"),
        ..Pod::default()
    };
    let ending = orphan::Facts {
        vmis: Seen::Present(vec![]),
        pods: Seen::Present(vec![Arc::new(pod)]),
        ..stopping.clone()
    };
    assert_eq!(swept(&ending), [""; 0], "the launcher may still write");
    let down = orphan::Facts {
        vmis: Seen::Present(vec![]),
        ..stopping
    };
    assert_eq!(swept(&down), ["delete VirtualMachine"]);
}

#[test]
fn volumes_go_after_the_machine_and_settings_after_the_volumes() {
    let both = orphan::Facts {
        data_volumes: data_volume(meta("d")),
        volumes: claim(meta("d")),
        ..empty()
    };
    assert_eq!(swept(&both), ["delete DataVolume"], "its PVC goes with it");
    let collected = orphan::Facts {
        volumes: claim(meta("d")),
        ..empty()
    };
    assert_eq!(swept(&collected), ["delete PersistentVolumeClaim"]);
    assert_eq!(
        swept(&empty()),
        ["delete every Secret of u-1", "delete every ConfigMap of u-1"]
    );
}

#[test]
fn a_disk_whose_class_retains_it_stays_though_nobody_is_left_to_say_so() {
    let facts = orphan::Facts {
        data_volumes: data_volume(retained("d")),
        volumes: claim(retained("d")),
        ..empty()
    };
    assert_eq!(
        swept(&facts),
        ["delete every Secret of u-1", "delete every ConfigMap of u-1"]
    );
    let of_the_disk = orphan::Facts {
        labelled: retained("d"),
        ..facts
    };
    assert_eq!(orphan::decide(&of_the_disk), Plan::default());
}
