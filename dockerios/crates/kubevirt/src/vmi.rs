//! `VirtualMachineInstance`: one run of a machine. Invariant: the real kind has no status subresource; whoever
//! writes its status writes the object.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Affinity, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Condition,
    domain::{Domain, Network, Volume},
};

/// What one run looks like.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "kubevirt.io",
    version = "v1",
    kind = "VirtualMachineInstance",
    plural = "virtualmachineinstances",
    shortname = "vmi",
    shortname = "vmis",
    category = "all",
    namespaced,
    derive = "Default",
    derive = "PartialEq"
)]
#[kube(status = "VirtualMachineInstanceStatus")]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineInstanceSpec {
    /// `amd64`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub architecture: Option<String>,
    /// What an eviction of the launcher pod does; `External`: it is refused and marked for someone else to act.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eviction_strategy: Option<String>,
    /// Seconds between asking the guest to stop and killing it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub termination_grace_period_seconds: Option<i64>,
    /// Host name of the pod and the guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// Priority class of the launcher pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    /// Nodes it may run on, by label.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Nodes it may run on, by expression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// Taints it bears.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    /// The machine.
    #[serde(default)]
    pub domain: Domain,
    /// What its interfaces are plugged into.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<Network>,
    /// What its disks are made of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<Volume>,
}

/// Where a run stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum VmiPhase {
    /// Written as an empty word before anybody looked.
    #[default]
    #[serde(rename = "")]
    Unset,
    /// Seen.
    Pending,
    /// There is a launcher pod.
    Scheduling,
    /// The launcher pod runs; the domain does not yet.
    Scheduled,
    /// The domain runs.
    Running,
    /// Ended by itself or by request.
    Succeeded,
    /// Ended otherwise.
    Failed,
    /// The node no longer answers.
    Unknown,
    /// Waits for its source, when migrating.
    WaitingForSync,
    /// Word of another release.
    #[serde(other)]
    Unrecognised,
}

impl VmiPhase {
    /// Nothing follows.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

/// What KubeVirt says of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineInstanceStatus {
    /// Where it stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<VmiPhase>,
    /// When it came into each phase.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub phase_transition_timestamps: Vec<PhaseTransition>,
    /// Conditions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// One word on the end, when there is one (`NodeUnresponsive`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The node; absent until the launcher pod runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// The node that it was asked to leave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evacuation_node_name: Option<String>,
    /// Launcher pods by UID, each with its node (empty until it has one).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub active_pods: BTreeMap<String, String>,
    /// Interfaces as they are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<InterfaceStatus>,
    /// What a QEMU guest agent says; macOS has none, so it is empty.
    #[serde(rename = "guestOSInfo", default, skip_serializing_if = "Option::is_none")]
    pub guest_os_info: Option<GuestOsInfo>,
    /// Image of the launcher.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launcher_container_image_version: Option<String>,
    /// User of the launcher (107).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime_user: Option<u64>,
}

impl VirtualMachineInstanceStatus {
    /// When it came into that phase, if it did.
    pub fn since(&self, phase: VmiPhase) -> Option<&Time> {
        self.phase_transition_timestamps
            .iter()
            .rev()
            .find(|transition| transition.phase == phase)
            .and_then(|transition| transition.phase_transition_timestamp.as_ref())
    }
}

/// When a run came into a phase.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PhaseTransition {
    /// The phase.
    #[serde(default)]
    pub phase: VmiPhase,
    /// The time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase_transition_timestamp: Option<Time>,
}

/// One interface as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InterfaceStatus {
    /// Name of the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// First address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip_address: Option<String>,
    /// All addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ip_addresses: Vec<String>,
    /// Hardware address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
}

/// What a QEMU guest agent says of the system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GuestOsInfo {
    /// Name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}
