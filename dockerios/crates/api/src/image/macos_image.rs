//! `MacOSImage`: a golden disk, imported once, cloned for every machine.
//!
//! ```text
//! Pending ──DataVolume──▶ Importing ──▶ Ready (source can change no more)
//!                             └──────▶ Failed
//! ```

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Condition, Name, Size, config::platform_config::ObjectRef, vocabulary::vocabulary};

/// A golden disk that exists already somewhere; nothing here installs macOS. A new image gets a new name.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "image.dockerios.io", version = "v1alpha1", kind = "MacOSImage", plural = "macosimages",
    status = "MacOSImageStatus", shortname = "mimg", category = "dockerios", derive = "PartialEq",
    doc = "MacOSImage is a golden macOS disk, imported once into the platform namespace and cloned for every machine of the classes that name it. Its source cannot change once it is Ready; make a new image and repoint the class.",
    printcolumn(name = "OS", type_ = "string", json_path = ".spec.osVersion"),
    printcolumn(name = "PHASE", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "SIZE", type_ = "string", json_path = ".spec.size"),
    printcolumn(name = "PROGRESS", type_ = "string", json_path = ".status.progress"),
    printcolumn(name = "REASON", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "MESSAGE", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].message", priority = 1),
    validation = Rule::new("size(self.metadata.name) <= 57").message("[name-57] metadata.name: at most 57 characters (objects of the import are named after it); choose a shorter name"),
    validation = Rule::new("!has(oldSelf.status) || !has(oldSelf.status.published) || self.spec == oldSelf.spec").message("[image-immutable-once-ready] spec: cannot change once the image was Ready; make a new image under a new name and repoint the class"),
    validation = Rule::new("!has(oldSelf.status) || !has(oldSelf.status.published) || (has(self.status) && has(self.status.published) && self.status.published == oldSelf.status.published)").message("[image-published-once] status.published: written once; classes clone from it")
)]
pub struct MacOSImageSpec {
    /// Where the disk comes from: exactly one.
    pub source: ImageSource,
    /// Size of the disk.
    pub size: Size,
    /// Storage class it is kept in; machines are cloned fastest within it.
    pub storage_class_name: Name,
    /// The macOS on it, e.g. `15.6`. Decides which CPU models can run it.
    #[schemars(length(min = 2, max = 16), regex(pattern = r"^[1-9][0-9]?(\.[0-9]{1,3}){0,2}$"))]
    pub os_version: String,
}

/// Exactly one of these.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.registry), has(self.http), has(self.pvc), has(self.snapshot)].filter(s, s).size() == 1").message("[image-one-source] source: exactly one of registry, http, pvc, snapshot"))]
pub struct ImageSource {
    /// A containerDisk in a registry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registry: Option<RegistrySource>,
    /// A file on a web server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpSource>,
    /// A volume of this cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pvc: Option<ObjectRef>,
    /// A VolumeSnapshot of this cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<ObjectRef>,
}

impl ImageSource {
    /// What the disk is cloned from, if that is in this cluster.
    pub fn within(&self) -> Option<&ObjectRef> {
        self.pvc.as_ref().or(self.snapshot.as_ref())
    }
}

/// A containerDisk in a registry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct RegistrySource {
    /// `docker://registry/repository@sha256:…`.
    #[schemars(length(min = 10, max = 512), regex(pattern = r"^docker://[^\s]+$"))]
    #[x_kube(validation = Rule::new("self.matches('@sha256:[0-9a-f]{64}$')").message("[image-pinned] source.registry.url: pinned by digest: docker://registry/repository@sha256:<64 hex digits>; a tag can move"))]
    pub url: String,
}

/// A file on a web server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HttpSource {
    /// Where it is.
    #[schemars(length(min = 8, max = 2048), regex(pattern = r"^https?://[^\s]+$"))]
    pub url: String,
    /// SHA-256 of the file, as it is served.
    #[schemars(length(min = 64, max = 64), regex(pattern = "^[0-9a-f]{64}$"))]
    pub sha256: String,
}

/// What became of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct MacOSImageStatus {
    /// `metadata.generation` of the spec that all of this is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Where it stands, in one word; for people, nothing is decided from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<ImagePhase>,
    /// How far the import is, e.g. `42%`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub progress: Option<String>,
    /// What machines are cloned from. Written once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published: Option<Published>,
    /// All that is to be said of it, with reasons; `Ready` is the sum.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// What machines are cloned from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Published {
    /// PersistentVolumeClaim or VolumeSnapshot, whichever its storage clones best.
    pub kind: PublishedKind,
    /// The platform namespace.
    pub namespace: Name,
    /// Its name.
    pub name: Name,
}

/// Kind of what machines are cloned from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PublishedKind {
    /// The imported volume itself.
    PersistentVolumeClaim,
    /// A snapshot of it.
    VolumeSnapshot,
}

/// A summary of a MacOSImage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum ImagePhase {
    /// Nothing is imported yet.
    Pending,
    /// The disk is on its way.
    Importing,
    /// Machines can be cloned from it.
    Ready,
    /// The import failed; the reason stands in the condition.
    Failed,
}

vocabulary! {
    /// Condition types of a MacOSImage.
    ImageCondition:
        /// Machines can be cloned from it.
        Ready;
        /// A class names it, or a clone of it runs: it cannot be deleted.
        InUse;
}

vocabulary! {
    /// Reasons of a MacOSImage's conditions.
    ImageReason:
        /// It is published.
        Published;
        /// The import has begun and says how far it is.
        Importing;
        /// The importer, the clone or the snapshot of what was imported fails, or was refused, and is tried again; the message is CDI's or the API server's own. Mend the source or the storage.
        ImportFailing;
        /// A clone of the source, or the snapshot of what was imported, has not ended within half an hour, and nobody fails one by itself: look at the DataVolume or VolumeSnapshot that the message names, and delete it to begin anew.
        CloneStuck;
        /// The importer gave up; the message is its own. Mend the source, or make a new image.
        ImportFailed;
        /// The source volume or snapshot is not there.
        SourceNotFound;
        /// The source is in another namespace, and the operator may not clone from there; the message has the Role and RoleBinding that grant it.
        CloneNotPermitted;
        /// The storage class is not there.
        StorageClassNotFound;
        /// What was published is gone: the volume or snapshot was deleted behind the image. Make a new image.
        VolumeLost;
        /// An object that is not ours has the name that the import needs.
        NameTaken;
        /// Classes name it; the message says which.
        NamedByClass;
        /// Machines are being cloned from it.
        ClonesInFlight;
        /// Nothing needs it.
        NotInUse;
        /// It is being deleted.
        Deleting;
        /// Something could not be read just now; nothing is decided from it.
        Unreadable;
}
