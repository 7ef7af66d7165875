//! `PlatformConfig`: the one object (`default`) that says how the platform behaves.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Condition, Name, PinnedImage, identity::pool::BootDiskTemplate, text::SpanText, vocabulary::vocabulary};

/// Operator-wide behaviour. Apple's licence does not cover macOS on other makers' hardware; admission says so.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "config.dockerios.io", version = "v1alpha1", kind = "PlatformConfig", plural = "platformconfigs",
    status = "PlatformConfigStatus", category = "dockerios", derive = "PartialEq",
    doc = "PlatformConfig (one, named default) says how DockerIOS runs macOS machines on this cluster: domain hook, bootdisk builder, storage headroom, GPUs, claim limits.",
    printcolumn(name = "READY", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "LAUNCHER", type_ = "string", json_path = ".status.conditions[?(@.type==\"LauncherCapable\")].reason", description = "Whether the virt-launcher image has the devices that macOS needs."),
    printcolumn(name = "GATES", type_ = "string", json_path = ".status.conditions[?(@.type==\"GatesEnabled\")].status", description = "Whether KubeVirt's feature gates that are needed are on."),
    printcolumn(name = "REASON", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "MESSAGE", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].message", priority = 1),
    validation = Rule::new("self.metadata.name == 'default'").message("[platform-singleton] metadata.name: there is one PlatformConfig, named default; edit that one")
)]
pub struct PlatformConfigSpec {
    /// The hook that runs beside each virt-launcher. Without it no class with `bus: nvme` and no SMC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain_hook: Option<DomainHook>,
    /// What builds the bootdisks of identities. Without it PerMachine classes wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_disk_builder: Option<BootDiskBuilder>,
    /// The System Management Controller that macOS looks for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub smc: Option<Smc>,
    /// How guests reach the collector.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub management: Option<Management>,
    /// Free space that must stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<Storage>,
    /// GPUs that classes may ask for.
    #[serde(default, rename = "permittedGPUs", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["deviceName".into()]))]
    pub permitted_gpus: Vec<PermittedGpu>,
    /// Limits of claims.
    #[serde(default = "Claims::usual")]
    pub claims: Claims,
    /// How long a draining node waits for the claims of its machines. Past it they are stopped.
    #[serde(default = "hour")]
    pub drain_deadline: SpanText,
}

fn hour() -> SpanText {
    SpanText("1h".into())
}

/// The domain hook's sidecar.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DomainHook {
    /// Its image.
    pub image: PinnedImage,
}

/// The bootdisk builder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BootDiskBuilder {
    /// Its image.
    pub image: PinnedImage,
    /// The OpenCore template.
    pub template: Template,
    /// The OpenCore template of machines with a card, whose boot-args are others (`agdpmod=pikera` for Navi). Identity
    /// pools with `bootDisk.template: GPU` are built from it; without it theirs wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_template: Option<Template>,
}

impl BootDiskBuilder {
    /// The template that a pool names; none while there is no such template.
    pub fn template(&self, named: BootDiskTemplate) -> Option<&Template> {
        match named {
            BootDiskTemplate::Default => Some(&self.template),
            BootDiskTemplate::GPU => self.gpu_template.as_ref(),
        }
    }
}

/// An OpenCore template, mounted into the builder as an image volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Template {
    /// The image whose root is the template (`EFI/…`, `MANIFEST.sha256`). A ConfigMap cannot hold it: it is limited to
    /// 1 MiB.
    pub image: PinnedImage,
    /// SHA-256 of the sorted file manifest, not of the image.
    #[schemars(length(min = 64, max = 64), regex(pattern = "^[0-9a-f]{64}$"))]
    pub sha256: String,
}

/// The SMC's key, which the admin supplies. It stands in no image, manifest, event or log of ours.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Smc {
    /// A key of a Secret in the platform namespace.
    pub osk_secret_ref: SecretKey,
}

/// One key of a Secret in the platform namespace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretKey {
    /// Name of the Secret.
    pub name: Name,
    /// The key in it.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[-._a-zA-Z0-9]+$"))]
    pub key: String,
}

/// How guests reach the collector.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Management {
    /// A second interface (Multus) for reports. Without it they go through the pod network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_attachment_ref: Option<ObjectRef>,
    /// URL of the collector as guests see it, e.g. `https://10.60.0.5:7443`. Without it: the operator's Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 9, max = 256), regex(pattern = r"^https://[-a-zA-Z0-9.\[\]:]+$"))]
    pub collector_address: Option<String>,
}

/// An object in a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectRef {
    /// Its namespace.
    pub namespace: Name,
    /// Its name.
    pub name: Name,
}

/// Rules about storage.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Storage {
    /// Physical free space per storage class below which no machine is started. A class that is not named has no rule.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["storageClassName".into()]))]
    pub headroom: Vec<Headroom>,
}

/// The rule for one storage class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Headroom {
    /// The storage class.
    pub storage_class_name: Name,
    /// Percent of the capacity that must stay free.
    #[schemars(range(min = 0, max = 90))]
    pub min_free_percent: u8,
    /// Where the numbers come from.
    pub source: HeadroomSource,
}

/// Where the numbers come from: exactly one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.csiCapacity) != has(self.prometheus)").message("[headroom-source] source: exactly one of csiCapacity, prometheus"))]
pub struct HeadroomSource {
    /// The driver's CSIStorageCapacity objects. They tell provisioned, not physical, space on thin pools: prefer a query.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub csi_capacity: Option<CsiCapacity>,
    /// Two queries to a Prometheus.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prometheus: Option<Prometheus>,
}

/// No fields yet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CsiCapacity {}

/// Queries that each give one number of bytes. No number, or more than one, is unknown capacity, never plenty.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Prometheus {
    /// Base URL.
    #[schemars(length(min = 8, max = 512), regex(pattern = r"^https?://[^\s]+$"))]
    pub url: String,
    /// Bytes physically free.
    #[schemars(length(min = 1, max = 1024))]
    pub free_query: String,
    /// Bytes in all.
    #[schemars(length(min = 1, max = 1024))]
    pub capacity_query: String,
}

/// A GPU that classes may ask for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PermittedGpu {
    /// Resource name, as KubeVirt's permittedHostDevices has it.
    #[schemars(
        length(min = 3, max = 253),
        regex(pattern = r"^[a-z0-9.-]+/[A-Za-z0-9][-A-Za-z0-9_.]*$")
    )]
    pub device_name: String,
    /// The card's audio function, which is a second device to hand over with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 3, max = 253),
        regex(pattern = r"^[a-z0-9.-]+/[A-Za-z0-9][-A-Za-z0-9_.]*$")
    )]
    pub audio_device_name: Option<String>,
    /// Whether the card can be reset between two guests.
    #[serde(default)]
    pub vendor_reset: VendorReset,
}

impl PermittedGpu {
    /// The card, and its audio function if it has one: all that is handed over.
    pub fn devices(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&*self.device_name).chain(self.audio_device_name.as_deref())
    }
}

/// The reset bug of many AMD cards: without a working reset the second guest gets a dead card until the host reboots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum VendorReset {
    /// Nobody has said. Classes that name the card are refused.
    #[default]
    Unacknowledged,
    /// The hosts load the vendor-reset module for it.
    Installed,
    /// The card resets by itself.
    NotNeeded,
}

/// Limits of claims.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("![self.defaultTTL, self.maxTTL].all(d, d.matches('^([0-9]{1,5}h)?([0-9]{1,6}m)?([0-9]{1,7}s)?$')) || duration(self.defaultTTL) <= duration(self.maxTTL)").message("[ttl-default-within-max] claims.defaultTTL: longer than claims.maxTTL; lower it or raise maxTTL"))]
pub struct Claims {
    /// TTL of a claim that names none.
    #[serde(rename = "defaultTTL", default = "two_hours")]
    pub default_ttl: SpanText,
    /// Longest TTL.
    #[serde(rename = "maxTTL", default = "day")]
    pub max_ttl: SpanText,
}

impl Claims {
    /// What holds when nobody says otherwise: two hours, at most a day.
    pub fn usual() -> Self {
        Self {
            default_ttl: two_hours(),
            max_ttl: day(),
        }
    }
}

fn two_hours() -> SpanText {
    SpanText("2h".into())
}

fn day() -> SpanText {
    SpanText("24h".into())
}

/// What was found out about the cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlatformConfigStatus {
    /// `metadata.generation` of the spec that all of this is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Launcher images that were probed, by digest; the newest sixteen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["digest".into()]))]
    pub launchers: Vec<Launcher>,
    /// All that is to be said of it, with reasons; `Ready` is the sum.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 12))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// What one virt-launcher image can do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Launcher {
    /// `sha256:…` of the image.
    #[schemars(length(min = 71, max = 71), regex(pattern = "^sha256:[0-9a-f]{64}$"))]
    pub digest: String,
    /// How it can give an NVMe disk.
    pub nvme: Nvme,
    /// Whether its QEMU has `isa-applesmc`.
    pub smc: bool,
    /// NIC models that its QEMU has and macOS drives.
    #[serde(default)]
    #[schemars(length(max = 16), inner(length(max = 32)))]
    pub nic_models: Vec<String>,
    /// When it was probed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probed_at: Option<Time>,
}

/// How a launcher can give an NVMe disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Nvme {
    /// Its libvirt (11.5 or newer) knows `bus='nvme'`.
    Native,
    /// Older libvirt: the frontend of the SATA disk is overridden.
    Override,
    /// Its QEMU has no `nvme` device.
    Missing,
}

vocabulary! {
    /// Condition types of a PlatformConfig.
    PlatformCondition:
        /// Machines can be made: all that follows holds.
        Ready;
        /// The virt-launcher image has `nvme` and `isa-applesmc` (stock builds have neither).
        LauncherCapable;
        /// KubeVirt's feature gates that we need are on: Sidecar, CPUManager.
        GatesEnabled;
        /// CDI honours WaitForFirstConsumer, so that clones land where the machine runs.
        HonorsWaitForFirstConsumer;
        /// No foreign KubeVirt Plugin re-marshals the domain XML behind the hook.
        NoForeignPlugin;
        /// Every permitted GPU is in KubeVirt's permittedHostDevices too.
        GPUsPermitted;
        /// The x86 path has an end: macOS 26 is the last macOS for Intel.
        EndOfLife;
}

vocabulary! {
    /// Reasons of a PlatformConfig's conditions.
    PlatformReason:
        /// All is as machines need it.
        Ready;
        /// spec.domainHook is not set: classes with `bus: nvme` are refused, and macOS has no SMC.
        DomainHookMissing;
        /// spec.bootDiskBuilder is not set: identities get no bootdisk, PerMachine classes wait.
        BuilderMissing;
        /// spec.smc is not set, or its Secret or key is not there.
        OskMissing;
        /// The launcher image has what is needed.
        Capable;
        /// The launcher image has not been probed yet.
        NotProbed;
        /// The launcher's QEMU has no nvme device: see docs/launcher.md for how to build one that has.
        NvmeMissing;
        /// The launcher's QEMU has no isa-applesmc device: see docs/launcher.md.
        SmcMissing;
        /// The gates are on.
        Enabled;
        /// A feature gate is off; the message names it and the command that turns it on.
        GateDisabled;
        /// KubeVirt is not there: its kind is not served, or it has no object. Install KubeVirt 1.6 or newer.
        KubeVirtNotFound;
        /// CDI is not there: its kind is not served, or it has no CDIConfig. Without it no disk is cloned. Install CDI.
        CdiNotFound;
        /// CDI waits for the first consumer.
        Honored;
        /// CDI is configured to bind at once; clones may land where the machine cannot run.
        NotHonored;
        /// There is none.
        None;
        /// A Plugin is installed; KubeVirt 1.9.0 then loses what the hook adds.
        PluginInstalled;
        /// All are permitted.
        Permitted;
        /// KubeVirt does not permit a GPU that this PlatformConfig does.
        NotPermitted;
        /// macOS 26 is Apple's last release for Intel; plan the move to Apple silicon.
        IntelSunset;
        /// It could not be read just now; nothing is decided from it.
        Unreadable;
}
