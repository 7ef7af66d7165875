//! `MacNode`: one chassis.
//!
//! The schema itself holds the invariants, so that no writer, ours or another, can break them:
//! - `slots`: at most two, never one uid twice; an entry goes only when its order is Wipe *and* the agent
//!   reported that uid Wiped; an order Wipe never goes back;
//! - `leaseRef`: empty → X → empty, never X → Y; `boundAt` fixed; `earliestReleaseAt` at least 24 h after it
//!   and never lowered; cleared only when marked releasing and both slots are empty;
//! - an approved reboot is not replaced by another before it is done;
//! - a quarantine for a stuck counter, another board or a failed wipe is left only as that reason demands, and when the
//!   policy last approved a reboot is never forgotten, so that a writer on an old cache takes neither back;
//! - status is never dropped whole.
//!
//! Who writes what: `status.agent` the chassis' own agent, everything else of status the operator.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Condition, words::words};

pub use super::node_agent::*;

/// One Mac. The name is its serial in lower case.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "rack.macrack.io", version = "v1alpha1", kind = "MacNode", plural = "macnodes",
    status = "MacNodeStatus", shortname = "mn", category = "macrack", derive = "PartialEq",
    selectable = ".spec.nodeClassName",
    doc = "MacNode is one Mac chassis. At most one lease holds it, and never less than 24 hours; it carries at most two macOS VMs. Its name is its serial in lower case.",
    printcolumn(name = "SERIAL", type_ = "string", json_path = ".spec.serial"),
    printcolumn(name = "CLASS", type_ = "string", json_path = ".spec.nodeClassName"),
    printcolumn(name = "PHASE", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "TENANT", type_ = "string", json_path = ".status.leaseRef.namespace"),
    printcolumn(name = "LEASE", type_ = "string", json_path = ".status.leaseRef.name"),
    printcolumn(name = "RELEASE-AT", type_ = "string", json_path = ".status.leaseRef.earliestReleaseAt"),
    printcolumn(name = "REASON", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "MESSAGE", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].message", priority = 1),
    printcolumn(name = "LOCATION", type_ = "string", json_path = ".metadata.labels.topology\\.kubernetes\\.io/zone", priority = 1),
    printcolumn(name = "AGENT", type_ = "string", json_path = ".status.agent.version", priority = 1),
    printcolumn(name = "QUOTA", type_ = "string", json_path = ".status.conditions[?(@.type==\"QuotaHealthy\")].reason", priority = 1),
    printcolumn(name = "QUARANTINED-SINCE", type_ = "string", json_path = ".status.quarantine[0].since", priority = 1),
    validation = Rule::new("self.metadata.name == self.spec.serial.lowerAscii()").message("[name-is-serial] metadata.name: a MacNode is named by its serial in lower case; rename it, or correct spec.serial"),
    validation = Rule::new("!has(self.spec.drain) || !self.spec.drain || (has(self.spec.unschedulable) && self.spec.unschedulable)").message("[drain-in-maintenance] spec.drain: only while spec.unschedulable is true; kubectl macrack maintenance sets both"),
    validation = Rule::new("!has(oldSelf.status) || has(self.status)").message("[status-kept] status: never dropped whole, it holds the lease and the slots; write single fields of it"),
    validation = Rule::new("!has(oldSelf.status) || !has(oldSelf.status.leaseRef) || (has(self.status) && has(self.status.leaseRef)) || (oldSelf.status.leaseRef.releasing && size(oldSelf.status.slots) == 0)").message("[clear-when-empty] status.leaseRef: cleared only after it was marked releasing and both slots are empty; delete the lease and wait for status.leaseRef.earliestReleaseAt"),
    validation = Rule::new("!has(oldSelf.status) || !has(oldSelf.status.leaseRef) || self.spec.nodeClassName == oldSelf.spec.nodeClassName").message("[class-fixed-while-leased] spec.nodeClassName: a lease was made for this class; wait until the chassis is released"),
    validation = Rule::new("!has(oldSelf.status) || !has(oldSelf.status.quarantine) || oldSelf.status.quarantine.all(o, !(o.reason in ['QuotaStuck', 'SerialMismatch', 'WipeFailed']) || (has(self.status) && has(self.status.quarantine) && self.status.quarantine.exists(n, n.reason == o.reason && n.since == o.since && (n.bootID == o.bootID || (has(self.status.agent) && n.bootID == self.status.agent.bootID)))) || (has(self.spec.clearedQuarantine) && self.spec.clearedQuarantine.startsWith(o.reason + '@') && timestamp(self.spec.clearedQuarantine.substring(size(o.reason) + 1)) == o.since) || (o.reason == 'QuotaStuck' && has(self.status) && has(self.status.agent) && self.status.agent.bootID != o.bootID && has(self.status.agent.quota) && has(self.status.agent.quota.checkedBootID) && self.status.agent.quota.checkedBootID == self.status.agent.bootID && (!has(self.status.agent.quota.stuck) || !self.status.agent.quota.stuck)))").message("[quarantine-stays] status.quarantine: QuotaStuck ends with a new boot in which a VM started, SerialMismatch and WipeFailed when an admin clears them; until then an entry keeps its since, and its bootID unless that becomes the agent's; to clear one by hand set spec.clearedQuarantine to its reason@since")
)]
pub struct MacNodeSpec {
    /// Apple's serial, upper case, as on the chassis. Immutable.
    #[schemars(length(min = 8, max = 20), regex(pattern = r"^[A-Z0-9]+$"))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("[serial-fixed] spec.serial: immutable; another chassis is another MacNode"))]
    pub serial: String,
    /// The MacNodeClass that this chassis is. Immutable while leased.
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
    )]
    pub node_class_name: String,
    /// No new lease is bound to it, as on a Node. A lease that holds it keeps it.
    #[serde(default)]
    pub unschedulable: bool,
    /// What runs on it is stopped cleanly and stays stopped, for work on the Mac itself; disks, slots and leases are
    /// kept, and all of it runs again once this is unset. Only together with `unschedulable`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub drain: bool,
    /// Breaks the lease on hardware that is gone. The floor still runs, and the disks are wiped if it ever returns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retirement: Option<Retirement>,
    /// Approves one host reboot: echoes `status.reboot.requestedAt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approved_reboot: Option<Time>,
    /// Clears one quarantine entry by hand: echoes its `reason@since`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 3, max = 96),
        regex(pattern = r"^[A-Za-z]{1,64}@[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$")
    )]
    pub cleared_quarantine: Option<String>,
}

/// Why a chassis was taken out for good.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Retirement {
    /// One word or a short sentence, e.g. `HardwareFailure`.
    #[schemars(length(min = 1, max = 128))]
    pub reason: String,
}

/// What is so. `agent` is the agent's, the rest the operator's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(oldSelf.leaseRef) || !has(self.leaseRef) || self.leaseRef.uid == oldSelf.leaseRef.uid").message("[lease-ref-once] status.leaseRef: this chassis is taken by another lease; it must be cleared before another lease has it"))]
#[x_kube(validation = Rule::new("!has(oldSelf.leaseRef) || !has(self.leaseRef) || (self.leaseRef.boundAt == oldSelf.leaseRef.boundAt && timestamp(self.leaseRef.earliestReleaseAt) >= timestamp(oldSelf.leaseRef.earliestReleaseAt))").message("[floor-never-falls] status.leaseRef: boundAt is fixed and earliestReleaseAt is never lowered while bound"))]
#[x_kube(validation = Rule::new("!has(self.leaseRef) || timestamp(self.leaseRef.earliestReleaseAt) >= timestamp(self.leaseRef.boundAt) + duration('24h')").message("[floor-24h] status.leaseRef.earliestReleaseAt: at least 24h after boundAt"))]
#[x_kube(validation = Rule::new("!has(oldSelf.leaseRef) || !has(self.leaseRef) || self.leaseRef.releasing || !oldSelf.leaseRef.releasing").message("[releasing-stays] status.leaseRef.releasing: a release that has begun is not taken back"))]
#[x_kube(validation = Rule::new("!has(oldSelf.reboot) || !has(oldSelf.reboot.approvedAt) || has(oldSelf.reboot.doneBootID) || !has(self.reboot) || (self.reboot.requestedAt == oldSelf.reboot.requestedAt && has(self.reboot.approvedAt) && self.reboot.approvedAt == oldSelf.reboot.approvedAt)").message("[one-reboot] status.reboot: an approved reboot is not replaced before it is done; one approval is one reboot"))]
#[x_kube(validation = Rule::new("!has(oldSelf.policyRebootAt) || (has(self.policyRebootAt) && self.policyRebootAt >= oldSelf.policyRebootAt)").message("[policy-reboot-stays] status.policyRebootAt: counts against quota.budget and is only replaced by a later one; a reboot that the policy does not approve is an admin's, with spec.approvedReboot"))]
#[x_kube(validation = Rule::new("has(self.leaseRef) || self.slots.all(s, s.order == 'Wipe')").message("[slots-belong-to-a-lease] status.slots: without a lease the only order is Wipe"))]
#[x_kube(validation = Rule::new("size(self.slots) < 2 || self.slots[0].uid != self.slots[1].uid").message("[one-slot-per-vm] status.slots: one uid in both slots"))]
#[x_kube(validation = Rule::new("!has(oldSelf.slots) || oldSelf.slots.all(o, self.slots.exists(n, n.slot == o.slot && n.uid == o.uid && (o.order != 'Wipe' || n.order == 'Wipe')) || (o.order == 'Wipe' && has(self.agent) && self.agent.vms.exists(v, v.uid == o.uid && v.state == 'Wiped')))").message("[slot-until-wiped] status.slots: a slot is emptied or given on only when its order is Wipe and the agent reported that VM Wiped; an order Wipe is not taken back"))]
pub struct MacNodeStatus {
    /// The generation that was judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// A summary for people; nothing is decided from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<MacNodePhase>,
    /// The one lease that holds this chassis. Written once, where it was empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ref: Option<LeaseRef>,
    /// The two places for macOS VMs, and what the agent is to do with each.
    #[serde(default)]
    #[schemars(length(max = 2))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["slot".into()]))]
    pub slots: Vec<Slot>,
    /// The Kubernetes Node of this chassis.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub node_name: Option<String>,
    /// Goldens that the lease asked to have at hand.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(length(max = 63)))]
    pub prefetch_image_names: Vec<String>,
    /// A host reboot that is asked for, approved, or done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reboot: Option<Reboot>,
    /// When the policy last approved a reboot of this chassis. It counts against `quota.budget` for 24 hours, and for
    /// as long the policy approves no second one of the same chassis.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_reboot_at: Option<Time>,
    /// Why the chassis is not to be used, and since when.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["reason".into()]))]
    pub quarantine: Vec<Quarantine>,
    /// The last wipes on this chassis, the newest last; written before the slot of the wiped VM is emptied.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["uid".into()]))]
    pub wipes: Vec<WipeRecord>,
    /// What holds and what does not, each with its reason; `Ready` sums them up.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// What the agent reports; the truth about VMs and disks. Written by the agent alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentStatus>,
}

/// A summary of a MacNode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum MacNodePhase {
    /// Enrolled; its agent has not reported a usable Mac yet.
    Pending,
    /// Can be leased.
    Ready,
    /// A lease holds it.
    Leased,
    /// Not to be used until `status.quarantine` is resolved.
    Quarantined,
    /// Its agent stopped answering.
    Unreachable,
    /// Taken out for good.
    Retired,
}

/// Which lease holds a chassis, since when, and until when at least.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LeaseRef {
    /// Namespace of the tenant.
    #[schemars(length(min = 1, max = 63))]
    pub namespace: String,
    /// Name of the MacNodeLease.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Its uid: the reference is to this very object, not to a later one of the same name.
    #[schemars(length(min = 36, max = 36))]
    pub uid: String,
    /// When it was bound: the later of the operator's and the API server's clock, rounded up to the second.
    pub bound_at: Time,
    /// Not before this moment is the chassis given to anyone else.
    pub earliest_release_at: Time,
    /// The release has begun: everything is wiped, the tenant's access is gone.
    #[serde(default)]
    pub releasing: bool,
}

/// One of the two places for a macOS VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Slot {
    /// 0 or 1.
    #[schemars(range(min = 0, max = 1))]
    pub slot: i32,
    /// uid of the MacOSInstance.
    #[schemars(length(min = 36, max = 36))]
    pub uid: String,
    /// Its namespace.
    #[schemars(length(min = 1, max = 63))]
    pub namespace: String,
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// What the agent is to do.
    pub order: Order,
}

/// What the agent is to do with a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum Order {
    /// Make it and keep it running.
    Run,
    /// Stop it cleanly and keep its disk.
    Stop,
    /// Stop it, destroy its disk and everything of its, report Wiped. Never taken back.
    Wipe,
}

/// What is kept of a wipe after the VM's slot was given on; the whole receipt is in the audit trail.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WipeRecord {
    /// uid of the MacOSInstance.
    #[schemars(length(min = 1, max = 36))]
    pub uid: String,
    /// Its namespace, as its slot named it.
    #[schemars(length(min = 1, max = 63))]
    pub namespace: String,
    /// Its name, as its slot named it.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// uid of the lease that held the chassis then.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "leaseUID")]
    #[schemars(length(max = 36))]
    pub lease_uid: Option<String>,
    /// When the last item was verified.
    pub wiped_at: Time,
    /// `sha256:…` of the receipt as JSON, its fields in the order of the schema and without blanks.
    #[schemars(length(max = 80))]
    pub digest: String,
}

/// A host reboot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Reboot {
    /// Why it is needed.
    #[schemars(length(min = 1, max = 128))]
    pub reason: String,
    /// When it was asked for: the name of the request, which an approval echoes.
    pub requested_at: Time,
    /// The boot in which it was asked for, and the only one that may be ended for it.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "bootID")]
    #[schemars(length(max = 64))]
    pub boot_id: Option<String>,
    /// When an admin or the policy approved it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approved_at: Option<Time>,
    /// Who approved it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approved_by: Option<Approver>,
    /// The boot that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "doneBootID")]
    #[schemars(length(max = 64))]
    pub done_boot_id: Option<String>,
}

/// Who approved a reboot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Approver {
    /// An admin, by `spec.approvedReboot`.
    Admin,
    /// `quota.reboot: Automatic` of the RackConfig.
    Policy,
}

/// One reason not to use a chassis.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Quarantine {
    /// Which: QuotaStuck, ReattachFailed, SerialMismatch, WipeFailed or ForeignVM.
    #[schemars(length(min = 1, max = 64))]
    pub reason: String,
    /// Since when.
    pub since: Time,
    /// The boot in which it was seen.
    #[serde(rename = "bootID")]
    #[schemars(length(max = 64))]
    pub boot_id: String,
}

impl Quarantine {
    /// What `spec.clearedQuarantine` must say to clear this entry by hand.
    pub fn token(&self) -> String {
        // whole seconds, as the API server keeps them
        format!("{}@{}", self.reason, self.since.0.strftime("%Y-%m-%dT%H:%M:%SZ"))
    }
}

words! {
    /// Why a chassis is quarantined, and what ends it.
    QuarantineReason {
        /// The kernel refuses VMs although fewer than two run (XNU's counter did not go down). Ends with a reboot and a passed self test.
        QuotaStuck,
        /// The agent cannot reach a VM process that it once started. Ends when every VM is attached again.
        ReattachFailed,
        /// The hardware's serial is not the enrolled one. Ends when an admin clears it.
        SerialMismatch,
        /// Something of a tenant could not be wiped. Ends when an admin clears it.
        WipeFailed,
        /// A virtualization process that is not MacRack's runs on the Mac. Ends when it is gone.
        ForeignVM,
    }
}

words! {
    /// Condition types of a MacNode.
    MacNodeCondition {
        /// The chassis is as it should be: leasable, or leased and healthy.
        Ready,
        /// The agent reports and its Node is Ready.
        AgentReady,
        /// Model, chip, memory, disk and network are those of the class.
        HardwareMatchesClass,
        /// Entitlement, unlocked keychain and auto-login are in place.
        HostPrepared,
        /// The kernel's VM counter agrees with the VMs that run.
        QuotaHealthy,
        /// Every VM that should be there answers.
        VMsAttached,
        /// The Mac's clock and the API server's are at most a minute apart.
        ClockInStep,
        /// No reboot of the host is asked for or under way.
        RebootSettled,
        /// A new lease may be bound to it now.
        Leasable,
    }
}

words! {
    /// Reasons of a MacNode's conditions.
    MacNodeReason {
        /// Nothing stands in the way.
        Available,
        /// A lease holds the chassis.
        Leased,
        /// The agent has not reported yet: install it and run the bootstrap file of `kubectl macrack enroll`.
        AgentNotReported,
        /// The agent reports and its Node is Ready.
        Heartbeating,
        /// The Node is not Ready: the Mac, its agent or its network is down.
        NodeNotReady,
        /// The Node object is missing; it is made again.
        NodeMissing,
        /// The observed hardware is that of the class.
        Matches,
        /// The observed hardware is not that of the class; the message names the first difference.
        Differs,
        /// spec.nodeClassName names a class that does not exist.
        ClassNotFound,
        /// The host can start VMs.
        Prepared,
        /// The program macrack-vm lacks the entitlement com.apple.security.virtualization.
        EntitlementMissing,
        /// The login keychain of the agent's user is locked.
        KeychainLocked,
        /// The agent's user is not logged in automatically.
        AutoLoginOff,
        /// The host cannot serve tenants for another cause; the message is that of `macrack-agent doctor`.
        NotPrepared,
        /// The kernel's counter is as it should be.
        Counting,
        /// The kernel refuses VMs although fewer than two run.
        QuotaStuck,
        /// Nothing asks for a reboot of the host.
        NotAsked,
        /// A reboot is needed; what runs on the Mac is stopped cleanly first.
        StopsFirst,
        /// A reboot is asked for and waits for an admin: `kubectl macrack reboot`. The message says why the policy does
        /// not approve it.
        AwaitsApproval,
        /// The reboot is approved; the Mac is on its way.
        Rebooting,
        /// The Mac did not come back within quota.deadline. It is not rebooted again and no lease is taken off it:
        /// somebody must look at it.
        RebootTimedOut,
        /// The Mac is back in a new boot; the counter is healthy once a VM has started in it.
        AwaitsSelfTest,
        /// Every VM answers.
        Attached,
        /// The Mac's clock and the API server's agree.
        InStep,
        /// The Mac's clock is off: by more than a minute it is said, by more than five nothing is leased. Turn on "Set time
        /// and date automatically" and let the Mac reach its time server.
        ClockSkewed,
        /// A VM process cannot be reached.
        ReattachFailed,
        /// spec.unschedulable is set, or its Node is cordoned.
        Unschedulable,
        /// status.quarantine is not empty.
        Quarantined,
        /// spec.drain is set: what runs on the Mac is stopped for work on it.
        Draining,
        /// spec.retirement is set.
        Retired,
        /// Remains of a VM are still on the disk; they are wiped first.
        NotWiped,
        /// The MacNode is new and its leases and its disk are being compared.
        Reconciling,
        /// A fact could not be read; nothing is decided from it.
        Unreadable,
        /// The MacNode is being deleted.
        Deleting,
        /// The hardware's serial is not the enrolled one.
        SerialMismatch,
        /// Something of a tenant could not be wiped.
        WipeFailed,
        /// A virtualization process that is not MacRack's runs on the Mac.
        ForeignVM,
    }
}
