//! The part of KubeVirt's and CDI's kinds that DockerIOS sets and reads.
//!
//! Invariant: serialising a value gives exactly what was set, no default added; decoding what a real KubeVirt or
//! CDI wrote never fails on a field or a word that is not known here. So fields are optional, lists and maps are
//! left out when empty, unknown fields are skipped, and enums have a variant for words of later releases. Never
//! write a decoded object back whole: what this crate does not know would be lost. Patch it.
//!
//! | Module | Kinds |
//! |---|---|
//! | [`vm`] | `VirtualMachine` |
//! | [`vmi`] | `VirtualMachineInstance`, and the template within a `VirtualMachine` |
//! | [`domain`] | what the machine looks like: `spec.domain`, volumes, networks |
//! | [`datavolume`] | CDI's `DataVolume` and `StorageProfile` |
//! | [`platform`] | KubeVirt's own `KubeVirt` and `Plugin`, CDI's `CDIConfig` |
//! | [`names`] | labels, annotations, finalizers and condition types of both projects |
//! | [`crds`] | definitions of these kinds, for a cluster that has not got the real ones |

mod crds;
pub mod datavolume;
pub mod domain;
pub mod names;
pub mod platform;
pub mod vm;
pub mod vmi;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use crds::crds;
pub use datavolume::{DataVolume, StorageProfile};
pub use platform::{CdiConfig, KubeVirt, Plugin};
pub use vm::VirtualMachine;
pub use vmi::VirtualMachineInstance;

/// A condition, in the shape that both projects share. The times are absent, `null` or RFC 3339 in the wild.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Condition type, see [`names`].
    #[serde(rename = "type", default)]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    #[serde(default)]
    pub status: String,
    /// One word for programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// A sentence for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// When `status` last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    /// KubeVirt: when it was last looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_probe_time: Option<Time>,
    /// CDI: when anything of it last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heartbeat_time: Option<Time>,
}

/// The condition of that type, if there is one.
pub fn condition<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// Whether the condition of that type is there and `True`.
pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    condition(conditions, type_).is_some_and(|condition| condition.status == "True")
}

/// An object without fields of ours: its presence is the setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Present {}
