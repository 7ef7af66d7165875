//! CDI: `DataVolume`, a claim that is filled, and `StorageProfile`, what CDI knows of a storage class.
//!
//! Invariant: a clone that fails never becomes [`DataVolumePhase::Failed`]; it stays where it is, with an annotation
//! on the claim ([`crate::names::CLONE_ERROR`]). Whoever waits needs a deadline of their own.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Condition, Present};

/// A claim and what fills it.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "cdi.kubevirt.io",
    version = "v1beta1",
    kind = "DataVolume",
    plural = "datavolumes",
    shortname = "dv",
    shortname = "dvs",
    category = "all",
    namespaced,
    status = "DataVolumeStatus",
    derive = "Default",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct DataVolumeSpec {
    /// What fills it; exactly one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// The claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<Storage>,
    /// `kubevirt` (a disk image) or `archive`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// Write every block.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preallocation: Option<bool>,
}

/// What fills a claim: exactly one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Source {
    /// A claim, cloned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pvc: Option<Origin>,
    /// A VolumeSnapshot, cloned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<Origin>,
    /// An image in a registry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registry: Option<Registry>,
    /// A file on a server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<Http>,
    /// Nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blank: Option<Present>,
}

/// An object of any namespace that the creator may clone from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Origin {
    /// Namespace.
    #[serde(default)]
    pub namespace: String,
    /// Name.
    #[serde(default)]
    pub name: String,
}

/// An image in a registry.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Registry {
    /// `docker://…`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Secret with accessKeyId and secretKey.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<String>,
    /// ConfigMap with certificates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cert_config_map: Option<String>,
    /// `pod` or `node`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_method: Option<String>,
}

/// A file on a server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Http {
    /// Where.
    #[serde(default)]
    pub url: String,
    /// Secret with accessKeyId and secretKey.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<String>,
    /// ConfigMap with certificates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cert_config_map: Option<String>,
    /// `sha256:…`, verified by CDI releases that know the field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<String>,
}

/// The claim, as far as it is not left to the storage profile.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Storage {
    /// `ReadWriteOnce`, …
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub access_modes: Vec<String>,
    /// `Block` or `Filesystem`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_mode: Option<String>,
    /// Storage class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_class_name: Option<String>,
    /// Size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<StorageResources>,
}

/// Size of the claim.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StorageResources {
    /// `storage`, in bytes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub requests: BTreeMap<String, Quantity>,
}

/// Where a DataVolume stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum DataVolumePhase {
    /// Written as an empty word before anybody looked.
    #[default]
    #[serde(rename = "")]
    Unset,
    /// Seen.
    Pending,
    /// The claim is bound; nothing is written yet.
    #[serde(rename = "PVCBound")]
    PvcBound,
    /// The importer pod has no node yet.
    ImportScheduled,
    /// The importer writes.
    ImportInProgress,
    /// A host-assisted copy has no node yet.
    CloneScheduled,
    /// A host-assisted copy writes.
    CloneInProgress,
    /// The source is being snapshotted.
    SnapshotForSmartCloneInProgress,
    /// A snapshot is being restored.
    CloneFromSnapshotSourceInProgress,
    /// The claim is being made of the snapshot.
    #[serde(rename = "SmartClonePVCInProgress")]
    SmartClonePvcInProgress,
    /// The driver clones.
    #[serde(rename = "CSICloneInProgress")]
    CsiCloneInProgress,
    /// The cloned claim is being prepared.
    PrepClaimInProgress,
    /// The cloned volume is being handed to the claim.
    RebindInProgress,
    /// The cloned volume grows.
    ExpansionInProgress,
    /// The cloned volume changes its namespace.
    NamespaceTransferInProgress,
    /// The upload pod has no node yet.
    UploadScheduled,
    /// An upload may begin.
    UploadReady,
    /// The storage class binds when a pod uses the claim.
    WaitForFirstConsumer,
    /// The same, where a populator fills the claim.
    PendingPopulation,
    /// Filled.
    Succeeded,
    /// Not filled, and will not be.
    Failed,
    /// Between checkpoints.
    Paused,
    /// The pod that fills it cannot be seen.
    Unknown,
    /// Word of another release.
    #[serde(other)]
    Unrecognised,
}

/// What CDI says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DataVolumeStatus {
    /// Where it stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<DataVolumePhase>,
    /// `12.50%`, or `N/A`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<String>,
    /// The claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim_name: Option<String>,
    /// How often the pod that fills it began anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_count: Option<i32>,
    /// Conditions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// What an admin sets for a storage class.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "cdi.kubevirt.io",
    version = "v1beta1",
    kind = "StorageProfile",
    plural = "storageprofiles",
    status = "StorageProfileStatus",
    derive = "Default",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct StorageProfileSpec {
    /// `copy`, `snapshot` or `csi-clone`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clone_strategy: Option<String>,
    /// VolumeSnapshotClass to use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_class: Option<String>,
    /// Modes, best first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub claim_property_sets: Vec<ClaimPropertySet>,
}

/// What CDI makes of a storage class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StorageProfileStatus {
    /// Storage class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_class: Option<String>,
    /// Its provisioner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provisioner: Option<String>,
    /// `copy`, `snapshot` or `csi-clone`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clone_strategy: Option<String>,
    /// VolumeSnapshotClass it uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_class: Option<String>,
    /// What imports are kept as: `pvc` or `snapshot`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_import_cron_source_format: Option<String>,
    /// Modes, best first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub claim_property_sets: Vec<ClaimPropertySet>,
}

/// Modes that go together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimPropertySet {
    /// Access modes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub access_modes: Vec<String>,
    /// Volume mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_mode: Option<String>,
}
