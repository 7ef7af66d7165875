//! `MacOSMachineClass`: a shape of machine, owned by admins. Tuning is a change of class.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use std::collections::BTreeMap;

use crate::{
    Condition, Name, PinnedImage, Size,
    text::{Label, SpanText},
    vocabulary::vocabulary,
};

/// Everything about a machine that is not the tenant's to choose. Machines that exist keep what they were made with.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "machine.dockerios.io", version = "v1alpha1", kind = "MacOSMachineClass", plural = "macosmachineclasses",
    status = "MacOSMachineClassStatus", shortname = "macclass", category = "dockerios", derive = "PartialEq",
    doc = "MacOSMachineClass is a shape of macOS machine: image, identity, CPU, memory, disk, network, GPU. Admins write it, tenants name it.",
    printcolumn(name = "IMAGE", type_ = "string", json_path = ".spec.imageName"),
    printcolumn(name = "IDENTITY", type_ = "string", json_path = ".spec.identity.type"),
    printcolumn(name = "CORES", type_ = "integer", json_path = ".spec.cpu.cores"),
    printcolumn(name = "MEMORY", type_ = "string", json_path = ".spec.memory.size"),
    printcolumn(name = "DISK", type_ = "string", json_path = ".spec.systemDisk.size"),
    printcolumn(name = "BUS", type_ = "string", json_path = ".spec.systemDisk.bus"),
    printcolumn(name = "REASON", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "MESSAGE", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].message", priority = 1),
    validation = Rule::new("size(self.metadata.name) <= 63").message("[name-63] metadata.name: at most 63 characters (it is a label of its machines); choose a shorter name")
)]
#[x_kube(validation = Rule::new("!self.terminationGracePeriod.matches('^([0-9]{1,5}h)?([0-9]{1,6}m)?([0-9]{1,7}s)?$') || duration(self.terminationGracePeriod) >= duration('180s')").message("[class-grace] spec.terminationGracePeriod: macOS needs up to 180s to shut down, less is a power cut; use 180s or more"))]
#[x_kube(validation = Rule::new("!self.readinessTimeout.matches('^([0-9]{1,5}h)?([0-9]{1,6}m)?([0-9]{1,7}s)?$') || duration(self.readinessTimeout) >= duration('60s')").message("[class-readiness] spec.readinessTimeout: no guest is Ready within less than 60s, every machine would fail; use 60s or more"))]
#[x_kube(validation = Rule::new("!self.cloneTimeout.matches('^([0-9]{1,5}h)?([0-9]{1,6}m)?([0-9]{1,7}s)?$') || duration(self.cloneTimeout) >= duration('30s')").message("[class-clone] spec.cloneTimeout: no storage clones a disk within less than 30s for sure, machines would fail for nothing; use 30s or more"))]
pub struct MacOSMachineClassSpec {
    /// The MacOSImage that machines are cloned from.
    pub image_name: Name,
    /// Namespaces that may use the class; all, when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_namespaces: Option<NamespaceSelector>,
    /// Whose identity machines boot with.
    pub identity: ClassIdentity,
    /// Processors.
    pub cpu: Cpu,
    /// Memory.
    pub memory: Memory,
    /// The disk with macOS on it.
    pub system_disk: SystemDisk,
    /// The NIC.
    #[serde(default)]
    pub network: Network,
    /// One whole GPU. Never the default: cards cannot be shared, so density is the number of cards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<Gpu>,
    /// How long a guest may take to shut down before it is cut off. 180s at least, and by default: less risks its
    /// file system.
    #[serde(default = "three_minutes")]
    pub termination_grace_period: SpanText,
    /// How long its disks may take to be cloned, from the moment at which nothing else is waited for; past it the machine
    /// is Failed. The usual 30m are enough to copy 200 GiB at 120 MB/s.
    #[serde(default = "half_an_hour")]
    pub clone_timeout: SpanText,
    /// From the guest's power-on to Ready; past it the machine is Failed and gives everything back.
    #[serde(default = "fifteen_minutes")]
    pub readiness_timeout: SpanText,
    /// Where machines may run.
    #[serde(default)]
    pub placement: Placement,
}

fn three_minutes() -> SpanText {
    SpanText("180s".into())
}

fn half_an_hour() -> SpanText {
    SpanText("30m".into())
}

fn fifteen_minutes() -> SpanText {
    SpanText("15m".into())
}

/// Whose identity machines boot with: exactly what `type` says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.type == 'Shared' ? has(self.shared) && !has(self.perMachine) : has(self.perMachine) && !has(self.shared)").message("[identity-union] identity: type Shared goes with shared.bootDiskImage alone, PerMachine with perMachine.poolName alone"))]
pub struct ClassIdentity {
    /// Which of the two.
    #[serde(rename = "type")]
    pub kind: IdentityKind,
    /// One bootdisk for all: for machines that sign in nowhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<SharedIdentity>,
    /// One identity each, out of a pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_machine: Option<PerMachineIdentity>,
}

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum IdentityKind {
    /// All machines of the class boot the same bootdisk.
    Shared,
    /// Each machine takes an identity of its own.
    PerMachine,
}

/// One bootdisk for all.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SharedIdentity {
    /// A containerDisk with the bootdisk.
    pub boot_disk_image: PinnedImage,
}

/// One identity each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PerMachineIdentity {
    /// The IdentityPool.
    pub pool_name: Name,
}

/// Processors; always one socket.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!self.isolateEmulation || self.dedicated").message("[cpu-isolate-needs-dedicated] cpu.isolateEmulation: needs cpu.dedicated: true; set it, or leave isolateEmulation out"))]
#[x_kube(validation = Rule::new("!has(self.numa) || self.dedicated").message("[cpu-numa-needs-dedicated] cpu.numa: needs cpu.dedicated: true; set it, or leave numa out"))]
pub struct Cpu {
    /// Cores: a power of two, or macOS does not boot.
    #[schemars(range(min = 1, max = 64))]
    #[x_kube(validation = Rule::new("self in [1, 2, 4, 8, 16, 32, 64]").message("[cpu-cores-power-of-two] cpu.cores: macOS boots on 1, 2, 4, 8, 16, 32 or 64 cores only; choose one of them"))]
    pub cores: i32,
    /// Threads per core.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 2))]
    pub threads: i32,
    /// CPU model as KubeVirt names it, e.g. `Haswell-noTSX`, `Skylake-Client-noTSX-IBRS`, `host-passthrough`.
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[A-Za-z0-9][-A-Za-z0-9_.]*$"))]
    pub model: String,
    /// Features beyond the model's own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub features: Vec<CpuFeature>,
    /// Whole physical cores for the guest alone.
    #[serde(default)]
    pub dedicated: bool,
    /// QEMU's own threads on a core of their own.
    #[serde(default)]
    pub isolate_emulation: bool,
    /// The guest sees the host's NUMA layout. Needs dedicated and hugepages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa: Option<Numa>,
}

fn one() -> i32 {
    1
}

/// A CPU feature.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CpuFeature {
    /// As libvirt names it.
    #[schemars(length(min = 1, max = 32), regex(pattern = r"^[a-z0-9][-a-z0-9_.]*$"))]
    pub name: String,
    /// `require`: a node without it is never chosen. Failing loudly is the point.
    #[serde(default)]
    pub policy: FeaturePolicy,
}

/// What is done about a CPU feature.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum FeaturePolicy {
    /// The guest has it, or the machine is not scheduled.
    #[default]
    Require,
    /// The guest does not have it.
    Disable,
}

/// How the guest sees NUMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Numa {
    /// As the host is.
    Passthrough,
}

/// Memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Memory {
    /// How much.
    pub size: Size,
    /// Page size of hugepages that the node has set aside; `size` must be a multiple of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hugepages: Option<Hugepages>,
}

/// Page size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Hugepages {
    /// 2 MiB.
    #[serde(rename = "2Mi")]
    TwoMi,
    /// 1 GiB.
    #[serde(rename = "1Gi")]
    OneGi,
}

impl Hugepages {
    /// As Kubernetes writes it.
    pub const fn text(self) -> &'static str {
        match self {
            Self::TwoMi => "2Mi",
            Self::OneGi => "1Gi",
        }
    }

    /// In bytes.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::TwoMi => 2 << 20,
            Self::OneGi => 1 << 30,
        }
    }
}

/// The disk with macOS on it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SystemDisk {
    /// What the guest sees. `nvme` is faster and trims; it needs the domain hook and a capable launcher.
    #[serde(default)]
    pub bus: Bus,
    /// Its size: the image's, unless growth is wanted (which costs a pod per clone).
    pub size: Size,
    /// Storage class of the clone; the image's own clones fastest.
    pub storage_class_name: Name,
    /// What becomes of it when the machine goes.
    #[serde(default)]
    pub reclaim_policy: DiskReclaimPolicy,
}

/// What the guest sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Bus {
    /// An NVMe controller: macOS drives it well, and TRIM works.
    #[default]
    Nvme,
    /// AHCI: slower, no hook needed for the disk.
    Sata,
}

/// What becomes of a system disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum DiskReclaimPolicy {
    /// Deleted with the machine.
    #[default]
    Delete,
    /// Kept; usable again as the `pvc` source of a MacOSImage.
    Retain,
}

/// The NIC.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Network {
    /// Its model.
    #[serde(default)]
    pub model: NicModel,
}

/// NIC models that are of use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum NicModel {
    /// Every macOS drives it. Packets cost host CPU (docs/cpu-budget.md).
    #[default]
    #[serde(rename = "e1000")]
    E1000,
    /// The variant that some macOS versions prefer; put in by the domain hook.
    #[serde(rename = "e1000-82545em")]
    E1000_82545em,
    /// Faster; macOS 11 and newer are reported to drive it.
    #[serde(rename = "virtio")]
    Virtio,
}

/// A GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Gpu {
    /// Resource name, one of PlatformConfig's permittedGPUs.
    #[schemars(
        length(min = 3, max = 253),
        regex(pattern = r"^[a-z0-9.-]+/[A-Za-z0-9][-A-Za-z0-9_.]*$")
    )]
    pub device_name: String,
}

/// Where machines may run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Placement {
    /// Labels that the node must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 16))]
    pub node_selector: BTreeMap<String, Label>,
    /// Taints that are accepted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub tolerations: Vec<Toleration>,
}

/// A taint that is accepted, in Kubernetes' own shape and by its own rules: a launcher pod with another is never made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("(has(self.key) && self.key != '') || (has(self.operator) && self.operator == 'Exists')").message("[toleration-key] tolerations: without a key all taints are meant, which goes with operator Exists alone; name a key, or set operator: Exists"))]
#[x_kube(validation = Rule::new("!has(self.value) || self.value == '' || !has(self.operator) || self.operator != 'Exists'").message("[toleration-value] tolerations: operator Exists takes no value; leave value out, or use Equal"))]
pub struct Toleration {
    /// The taint's key; all, when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 316))]
    pub key: Option<String>,
    /// `Equal` unless said otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator: Option<TolerationOperator>,
    /// The taint's value, for Equal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Label>,
    /// The taint's effect; all, when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<TaintEffect>,
}

/// How a toleration compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TolerationOperator {
    /// Key and value are the taint's.
    Equal,
    /// The taint has the key.
    Exists,
}

/// What a taint does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TaintEffect {
    /// Nothing new is scheduled there.
    NoSchedule,
    /// If possible, nothing new is scheduled there.
    PreferNoSchedule,
    /// What runs there is evicted.
    NoExecute,
}

/// Which namespaces may use the class, by their labels. Everything said must hold; an empty selector takes all.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceSelector {
    /// Labels that the namespace must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 16))]
    pub match_labels: BTreeMap<String, Label>,
    /// Further demands on its labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub match_expressions: Vec<NamespaceRequirement>,
}

/// A demand on one label.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.operator in ['Exists', 'DoesNotExist'] ? size(self.values) == 0 : size(self.values) > 0").message("[selector-values] values: needed by In and NotIn, and not allowed with Exists and DoesNotExist"))]
pub struct NamespaceRequirement {
    /// The label.
    #[schemars(length(min = 1, max = 316))]
    pub key: String,
    /// How it is judged.
    pub operator: SelectorOperator,
    /// For In and NotIn.
    #[serde(default)]
    #[schemars(length(max = 32))]
    pub values: Vec<Label>,
}

/// How a label is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SelectorOperator {
    /// Its value is one of these.
    In,
    /// It is not there, or its value is none of these.
    NotIn,
    /// It is there.
    Exists,
    /// It is not there.
    DoesNotExist,
}

impl NamespaceSelector {
    /// Whether a namespace with those labels is taken.
    pub fn takes(&self, labels: &BTreeMap<String, String>) -> bool {
        let listed = |r: &NamespaceRequirement| labels.get(&r.key).is_some_and(|v| r.values.iter().any(|w| w.0 == *v));
        self.match_labels
            .iter()
            .all(|(key, value)| labels.get(key) == Some(&value.0))
            && self.match_expressions.iter().all(|r| match r.operator {
                SelectorOperator::In => listed(r),
                SelectorOperator::NotIn => !listed(r),
                SelectorOperator::Exists => labels.contains_key(&r.key),
                SelectorOperator::DoesNotExist => !labels.contains_key(&r.key),
            })
    }
}

/// Whether machines can be made of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct MacOSMachineClassStatus {
    /// `metadata.generation` of the spec that all of this is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// All that is to be said of it, with reasons; `Ready` is the sum.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

vocabulary! {
    /// Condition types of a MacOSMachineClass.
    ClassCondition:
        /// Machines can be made of it.
        Ready;
}

vocabulary! {
    /// Reasons of a MacOSMachineClass's condition.
    ClassReason:
        /// Its references are there and ready.
        Ready;
        /// spec.imageName names no MacOSImage.
        ImageNotFound;
        /// The MacOSImage is not Ready yet.
        ImageNotReady;
        /// spec.identity.perMachine.poolName names no IdentityPool.
        PoolNotFound;
        /// The storage class of the system disk is not there.
        StorageClassNotFound;
        /// What the class asks for cannot be had on this platform any more; the message says what.
        NotPossible;
        /// Something could not be read just now; nothing is decided from it.
        Unreadable;
}
