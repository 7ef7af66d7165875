//! Giving everything back, in order: instance, VirtualMachine, volumes, Secret and ConfigMap, identity.
//!
//! Invariant: each stage begins when the one before is seen to be over; what cannot be seen is not over. The identity
//! is given back last, after the proof that nothing runs with it.

use dockerios_api::{
    identity::pool::IdentityReclaimPolicy,
    machine::{
        class::DiskReclaimPolicy,
        macos_machine::{MachineCondition, MachineReason as Reason},
    },
    names::{RECLAIM, RETAIN, RETAINED},
};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{Resource, ResourceExt, core::ObjectMeta};
use serde_json::json;

use super::{
    facts::{Objects, uid_label},
    instance::Life,
    status::Pass,
    stop,
};
use crate::{Kind, News, Seen, Step, Target, decide::identity, render::machine as render};

/// How far it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Something is waited for.
    Waiting(Reason, String),
    /// Something could not be read.
    Unreadable(String),
    /// Nothing is left but what is kept.
    Done {
        /// The system disk is kept.
        retained: bool,
    },
}

/// Takes the next step. `ending`: the machine itself goes; otherwise it failed and stays as evidence, with its last
/// screen.
pub(super) fn give_back(pass: &mut Pass, objects: &Objects, life: &Life, ending: bool) -> Progress {
    if let Some((reason, message)) = stop::bring_down(pass, objects, life, true) {
        return Progress::Waiting(reason, message);
    }
    if let Some(message) = virtual_machine(pass, objects, ending) {
        return Progress::Waiting(Reason::WaitingForInstance, message);
    }
    let retained = match volumes(pass, objects) {
        Ok(Volumes::Going(message)) => return Progress::Waiting(Reason::WaitingForVolumes, message),
        Ok(Volumes::Gone { retained }) => retained,
        Err(why) => return Progress::Unreadable(why),
    };
    if ending {
        configuration(pass);
    }
    match identities(pass) {
        Ok(None) => Progress::Done { retained },
        Ok(Some(message)) => Progress::Waiting(Reason::ReleasingIdentity, message),
        Err(why) => Progress::Unreadable(why),
    }
}

fn virtual_machine(pass: &mut Pass, objects: &Objects, ending: bool) -> Option<String> {
    for vm in objects.vms.iter().filter(|vm| vm.metadata.deletion_timestamp.is_none()) {
        pass.plan
            .then(Step::Delete(Target::of(Kind::VirtualMachine, &vm.metadata)));
        if !ending {
            // the last screen has no uid label, and stays
            configuration(pass);
        }
    }
    stop::remove_forsaken(pass, objects);
    if let Some(vm) = objects.vms.first() {
        return Some(format!("VirtualMachine {} is being deleted", vm.name_any()));
    }
    if let Some(vmi) = objects.vmi {
        return Some(format!("VirtualMachineInstance {} is being deleted", vmi.name_any()));
    }
    objects
        .pods
        .first()
        .map(|pod| format!("launcher pod {} is being cleared up", pod.name_any()))
}

enum Volumes {
    Going(String),
    Gone { retained: bool },
}

fn volumes(pass: &mut Pass, objects: &Objects) -> Result<Volumes, String> {
    let kept = kept(pass, objects)?;
    let is_kept = |name: &str| kept.as_deref() == Some(name);
    let mut going = Vec::new();
    for (name, volume) in objects.data_volumes.iter().filter(|(name, _)| !is_kept(name)) {
        delete(pass, Kind::DataVolume, &volume.metadata);
        going.push(format!("DataVolume {name}"));
    }
    for (name, claim) in objects.volumes.iter().filter(|(name, _)| !is_kept(name)) {
        // with its DataVolume it goes by itself; that may have been removed before (CDI before 1.62 does so)
        if !objects.data_volumes.contains_key(name) {
            delete(pass, Kind::PersistentVolumeClaim, &claim.metadata);
        }
        going.push(format!("PersistentVolumeClaim {name}"));
    }
    if let Some(name) = &kept {
        retain(pass, objects, name);
    }
    if going.is_empty() {
        return Ok(Volumes::Gone {
            retained: kept.is_some(),
        });
    }
    Ok(Volumes::Going(format!("{} being deleted", going.join(", "))))
}

/// The volume that stays: the system disk of a class that retains it, if it was filled. One that was made, or marked, to
/// stay does so whatever its class says by now. A class that is gone cannot be asked any more, and what is deleted cannot
/// be had back.
fn kept(pass: &Pass, objects: &Objects) -> Result<Option<String>, String> {
    let name = render::system_disk_name(pass.machine());
    let Some(claim) = objects.volumes.get(&name) else {
        return Ok(None);
    };
    let filled = claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound")
        && objects.data_volumes.get(&name).is_none_or(|volume| {
            let phase = volume.status.as_ref().and_then(|status| status.phase);
            phase == Some(dockerios_kubevirt::datavolume::DataVolumePhase::Succeeded)
        });
    let keep = match &pass.facts.class {
        _ if promised(objects, &name) => true,
        Seen::Unknown(why) => return Err(why.clone()),
        Seen::Present(class) => class.spec.system_disk.reclaim_policy == DiskReclaimPolicy::Retain,
        Seen::Absent => pass.held(MachineCondition::DiskCloned),
    };
    Ok((filled && keep && claim.metadata.deletion_timestamp.is_none()).then_some(name))
}

/// Whether the disk was made by a class that retained it then, or marked as one that stays.
fn promised(objects: &Objects, name: &str) -> bool {
    let volume = objects.data_volumes.get(name).map(|volume| volume.labels());
    let claim = objects.volumes.get(name).map(|claim| claim.labels());
    let mut labels = volume.into_iter().chain(claim);
    labels.any(|labels| labels.contains_key(RETAINED) || labels.get(RECLAIM).is_some_and(|policy| policy == RETAIN))
}

/// Marks the volume that stays, so that nobody takes it for a leftover.
fn retain(pass: &mut Pass, objects: &Objects, name: &str) {
    let marks = json!({"metadata": {"labels": {RETAINED: "true"}}});
    let unmarked = |meta: &ObjectMeta| {
        meta.labels
            .as_ref()
            .is_none_or(|labels| labels.get(RETAINED).map(String::as_str) != Some("true"))
    };
    let volume = objects
        .data_volumes
        .get(name)
        .map(|volume| (Kind::DataVolume, volume.meta()));
    let claim: Option<&&PersistentVolumeClaim> = objects.volumes.get(name);
    let claim = claim.map(|claim| (Kind::PersistentVolumeClaim, claim.meta()));
    let mut marked = false;
    for (kind, meta) in [volume, claim].into_iter().flatten().filter(|(_, meta)| unmarked(meta)) {
        pass.plan.then(Step::Merge(Target::of(kind, meta), marks.clone()));
        marked = true;
    }
    if marked {
        let why = match pass.facts.class {
            _ if promised(objects, name) => "its class retained it when it was made",
            Seen::Absent => "its class is gone, so nobody says that it may be deleted",
            _ => "its class retains it",
        };
        let note = format!(
            "PersistentVolumeClaim {name} stays: {why}. Use it as the pvc source of a MacOSImage, or delete it"
        );
        pass.plan.news.push(News::normal(Reason::VolumeRetained, note));
    }
}

fn delete(pass: &mut Pass, kind: Kind, meta: &ObjectMeta) {
    if meta.deletion_timestamp.is_none() {
        pass.plan.then(Step::Delete(Target::of(kind, meta)));
    }
}

fn configuration(pass: &mut Pass) {
    for kind in [Kind::Secret, Kind::ConfigMap] {
        pass.plan.then(delete_all(pass, kind));
    }
}

fn delete_all(pass: &Pass, kind: Kind) -> Step {
    let machine = pass.machine();
    Step::DeleteLabelled {
        kind,
        namespace: machine.namespace().unwrap_or_default(),
        label: uid_label(machine),
    }
}

/// Gives back every identity that names the machine; what is waited for, if there is one.
fn identities(pass: &mut Pass) -> Result<Option<String>, String> {
    let held = match &pass.facts.held {
        Seen::Unknown(why) => return Err(why.clone()),
        held => held.present().map(Vec::as_slice).unwrap_or_default(),
    };
    let policy = match &pass.facts.home {
        Seen::Present(pool) => pool.spec.reclaim_policy,
        Seen::Absent => IdentityReclaimPolicy::Quarantine,
        Seen::Unknown(why) if !held.is_empty() => return Err(why.clone()),
        Seen::Unknown(_) => IdentityReclaimPolicy::Quarantine,
    };
    for identity in held {
        pass.plan.then(identity::give_back(identity, policy, pass.now));
    }
    let Some(first) = held.first() else { return Ok(None) };
    let refused = pass
        .facts
        .refusal
        .as_ref()
        .map(|refusal| format!(" ({})", refusal.message))
        .unwrap_or_default();
    Ok(Some(format!(
        "identity {} is being given back{refused}",
        first.name_any()
    )))
}
