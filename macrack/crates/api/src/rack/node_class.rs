//! `MacNodeClass`: one per model that is bought. It has no field for the number of VMs: it is two.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Condition, Quantity, words::words};

/// The hardware catalogue, written by an admin. What an agent observes is compared with it.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "rack.macrack.io",
    version = "v1alpha1",
    kind = "MacNodeClass",
    plural = "macnodeclasses",
    status = "MacNodeClassStatus",
    shortname = "mnc",
    category = "macrack",
    derive = "PartialEq",
    doc = "MacNodeClass describes one model of Mac that is leased: the hardware catalogue. There is no field for the number of VMs: Apple's licence and the kernel say two.",
    printcolumn(name = "CHASSIS", type_ = "string", json_path = ".spec.chassis"),
    printcolumn(name = "CHIP", type_ = "string", json_path = ".spec.chip"),
    printcolumn(name = "CPU", type_ = "integer", json_path = ".spec.cpuCores"),
    printcolumn(name = "MEMORY", type_ = "string", json_path = ".spec.memory"),
    printcolumn(name = "STORAGE", type_ = "string", json_path = ".spec.storage"),
    printcolumn(name = "FREE", type_ = "string", json_path = ".status.free"),
    printcolumn(name = "REASON", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[x_kube(validation = Rule::new("quantity(self.storage).compareTo(quantity('1T')) >= 0").message("[storage-1t] spec.storage: a commercial Mac has at least 1T of physical disk, counted in decimal as Apple sells it; correct spec.storage, or do not offer this model"))]
#[x_kube(validation = Rule::new("quantity(self.linkSpeed).compareTo(quantity('10G')) >= 0").message("[link-10g] spec.linkSpeed: a commercial Mac has at least a 10G network port, in bits per second; correct spec.linkSpeed, or do not offer this model"))]
#[x_kube(validation = Rule::new("self.hostReserve.cpuCores < self.cpuCores").message("[reserve-below-capacity] spec.hostReserve.cpuCores: the host's reserve leaves no core for an instance; lower it below spec.cpuCores"))]
#[x_kube(validation = Rule::new("quantity(self.hostReserve.memory).compareTo(quantity(self.memory)) < 0").message("[reserve-below-capacity] spec.hostReserve.memory: the host's reserve leaves no memory for an instance; lower it below spec.memory"))]
#[x_kube(validation = Rule::new("quantity(self.hostReserve.storage).compareTo(quantity(self.storage)) < 0").message("[reserve-below-capacity] spec.hostReserve.storage: the host's reserve leaves no disk for an instance; lower it below spec.storage"))]
pub struct MacNodeClassSpec {
    /// The enclosure.
    pub chassis: Chassis,
    /// Apple's model identifier, e.g. `Mac16,11` (`sysctl hw.model`).
    #[schemars(length(min = 1, max = 32), regex(pattern = r"^[A-Za-z]+[0-9]+,[0-9]+$"))]
    pub model: String,
    /// Apple's chip name, e.g. `M4 Pro` (`sysctl machdep.cpu.brand_string` without "Apple").
    #[schemars(length(min = 1, max = 32))]
    pub chip: String,
    /// Physical cores.
    #[schemars(range(min = 4, max = 128))]
    pub cpu_cores: i64,
    /// Physical memory.
    pub memory: Quantity,
    /// Physical disk, decimal, as Apple sells it. At least 1T.
    pub storage: Quantity,
    /// Network port, bits per second. At least 10G.
    pub link_speed: Quantity,
    /// What macOS and the agent keep for themselves; two instances share the rest.
    #[serde(default)]
    pub host_reserve: HostReserve,
}

/// The enclosure of a Mac.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Chassis {
    /// Mac mini.
    MacMini,
    /// Mac Studio. More memory per VM, not more VMs.
    MacStudio,
}

/// What the host keeps for itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostReserve {
    /// Cores.
    #[serde(default = "reserve_cores")]
    #[schemars(range(min = 0, max = 64))]
    pub cpu_cores: i64,
    /// Memory.
    #[serde(default = "reserve_memory")]
    pub memory: Quantity,
    /// Disk: macOS itself, and room for the goldens.
    #[serde(default = "reserve_storage")]
    pub storage: Quantity,
}

fn reserve_cores() -> i64 {
    2
}
fn reserve_memory() -> Quantity {
    "8Gi".into()
}
fn reserve_storage() -> Quantity {
    "150G".into()
}

impl Default for HostReserve {
    fn default() -> Self {
        Self { cpu_cores: reserve_cores(), memory: reserve_memory(), storage: reserve_storage() }
    }
}

/// Written by the operator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct MacNodeClassStatus {
    /// The generation that was judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Chassis that a lease could have now, of all of this class: `3/12`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub free: Option<String>,
    /// `Ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

words! {
    /// Reasons of a MacNodeClass' `Ready`.
    MacNodeClassReason {
        /// The class is valid and can be leased.
        Accepted,
    }
}
