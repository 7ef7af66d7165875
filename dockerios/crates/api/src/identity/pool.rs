//! `IdentityPool`: identities made ahead of demand. An empty pool makes machines wait; nothing is minted on demand.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Condition, Name, vocabulary::vocabulary};

/// How many identities of which model are kept ready, and what becomes of used ones.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "identity.dockerios.io", version = "v1alpha1", kind = "IdentityPool", plural = "identitypools",
    status = "IdentityPoolStatus", shortname = "idpool", category = "dockerios", derive = "PartialEq",
    doc = "IdentityPool keeps identities of one Mac model ready, made ahead of demand and unique across the whole fleet. A machine only ever takes one that exists; when none is left, it waits.",
    printcolumn(name = "MODEL", type_ = "string", json_path = ".spec.model"),
    printcolumn(name = "TOTAL", type_ = "integer", json_path = ".status.total"),
    printcolumn(name = "AVAILABLE", type_ = "integer", json_path = ".status.available"),
    printcolumn(name = "ALLOCATED", type_ = "integer", json_path = ".status.allocated"),
    printcolumn(name = "QUARANTINED", type_ = "integer", json_path = ".status.quarantined"),
    printcolumn(name = "REASON", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "MESSAGE", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].message", priority = 1),
    validation = Rule::new("size(self.metadata.name) <= 63").message("[name-63] metadata.name: at most 63 characters (it is a label of the identities); choose a shorter name")
)]
#[x_kube(validation = Rule::new("self.minAvailable <= self.maxSize").message("[pool-min-within-max] spec.minAvailable: larger than spec.maxSize; lower it or raise maxSize"))]
#[x_kube(validation = Rule::new("self.model == oldSelf.model").message("[pool-model-immutable] spec.model: cannot change; make another pool for another model"))]
pub struct IdentityPoolSpec {
    /// Apple's model identifier, e.g. `iMacPro1,1`. Immutable.
    #[schemars(length(min = 5, max = 32), regex(pattern = r"^[A-Za-z]+[0-9]+,[0-9]+$"))]
    pub model: String,
    /// Identities that are kept ready.
    #[schemars(range(min = 0, max = 10_000))]
    pub min_available: i32,
    /// Identities at most: every existing one counts, quarantined ones too.
    #[schemars(range(min = 0, max = 10_000))]
    pub max_size: i32,
    /// What becomes of an identity whose machine was Ready once and is gone.
    #[serde(default)]
    pub reclaim_policy: IdentityReclaimPolicy,
    /// The master bootdisks: where they are kept, and what they are built from.
    pub boot_disk: BootDiskStorage,
}

/// The master bootdisks: where they are kept, and what they are built from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BootDiskStorage {
    /// Storage class of the 384 MiB volume.
    pub storage_class_name: Name,
    /// Which of the builder's templates they are built from. Machines with a card take identities of a pool that says
    /// GPU.
    #[serde(default)]
    pub template: BootDiskTemplate,
}

/// Which of the builder's templates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum BootDiskTemplate {
    /// `bootDiskBuilder.template`.
    #[default]
    Default,
    /// `bootDiskBuilder.gpuTemplate`, with the boot-args of a card.
    GPU,
}

impl BootDiskTemplate {
    /// The field of PlatformConfig that holds it.
    pub const fn field(self) -> &'static str {
        match self {
            Self::Default => "spec.bootDiskBuilder.template",
            Self::GPU => "spec.bootDiskBuilder.gpuTemplate",
        }
    }
}

/// What becomes of a used identity. One whose machine never became Ready goes back to Available, whatever stands here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum IdentityReclaimPolicy {
    /// Given out again. Not safe once somebody has signed in to Apple's services on it.
    Recycle,
    /// Kept aside until an admin decides.
    #[default]
    Quarantine,
    /// Deleted with its bootdisk.
    Delete,
}

/// Counts of the pool's identities.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct IdentityPoolStatus {
    /// `metadata.generation` of the spec that all of this is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// All that exist.
    #[serde(default)]
    pub total: i32,
    /// Generated, or their bootdisk being built.
    #[serde(default)]
    pub preparing: i32,
    /// Ready to be taken.
    #[serde(default)]
    pub available: i32,
    /// With a machine.
    #[serde(default)]
    pub allocated: i32,
    /// Kept aside.
    #[serde(default)]
    pub quarantined: i32,
    /// Whose bootdisk could not be built.
    #[serde(default)]
    pub failed: i32,
    /// Machines that wait for one.
    #[serde(default)]
    pub waiting: i32,
    /// All that is to be said of it, with reasons; `Ready` is the sum.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

vocabulary! {
    /// Condition types of an IdentityPool.
    IdentityPoolCondition:
        /// The pool can serve.
        Ready;
        /// minAvailable identities are ready.
        Replenished;
        /// At least one identity can be taken.
        Available;
}

vocabulary! {
    /// Reasons of an IdentityPool's conditions.
    IdentityPoolReason:
        /// As many are ready as are wanted.
        Replenished;
        /// Identities are being generated or their bootdisks built.
        Replenishing;
        /// Identities are there to be taken.
        Available;
        /// Every identity has a machine, and maxSize is reached: machines wait. Free a machine or raise spec.maxSize.
        Exhausted;
        /// So many are quarantined that none is left and maxSize is reached: release or delete some.
        Quarantined;
        /// maxSize is reached before minAvailable identities are ready.
        AtMaxSize;
        /// No such model, or one whose identities cannot be generated validly.
        ModelUnknown;
        /// PlatformConfig names no bootdisk builder: identities are generated but get no bootdisk.
        BuilderMissing;
        /// The pool says bootDisk.template: GPU and PlatformConfig has no bootDiskBuilder.gpuTemplate: identities are generated but get no bootdisk.
        TemplateMissing;
        /// Bootdisks fail to build; the identities say why.
        BuildsFailing;
        /// The pool is being deleted; identities that have no machine go with it.
        Deleting;
        /// Something could not be read just now; nothing is decided from it.
        Unreadable;
}
