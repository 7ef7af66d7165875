//! `VirtualMachine`: the wish. Invariant: DockerIOS uses [`RunStrategy::Once`] and [`RunStrategy::Halted`] only.

use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Condition, vmi::VirtualMachineInstanceSpec};

/// What should run, and when.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "kubevirt.io",
    version = "v1",
    kind = "VirtualMachine",
    plural = "virtualmachines",
    shortname = "vm",
    shortname = "vms",
    category = "all",
    namespaced,
    status = "VirtualMachineStatus",
    derive = "Default",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineSpec {
    /// When it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_strategy: Option<RunStrategy>,
    /// What runs.
    #[serde(default)]
    pub template: Template,
}

/// When a machine runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RunStrategy {
    /// Started once; a finished instance stays as it ended.
    #[default]
    Once,
    /// Stopped: the instance is deleted.
    Halted,
    /// Started again whenever it ends.
    Always,
    /// Started again when it fails.
    RerunOnFailure,
    /// Started and stopped by subresource only.
    Manual,
    /// Word of another release.
    #[serde(other)]
    Unrecognised,
}

/// The template of the instance.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Template {
    /// Labels and annotations of the instance and its launcher pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<TemplateMetadata>,
    /// The instance.
    #[serde(default)]
    pub spec: VirtualMachineInstanceSpec,
}

/// The part of ObjectMeta that means something in a template.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TemplateMetadata {
    /// Labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// What virt-controller says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineStatus {
    /// The word of the STATUS column, see [`printable`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub printable_status: Option<String>,
    /// The instance is up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    /// There is an instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<bool>,
    /// Strategy as last acted on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_strategy: Option<RunStrategy>,
    /// Generation that the instance was made of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Generation that the next instance will be made of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired_generation: Option<i64>,
    /// Conditions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// Words of `status.printableStatus` (kubevirt.io/api/core/v1, VirtualMachinePrintableStatus).
pub mod printable {
    /// Halted, or the instance ended.
    pub const STOPPED: &str = "Stopped";
    /// Waits for its DataVolumes.
    pub const PROVISIONING: &str = "Provisioning";
    /// The instance is not up yet.
    pub const STARTING: &str = "Starting";
    /// The instance is up.
    pub const RUNNING: &str = "Running";
    /// The processors stand still.
    pub const PAUSED: &str = "Paused";
    /// The instance is being deleted.
    pub const STOPPING: &str = "Stopping";
    /// The machine itself is being deleted.
    pub const TERMINATING: &str = "Terminating";
    /// The instance ended and the strategy is not Halted; also after a clean shutdown.
    pub const CRASH_LOOP_BACK_OFF: &str = "CrashLoopBackOff";
    /// No node takes the launcher pod.
    pub const UNSCHEDULABLE: &str = "ErrorUnschedulable";
    /// A named claim does not exist.
    pub const PVC_NOT_FOUND: &str = "ErrorPvcNotFound";
    /// A DataVolume failed.
    pub const DATA_VOLUME_ERROR: &str = "DataVolumeError";
    /// A claim waits for its first consumer.
    pub const WAITING_FOR_VOLUME_BINDING: &str = "WaitingForVolumeBinding";
}
