//! From a source to what is published.

use std::sync::Arc;

use dockerios_api::{
    Name,
    condition::{Verdict, clip_to},
    config::platform_config::ObjectRef,
    image::macos_image::{ImagePhase, ImageReason, Published, PublishedKind},
};
use dockerios_kubevirt::{
    DataVolume, condition,
    datavolume::DataVolumePhase,
    names::{BOUND, CLONE_ERROR, RUNNING},
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;

use super::{AGAIN, Pass, Snapshot, phase, rendered, usable};
use crate::{
    Kind, Object, Seen, Step, Target,
    decide::clone_right::{self, Shut},
    plan::{Refusal, RefusalCause},
};

/// How long a clone or a snapshot may fail before another way is tried. CDI itself never gives up on a clone.
const PATIENCE: SignedDuration = SignedDuration::from_mins(5);
/// A clone or a snapshot that takes longer is told of: a copy of 200 GiB at 120 MB/s ends before.
const STUCK: SignedDuration = SignedDuration::from_mins(30);
/// Bytes of CDI's words that are passed on, so that the way out after them is never cut off.
const TOLD: usize = 600;
/// What is said while nothing is wrong with the snapshot.
const SNAPSHOT: &str = "a snapshot of the imported volume is being taken";
/// CDI's own word on a PVC whose DataVolume it removed after success (releases before 1.62).
const GARBAGE_COLLECTED: &str = "cdi.kubevirt.io/garbageCollected";
/// CDI's own word on a PVC: how the pod that fills it ended.
const POD_PHASE: &str = "cdi.kubevirt.io/storage.pod.phase";

impl Pass<'_> {
    pub(super) fn import(&mut self) {
        let facts = self.facts;
        match (&facts.data_volume, &facts.volume) {
            (Seen::Unknown(why), _) => self.unreadable("its DataVolume", why),
            (_, Seen::Unknown(why)) => self.unreadable("its volume", why),
            (Seen::Present(data_volume), _) if !self.ours(&data_volume.metadata) => self.name_taken("DataVolume"),
            (Seen::Present(data_volume), volume) => self.follow(data_volume, volume.present()),
            (Seen::Absent, Seen::Present(volume)) if !self.ours(&volume.metadata) => {
                self.name_taken("PersistentVolumeClaim");
            }
            (Seen::Absent, Seen::Present(volume)) if usable(volume) && filled(volume) => self.publish(),
            (Seen::Absent, Seen::Present(volume)) => {
                let message = format!(
                    "DataVolume {0} was deleted before its import ended, and nobody knows what is on \
                     PersistentVolumeClaim {1}/{0}; delete that and the import begins again",
                    volume.name_any(),
                    facts.platform_namespace
                );
                self.failed(ImageReason::ImportFailed, message);
            }
            (Seen::Absent, Seen::Absent) => self.begin(),
        }
    }

    fn name_taken(&mut self, kind: &str) {
        let name = rendered::name(&self.facts.image.name_any());
        let message = format!(
            "{kind} {}/{name} is not of this image's making; delete or rename it, or give the image another name",
            self.facts.platform_namespace
        );
        self.pending(ImageReason::NameTaken, message);
    }

    /// There is nothing yet.
    fn begin(&mut self) {
        let facts = self.facts;
        let class = &facts.image.spec.storage_class_name;
        match &facts.storage_class {
            Seen::Unknown(why) => return self.unreadable("its StorageClass", why),
            Seen::Absent => {
                let message = format!("StorageClass {class} is not there; make it, or name another one");
                return self.pending(ImageReason::StorageClassNotFound, message);
            }
            Seen::Present(_) => {}
        }
        if let (Some(origin), true) = (self.origin(), facts.source.absent()) {
            let message = format!(
                "the source {}/{} is not there; make it, or mend spec.source",
                origin.namespace, origin.name
            );
            return self.pending(ImageReason::SourceNotFound, message);
        }
        if let Some(origin) = self.foreign() {
            match clone_right::judge(&facts.clone_right, &origin.namespace, &facts.platform_namespace) {
                Ok(()) => {}
                Err(Shut::Denied(message)) => return self.pending(ImageReason::CloneNotPermitted, message),
                Err(Shut::Unknown(why)) => return self.unreadable("its right to clone", &why),
            }
        }
        // an image without uid was never stored
        let made = rendered::data_volume(&facts.image, &facts.platform_namespace);
        if let Some(object) = made.and_then(|made| Object::of(Kind::DataVolume, &made).ok()) {
            self.plan.then(Step::Create(object));
        }
        match facts
            .refusal
            .clone()
            .filter(|refusal| refusal.of.kind == Kind::DataVolume)
        {
            Some(refusal) => self.refused(&refusal),
            None => {
                self.status.phase = Some(ImagePhase::Importing);
                self.status.progress = None;
                self.say(Verdict::False, ImageReason::Importing, "the import begins");
            }
        }
    }

    /// The API server took no DataVolume. It is tried again: rights and quotas change without a word to us.
    fn refused(&mut self, refusal: &Refusal) {
        match (refusal.cause, self.foreign()) {
            (RefusalCause::NameTaken, _) => self.name_taken("DataVolume"),
            (_, Some(origin)) if clone_right::is_denial(&refusal.message) => {
                let home = &self.facts.platform_namespace;
                let message = clone_right::denied(&origin.namespace, home, Some(&refusal.message));
                self.pending(ImageReason::CloneNotPermitted, message);
            }
            _ => {
                let message = format!("the import was refused: {}; it is tried again", refusal.message);
                self.pending(ImageReason::ImportFailed, message);
            }
        }
    }

    /// Follows the DataVolume.
    fn follow(&mut self, data_volume: &Arc<DataVolume>, volume: Option<&Arc<PersistentVolumeClaim>>) {
        if data_volume.metadata.deletion_timestamp.is_some() {
            return self.importing(None, "the last try is being removed");
        }
        let wanted = rendered::source(&self.facts.image.spec.source);
        let other = data_volume.spec.source.as_ref().is_some_and(|source| *source != wanted);
        let phase = phase(data_volume);
        if other && phase != DataVolumePhase::Succeeded {
            self.plan
                .then(Step::Delete(Target::of(Kind::DataVolume, &data_volume.metadata)));
            return self.importing(None, "the source was changed; the import begins again");
        }
        match phase {
            DataVolumePhase::Succeeded => match volume.filter(|volume| usable(volume)) {
                Some(_) => self.publish(),
                None => {
                    let message = "its volume is gone though the import ended; delete the DataVolume to import again";
                    self.failed(ImageReason::VolumeLost, message.to_owned());
                }
            },
            DataVolumePhase::Failed => {
                let why = trouble(data_volume, volume).unwrap_or_else(|| "CDI gives no reason".to_owned());
                let message =
                    format!("the import failed: {why}; mend spec.source, or delete the DataVolume to try again");
                self.failed(ImageReason::ImportFailed, message);
            }
            _ => self.running(data_volume, volume),
        }
    }

    fn running(&mut self, data_volume: &Arc<DataVolume>, volume: Option<&Arc<PersistentVolumeClaim>>) {
        let progress = data_volume
            .status
            .as_ref()
            .and_then(|status| percent(status.progress.as_deref()?));
        let since = data_volume.creation_timestamp().map_or(self.now, |time| time.0);
        let after = |span: SignedDuration| since.saturating_add(span).unwrap_or(self.now);
        let clone = self.origin().is_some();
        let (replace, stuck) = (after(PATIENCE), after(STUCK));
        match trouble(data_volume, volume) {
            // an importer is started again by CDI itself
            Some(why) if !clone => self.failing(progress, &format!("the importer fails and tries again: {why}")),
            Some(why) if replace <= self.now => {
                self.plan
                    .then(Step::Delete(Target::of(Kind::DataVolume, &data_volume.metadata)));
                self.failing(None, &format!("the clone is begun anew: {why}"));
            }
            Some(why) => {
                self.plan.wake_at(replace);
                self.failing(progress, &format!("the clone fails: {why}; begun anew at {replace}"));
            }
            None if clone && stuck <= self.now => {
                let message = format!(
                    "the clone is {:?} since {since} and CDI never fails one by itself: look at DataVolume {}/{} and its \
                     PVC. If nothing moves there, delete the DataVolume and the clone begins anew",
                    phase(data_volume),
                    self.facts.platform_namespace,
                    data_volume.name_any()
                );
                self.underway(progress, ImageReason::CloneStuck, &message);
            }
            None => {
                if clone {
                    self.plan.wake_at(stuck);
                }
                self.importing(progress, &format!("CDI imports it ({:?})", phase(data_volume)));
            }
        }
    }

    /// The disk is there: publish what the storage clones best.
    fn publish(&mut self) {
        let facts = self.facts;
        let profile = match &facts.profile {
            Seen::Unknown(why) => return self.unreadable("its StorageProfile", why),
            profile => profile.present(),
        };
        let stated = profile.and_then(|profile| profile.spec.clone_strategy.as_deref());
        let known = profile.and_then(|profile| profile.status.as_ref()?.clone_strategy.as_deref());
        if stated.or(known) != Some("snapshot") {
            return self.publish_as(PublishedKind::PersistentVolumeClaim);
        }
        match &facts.snapshot {
            Seen::Unknown(why) => self.unreadable("its snapshot", why),
            Seen::Present(snapshot) if !self.ours(&snapshot.metadata) => self.name_taken("VolumeSnapshot"),
            Seen::Present(snapshot) if snapshot.ready => self.publish_as(PublishedKind::VolumeSnapshot),
            Seen::Present(snapshot) => self.await_snapshot(snapshot),
            Seen::Absent => {
                let own = profile.and_then(|profile| profile.spec.snapshot_class.as_deref());
                let class = own.or(profile.and_then(|profile| profile.status.as_ref()?.snapshot_class.as_deref()));
                let made = rendered::snapshot(&facts.image, &facts.platform_namespace, class);
                if let Some(body) = made {
                    self.plan.then(Step::Create(Object {
                        kind: Kind::VolumeSnapshot,
                        body,
                    }));
                }
                match facts
                    .refusal
                    .as_ref()
                    .filter(|refusal| refusal.of.kind == Kind::VolumeSnapshot)
                {
                    Some(refusal) => {
                        let message = format!(
                            "the imported volume is to be published as a snapshot, and that was refused: {}; it is tried \
                             again",
                            clip_to(&refusal.message, TOLD)
                        );
                        self.wake_in(AGAIN);
                        self.failing(Some("100%".into()), &message);
                    }
                    None => self.importing(Some("100%".into()), SNAPSHOT),
                }
            }
        }
    }

    fn await_snapshot(&mut self, snapshot: &Snapshot) {
        let since = snapshot
            .metadata
            .creation_timestamp
            .as_ref()
            .map_or(self.now, |time| time.0);
        let until = since.saturating_add(PATIENCE).unwrap_or(self.now);
        match &snapshot.error {
            // the volume itself can be cloned too, if slower
            Some(_) if until <= self.now => self.publish_as(PublishedKind::PersistentVolumeClaim),
            Some(why) => {
                self.plan.wake_at(until);
                let message =
                    format!("its snapshot fails ({why}); if that lasts until {until}, the volume is published");
                self.importing(Some("100%".into()), &message);
            }
            None => self.await_ready(snapshot, since),
        }
    }

    /// Nobody fails a snapshot that is never looked at, as where no snapshot controller runs.
    fn await_ready(&mut self, snapshot: &Snapshot, since: Timestamp) {
        let stuck = since.saturating_add(STUCK).unwrap_or(self.now);
        if self.now < stuck {
            self.plan.wake_at(stuck);
            return self.importing(Some("100%".into()), SNAPSHOT);
        }
        let message = format!(
            "VolumeSnapshot {}/{} is not ready since {since}, and says nothing: see whether a snapshot controller runs and \
             whether its driver is at work. If nothing moves there, delete it and it is taken anew",
            self.facts.platform_namespace,
            snapshot.metadata.name.as_deref().unwrap_or_default()
        );
        self.underway(Some("100%".into()), ImageReason::CloneStuck, &message);
    }

    fn publish_as(&mut self, kind: PublishedKind) {
        self.published(&Published {
            kind,
            namespace: Name(self.facts.platform_namespace.clone()),
            name: Name(rendered::name(&self.facts.image.name_any())),
        });
    }

    fn importing(&mut self, progress: Option<String>, message: &str) {
        self.underway(progress, ImageReason::Importing, message);
    }

    fn failing(&mut self, progress: Option<String>, message: &str) {
        self.underway(progress, ImageReason::ImportFailing, message);
    }

    fn underway(&mut self, progress: Option<String>, reason: ImageReason, message: &str) {
        self.status.phase = Some(ImagePhase::Importing);
        self.status.progress = progress;
        self.say(Verdict::False, reason, message);
    }

    fn pending(&mut self, reason: ImageReason, message: String) {
        self.status.phase = Some(ImagePhase::Pending);
        self.status.progress = None;
        self.say(Verdict::False, reason, message);
        self.wake_in(AGAIN);
    }

    fn failed(&mut self, reason: ImageReason, message: String) {
        self.status.phase = Some(ImagePhase::Failed);
        self.status.progress = None;
        self.say(Verdict::False, reason, message);
        self.wake_in(AGAIN);
    }

    /// What it is cloned from, if that is in another namespace.
    fn foreign(&self) -> Option<&ObjectRef> {
        self.origin()
            .filter(|origin| origin.namespace.0 != self.facts.platform_namespace)
    }

    /// What it is cloned from, if from within the cluster.
    fn origin(&self) -> Option<&ObjectRef> {
        self.facts.image.spec.source.within()
    }
}

/// Whether CDI said on the volume itself that it was filled.
fn filled(volume: &PersistentVolumeClaim) -> bool {
    let says = |key: &str, word: &str| volume.annotations().get(key).is_some_and(|value| value == word);
    says(GARBAGE_COLLECTED, "true") || says(POD_PHASE, "Succeeded")
}

/// What CDI says is wrong.
fn trouble(data_volume: &DataVolume, volume: Option<&Arc<PersistentVolumeClaim>>) -> Option<String> {
    if let Some(error) = volume.and_then(|volume| volume.annotations().get(CLONE_ERROR)) {
        return Some(clip_to(error, TOLD));
    }
    let conditions = &data_volume.status.as_ref()?.conditions;
    [BOUND, RUNNING].into_iter().find_map(|kind| {
        let said = condition(conditions, kind).filter(|said| said.status == "False")?;
        let reason = said.reason.as_deref().filter(|reason| bad(reason))?;
        let message = said.message.as_deref().unwrap_or_default();
        Some(clip_to(&format!("{reason}: {message}"), TOLD))
    })
}

/// CDI's reasons for what does not get better by waiting a little; `Pending`, `Completed` and their like are none.
fn bad(reason: &str) -> bool {
    ["Err", "Fail", "Unable", "BackOff", "Invalid"]
        .iter()
        .any(|part| reason.contains(part))
}

/// `42.13%` as `42%`; `N/A` as nothing.
fn percent(text: &str) -> Option<String> {
    let whole = text.split(['.', '%']).next()?;
    let number: u8 = whole.parse().ok()?;
    (number <= 100).then(|| format!("{number}%"))
}
