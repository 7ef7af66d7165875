//! `MachineIdentity`: one Mac's serial, MLB, ROM, UUID and MAC. Its name is its lower-case serial.
//!
//! ```text
//! Generated ──unique──▶ BuildingBootDisk ──▶ Available ──▶ Allocated ──▶ Released ──policy──▶ Available | Quarantined | deleted
//!     └──collision──▶ Quarantined   └──▶ Failed
//! ```

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::pool::BootDiskTemplate;
use crate::{Condition, Name, PinnedImage, vocabulary::vocabulary};

/// The values; immutable. Made by a pool, or by an admin who owns them.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "identity.dockerios.io", version = "v1alpha1", kind = "MachineIdentity", plural = "machineidentities",
    status = "MachineIdentityStatus", shortname = "mid", category = "dockerios", derive = "PartialEq",
    doc = "MachineIdentity records one Mac's serial, MLB, ROM, UUID and MAC address. It is allocated to at most one machine; status.claimRef says which.",
    printcolumn(name = "POOL", type_ = "string", json_path = ".spec.poolName"),
    printcolumn(name = "PHASE", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "NAMESPACE", type_ = "string", json_path = ".status.claimRef.namespace"),
    printcolumn(name = "MACHINE", type_ = "string", json_path = ".status.claimRef.name"),
    printcolumn(name = "REASON", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "MESSAGE", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].message", priority = 1),
    selectable = ".spec.poolName",
    validation = Rule::new("self.metadata.name == self.spec.serial.lowerAscii()").message("[identity-named-by-serial] metadata.name: must be the serial in lower case, so that the API server itself refuses a second identity of one serial"),
    validation = Rule::new("!has(oldSelf.status) || !has(oldSelf.status.claimRef) || !has(self.status) || !has(self.status.claimRef) || self.status.claimRef.uid == oldSelf.status.claimRef.uid").message("[identity-claimed-once] status.claimRef: cannot go from one machine to another; it is cleared in between")
)]
#[x_kube(validation = Rule::new("self == oldSelf").message("[identity-immutable] spec: an identity never changes; delete it and make another"))]
pub struct MachineIdentitySpec {
    /// The IdentityPool that it counts in.
    pub pool_name: Name,
    /// Apple's model identifier.
    #[schemars(length(min = 5, max = 32), regex(pattern = r"^[A-Za-z]+[0-9]+,[0-9]+$"))]
    pub model: String,
    /// Serial number: 12 characters (10 or 11 on some imported ones).
    #[schemars(length(min = 10, max = 12), regex(pattern = r"^[0-9A-HJ-NP-Z]+$"))]
    pub serial: String,
    /// Main logic board serial: 17 characters (13 on older boards).
    #[schemars(length(min = 13, max = 17), regex(pattern = r"^[0-9A-HJ-NP-Z]+$"))]
    pub mlb: String,
    /// Six bytes as 12 upper-case hexadecimal digits.
    #[schemars(length(min = 12, max = 12), regex(pattern = "^[0-9A-F]{12}$"))]
    pub rom: String,
    /// Upper-case UUID.
    #[serde(rename = "systemUUID")]
    #[schemars(
        length(min = 36, max = 36),
        regex(pattern = "^[0-9A-F]{8}-[0-9A-F]{4}-[0-9A-F]{4}-[0-9A-F]{4}-[0-9A-F]{12}$")
    )]
    pub system_uuid: String,
    /// Lower-case MAC address of the machine's NIC, unicast.
    #[schemars(length(min = 17, max = 17), regex(pattern = "^[0-9a-f][02468ace](:[0-9a-f]{2}){5}$"))]
    pub mac_address: String,
}

/// Who has it, and its bootdisk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct MachineIdentityStatus {
    /// `metadata.generation` of the spec that all of this is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Where it stands, in one word; for people, nothing is decided from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<IdentityPhase>,
    /// The machine that has it. Written where it was empty, at the resourceVersion it was decided on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim_ref: Option<IdentityClaimRef>,
    /// When a machine with it was first Ready since it was allocated: the reclaim policy then applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_at: Option<Time>,
    /// The proof of uniqueness was made: a consistent list after its creation showed no other with one of its values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unique_at: Option<Time>,
    /// Its master bootdisk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_disk: Option<BuiltBootDisk>,
    /// All that is to be said of it, with reasons; `Ready` is the sum.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// The machine that has an identity.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IdentityClaimRef {
    /// Its namespace.
    pub namespace: Name,
    /// Its name.
    pub name: Name,
    /// Its uid. A machine that was made again under the name is another.
    #[schemars(length(min = 1, max = 64))]
    pub uid: String,
}

/// A master bootdisk: no guest writes to it, each machine boots a clone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BuiltBootDisk {
    /// PVC in the platform namespace.
    pub pvc: Name,
    /// SHA-256 of the image that was written, as the builder reported it.
    #[schemars(length(max = 64))]
    pub sha256: String,
    /// The builder that wrote it.
    pub builder_image: PinnedImage,
    /// The template it was made from (`spec.bootDiskBuilder.template.sha256`, or that of `gpuTemplate`).
    #[schemars(length(max = 64))]
    pub template_sha256: String,
    /// Which of the two that was.
    #[serde(default)]
    pub template: BootDiskTemplate,
}

/// A summary of a MachineIdentity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum IdentityPhase {
    /// Its values exist; nobody has looked yet whether they are unique.
    Generated,
    /// Unique; its bootdisk is being built.
    BuildingBootDisk,
    /// Can be taken.
    Available,
    /// A machine has it.
    Allocated,
    /// Its machine is gone; what the policy says is being done.
    Released,
    /// Kept aside.
    Quarantined,
    /// Its bootdisk could not be built.
    Failed,
}

vocabulary! {
    /// Condition types of a MachineIdentity.
    IdentityCondition:
        /// It can be taken, or has been.
        Ready;
        /// No other identity has one of its values.
        Unique;
        /// Its master bootdisk was built from the template that holds now, or, while PlatformConfig names no builder, from one such as its pool names.
        BootDiskBuilt;
}

vocabulary! {
    /// Reasons of a MachineIdentity's conditions.
    IdentityReason:
        /// It can be taken.
        Available;
        /// A machine has it.
        Allocated;
        /// No other has one of its values.
        Unique;
        /// Another identity has the same serial, MLB, ROM, UUID or MAC; both are kept aside. Delete the wrong one.
        Collision;
        /// It breaks a published rule; the message says which. Delete it.
        Invalid;
        /// Nobody has looked yet.
        NotChecked;
        /// The builder runs.
        Building;
        /// The bootdisk was built.
        Built;
        /// The builder failed; the message is its own.
        BuildFailed;
        /// PlatformConfig names no builder.
        BuilderMissing;
        /// Its pool says bootDisk.template: GPU and PlatformConfig has no bootDiskBuilder.gpuTemplate.
        TemplateMissing;
        /// The bootdisk's volume is gone; it is built again before the identity is given out.
        BootDiskLost;
        /// Its pool is not there: it is kept, and given to nobody.
        PoolNotFound;
        /// Its machine is gone, but a VirtualMachine, its instance or its launcher pod is still there.
        StillRunning;
        /// Its machine is gone; the policy is being applied.
        Reclaiming;
        /// Kept aside by the pool's policy after use. Delete it, or set the annotation identity.dockerios.io/release.
        QuarantinedByPolicy;
        /// It is being deleted and waits for its machine.
        Deleting;
        /// Something could not be read just now; nothing is freed.
        Unreadable;
}
