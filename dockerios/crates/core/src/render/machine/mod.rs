//! What one MacOSMachine is made of: hook ConfigMap, config Secret, DataVolumes, VirtualMachine.
//!
//! Invariants: the same input gives the same objects, byte for byte. Each carries the machine's uid label and no
//! ownerReference (a foreground delete would destroy it at once, finalizer or not). Nothing secret is in them: key,
//! token and authority are filled in when they are written. What cannot be rendered is refused with the field and the
//! way out; no default takes the place of a value that cannot be read.

mod domain;
mod volumes;

use std::{collections::BTreeMap, fmt};

use dockerios_api::{
    MacOSMachine, MacOSMachineClassSpec, MachineIdentity, PlatformConfigSpec,
    config::platform_config::Nvme,
    image::macos_image::{MacOSImageSpec, Published},
    machine::{
        class::{Bus, IdentityKind, NicModel},
        macos_machine::PowerState,
    },
    names::{BOOTDISK, CPU_VENDOR, IDENTITY, INTEL, MACHINE, MACHINE_UID, NIC_MODEL, NVME, SYSTEM_DISK, of_machine},
};
use dockerios_kubevirt::{
    VirtualMachine, names as kubevirt,
    vm::{RunStrategy, Template, TemplateMetadata, VirtualMachineSpec},
};
use kube::{ResourceExt, core::ObjectMeta};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::{Kind, Object, admit::cpu::of_host};

/// Key of the hook ConfigMap that holds the SMC's key.
pub const OSK_KEY: &str = "osk";
/// Key of the config Secret: uid of the machine.
pub const MACHINE_ID: &str = "machine-id";
/// Key of the config Secret: URL of the collector.
pub const COLLECTOR: &str = "collector";
/// Volume label of the config disk, as the guest agent looks for it.
pub const CONFIG_LABEL: &str = "DOCKERIOS";

/// Where KubeVirt puts the hook ConfigMap into the sidecar.
const OSK_PATH: &str = "/osk/key";
/// KubeVirt's own addition to the grace period of a launcher pod is 30 s; the sidecar ends between the two.
const HOOK_OUTLIVES_GUEST: u64 = 15;
/// The longest that the sidecar's own argument takes, in seconds.
const HOOK_LONGEST: u64 = 86_400;

/// All that a machine's objects depend on.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// The machine.
    pub machine: &'a MacOSMachine,
    /// Its class.
    pub class: &'a MacOSMachineClassSpec,
    /// The image that the class names.
    pub image: &'a MacOSImageSpec,
    /// What that image published.
    pub published: &'a Published,
    /// The identity that the machine has; none for a Shared class.
    pub identity: Option<&'a MachineIdentity>,
    /// The platform.
    pub platform: &'a PlatformConfigSpec,
    /// How the launcher gives an NVMe disk. Of no matter for a class with `bus: sata`.
    pub nvme: Nvme,
    /// Where the guest reports to.
    pub collector_url: &'a str,
    /// Where golden images and master bootdisks are.
    pub platform_namespace: &'a str,
}

/// What stands in the way, and who can remove it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unrenderable {
    /// Object and field.
    pub field: String,
    /// What is wrong with it.
    pub problem: String,
    /// What to do.
    pub way_out: String,
}

impl Unrenderable {
    fn new(field: impl Into<String>, problem: impl Into<String>, way_out: impl Into<String>) -> Self {
        let (field, problem, way_out) = (field.into(), problem.into(), way_out.into());
        Self {
            field,
            problem,
            way_out,
        }
    }
}

impl fmt::Display for Unrenderable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            field,
            problem,
            way_out,
        } = self;
        write!(f, "{field}: {problem}; {way_out}")
    }
}

impl std::error::Error for Unrenderable {}

/// An object, or what stands in its way.
pub type Rendered<T> = Result<T, Unrenderable>;

/// Name of the machine's VirtualMachine, and of the VMI.
pub fn vm_name(machine: &MacOSMachine) -> String {
    part(machine, "vm")
}

/// Name of the machine's hook ConfigMap.
pub fn hook_config_name(machine: &MacOSMachine) -> String {
    part(machine, "hook")
}

/// Name of the machine's config Secret.
pub fn guest_config_name(machine: &MacOSMachine) -> String {
    part(machine, "config")
}

/// Name of the DataVolume and PVC of the system disk.
pub fn system_disk_name(machine: &MacOSMachine) -> String {
    part(machine, "system")
}

/// Name of the DataVolume and PVC of the machine's own bootdisk (PerMachine classes only).
pub fn boot_disk_name(machine: &MacOSMachine) -> String {
    part(machine, "boot")
}

fn part(machine: &MacOSMachine, part: &str) -> String {
    of_machine(&machine.name_any(), &machine.uid().unwrap_or_default(), part)
}

/// The hook ConfigMap, without the key that is filled in when it is written. None when the platform has no hook.
///
/// # Errors
/// The platform names a hook but no key for it.
pub fn hook_config(input: &Input) -> Rendered<Option<Object>> {
    if input.platform.domain_hook.is_none() {
        return Ok(None);
    }
    if input.platform.smc.is_none() {
        let problem = "the domain hook is set, and the SMC's key that it hands over is not";
        let way_out = "name the Secret with the key that you own, in the platform namespace";
        return Err(Unrenderable::new(
            "PlatformConfig default spec.smc.oskSecretRef",
            problem,
            way_out,
        ));
    }
    let body = json!({"metadata": metadata(input, hook_config_name(input.machine), false), "immutable": true});
    Ok(Some(object(Kind::ConfigMap, body)))
}

/// The config Secret, without token and authority, which are filled in when it is written.
///
/// # Errors
/// There is no address to report to.
pub fn guest_config(input: &Input) -> Rendered<Object> {
    if input.collector_url.is_empty() {
        let problem = "there is no address under which guests reach the collector";
        let way_out = "set it to a URL such as https://10.60.0.5:7443";
        return Err(Unrenderable::new(
            "PlatformConfig default spec.management.collectorAddress",
            problem,
            way_out,
        ));
    }
    let body = json!({
        "metadata": metadata(input, guest_config_name(input.machine), false),
        "type": "Opaque",
        "immutable": true,
        "stringData": {MACHINE_ID: uid(input)?, COLLECTOR: input.collector_url},
    });
    Ok(object(Kind::Secret, body))
}

/// The machine's DataVolumes: system disk first, then (PerMachine) the clone of its identity's bootdisk.
///
/// # Errors
/// A size cannot be read, the disk is smaller than its image, or the identity has no bootdisk yet.
pub fn data_volumes(input: &Input) -> Rendered<Vec<Object>> {
    volumes::data_volumes(input)
}

/// The VirtualMachine, to be made once and never applied again: class edits do not touch it.
///
/// # Errors
/// The field that cannot be rendered, and the way out.
pub fn virtual_machine(input: &Input) -> Rendered<Object> {
    let who = Who::of(input)?;
    let name = vm_name(input.machine);
    let spec = VirtualMachineSpec {
        run_strategy: Some(match input.machine.spec.power_state {
            PowerState::Running => RunStrategy::Once,
            PowerState::Stopped => RunStrategy::Halted,
        }),
        template: Template {
            metadata: Some(TemplateMetadata {
                labels: labels(input, true),
                annotations: annotations(input)?,
            }),
            spec: domain::instance(input, &who)?,
        },
    };
    let vm = VirtualMachine {
        metadata: metadata(input, name, true),
        spec,
        status: None,
    };
    Object::of(Kind::VirtualMachine, &vm).map_err(defect)
}

/// Seconds that the guest gets to shut down.
///
/// # Errors
/// The class's text is no duration.
pub fn grace_seconds(class: &MacOSMachineClassSpec) -> Rendered<u64> {
    let text = &class.termination_grace_period;
    let span = text
        .span()
        .map_err(|why| class_field("terminationGracePeriod", why.to_string(), "correct it in the class"))?;
    // stored past the schema's rule: less is a power cut
    Ok(span.seconds().max(180))
}

/// What the firmware and the disk say of the machine.
struct Who {
    /// SMBIOS UUID.
    uuid: String,
    /// SMBIOS serial.
    serial: String,
    /// MAC address of the NIC; KubeVirt's own choice when none.
    mac: Option<String>,
}

impl Who {
    fn of(input: &Input) -> Rendered<Self> {
        if let Some(identity) = identity(input)? {
            let spec = &identity.spec;
            return Ok(Self {
                uuid: spec.system_uuid.clone(),
                serial: spec.serial.clone(),
                mac: Some(spec.mac_address.clone()),
            });
        }
        // the bootdisk of a Shared class tells macOS its own; these only keep two machines apart on the host
        let digest = Sha256::digest(format!("firmware of machine {}", uid(input)?));
        let mut bytes: [u8; 16] = [0; 16];
        bytes.copy_from_slice(&digest[..16]);
        // RFC 9562, version 8: made by a rule of our own
        bytes[6] = 0x80 | (bytes[6] & 0x0f);
        bytes[8] = 0x80 | (bytes[8] & 0x3f);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let (a, b, c, d, e) = (&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]);
        Ok(Self {
            uuid: format!("{a}-{b}-{c}-{d}-{e}"),
            serial: hex[..12].to_uppercase(),
            mac: None,
        })
    }
}

/// The identity of a PerMachine class; none for a Shared one.
fn identity<'a>(input: &Input<'a>) -> Rendered<Option<&'a MachineIdentity>> {
    match (input.class.identity.kind, input.identity) {
        (IdentityKind::Shared, _) => Ok(None),
        (IdentityKind::PerMachine, Some(identity)) => Ok(Some(identity)),
        (IdentityKind::PerMachine, None) => {
            let problem = "the class gives each machine an identity, and this one has none yet";
            Err(Unrenderable::new(
                "MacOSMachine status.identityRef",
                problem,
                "wait until one is taken",
            ))
        }
    }
}

fn uid(input: &Input) -> Rendered<String> {
    let missing = || {
        Unrenderable::new(
            "MacOSMachine metadata.uid",
            "the object has none",
            "it must be stored first",
        )
    };
    input.machine.uid().filter(|uid| !uid.is_empty()).ok_or_else(missing)
}

fn labels(input: &Input, identified: bool) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::from([
        (MACHINE.to_owned(), input.machine.name_any()),
        (MACHINE_UID.to_owned(), input.machine.uid().unwrap_or_default()),
    ]);
    let carried = input
        .identity
        .filter(|_| input.class.identity.kind == IdentityKind::PerMachine);
    if let Some(identity) = carried.filter(|_| identified) {
        labels.insert(IDENTITY.to_owned(), identity.name_any());
    }
    labels
}

fn metadata(input: &Input, name: String, identified: bool) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: input.machine.namespace(),
        labels: Some(labels(input, identified)),
        ..ObjectMeta::default()
    }
}

fn annotations(input: &Input) -> Rendered<BTreeMap<String, String>> {
    let mut all = BTreeMap::from([
        (kubevirt::PLACE_PCI_ON_ROOT.to_owned(), "true".to_owned()),
        (SYSTEM_DISK.to_owned(), volumes::SYSTEM.to_owned()),
        (BOOTDISK.to_owned(), volumes::BOOTDISK.to_owned()),
        (NVME.to_owned(), nvme(input)?.to_owned()),
    ]);
    if input.class.network.model == NicModel::E1000_82545em {
        hook_is_there(input, "network.model", "use e1000")?;
        all.insert(NIC_MODEL.to_owned(), "e1000-82545em".to_owned());
    }
    if vendor_by_hook(input) {
        all.insert(CPU_VENDOR.to_owned(), INTEL.to_owned());
    }
    if let Some(sidecar) = sidecar(input)? {
        all.insert(kubevirt::HOOK_SIDECARS.to_owned(), sidecar);
    }
    Ok(all)
}

/// Whether the hook gives the processor Intel's vendor, whatever the host's is. Without that only Intel hosts will do:
/// KVM shows a guest the host's vendor (`dockerios_domain_hook`, module `cpu`).
fn vendor_by_hook(input: &Input) -> bool {
    input.platform.domain_hook.is_some() && !of_host(&input.class.cpu.model)
}

/// What the hook is told about the system disk.
fn nvme(input: &Input) -> Rendered<&'static str> {
    if input.class.system_disk.bus == Bus::Sata {
        return Ok("off");
    }
    hook_is_there(input, "systemDisk.bus", "use sata")?;
    match input.nvme {
        Nvme::Native => Ok("native"),
        Nvme::Override => Ok("override"),
        Nvme::Missing => Err(class_field(
            "systemDisk.bus",
            "nvme is wanted, and the QEMU of this cluster's virt-launcher has no nvme device",
            "build a launcher that has it (docs/launcher.md), or use sata",
        )),
    }
}

fn hook_is_there(input: &Input, field: &str, otherwise: &str) -> Rendered<()> {
    if input.platform.domain_hook.is_some() {
        return Ok(());
    }
    let way_out = format!("set spec.domainHook.image of PlatformConfig default, or {otherwise}");
    Err(class_field(
        field,
        "is put in by the domain hook, and PlatformConfig names none",
        way_out,
    ))
}

/// KubeVirt's list of hook sidecars, which is JSON in an annotation.
fn sidecar(input: &Input) -> Rendered<Option<String>> {
    let Some(hook) = &input.platform.domain_hook else {
        return Ok(None);
    };
    let serve_on = (grace_seconds(input.class)? + HOOK_OUTLIVES_GUEST).min(HOOK_LONGEST);
    let list = json!([{
        "image": hook.image,
        "imagePullPolicy": "IfNotPresent",
        "args": ["serve", format!("--osk-file={OSK_PATH}"), format!("--grace-seconds={serve_on}")],
        "configMap": {"name": hook_config_name(input.machine), "key": OSK_KEY, "hookPath": OSK_PATH},
    }]);
    Ok(Some(list.to_string()))
}

fn class_field(field: &str, problem: impl Into<String>, way_out: impl Into<String>) -> Unrenderable {
    Unrenderable::new(format!("MacOSMachineClass spec.{field}"), problem, way_out)
}

fn object(kind: Kind, mut body: Value) -> Object {
    let address = kind.address();
    body["apiVersion"] = address.api_version().into();
    body["kind"] = address.kind.into();
    Object { kind, body }
}

/// A type of ours that is no JSON.
fn defect(error: serde_json::Error) -> Unrenderable {
    Unrenderable::new(
        "the rendered object",
        error.to_string(),
        "this is a defect: please report it",
    )
}
