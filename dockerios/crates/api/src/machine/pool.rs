//! `MacOSMachinePool`: warm machines, booted ahead of demand.

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::{Condition, Name, vocabulary::vocabulary};

/// How many warm machines of which class.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "machine.dockerios.io", version = "v1alpha1", kind = "MacOSMachinePool", plural = "macosmachinepools", namespaced,
    status = "MacOSMachinePoolStatus", shortname = "macpool", category = "dockerios", derive = "PartialEq",
    scale(spec_replicas_path = ".spec.replicas", status_replicas_path = ".status.replicas", label_selector_path = ".status.selector"),
    doc = "MacOSMachinePool keeps machines of a class warm: booted, ready, unclaimed. A claimed machine leaves the pool and is replaced. Scale it: kubectl scale macpool/NAME --replicas=5.",
    printcolumn(name = "CLASS", type_ = "string", json_path = ".spec.machineClassName"),
    printcolumn(name = "DESIRED", type_ = "integer", json_path = ".spec.replicas"),
    printcolumn(name = "WARM", type_ = "integer", json_path = ".status.warm", description = "Unclaimed machines that are Ready."),
    printcolumn(name = "CLAIMED", type_ = "integer", json_path = ".status.claimed"),
    printcolumn(name = "WAITING", type_ = "integer", json_path = ".status.waiting", description = "Claims that wait for a machine of this pool."),
    printcolumn(name = "REASON", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "MESSAGE", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].message", priority = 1),
    validation = Rule::new("size(self.metadata.name) <= 56").message("[name-56] metadata.name: at most 56 characters (machines are named after it); choose a shorter name")
)]
#[x_kube(validation = Rule::new("self.replicas <= self.maxMachines").message("[pool-replicas-within-max] spec.replicas: larger than spec.maxMachines; lower it or raise maxMachines"))]
pub struct MacOSMachinePoolSpec {
    /// The MacOSMachineClass. A change rolls the unclaimed machines only.
    pub machine_class_name: Name,
    /// Unclaimed machines that have not failed, in whatever phase.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1000))]
    pub replicas: i32,
    /// Machines at most: warm, claimed, and made cold for a claim on this pool.
    #[serde(default = "thousand")]
    #[schemars(range(min = 0, max = 1000))]
    pub max_machines: i32,
}

fn thousand() -> i32 {
    1000
}

/// Counts of the pool's machines.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct MacOSMachinePoolStatus {
    /// `metadata.generation` of the spec that all of this is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Unclaimed machines that have not failed.
    #[serde(default)]
    pub replicas: i32,
    /// Label selector of those, for autoscalers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub selector: Option<String>,
    /// Unclaimed and Ready.
    #[serde(default)]
    pub warm: i32,
    /// Given to claims.
    #[serde(default)]
    pub claimed: i32,
    /// Claims that wait for a machine of this pool: what an autoscaler should follow.
    #[serde(default)]
    pub waiting: i32,
    /// Failed machines that are kept as evidence, three at most.
    #[serde(default)]
    pub failed: i32,
    /// All that is to be said of it, with reasons; `Ready` is the sum.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

vocabulary! {
    /// Condition types of a MacOSMachinePool.
    MachinePoolCondition:
        /// As many machines are warm as are wanted.
        Ready;
        /// Machines of it fail; they are replaced ever more slowly, up to ten minutes apart.
        Degraded;
}

vocabulary! {
    /// Reasons of a MacOSMachinePool's conditions.
    MachinePoolReason:
        /// As many machines are warm as are wanted.
        Warm;
        /// Machines are on their way.
        Warming;
        /// maxMachines is reached: claimed machines must go first, or raise it.
        AtMaxMachines;
        /// spec.machineClassName names no class.
        ClassNotFound;
        /// The last machines failed; the next is made after a pause that grows to ten minutes.
        MachinesFailing;
        /// None failed lately.
        AsExpected;
        /// Unclaimed machines of an older class are being replaced.
        Rolling;
        /// A quota or another admission refused a machine; the message is its own.
        CreationRefused;
        /// It is being deleted; its unclaimed machines go with it, claimed ones stay.
        Deleting;
        /// Something could not be read just now; nothing is decided from it.
        Unreadable;
}
