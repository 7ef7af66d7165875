//! `MacOSInstance`: one macOS VM on a leased Mac.
//!
//! It names a lease and never a node: placement follows from the lease. It lives once it has won one of the
//! two slots of its MacNode; until the VM is wiped it keeps the slot.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Condition, words::words};

/// What a tenant asks for: a VM of a size, from a golden, on a Mac that they lease.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "instance.macrack.io", version = "v1alpha1", kind = "MacOSInstance", plural = "macosinstances", namespaced,
    status = "MacOSInstanceStatus", shortname = "mi", category = "macrack", derive = "PartialEq",
    selectable = ".spec.leaseName", selectable = ".status.nodeName",
    doc = "MacOSInstance is one macOS VM on a Mac that its namespace leases. It names the lease; where it runs follows from that. Its disk dies with it.",
    printcolumn(name = "LEASE", type_ = "string", json_path = ".spec.leaseName"),
    printcolumn(name = "IMAGE", type_ = "string", json_path = ".spec.imageName"),
    printcolumn(name = "PHASE", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "STAGE", type_ = "string", json_path = ".status.guest.stage"),
    printcolumn(name = "NODE", type_ = "string", json_path = ".status.nodeName"),
    printcolumn(name = "ADDRESS", type_ = "string", json_path = ".status.guest.addresses[0]"),
    printcolumn(name = "REASON", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "MESSAGE", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].message", priority = 1),
    validation = Rule::new("size(self.metadata.name) <= 63").message("[name-63] metadata.name: at most 63 characters; choose a shorter name"),
    validation = Rule::new("!has(oldSelf.status) || !has(oldSelf.status.leaseUID) || (has(self.status) && has(self.status.leaseUID) && self.status.leaseUID == oldSelf.status.leaseUID)").message("[lease-uid-once] status.leaseUID: written once")
)]
#[x_kube(validation = Rule::new("self.leaseName == oldSelf.leaseName").message("[instance-fixed] spec.leaseName: immutable; make another instance"))]
#[x_kube(validation = Rule::new("self.instanceClassName == oldSelf.instanceClassName").message("[instance-fixed] spec.instanceClassName: immutable; make another instance"))]
#[x_kube(validation = Rule::new("self.imageName == oldSelf.imageName").message("[instance-fixed] spec.imageName: immutable; make another instance"))]
#[x_kube(validation = Rule::new("has(self.firstBoot) == has(oldSelf.firstBoot) && (!has(self.firstBoot) || self.firstBoot == oldSelf.firstBoot)").message("[instance-fixed] spec.firstBoot: immutable, it runs once; make another instance"))]
pub struct MacOSInstanceSpec {
    /// A MacNodeLease in this namespace. Immutable.
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
    )]
    pub lease_name: String,
    /// An InstanceClass. Immutable.
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
    )]
    pub instance_class_name: String,
    /// A MacOSImage. Immutable.
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
    )]
    pub image_name: String,
    /// Whether the VM should run. A stopped VM keeps its disk and its slot.
    #[serde(default)]
    pub power_state: PowerState,
    /// Exactly one macOS VM; there is nothing to choose.
    #[serde(default)]
    pub resources: Resources,
    /// Runs once inside the fresh clone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_boot: Option<FirstBoot>,
    /// What happens when the guest shuts itself down.
    #[serde(default)]
    pub restart_policy: RestartPolicy,
}

/// Whether a VM should run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PowerState {
    /// Run.
    #[default]
    Running,
    /// Do not run; keep the disk.
    Stopped,
}

/// What happens when the guest shuts itself down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RestartPolicy {
    /// It stays stopped.
    #[default]
    Never,
    /// It is started again.
    OnGuestShutdown,
}

/// Exactly one macOS VM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("size(self.limits) == 1 && 'macrack.io/macos-vm' in self.limits && self.limits.all(k, type(self.limits[k]) == int ? self.limits[k] == 1 : self.limits[k] == '1')").message("[one-vm-each] spec.resources.limits: an instance is exactly one macOS VM (macrack.io/macos-vm: 1); leave resources out, and make a second instance for a second VM"))]
pub struct Resources {
    /// `macrack.io/macos-vm: 1`.
    #[serde(default = "one_vm")]
    #[schemars(extend("maxProperties" = 4))]
    pub limits: BTreeMap<String, Count>,
}

fn one_vm() -> BTreeMap<String, Count> {
    [(crate::names::MACOS_VM.to_owned(), Count(1.into()))].into()
}

impl Default for Resources {
    fn default() -> Self {
        Self { limits: one_vm() }
    }
}

/// A whole number, written as a number or as text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Count(pub serde_json::Value);

impl JsonSchema for Count {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Count".into()
    }
    fn inline_schema() -> bool {
        true
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "x-kubernetes-int-or-string": true, "maxLength": 20 })
    }
}

/// A script that runs once inside the fresh clone. Generic: MacRack knows nothing of what it does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FirstBoot {
    /// Where the script is.
    pub script_from: ScriptFrom,
}

/// Where a script is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScriptFrom {
    /// A key of a Secret in this namespace.
    pub secret_key_ref: SecretKeyRef,
}

/// A key of a Secret.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeyRef {
    /// The Secret.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
    )]
    pub name: String,
    /// Its key.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[-._a-zA-Z0-9]+$"))]
    pub key: String,
}

/// For people. Nothing is decided from it but `leaseUID` and `leaseFull`, which record what was decided once.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct MacOSInstanceStatus {
    /// The generation that was judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// A summary for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<MacOSInstancePhase>,
    /// uid of the lease it was made for: a later lease of the same name is another. Written once.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "leaseUID")]
    #[schemars(length(max = 36))]
    pub lease_uid: Option<String>,
    /// Both slots were held by others when it asked. Final: it never gets one.
    #[serde(default)]
    pub lease_full: bool,
    /// The Node of its Mac.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub node_name: Option<String>,
    /// Its placeholder pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub pod_name: Option<String>,
    /// The VM as its agent sees it. Written by the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<VmStatus>,
    /// The guest as its own agent reports it. Written by the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest: Option<GuestStatus>,
    /// What holds and what does not, each with its reason; `Ready` sums them up.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// The VM's process, for people.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VmStatus {
    /// When it was last started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// How often it was started.
    #[serde(default)]
    pub starts: i32,
    /// Its MAC address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 17))]
    pub mac_address: Option<String>,
    /// Progress or error in words, e.g. `2.1 of 5.0 GB, 1.4 GB/s, 2 s left`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub message: Option<String>,
    /// Domain and code of the framework's last error, e.g. `VZErrorDomain 6`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub error: Option<String>,
}

/// What the guest says of itself; every string was bounded by the host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GuestStatus {
    /// How far the guest has come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<GuestStage>,
    /// Version of the guest agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub agent_version: Option<String>,
    /// macOS version that runs in the guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub os_version: Option<String>,
    /// Xcode version found in the guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub xcode_version: Option<String>,
    /// Free space of the guest's data volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_free: Option<crate::Quantity>,
    /// Addresses, the tenant network's first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(length(max = 45)))]
    pub addresses: Vec<String>,
    /// What became of the first-boot script.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_boot: Option<FirstBootResult>,
    /// What the golden's readiness command says; absent where the golden has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub readiness: Option<Readiness>,
    /// Whether Xcode's licence and first-launch packages are taken on; absent until the guest knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_launch_accepted: Option<bool>,
    /// Whether macOS runs from the volume that Apple sealed; absent until the guest knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_sealed: Option<bool>,
}

/// How far a guest has come. `Booting` is inferred by the host, the rest is the guest's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum GuestStage {
    /// Started; the guest agent does not answer yet.
    Booting,
    /// The guest agent answers.
    AgentStarting,
    /// The login window is up.
    LoginWindow,
    /// A user is logged in.
    UserSession,
    /// Ready for work: first boot is done and the golden's readiness command agrees.
    Ready,
}

/// How a golden's readiness command stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Readiness {
    /// How it stands.
    pub state: ReadinessState,
    /// Exit code of its last run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The last line that it wrote, or why it could not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub message: Option<String>,
}

/// How a golden's readiness command stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum ReadinessState {
    /// It waits for a user session and for the first boot.
    Waiting,
    /// It runs for the first time in this session.
    Running,
    /// It ended with exit code 0.
    Ready,
    /// It ended with another exit code; it is run again.
    NotReady,
    /// It took too long and was ended; it is run again.
    TimedOut,
    /// It cannot be run; that is tried again.
    Failed,
}

/// What became of the first-boot script.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FirstBootResult {
    /// How it stands.
    pub state: FirstBootState,
    /// Its exit code, once it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
}

/// How the first-boot script stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum FirstBootState {
    /// It runs.
    Running,
    /// It ended with exit code 0.
    Done,
    /// It ended with another exit code; it is not run again.
    Failed,
    /// The guest went down while it ran; it is not run again.
    Interrupted,
}

/// A summary of a MacOSInstance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum MacOSInstancePhase {
    /// Waits for a slot, or for a macOS on its Mac that can run its golden.
    Pending,
    /// Has a slot; its placeholder is placed or being placed.
    Scheduled,
    /// The golden is being pulled.
    Pulling,
    /// The disk is being cloned.
    Cloning,
    /// The VM starts, or its guest boots.
    Starting,
    /// The guest is ready for work.
    Ready,
    /// It is being stopped or wiped.
    Stopping,
    /// It does not run; its disk is there.
    Stopped,
    /// It cannot run, and is not tried again.
    Failed,
    /// Its Mac or its process does not answer.
    Unknown,
}

words! {
    /// Condition types of a MacOSInstance.
    MacOSInstanceCondition {
        /// The guest is ready for work.
        Ready,
        /// It has a slot and its placeholder is placed on its Mac.
        Scheduled,
        /// Its golden is on its Mac.
        ImageReady,
        /// Its disk is cloned.
        DiskReady,
        /// Its VM runs.
        VMRunning,
        /// Its guest answers Ready.
        GuestReady,
        /// Its first-boot script ended well, or none was asked for.
        FirstBootDone,
        /// The guest reports the macOS, Xcode and guest agent that its image declares. Nothing is refused for it.
        ContentsMatch,
    }
}

words! {
    /// Reasons of a MacOSInstance's conditions.
    MacOSInstanceReason {
        /// As it should be.
        Ready,
        /// The lease is not there; it ends with its lease.
        LeaseNotFound,
        /// The lease could not be read; the message says why. Nothing is decided from it.
        Unreadable,
        /// The lease has no chassis yet.
        LeasePending,
        /// The lease has ended.
        LeaseEnded,
        /// Two other instances hold the two slots of the Mac. Final: delete one of them and make this one anew.
        LeaseFull,
        /// A slot comes free soon: its holder is being deleted.
        WaitingForSlot,
        /// The Mac is quarantined and starts nothing; the message says why.
        ChassisQuarantined,
        /// The Mac is in maintenance (spec.drain of its MacNode): the VM is stopped cleanly and runs again after it.
        ChassisInMaintenance,
        /// The Mac does not answer.
        HostUnreachable,
        /// spec.instanceClassName names a class that does not exist.
        ClassNotFound,
        /// The class does not fit beside the host's reserve and the other instance.
        DoesNotFit,
        /// The placeholder waits for the scheduler; the message is the scheduler's.
        WaitingForScheduler,
        /// The placeholder could not be made; the message is the API server's.
        PlaceholderRefused,
        /// It has a slot and its placeholder is placed.
        Scheduled,
        /// The golden is being pulled.
        Pulling,
        /// The disk is being cloned.
        Cloning,
        /// The VM starts.
        Starting,
        /// The guest boots and does not answer yet.
        Booting,
        /// The guest is not ready yet; the message says how far it is.
        GuestNotReady,
        /// The guest agent answered and is not believed, or fell silent; the message says why.
        GuestNotHeard,
        /// The login window stands and nobody is logged in: the golden's automatic login is off.
        AtLoginWindow,
        /// The golden's readiness command has not succeeded yet; the message is its own. It is run again.
        ReadinessPending,
        /// The Mac's macOS is older than the image needs, or unknown. It starts by itself after an upgrade.
        HostTooOld,
        /// The guest reports what its image declares.
        AsDeclared,
        /// The guest reports another macOS, Xcode or guest agent than its image declares: the golden was
        /// declared wrongly, or somebody changed the guest.
        ContentsDiffer,
        /// The golden is on the Mac.
        Cached,
        /// The disk is there.
        Cloned,
        /// The VM runs.
        Running,
        /// It is being stopped.
        Stopping,
        /// It is being wiped.
        Wiping,
        /// spec.powerState is Stopped.
        PoweredOff,
        /// The guest shut itself down.
        GuestShutdown,
        /// Its lease was deleted: instances older than that are stopped; make a new one while the lease is Held.
        LeaseHeld,
        /// It could not be started or ended; the message is the framework's.
        VMFailed,
        /// Its process cannot be reached.
        VMUnknown,
        /// No script was asked for.
        NotAsked,
        /// The script ended well.
        ScriptDone,
        /// The script runs or waits for the guest.
        ScriptPending,
        /// The script failed or was interrupted; it is not run again.
        ScriptFailed,
        /// Not that far yet.
        NotYet,
        /// Its disk could not be destroyed; the Mac is quarantined.
        WipeFailed,
        /// Its Mac was retired; its disk is wiped if it ever returns.
        ChassisRetired,
    }
}
