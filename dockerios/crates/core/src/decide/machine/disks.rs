//! Where the machine's disks stand: DataVolume and PVC of each, taken together.
//!
//! Invariant: a disk that was cloned once is never cloned again behind the tenant's back; gone, it is lost. CDI never
//! fails a clone by itself, so a clone has a deadline here.

use dockerios_kubevirt::{
    DataVolume, condition,
    datavolume::DataVolumePhase as Phase,
    names::{CLONE_ERROR, CLONE_FALLBACK_REASON, CLONE_TYPE, RUNNING},
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;

use dockerios_api::{
    condition::clip_to,
    machine::macos_machine::{Disk, MachineCondition, MachineReason},
};

use super::{
    facts::Objects,
    status::{Pass, after},
};
use crate::{Kind, Step, Target, render::machine as render};

/// How long a clone may take when the class is gone: what its schema sets.
pub const USUAL_CLONE: SignedDuration = SignedDuration::from_mins(30);
/// A volume must be missing for so long before it is called lost: two watches that tell of one thing do not tell at
/// the same moment, and what is called lost is given up.
pub(super) const LOST_AFTER: SignedDuration = SignedDuration::from_secs(60);
/// A clone that reports an error for so long is begun anew, once.
const ERROR_PATIENCE: SignedDuration = SignedDuration::from_mins(5);
/// Disks that a status tells of, and bytes of what it tells of each: the bounds of their schema.
const DISKS: usize = 4;
const STRATEGY: usize = 32;
const FALLBACK: usize = 256;
/// The clocks of the API server and of the operator differ by less.
const CLOCKS_DIFFER: SignedDuration = SignedDuration::from_mins(5);
/// A DataVolume that is younger than its VirtualMachine by more was made again.
const MADE_TOGETHER: SignedDuration = SignedDuration::from_mins(1);

/// Where the disks stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Disks {
    /// All are there.
    Cloned,
    /// They are being cloned, since then.
    Cloning(String, Option<Timestamp>),
    /// Cloning begins when the launcher pod has a node.
    Waiting(String),
    /// Not made yet.
    Missing,
    /// That one was there and is gone.
    Lost(String),
}

/// Where the disks of an existing VirtualMachine stand; without one, those that exist.
pub(super) fn judge(pass: &Pass, objects: &Objects) -> Disks {
    let mut worst = Disks::Cloned;
    let names = wanted(pass, objects);
    if names.is_empty() {
        return Disks::Missing;
    }
    for name in names {
        let one = judge_one(pass, objects, &name);
        worst = match (severity(&one), severity(&worst)) {
            (1, 1) => Disks::Cloning(join(&worst, &one), begun(&worst).max(begun(&one))),
            (new, old) if new > old => one,
            _ => worst,
        };
    }
    worst
}

fn severity(disks: &Disks) -> u8 {
    match disks {
        Disks::Cloned => 0,
        Disks::Cloning(..) => 1,
        Disks::Waiting(_) => 2,
        Disks::Missing => 3,
        Disks::Lost(_) => 4,
    }
}

fn begun(disks: &Disks) -> Option<Timestamp> {
    match disks {
        Disks::Cloning(_, since) => *since,
        _ => None,
    }
}

fn join(one: &Disks, other: &Disks) -> String {
    let text = |disks: &Disks| match disks {
        Disks::Cloning(text, _) => text.clone(),
        _ => String::new(),
    };
    [text(one), text(other)]
        .into_iter()
        .filter(|text| !text.is_empty())
        .collect::<Vec<_>>()
        .join(", ")
}

/// Names of the volumes that the VirtualMachine was made with; without one, those that exist and, once they were
/// cloned, must exist.
fn wanted(pass: &Pass, objects: &Objects) -> Vec<String> {
    match objects.vm {
        Some(vm) => {
            let volumes = vm.spec.template.spec.volumes.iter();
            volumes
                .filter_map(|volume| volume.data_volume.as_ref())
                .map(|volume| volume.name.clone())
                .collect()
        }
        None => {
            let mut names: Vec<String> = objects
                .data_volumes
                .keys()
                .chain(objects.volumes.keys())
                .cloned()
                .collect();
            if was_cloned(pass) {
                let machine = pass.machine();
                names.push(render::system_disk_name(machine));
                names.extend(
                    pass.draft
                        .identity_ref
                        .as_ref()
                        .map(|_| render::boot_disk_name(machine)),
                );
            }
            names.sort();
            names.dedup();
            names
        }
    }
}

fn judge_one(pass: &Pass, objects: &Objects, name: &str) -> Disks {
    let volume = objects.data_volumes.get(name).copied();
    let claim = objects.volumes.get(name).copied();
    let was_cloned = was_cloned(pass);
    let phase = volume
        .and_then(|volume| volume.status.as_ref()?.phase)
        .unwrap_or_default();
    let going = claim.is_some_and(|claim| claim.metadata.deletion_timestamp.is_some());
    match (volume, claim) {
        (_, Some(claim)) if made_again(pass, claim) => Disks::Lost(format!(
            "PersistentVolumeClaim {name} was made again after the machine was in use, and is another disk"
        )),
        (_, Some(claim)) if claim_phase(claim) == "Lost" => {
            Disks::Lost(format!("PersistentVolumeClaim {name} has lost its volume"))
        }
        (_, Some(_)) if going && was_cloned => Disks::Lost(format!("PersistentVolumeClaim {name} is being deleted")),
        (_, Some(claim)) if claim_phase(claim) == "Bound" && !going => {
            if volume.is_none() || phase == Phase::Succeeded || was_cloned {
                Disks::Cloned
            } else {
                cloning(name, volume, Some(claim), phase)
            }
        }
        (volume, Some(claim)) => cloning(name, volume, Some(claim), phase),
        (_, None) if was_cloned || phase == Phase::Succeeded => {
            Disks::Lost(format!("PersistentVolumeClaim {name} is gone"))
        }
        (Some(volume), None) => cloning(name, Some(volume), None, phase),
        // a status that was lost is no proof that nothing was ever written
        (None, None) if objects.vm.is_some() && pass.stood(MachineCondition::DiskCloned).is_none() => {
            Disks::Lost(format!("PersistentVolumeClaim {name} is gone"))
        }
        (None, None) => Disks::Missing,
    }
}

/// Whether the volume is younger than the first use of the machine. CDI makes the volume of a DataVolume anew, and fills it
/// from the image, when somebody deletes it: that may be over before anybody saw that it was gone. The two times are of two
/// clocks, and what is called lost is given up: only what is younger by more than [`CLOCKS_DIFFER`] is.
fn made_again(pass: &Pass, claim: &PersistentVolumeClaim) -> bool {
    let first_use = pass.before().and_then(|status| status.first_ready_at.as_ref());
    let made = claim.metadata.creation_timestamp.as_ref();
    made.zip(first_use)
        .is_some_and(|(made, first_use)| made.0 > after(first_use.0, CLOCKS_DIFFER))
}

/// Whether its disks were there once, which the status keeps.
fn was_cloned(pass: &Pass) -> bool {
    let lost = |reason: &str| reason == MachineReason::VolumeLost.word();
    let stood = pass.stood(MachineCondition::DiskCloned);
    pass.held(MachineCondition::DiskCloned) || stood.is_some_and(|stood| lost(&stood.reason))
}

fn claim_phase(claim: &PersistentVolumeClaim) -> &str {
    claim
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .unwrap_or_default()
}

/// How each disk that is there was really made, by CDI's own word on its volume; one without that word is not told of.
pub(super) fn made(objects: &Objects) -> Vec<Disk> {
    let bound = objects.volumes.values().filter(|claim| claim_phase(claim) == "Bound");
    let mut disks: Vec<Disk> = bound.filter_map(|claim| made_one(claim)).collect();
    disks.sort();
    disks.truncate(DISKS);
    disks
}

fn made_one(claim: &PersistentVolumeClaim) -> Option<Disk> {
    let notes = claim.annotations();
    let strategy = notes.get(CLONE_TYPE).filter(|word| !word.is_empty())?;
    let fallback_reason = notes.get(CLONE_FALLBACK_REASON).filter(|why| !why.is_empty());
    Some(Disk {
        name: claim.name_any(),
        strategy: clip_to(strategy, STRATEGY),
        fallback_reason: fallback_reason.map(|why| clip_to(why, FALLBACK)),
    })
}

/// How the disks were made, in a sentence's words.
pub(super) fn told(disks: &[Disk]) -> String {
    let all: Vec<String> = disks.iter().map(one).collect();
    if all.is_empty() {
        return "cloned; CDI does not say how".to_owned();
    }
    format!("cloned: {}", all.join(", "))
}

fn one(disk: &Disk) -> String {
    let Disk { name, strategy, .. } = disk;
    match &disk.fallback_reason {
        Some(why) => format!("{name} by {strategy} ({why})"),
        None => format!("{name} by {strategy}"),
    }
}

/// What is to be told, once, of disks that a pod copied byte by byte where a driver could have cloned: CDI falls back to
/// it without a word, and 200 GiB are then read and written for each machine.
pub(super) fn copied(disks: &[Disk]) -> Option<crate::News> {
    let copies: Vec<String> = disks.iter().filter(|disk| disk.is_copy()).map(one).collect();
    (!copies.is_empty()).then(|| {
        let note = format!(
            "{}: copied by a pod, not cloned by the storage; the whole disk was read and written. Keep image and class in \
             one storage class whose driver clones or takes snapshots",
            copies.join(", ")
        );
        crate::News::warning(MachineReason::DiskCopied, note)
    })
}

fn cloning(name: &str, volume: Option<&DataVolume>, claim: Option<&PersistentVolumeClaim>, phase: Phase) -> Disks {
    let status = volume.and_then(|volume| volume.status.as_ref());
    let mut text = format!("{name}: {}", word(phase));
    if let Some(progress) = status
        .and_then(|status| status.progress.as_deref())
        .filter(|progress| *progress != "N/A")
    {
        text = format!("{text} {progress}");
    }
    let notes = claim.map(|claim| claim.annotations().clone()).unwrap_or_default();
    let told = [CLONE_ERROR, CLONE_FALLBACK_REASON]
        .into_iter()
        .filter_map(|key| notes.get(key).cloned());
    let complaints = status
        .into_iter()
        .flat_map(|status| &status.conditions)
        .filter(|c| c.status == "False");
    let complaints = complaints.filter_map(|condition| condition.message.clone());
    for note in told.chain(complaints).filter(|note| !note.is_empty()) {
        text = format!("{text}; {note}");
    }
    if matches!(phase, Phase::WaitForFirstConsumer | Phase::PendingPopulation) {
        return Disks::Waiting(text);
    }
    // a volume without a DataVolume has a deadline too
    let made = volume
        .and_then(|volume| volume.metadata.creation_timestamp.as_ref())
        .or_else(|| claim?.metadata.creation_timestamp.as_ref());
    Disks::Cloning(text, made.map(|time| time.0))
}

fn word(phase: Phase) -> String {
    match phase {
        Phase::Unset => "Pending".into(),
        phase => format!("{phase:?}"),
    }
}

/// Begins a clone anew whose source grant or pod went bad, once: the DataVolume is deleted, and made again when its
/// PVC is gone.
pub(super) fn retry_once(pass: &mut Pass, objects: &Objects) {
    // a DataVolume takes its PVC with it, and what the guest wrote since
    if was_cloned(pass) {
        return;
    }
    let Some(made) = objects.vm.and_then(|vm| vm.metadata.creation_timestamp.as_ref()) else {
        return;
    };
    for (name, volume) in &objects.data_volumes {
        let again = volume
            .metadata
            .creation_timestamp
            .as_ref()
            .is_some_and(|t| t.0 > after(made.0, MADE_TOGETHER));
        if again || volume.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let Some(since) = failing_since(volume) else { continue };
        let due = after(since, ERROR_PATIENCE);
        if pass.now < due {
            pass.plan.wake_at(due);
            continue;
        }
        let note = format!(
            "{name} reports an error since {}; the clone is begun anew, once",
            super::status::clock(since)
        );
        pass.plan.news.push(crate::News::warning(MachineReason::Cloning, note));
        pass.plan
            .then(Step::Delete(Target::of(Kind::DataVolume, &volume.metadata)));
    }
}

/// Since when the clone reports an error.
fn failing_since(volume: &DataVolume) -> Option<Timestamp> {
    let status = volume.status.as_ref()?;
    let running = condition(&status.conditions, RUNNING)?;
    let failing = status.phase == Some(Phase::Failed)
        || (running.status == "False" && running.reason.as_deref() == Some("Error"));
    let done = status.phase == Some(Phase::Succeeded);
    running
        .last_transition_time
        .as_ref()
        .filter(|_| failing && !done)
        .map(|time| time.0)
}
