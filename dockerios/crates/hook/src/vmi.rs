//! The contract with the controller. Invariant: everything the hook is told stands in annotations of the
//! VirtualMachineInstance; each is either absent, or a value of its list, or refused.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::{Reason, Refusal};

/// Volume that becomes NVMe.
pub const SYSTEM_DISK: &str = "dockerios.io/system-disk";
/// Volume that the firmware boots; stays on SATA.
pub const BOOTDISK: &str = "dockerios.io/bootdisk";
/// How the system disk becomes NVMe: [`NvmeMode`].
pub const NVME: &str = "dockerios.io/nvme";
/// What an `e1000` interface becomes.
pub const NIC_MODEL: &str = "dockerios.io/nic-model";
/// The vendor that a named CPU model says it is of: [`CPU_VENDORS`].
pub const CPU_VENDOR: &str = "dockerios.io/cpu-vendor";
/// What macOS knows: twelve characters, as CPUID leaf 0 has them.
pub const CPU_VENDORS: [&str; 1] = ["GenuineIntel"];

/// Models that QEMU has and that macOS is reported to have a driver for; nothing here was run on a Mac.
///
/// `e1000` is what the specification counts on; `e1000-82545em` is the variant that guides to macOS on QEMU give
/// (G. Somlo, "Running Mac OS X as a QEMU/KVM Guest"). `vmxnet3`: since 10.11 (kholia/OSX-KVM#2), on 13 where
/// `e1000-82545em` had failed (Coopydood/ultimate-macOS-KVM#14). `e1000e`: up to 12; from 13 on only with a patch in
/// the bootdisk's template (DrDonk/unlocker#64, DrDonk/OC4VM).
pub const NIC_MODELS: [&str; 4] = ["e1000", "e1000-82545em", "e1000e", "vmxnet3"];

/// How the system disk becomes NVMe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NvmeMode {
    /// `bus='nvme'`, which libvirt has since 11.5.
    #[default]
    Native,
    /// The SATA disk stays in the XML, `qemu:override` changes the device: for older libvirt.
    Override,
    /// The class says `bus: sata`; the disk is left alone.
    Off,
}

/// What the hook needs of a VirtualMachineInstance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vmi {
    /// `namespace/name`, for messages.
    pub called: String,
    /// Volume name of the system disk.
    pub system_disk: String,
    /// Volume name of the bootdisk; never the same.
    pub bootdisk: String,
    /// How the system disk becomes NVMe.
    pub nvme: NvmeMode,
    /// What `e1000` becomes; one of [`NIC_MODELS`].
    pub nic_model: Option<String>,
    /// The vendor that the CPU says it is of; one of [`CPU_VENDORS`].
    pub cpu_vendor: Option<String>,
    /// The system disk's serial in `spec.domain.devices.disks[]`, when it has one.
    pub serial: Option<String>,
}

#[derive(Deserialize)]
struct Object {
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Metadata {
    name: Option<String>,
    namespace: Option<String>,
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Spec {
    domain: DomainSpec,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct DomainSpec {
    devices: Devices,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Devices {
    disks: Option<Vec<Disk>>,
}

#[derive(Deserialize)]
struct Disk {
    name: String,
    serial: Option<String>,
}

impl Vmi {
    /// Reads a VirtualMachineInstance as KubeVirt hands it to hooks.
    pub fn from_json(json: &[u8]) -> Result<Self, Refusal> {
        let not_understood = |what: &dyn std::fmt::Display| {
            Refusal::new(
                Reason::VmiNotUnderstood,
                format_args!("the VirtualMachineInstance is not JSON of the expected shape: {what}"),
                "hand over the object as the API server stores it",
            )
        };
        // a list would pass for an object whose fields stand in order
        if !json.trim_ascii_start().starts_with(b"{") {
            return Err(not_understood(&"no object"));
        }
        let object: Object = serde_json::from_slice(json).map_err(|error| not_understood(&error))?;
        let name = object.metadata.name.unwrap_or_default();
        let called = match object.metadata.namespace {
            Some(namespace) => format!("{namespace}/{name}"),
            None => name,
        };
        let annotations = object.metadata.annotations.unwrap_or_default();
        let volume = |key: &str| match annotations.get(key) {
            Some(value) if !value.is_empty() => Ok(value.clone()),
            _ => Err(Refusal::new(
                Reason::AnnotationAbsent,
                format_args!("VirtualMachineInstance {called:?}: annotation {key} is absent or empty"),
                "set it to the name of the volume in the template of the VirtualMachine",
            )),
        };
        let (system_disk, bootdisk) = (volume(SYSTEM_DISK)?, volume(BOOTDISK)?);
        if system_disk == bootdisk {
            return Err(Refusal::new(
                Reason::SameVolume,
                format_args!(
                    "VirtualMachineInstance {called:?}: {SYSTEM_DISK} and {BOOTDISK} both say {system_disk:?}"
                ),
                "name two volumes: the bootdisk stays on sata, the system disk becomes NVMe",
            ));
        }
        let nvme = match annotations.get(NVME).map(String::as_str) {
            None | Some("native") => NvmeMode::Native,
            Some("override") => NvmeMode::Override,
            Some("off") => NvmeMode::Off,
            Some(other) => return Err(invalid(&called, NVME, other, "native, override or off")),
        };
        let listed = |key: &str, accepted: &[&str]| match annotations.get(key) {
            Some(value) if !accepted.contains(&value.as_str()) => {
                Err(invalid(&called, key, value, &accepted.join(", ")))
            }
            value => Ok(value.cloned()),
        };
        let nic_model = listed(NIC_MODEL, &NIC_MODELS)?;
        let cpu_vendor = listed(CPU_VENDOR, &CPU_VENDORS)?;
        let disks = object.spec.domain.devices.disks.unwrap_or_default();
        let mut named = disks.into_iter().filter(|disk| disk.name == system_disk);
        let serial = named
            .next()
            .and_then(|disk| disk.serial)
            .filter(|serial| !serial.is_empty());
        if named.next().is_some() {
            return Err(Refusal::new(
                Reason::DiskAmbiguous,
                format_args!("VirtualMachineInstance {called:?}: two disks are named {system_disk:?}"),
                "give every disk in spec.domain.devices.disks a name of its own",
            ));
        }
        Ok(Self {
            called,
            system_disk,
            bootdisk,
            nvme,
            nic_model,
            cpu_vendor,
            serial,
        })
    }
}

fn invalid(called: &str, key: &str, value: &str, accepted: &str) -> Refusal {
    Refusal::new(
        Reason::AnnotationInvalid,
        format_args!("VirtualMachineInstance {called:?}: annotation {key} says {value:?}"),
        format_args!("accepted: {accepted}"),
    )
}
