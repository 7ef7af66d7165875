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
    /// What of the free disk is promised: to the disks of the VMs that are here, which may still grow to the size of
    /// their class, and to the host itself. Rounded up to a whole gigabyte.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_reserved: Option<Quantity>,
    /// Seconds that the Mac's clock is ahead of the API server's (behind, if negative), rounded; absent while they are in
    /// step. A Mac that is more than 5 minutes off is given to no lease; its VMs are never touched for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_skew_seconds: Option<i64>,
    /// The kernel's VM counter, as far as it can be seen from outside.
    #[serde(default)]
    pub quota: QuotaFacts,
    /// The last reboot that the agent asked of its host, in this boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reboot: Option<RebootFacts>,
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
    /// The pull under way and the last ones that ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["digest".into()]))]
    pub pulls: Vec<Pull>,
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
    /// Speed of the network port in use, bits per second. Absent when it could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_speed: Option<Quantity>,
}

/// What a host needs before Virtualization.framework starts a macOS guest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostFacts {
    /// The program macrack-vm carries com.apple.security.virtualization.
    pub entitled: bool,
    /// The login keychain is unlocked (guests from macOS 15 want it).
    pub keychain_unlocked: bool,
    /// The agent's user logs in by itself.
    pub auto_login: bool,
    /// Whatever else keeps the host from starting VMs or from serving tenants, as `macrack-agent doctor` says it; the
    /// gravest first. Absent when nothing does.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub findings: Vec<HostFinding>,
}

/// One thing that is wrong with a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostFinding {
    /// Which check found it: one of those that docs/host-preparation.md lists.
    #[schemars(length(min = 1, max = 32))]
    pub check: String,
    /// It could not be found out, which is neither good nor bad.
    #[serde(default)]
    pub unknown: bool,
    /// What is wrong, and the way out.
    #[schemars(length(min = 1, max = 256))]
    pub message: String,
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

/// What an agent did about an approved reboot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RebootFacts {
    /// The request, by its `requestedAt`.
    pub requested_at: Time,
    /// When the host was asked. The agent keeps that on its disk first, and asks no second time for one request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_at: Option<Time>,
    /// Why the host did not do it, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub problem: Option<String>,
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
    /// How its disk was made from the golden, once it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cloned_by: Option<CloneWay>,
    /// What was wiped and how that was verified; there once the state is Wiped, unless the VM never was here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wipe: Option<WipeReceipt>,
}

/// How a disk was made from its golden.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum CloneWay {
    /// `clonefile` of APFS: the blocks are shared until one side writes.
    Clonefile,
    /// `FICLONE` of Linux: the blocks are shared until one side writes.
    Reflink,
    /// A sparse copy, on a Linux file system that shares no blocks. Never on a Mac.
    Copy,
}

/// What was destroyed of a VM at its end, and how it was seen to be gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WipeReceipt {
    /// When the wipe began.
    pub started_at: Time,
    /// When the last item was verified.
    pub finished_at: Time,
    /// What was wiped, item by item.
    #[schemars(length(max = 16))]
    pub items: Vec<WipedItem>,
    /// Version of the agent that wiped and verified.
    #[schemars(length(max = 64))]
    pub agent_version: String,
}

/// One kind of thing that was wiped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WipedItem {
    /// What: `disks`, `logs`, `sockets`, …
    #[schemars(length(min = 1, max = 32))]
    pub what: String,
    /// How many there were.
    #[schemars(range(min = 0))]
    pub count: i64,
    /// Bytes that they took on the disk.
    #[schemars(range(min = 0))]
    pub bytes: i64,
    /// How it was seen that none is left.
    #[schemars(length(min = 1, max = 64))]
    pub verified_by: String,
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

/// A golden on its way to a chassis, told every few seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Pull {
    /// `sha256:…`, the image's digest.
    #[schemars(length(max = 80))]
    pub digest: String,
    /// Bytes of its disk that are there.
    #[schemars(range(min = 0))]
    pub bytes: i64,
    /// Bytes of its disk in all.
    #[schemars(range(min = 0))]
    pub total_bytes: i64,
    /// Since the pull began; not known in its first second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<i64>,
    /// At this rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_left: Option<i64>,
    /// When it began.
    pub started_at: Time,
    /// When it was whole, checked and in the cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
}
