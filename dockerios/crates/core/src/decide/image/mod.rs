//! `MacOSImage`: imported once, published once, kept while anything needs it.
//!
//! ```text
//! finalizer ──▶ DataVolume ──Succeeded──▶ (snapshot) ──▶ published: Ready ──volume gone──▶ Failed (VolumeLost)
//!                   └── Failed ──▶ Failed ──source mended──▶ DataVolume anew
//! ```
//!
//! Invariants: what was published is never imported again behind the machines that were cloned from it; a volume whose
//! DataVolume is gone counts as imported only when CDI said so on the volume; the finalizer goes only when no class
//! names the image and no clone of it runs, both seen.

mod import;

use std::sync::Arc;

use dockerios_api::{
    MacOSImage, MacOSImageStatus,
    condition::Verdict,
    image::macos_image::{ImageCondition, ImagePhase, ImageReason, Published, PublishedKind},
    names::{IMAGE, IN_USE},
};
use dockerios_kubevirt::{DataVolume, StorageProfile, datavolume::DataVolumePhase};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{core::v1::PersistentVolumeClaim, storage::v1::StorageClass};
use kube::{
    ResourceExt,
    core::{DynamicObject, ObjectMeta},
};

use crate::{Kind, Plan, Seen, Step, Target, plan::Refusal, render::import as rendered, report::Report};

const AGAIN: SignedDuration = SignedDuration::from_mins(2);

/// What the decision reads.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The image.
    pub image: Arc<MacOSImage>,
    /// The import, in the platform namespace.
    pub data_volume: Seen<Arc<DataVolume>>,
    /// Its volume.
    pub volume: Seen<Arc<PersistentVolumeClaim>>,
    /// The snapshot of it.
    pub snapshot: Seen<Snapshot>,
    /// What CDI knows of the storage class.
    pub profile: Seen<Arc<StorageProfile>>,
    /// The storage class.
    pub storage_class: Seen<Arc<StorageClass>>,
    /// The volume or snapshot that it is cloned from. Unknown also for what is not watched, such as snapshots of other
    /// namespaces, and for sources outside the cluster.
    pub source: Seen<()>,
    /// Whether the operator may clone from there; looked at only when that is in another namespace.
    pub clone_right: Seen<bool>,
    /// Names of classes that name it.
    pub classes: Seen<Vec<String>>,
    /// DataVolumes that are cloned from what was published, done or not.
    pub clones: Seen<Vec<Arc<DataVolume>>>,
    /// Where images are.
    pub platform_namespace: String,
    /// What the API server refused in the last pass.
    pub refusal: Option<Refusal>,
}

/// What is read of a VolumeSnapshot.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// Its metadata.
    pub metadata: ObjectMeta,
    /// Whether volumes can be made of it.
    pub ready: bool,
    /// What its driver failed with.
    pub error: Option<String>,
}

impl From<&DynamicObject> for Snapshot {
    fn from(object: &DynamicObject) -> Self {
        let status = &object.data["status"];
        Self {
            metadata: object.metadata.clone(),
            ready: status["readyToUse"].as_bool().unwrap_or(false),
            error: status["error"]["message"].as_str().map(str::to_owned),
        }
    }
}

struct Pass<'a> {
    facts: &'a Facts,
    now: Timestamp,
    report: Report<'a>,
    status: MacOSImageStatus,
    plan: Plan,
}

/// Decides about one image.
pub fn decide(facts: &Facts, now: Timestamp) -> Plan {
    let image = &*facts.image;
    let conditions = image.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let mut pass = Pass {
        facts,
        now,
        report: Report::after(conditions, image.metadata.generation, now),
        status: image.status.clone().unwrap_or_default(),
        plan: Plan::default(),
    };
    pass.in_use();
    if image.metadata.deletion_timestamp.is_some() {
        pass.leave();
    } else if !image.finalizers().iter().any(|finalizer| finalizer == IN_USE) {
        pass.plan.then(Step::AddFinalizer(
            Target::exactly(Kind::MacOSImage, &image.metadata),
            IN_USE,
        ));
        return pass.plan;
    } else if let Some(published) = pass.status.published.clone() {
        pass.watch_over(&published);
    } else {
        pass.import();
    }
    pass.done()
}

impl Pass<'_> {
    fn done(mut self) -> Plan {
        self.plan.news.extend(self.report.news(ImageCondition::Ready));
        self.status.observed_generation = self.facts.image.metadata.generation;
        self.status.conditions = self.report.done();
        self.plan.report(&self.status);
        self.plan
    }

    /// Whether a class names it or a clone of it runs.
    fn in_use(&mut self) {
        let flying = |clones: &Vec<Arc<DataVolume>>| -> Vec<String> {
            let runs = |clone: &&Arc<DataVolume>| phase(clone) != DataVolumePhase::Succeeded;
            let place =
                |clone: &Arc<DataVolume>| format!("{}/{}", clone.namespace().unwrap_or_default(), clone.name_any());
            clones.iter().filter(runs).map(place).collect()
        };
        let (verdict, reason, message) = match (&self.facts.classes, &self.facts.clones) {
            (Seen::Present(classes), _) if !classes.is_empty() => (
                Verdict::True,
                ImageReason::NamedByClass,
                format!(
                    "MacOSMachineClass {} names it; repoint or delete the class first",
                    list(classes)
                ),
            ),
            (_, Seen::Present(clones)) if !flying(clones).is_empty() => (
                Verdict::True,
                ImageReason::ClonesInFlight,
                format!("DataVolume {} is being cloned from it", list(&flying(clones))),
            ),
            (Seen::Unknown(why), _) | (_, Seen::Unknown(why)) => (
                Verdict::Unknown,
                ImageReason::Unreadable,
                format!("cannot see who needs it now ({why}); it is kept"),
            ),
            _ => (
                Verdict::False,
                ImageReason::NotInUse,
                "no class names it and no clone of it runs".to_owned(),
            ),
        };
        self.report.say(ImageCondition::InUse, verdict, reason, message);
    }

    /// It was published: is that still there?
    fn watch_over(&mut self, published: &Published) {
        let place = format!("{}/{}", published.namespace, published.name);
        let there = match published.kind {
            PublishedKind::PersistentVolumeClaim => match &self.facts.volume {
                Seen::Unknown(why) => Err(why.clone()),
                volume => Ok(volume.present().is_some_and(|volume| usable(volume))),
            },
            PublishedKind::VolumeSnapshot => match &self.facts.snapshot {
                Seen::Unknown(why) => Err(why.clone()),
                snapshot => Ok(snapshot
                    .present()
                    .is_some_and(|one| one.metadata.deletion_timestamp.is_none())),
            },
        };
        match there {
            Err(why) => self.unreadable("what was published", &why),
            Ok(true) => self.published(published),
            Ok(false) => {
                let message = format!(
                    "{:?} {place} was deleted behind the image, or its volume is gone; it is not imported again under \
                     this name: make a new MacOSImage and repoint the classes",
                    published.kind
                );
                self.say(Verdict::False, ImageReason::VolumeLost, message);
                self.status.phase = Some(ImagePhase::Failed);
            }
        }
    }

    fn published(&mut self, published: &Published) {
        let message = format!(
            "machines are cloned from {:?} {}/{}",
            published.kind, published.namespace, published.name
        );
        self.say(Verdict::True, ImageReason::Published, message);
        self.status.phase = Some(ImagePhase::Ready);
        self.status.progress = Some("100%".to_owned());
        self.status.published = Some(published.clone());
    }

    /// It is being deleted: once nothing needs it, its objects go, the finalizer last.
    fn leave(&mut self) {
        let used = self
            .report
            .said(ImageCondition::InUse)
            .filter(|said| said.status != Verdict::False);
        if let Some(used) = used.map(|said| said.message.clone()) {
            self.wake_in(AGAIN);
            return self.say(
                Verdict::False,
                ImageReason::Deleting,
                format!("it is deleted when nothing needs it: {used}"),
            );
        }
        let facts = self.facts;
        let unseen = [
            facts.data_volume.unreadable(),
            facts.volume.unreadable(),
            facts.snapshot.unreadable(),
        ];
        if let Some(why) = unseen.into_iter().flatten().next() {
            return self.unreadable("its volume", why);
        }
        let left = [
            (Kind::VolumeSnapshot, facts.snapshot.present().map(|one| &one.metadata)),
            (Kind::DataVolume, facts.data_volume.present().map(|one| &one.metadata)),
            (
                Kind::PersistentVolumeClaim,
                facts.volume.present().map(|one| &one.metadata),
            ),
        ];
        let left: Vec<_> = left
            .into_iter()
            .filter_map(|(kind, meta)| Some((kind, meta.filter(|meta| self.ours(meta))?)))
            .collect();
        self.say(Verdict::False, ImageReason::Deleting, "its volume is being removed");
        for (kind, meta) in left.iter().filter(|(_, meta)| meta.deletion_timestamp.is_none()) {
            self.plan.then(Step::Delete(Target::of(*kind, meta)));
        }
        if left.is_empty() && facts.image.finalizers().iter().any(|finalizer| finalizer == IN_USE) {
            let target = Target::exactly(Kind::MacOSImage, &facts.image.metadata);
            self.plan.then(Step::RemoveFinalizer(target, IN_USE, None));
        }
    }

    /// Whether the object was made for this image.
    fn ours(&self, meta: &ObjectMeta) -> bool {
        let label = meta.labels.as_ref().and_then(|labels| labels.get(IMAGE));
        label == Some(&self.facts.image.name_any())
    }

    fn say(&mut self, verdict: Verdict, reason: ImageReason, message: impl AsRef<str>) {
        self.report.say(ImageCondition::Ready, verdict, reason, message);
    }

    /// Says that something could not be read; phase and publication stay as they were.
    fn unreadable(&mut self, what: &str, why: &str) {
        let message = format!("cannot see {what} now ({why}); nothing is decided from it");
        self.say(Verdict::Unknown, ImageReason::Unreadable, message);
        self.wake_in(AGAIN);
    }

    fn wake_in(&mut self, span: SignedDuration) {
        self.plan
            .wake_at(self.now.saturating_add(span).unwrap_or(Timestamp::MAX));
    }
}

fn phase(data_volume: &DataVolume) -> DataVolumePhase {
    data_volume
        .status
        .as_ref()
        .and_then(|status| status.phase)
        .unwrap_or_default()
}

fn usable(volume: &PersistentVolumeClaim) -> bool {
    let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
    volume.metadata.deletion_timestamp.is_none() && phase != Some("Lost")
}

fn list(names: &[String]) -> String {
    let shown = names.iter().take(4).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().checked_sub(4) {
        Some(more) if more > 0 => format!("{shown} and {more} more"),
        _ => shown,
    }
}
