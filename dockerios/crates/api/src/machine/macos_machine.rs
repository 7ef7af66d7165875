//! `MacOSMachine`: one macOS machine of a class. Thin: nearly all that matters stands in the class.
//!
//! ```text
//! Pending ⇄ AllocatingIdentity ─▶ Cloning ─▶ Starting ─▶ Ready ─▶ Stopping ─▶ Stopped ─▶ (Starting) …
//!                                                └─ readinessTimeout ─▶ Failed
//! ```
//!
//! The phase is derived; nothing is decided from it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Condition, Name, vocabulary::vocabulary};

/// What is asked for.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "machine.dockerios.io", version = "v1alpha1", kind = "MacOSMachine", plural = "macosmachines", namespaced,
    status = "MacOSMachineStatus", shortname = "macs", category = "dockerios", derive = "PartialEq",
    doc = "MacOSMachine is one macOS machine of a class, run by KubeVirt. Rarely written by hand: claim one (MacOSMachineClaim) instead.",
    printcolumn(name = "CLASS", type_ = "string", json_path = ".spec.machineClassName"),
    printcolumn(name = "PHASE", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "STAGE", type_ = "string", json_path = ".status.guest.stage", description = "How far the guest has booted, by its own last report; of a machine that failed or is off, what it said last."),
    printcolumn(name = "IDENTITY", type_ = "string", json_path = ".status.identityRef"),
    printcolumn(name = "NODE", type_ = "string", json_path = ".status.nodeName"),
    printcolumn(name = "CLAIM", type_ = "string", json_path = ".spec.claimRef.name"),
    printcolumn(name = "REASON", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "MESSAGE", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].message", priority = 1),
    selectable = ".spec.machineClassName",
    validation = Rule::new("size(self.metadata.name) <= 63").message("[name-63] metadata.name: at most 63 characters (it is a label of the machine's objects); choose a shorter name"),
    validation = Rule::new("!has(oldSelf.spec.claimRef) || (has(self.spec.claimRef) && self.spec.claimRef == oldSelf.spec.claimRef)").message("[claim-bound-once] spec.claimRef: written once; a machine goes with its claim and is never given to another")
)]
pub struct MacOSMachineSpec {
    /// The MacOSMachineClass. Immutable.
    #[x_kube(validation = Rule::new("self == oldSelf").message("[machine-class-immutable] spec.machineClassName: cannot change; delete the machine and make another"))]
    pub machine_class_name: Name,
    /// Whether it is to run.
    #[serde(default)]
    pub power_state: PowerState,
    /// The claim that it was given to. Written once, by the operator alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim_ref: Option<MachineClaimRef>,
}

/// Whether a machine is to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum PowerState {
    /// It runs.
    #[default]
    Running,
    /// It is shut down in order and stays off, disk and identity kept.
    Stopped,
}

/// A claim in the machine's namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MachineClaimRef {
    /// Its name.
    pub name: Name,
    /// Its uid. A claim made again under the name is another.
    #[schemars(length(min = 1, max = 64))]
    pub uid: String,
}

/// What is observed. `guest` is written by the collector alone, all else by the operator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct MacOSMachineStatus {
    /// `metadata.generation` of the spec that all of this is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Where it stands, in one word; for people, nothing is decided from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<MachinePhase>,
    /// Since when it is in that phase. What `dockerios_machine_phase_seconds` is observed from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase_since: Option<Time>,
    /// The storage class that was closed when it last asked for room: for it, that class opens again only some points
    /// above its threshold. Empty once it was let in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub awaits_room_in: Option<Name>,
    /// The MachineIdentity that it has; derived from that identity's claimRef.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity_ref: Option<Name>,
    /// Mirror of spec.claimRef.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim_ref: Option<MachineClaimRef>,
    /// The objects that make it up.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub backing: Vec<Backing>,
    /// How its disks were really made, as CDI wrote it down on each volume.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub disks: Vec<Disk>,
    /// The node that it runs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<Name>,
    /// Addresses of the instance.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(length(max = 64)))]
    pub addresses: Vec<String>,
    /// When the guest was powered on, as KubeVirt says. The readiness timeout counts from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When it was first Ready. From then on its disk may hold what nobody has twice, so that it is never given up for
    /// want of a node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_ready_at: Option<Time>,
    /// When an orderly stop began: the guest is then told to shut down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_requested_at: Option<Time>,
    /// Why the machine failed, once it has. Written once; its resources are given back, the object stays as evidence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<MachineFailure>,
    /// What the guest last reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest: Option<Guest>,
    /// All that is to be said of it, with reasons; `Ready` is the sum.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 12))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// An object that a machine is made of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Backing {
    /// Its kind.
    #[schemars(length(max = 64))]
    pub kind: String,
    /// Its name, in the machine's namespace.
    #[schemars(length(max = 253))]
    pub name: String,
}

/// How a disk was made.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Disk {
    /// Name of its PersistentVolumeClaim.
    #[schemars(length(max = 253))]
    pub name: String,
    /// CDI's word for the way (annotation `cdi.kubevirt.io/cloneType`): `csi-clone` by the driver, `snapshot` from one,
    /// `copy` byte by byte through a pod.
    #[schemars(length(min = 1, max = 32))]
    pub strategy: String,
    /// Why CDI fell back to that way, if it says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub fallback_reason: Option<String>,
}

impl Disk {
    /// CDI's word for a copy through a pod.
    pub const COPY: &str = "copy";

    /// Whether a pod read and wrote the whole of it.
    pub fn is_copy(&self) -> bool {
        self.strategy == Self::COPY
    }
}

/// Why and when a machine failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MachineFailure {
    /// One documented word of the machine's reasons.
    #[schemars(length(min = 1, max = 64))]
    pub reason: String,
    /// For the person who must act.
    #[schemars(length(max = 1024))]
    pub message: String,
    /// When.
    pub at: Time,
    /// Name of the ConfigMap with the last screen, if it could be taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub screen: Option<String>,
}

/// A summary of a MacOSMachine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum MachinePhase {
    /// Waits; the conditions say for what.
    Pending,
    /// An identity is being taken.
    AllocatingIdentity,
    /// Its disks are being cloned.
    Cloning,
    /// The guest boots.
    Starting,
    /// The guest says that it is ready.
    Ready,
    /// It is being shut down.
    Stopping,
    /// It is off.
    Stopped,
    /// It failed and gave everything back.
    Failed,
    /// Nothing was heard of it for too long.
    Unknown,
}

/// The way of a guest from power-on to power-off; later stages are greater.
#[derive(Hash, PartialEq, Eq, PartialOrd, Ord, Copy, Clone, Debug, JsonSchema, Deserialize, Serialize)]
pub enum GuestStage {
    /// KubeVirt has powered it on, and nothing was heard of it: the one stage that no guest reports.
    Booting,
    /// launchd has started the agent, which has not looked around yet.
    AgentStarting,
    /// It waits for somebody to log in.
    LoginWindow,
    /// Somebody is logged in, by hand or automatically.
    UserSession,
    /// The agent's readiness check passes: the machine can be used.
    Ready,
    /// It was told to shut down, and does.
    ShuttingDown,
}

/// What a guest reports about itself. It is a guest's word: bounded, and trusted for nothing but readiness.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Guest {
    /// How far it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<GuestStage>,
    /// Whether its own readiness check passes.
    #[serde(default)]
    pub ready: bool,
    /// Version of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub agent_version: Option<String>,
    /// Version of macOS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub os_version: Option<String>,
    /// Software that it names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub software: Vec<Software>,
    /// Bytes that its data volume has left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_free: Option<i64>,
    /// Whether the last shutdown was clean, as the guest saw it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clean_shutdown: Option<bool>,
    /// The serial or UUID it reports is not that of its identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity_mismatch: Option<bool>,
    /// When the collector last took a report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_report: Option<Time>,
}

/// A piece of software.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Software {
    /// Its name.
    #[schemars(length(min = 1, max = 64))]
    pub name: String,
    /// Its version.
    #[schemars(length(max = 64))]
    pub version: String,
}

vocabulary! {
    /// Condition types of a MacOSMachine.
    MachineCondition:
        /// The guest is ready to be used.
        Ready;
        /// It has the identity that its class asks for; True at once for Shared classes.
        IdentityAllocated;
        /// There is physical room for it.
        StorageHeadroom;
        /// Its disks are cloned.
        DiskCloned;
        /// KubeVirt runs its instance; carries the scheduler's message while it cannot.
        InstanceRunning;
        /// The guest's own word.
        GuestReady;
        /// Its node is being drained.
        Draining;
}

vocabulary! {
    /// Reasons of a MacOSMachine's conditions.
    MachineReason:
        /// The guest says that it is ready.
        Ready;
        /// spec.machineClassName names no class.
        ClassNotFound;
        /// The class does not allow this namespace.
        NamespaceNotAllowed;
        /// The class's image is not there or not Ready.
        ImageNotReady;
        /// The class's identity pool is not there.
        PoolNotFound;
        /// The class asks for a card, and the bootdisks of its identity pool lack the boot-args of one; the message says what to change.
        PoolUnfit;
        /// PlatformConfig lacks what the class needs; the message says what.
        PlatformNotReady;
        /// No identity is left in the pool. The machine waits; none is minted. Frees when a machine goes, or raise spec.maxSize.
        IdentityExhausted;
        /// Every card of the GPU that its class asks for is another machine's, or no node offers one. It waits; frees when a machine with a card goes, or add one.
        NoCardFree;
        /// An identity is being taken.
        AllocatingIdentity;
        /// It has its identity.
        IdentityAllocated;
        /// The class shares one bootdisk; no identity is taken.
        SharedBootDisk;
        /// Physical free space is below the threshold; nothing that runs is touched.
        BelowThreshold;
        /// There is room.
        Sufficient;
        /// No rule for the storage class.
        NotConfigured;
        /// The free space is not known; that is not plenty.
        CapacityUnknown;
        /// The disks are being cloned.
        Cloning;
        /// The disks are there.
        Cloned;
        /// Cloning took longer than the class's cloneTimeout. CDI never fails a clone by itself.
        CloneTimeout;
        /// The operator may not clone from where its disks come from; the message has the Role and RoleBinding that grant it.
        CloneNotPermitted;
        /// A disk was copied by a pod although clones are wanted: slow, and whole in size. Keep image and class in one storage class whose driver clones.
        DiskCopied;
        /// A disk that was cloned is gone.
        VolumeLost;
        /// The machine goes, its disk stays: its class says so. Use it as a MacOSImage's pvc source, or delete it.
        VolumeRetained;
        /// The API server refused an object of the machine (quota, admission, rights); the message is its own.
        CreationRefused;
        /// No node can take it; the message is the scheduler's. A machine that was Ready before waits without a deadline.
        Unschedulable;
        /// It was not scheduled within its deadline, and was never Ready before.
        SchedulingTimeout;
        /// The instance is being started.
        Starting;
        /// The instance runs, the guest has not reported.
        Booting;
        /// The guest has reported but is not ready.
        GuestNotReady;
        /// The instance runs.
        Running;
        /// The virtual machine's CPUs are paused, as after a write error of its disk.
        Paused;
        /// The guest was not ready within the class's readinessTimeout after power-on. See the last screen and report.
        ReadinessTimeout;
        /// The instance ended with a failure; the message is KubeVirt's. If it had run, the machine failed, and its disk goes unless its class retains it.
        InstanceFailed;
        /// The domain hook refused; the message is its own.
        HookFailed;
        /// The launcher's QEMU lacks a device that macOS needs, though its image passed the probe; the message names the device. See docs/launcher.md.
        DeviceMissing;
        /// The guest reports another serial or UUID than its identity has.
        IdentityMismatch;
        /// Nothing was heard of the guest for three minutes.
        GuestSilent;
        /// The node does not answer: whether the guest still runs is not known, so nothing is freed.
        NodeLost;
        /// It is being shut down.
        Stopping;
        /// It is off, as asked.
        Stopped;
        /// The machine failed, and what this condition tells of was given back.
        GivenBack;
        /// The guest did not shut down within its grace period and was cut off; its file system may need a check.
        UncleanShutdown;
        /// The guest shut itself down. It is not started again by itself: set powerState Stopped, then Running.
        GuestShutDown;
        /// Its claim still needs it; the node waits until the drain deadline.
        WaitingForClaim;
        /// It leaves its node.
        Draining;
        /// It is not being drained.
        NotDraining;
        /// Being deleted: its claim has not let go of it.
        HeldByClaim;
        /// Being deleted: the guest is told to shut down.
        ShuttingDown;
        /// Being deleted: its instance or launcher pod is still there.
        WaitingForInstance;
        /// Being deleted: its volumes are still there.
        WaitingForVolumes;
        /// Being deleted: its identity is being given back.
        ReleasingIdentity;
        /// An object that is not this machine's has the name that it needs; delete or rename that object.
        NameTaken;
        /// Something could not be read just now; nothing is decided from it.
        Unreadable;
}
