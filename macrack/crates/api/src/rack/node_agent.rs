//! What an agent reports in `MacNode.status.agent`: written on change, bounded in every part.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Quantity;

/// The agent's part of a MacNode's status.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentStatus {
    /// The agent's version.
    #[schemars(length(max = 64))]
    pub version: String,
    /// Changes with each boot of the host (`kern.bootsessionuuid`).
    #[serde(rename = "bootID")]
    #[schemars(length(max = 64))]
    pub boot_id: String,
    /// The host's macOS version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub host_version: Option<String>,
    /// What the agent sees of the hardware.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardware: Option<Hardware>,
    /// Whether the host can start VMs at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostFacts>,
    /// Free disk, in bytes, rounded down to a whole gigabyte so that it changes seldom.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_free: Option<Quantity>,
    /// The kernel's VM counter, as far as it can be seen from outside.
    #[serde(default)]
    pub quota: QuotaFacts,
    /// Every VM that is on this chassis, and those uids of slots that are not (Wiped).
    #[serde(default)]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["uid".into()]))]
    pub vms: Vec<Vm>,
    /// The last leaseRef that the agent saw, kept on its own disk: a MacNode that was made again, or an etcd
    /// restored from an old backup, does not give the chassis away before this floor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_lease: Option<LeaseRecord>,
    /// Goldens in the cache.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["digest".into()]))]
    pub goldens: Vec<Golden>,
}

/// A lease that an agent remembers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LeaseRecord {
    /// uid of the lease.
    #[schemars(length(max = 36))]
    pub uid: String,
    /// Its floor, the latest that was seen.
    pub earliest_release_at: Time,
}

/// Hardware as observed on the Mac.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Hardware {
    /// The chassis' serial.
    #[schemars(length(max = 32))]
    pub serial: String,
    /// Model identifier.
    #[schemars(length(max = 32))]
    pub model: String,
    /// Chip name.
    #[schemars(length(max = 32))]
    pub chip: String,
    /// Physical cores.
    pub cpu_cores: i64,
    /// Physical memory.
    pub memory: Quantity,
    /// Physical disk.
    pub storage: Quantity,
    /// Speed of the network port, bits per second.
    pub link_speed: Quantity,
}

/// What a host needs before Virtualization.framework starts a macOS guest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostFacts {
    /// The process carries com.apple.security.virtualization.
    pub entitled: bool,
    /// The login keychain is unlocked (guests from macOS 15 want it).
    pub keychain_unlocked: bool,
    /// The agent's user logs in by itself.
    pub auto_login: bool,
}

/// The kernel's VM counter from outside.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QuotaFacts {
    /// VM processes of MacRack that are alive or starting.
    #[serde(default)]
    pub running: i32,
    /// Virtualization processes that are not MacRack's.
    #[serde(default)]
    pub foreign: i32,
    /// Code 6 was answered with fewer than two alive or starting, in this boot.
    #[serde(default)]
    pub stuck: bool,
    /// The boot in which the counter was last found healthy by a start that succeeded or a self test.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "checkedBootID")]
    #[schemars(length(max = 64))]
    pub checked_boot_id: Option<String>,
}

/// One VM on the chassis.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Vm {
    /// uid of the MacOSInstance.
    #[schemars(length(min = 1, max = 36))]
    pub uid: String,
    /// Where it is.
    pub state: VmState,
    /// The guest said Ready since its last start.
    #[serde(default)]
    pub guest_ready: bool,
    /// What went wrong, or how far it is, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub message: Option<String>,
    /// When `state` was entered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
}

/// Where a VM is. The order of the list is the order of life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum VmState {
    /// Ordered; something must happen first (a pod, room, a lifted quarantine): see the message.
    Waiting,
    /// Its golden is being pulled.
    Pulling,
    /// Its disk is being cloned.
    Cloning,
    /// Its process was started.
    Starting,
    /// The VM runs.
    Running,
    /// It was told to stop.
    Stopping,
    /// It does not run; its disk is there.
    Stopped,
    /// It ended or could not start, and is not tried again; its disk may be there.
    Failed,
    /// Its process cannot be reached; nothing is known of it.
    Unknown,
    /// Its disk is being destroyed.
    Wiping,
    /// Nothing of it is left, or it never was here.
    Wiped,
    /// Something of it could not be destroyed.
    WipeFailed,
}

impl VmState {
    /// No process of it runs or may run.
    pub fn at_rest(self) -> bool {
        matches!(self, Self::Waiting | Self::Stopped | Self::Failed | Self::Wiped)
    }
}

/// A golden in the cache of a chassis.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Golden {
    /// `sha256:…`, the image's digest.
    #[schemars(length(max = 80))]
    pub digest: String,
    /// Bytes on disk.
    pub size: Quantity,
    /// Instance disks cloned from it that still exist.
    #[serde(default)]
    pub clones: i32,
    /// When it was last used, to the hour so that it changes seldom.
    pub last_used: Time,
}
