//! `InstanceClass`: the size of a macOS VM.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Condition, Quantity, words::words};

/// How large a macOS VM is. Written by an admin.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "instance.macrack.io",
    version = "v1alpha1",
    kind = "InstanceClass",
    plural = "instanceclasses",
    status = "InstanceClassStatus",
    shortname = "mic",
    category = "macrack",
    derive = "PartialEq",
    doc = "InstanceClass is the size of a macOS VM: cores, memory, disk. Two of a lease must fit beside the host's reserve.",
    printcolumn(name = "CPU", type_ = "integer", json_path = ".spec.cpuCores"),
    printcolumn(name = "MEMORY", type_ = "string", json_path = ".spec.memory"),
    printcolumn(name = "DISK", type_ = "string", json_path = ".spec.disk"),
    printcolumn(name = "REASON", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[x_kube(validation = Rule::new("self == oldSelf").message("[class-fixed] spec: an InstanceClass is immutable, VMs were sized by it; make another class"))]
#[x_kube(validation = Rule::new("quantity(self.memory).compareTo(quantity('4Gi')) >= 0").message("[memory-4gi] spec.memory: macOS guests need at least 4Gi; raise it"))]
#[x_kube(validation = Rule::new("quantity(self.disk).compareTo(quantity('20G')) >= 0").message("[disk-20g] spec.disk: macOS does not fit in less than 20G; raise it"))]
pub struct InstanceClassSpec {
    /// Virtual cores, at least 4 (macOS guests with 2 freeze).
    #[schemars(range(min = 4, max = 64))]
    pub cpu_cores: i64,
    /// Memory.
    pub memory: Quantity,
    /// Disk, at most; the clone grows towards it as the guest writes.
    pub disk: Quantity,
    /// A display, for those who look at it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display: Option<Display>,
}

/// A display in pixels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Display {
    /// Pixels across.
    #[schemars(range(min = 640, max = 7680))]
    pub width: i64,
    /// Pixels down.
    #[schemars(range(min = 480, max = 4320))]
    pub height: i64,
}

/// Written by the operator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct InstanceClassStatus {
    /// The generation that was judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

words! {
    /// Reasons of an InstanceClass' `Ready`.
    InstanceClassReason {
        /// The class is valid.
        Accepted,
    }
}
