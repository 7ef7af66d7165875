//! What a machine left behind when it went without its teardown (its finalizer was taken away): swept in the same order.
//!
//! ```text
//! machine proven gone ─▶ VirtualMachine Halted ─▶ instance and launcher gone ─▶ VirtualMachine ─▶ volumes ─▶ Secret, ConfigMap
//! ```
//!
//! Invariants: nothing is touched before a consistent read has shown that no machine of that uid is there; a guest is
//! shut down in order, not cut off; volumes that are to be kept stay. The identity is not freed here: its own pass does
//! that, when nothing runs with it.

use std::sync::Arc;

use dockerios_api::names::{MACHINE, MACHINE_UID, RECLAIM, RETAIN, RETAINED};
use dockerios_kubevirt::{DataVolume, VirtualMachine, VirtualMachineInstance, vm::RunStrategy};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::{ResourceExt, core::ObjectMeta};
use serde_json::json;

use crate::{Guard, Kind, Plan, Seen, Step, Target};

/// What its decision reads: an object with a machine's uid label, that machine, and all else with the label.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The object that the pass is about.
    pub labelled: ObjectMeta,
    /// Whether a machine of that uid was seen.
    pub machine: Seen<()>,
    /// VirtualMachines with the label.
    pub vms: Seen<Vec<Arc<VirtualMachine>>>,
    /// Instances with the label.
    pub vmis: Seen<Vec<Arc<VirtualMachineInstance>>>,
    /// Launcher pods with the label.
    pub pods: Seen<Vec<Arc<Pod>>>,
    /// DataVolumes with the label.
    pub data_volumes: Seen<Vec<Arc<DataVolume>>>,
    /// PVCs with the label.
    pub volumes: Seen<Vec<Arc<PersistentVolumeClaim>>>,
}

/// Takes the next step of sweeping, if there is anything to sweep.
pub fn decide(facts: &Facts) -> Plan {
    let mut plan = Plan::default();
    let label = |key: &str| {
        facts
            .labelled
            .labels
            .as_ref()
            .and_then(|labels| labels.get(key))
            .cloned()
    };
    let (Some(uid), true) = (label(MACHINE_UID), facts.machine.absent()) else {
        return plan;
    };
    // one list that failed: nothing is known of what still runs
    let Some(steps) = next(facts, &uid) else { return plan };
    if !steps.is_empty() {
        let namespace = facts.labelled.namespace.clone().unwrap_or_default();
        plan.then(Step::Prove(Guard::MachineGone {
            namespace,
            name: label(MACHINE).unwrap_or_default(),
            uid,
        }));
        plan.steps.extend(steps);
    }
    plan
}

fn next(facts: &Facts, uid: &str) -> Option<Vec<Step>> {
    let (vms, vmis, pods) = (facts.vms.present()?, facts.vmis.present()?, facts.pods.present()?);
    let (data_volumes, volumes) = (facts.data_volumes.present()?, facts.volumes.present()?);
    let mut steps = Vec::new();
    for vm in vms {
        let target = Target::of(Kind::VirtualMachine, &vm.metadata);
        if vm.spec.run_strategy != Some(RunStrategy::Halted) {
            // the guest gets its grace; KubeVirt cuts it off after
            steps.push(Step::Merge(target, json!({"spec": {"runStrategy": "Halted"}})));
        } else if vmis.is_empty() && pods.is_empty() && stays(&vm.metadata) {
            steps.push(Step::Delete(target));
        }
    }
    let alone = vmis.iter().filter(|vmi| vms.is_empty() && stays(&vmi.metadata));
    steps.extend(alone.map(|vmi| Step::Delete(Target::of(Kind::VirtualMachineInstance, &vmi.metadata))));
    let down = vms.is_empty() && vmis.is_empty() && pods.is_empty();
    if !down {
        return Some(steps);
    }
    for volume in data_volumes.iter().filter(|v| stays(&v.metadata) && !kept(&v.metadata)) {
        steps.push(Step::Delete(Target::of(Kind::DataVolume, &volume.metadata)));
    }
    let with_data_volume =
        |claim: &PersistentVolumeClaim| data_volumes.iter().any(|v| v.name_any() == claim.name_any());
    for claim in volumes
        .iter()
        .filter(|c| stays(&c.metadata) && !kept(&c.metadata) && !with_data_volume(c))
    {
        steps.push(Step::Delete(Target::of(Kind::PersistentVolumeClaim, &claim.metadata)));
    }
    let left = data_volumes.iter().any(|v| !kept(&v.metadata)) || volumes.iter().any(|c| !kept(&c.metadata));
    // a volume that is kept stays labelled: without this it would ask for the same for ever
    if !left && !kept(&facts.labelled) {
        let namespace = facts.labelled.namespace.clone().unwrap_or_default();
        for kind in [Kind::Secret, Kind::ConfigMap] {
            let label = (MACHINE_UID, uid.to_owned());
            steps.push(Step::DeleteLabelled {
                kind,
                namespace: namespace.clone(),
                label,
            });
        }
    }
    Some(steps)
}

/// A system disk whose class retains it, or retained it when it was made.
fn kept(meta: &ObjectMeta) -> bool {
    let label = |key: &str| {
        meta.labels
            .as_ref()
            .and_then(|labels| labels.get(key))
            .map(String::as_str)
    };
    label(RETAINED).is_some() || label(RECLAIM) == Some(RETAIN)
}

fn stays(meta: &ObjectMeta) -> bool {
    meta.deletion_timestamp.is_none()
}
