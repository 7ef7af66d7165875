//! What a VM is made of, as data: from the agent's description to every device, without the framework.
//!
//! Sources of the limits: Apple's reference of `VZVirtualMachineConfiguration` (memory in whole MiB, bounds by the
//! host), `VZDiskImageStorageDeviceAttachment` (raw images), and the field: macOS guests freeze with fewer than four virtual
//! cores.

use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use macrack_wire::classify::{HOST_TOO_OLD, MACRACK_DOMAIN};
use macrack_wire::{BundleDir, BundleMachine, Display, MacAddress, VmDescription, VmDir, VmError};
use serde::Serialize;

/// Fewest virtual cores that a macOS guest stays alive with.
pub const MIN_CPUS: u32 = 4;
/// Memory comes in whole MiB.
pub const MIB: u64 = 1 << 20;
/// Most pixels of a screen in either direction: more than any display of Apple's, and far below an overflow.
pub const MAX_PIXELS: u32 = 16_384;
/// Density of screens: what a display without doubled pixels has.
pub const PIXELS_PER_INCH: u32 = 80;
/// The longest opaque representation that is taken, in bytes; a real one has some hundred.
const MAX_REPRESENTATION: usize = 4096;

/// Everything that the VM is made of, in the framework's terms. Where a device is absent, there is none: no memory
/// balloon (the memory of a lease is the tenant's), no serial port, no shared folder, no audio.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Configuration {
    /// `VZMacPlatformConfiguration`.
    pub platform: Platform,
    /// Which boot loader.
    pub boot_loader: BootLoader,
    /// `CPUCount`.
    pub cpu_count: u32,
    /// `memorySize`, in bytes.
    pub memory_bytes: u64,
    /// `storageDevices`, each a virtio block device.
    pub disks: Vec<Disk>,
    /// `networkDevices`, each a virtio network device.
    pub networks: Vec<Network>,
    /// Whether there is a virtio socket device: the way to the guest.
    pub vsock: bool,
    /// Whether there is a virtio entropy device.
    pub entropy: bool,
    /// A Mac graphics device with this screen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub display: Option<Screen>,
    /// Whether there are a USB keyboard and a USB pointing device: with a screen, for they are of use only then.
    pub keyboard_and_pointing_device: bool,
    /// `memoryBalloonDevices`: none, always; the field is there so that this is said.
    pub memory_balloon: bool,
}

/// Who the Mac inside is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Platform {
    /// `VZMacHardwareModel.dataRepresentation`, base64.
    pub hardware_model: String,
    /// `VZMacMachineIdentifier.dataRepresentation`, base64.
    pub machine_identifier: String,
    /// The auxiliary storage.
    pub auxiliary_storage: PathBuf,
}

/// The boot loader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum BootLoader {
    /// `VZMacOSBootLoader`.
    MacOs,
}

/// A disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Disk {
    /// The image.
    pub image: PathBuf,
    /// Whether the guest may not write.
    pub read_only: bool,
    /// Whose cache holds its blocks.
    pub caching: Caching,
    /// What a flush of the guest comes to.
    pub synchronization: Synchronization,
}

/// `VZDiskImageCachingMode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Caching {
    /// The framework decides by the image.
    Automatic,
}

/// `VZDiskImageSynchronizationMode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Synchronization {
    /// A flush reaches the drive, not necessarily its permanent storage. For clones: they outlive a crash of guest,
    /// VM process and host system, and the last writes before a power cut may be lost.
    Fsync,
    /// A flush reaches permanent storage. For a golden while it is made.
    Full,
}

/// A network card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Network {
    /// What it is plugged into.
    pub attachment: Attachment,
    /// Its address.
    pub mac_address: MacAddress,
}

/// What a network card is plugged into.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Attachment {
    /// `VZNATNetworkDeviceAttachment`.
    Nat,
}

/// A screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Screen {
    /// Pixels.
    pub width: u32,
    /// Pixels.
    pub height: u32,
    /// Density.
    pub pixels_per_inch: u32,
}

/// What the host's framework allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostLimits {
    /// `minimumAllowedCPUCount`.
    pub cpu_min: u32,
    /// `maximumAllowedCPUCount`.
    pub cpu_max: u32,
    /// `minimumAllowedMemorySize`, in bytes.
    pub memory_min: u64,
    /// `maximumAllowedMemorySize`, in bytes.
    pub memory_max: u64,
}

/// The machine of an instance, from what the agent wrote.
///
/// # Errors
/// Of class `InvalidConfiguration`, naming `vm.json`, the field, the rule and the way out.
pub fn instance(description: &VmDescription, dir: &VmDir, host: &HostLimits) -> Result<Configuration, VmError> {
    let from = Source(dir.description());
    let Some(model) = &description.hardware_model else {
        return Err(from.wrong(
            "hardwareModel is absent: the golden does not say which Mac its auxiliary storage is of; push it again \
             from a bundle that has one",
        ));
    };
    let part = |field: &str, name: &str| -> Result<PathBuf, VmError> {
        if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
            return Err(from.wrong(format!("{field} {name:?} is not the name of a file in this directory")));
        }
        Ok(dir.path().join(name))
    };
    let machine = Machine {
        model,
        identifier: &description.machine_identifier,
        mac: description.mac_address,
        cpus: description.cpu_cores,
        memory: description.memory_bytes,
        disk: part("disk", &description.disk)?,
        aux: part("aux", &description.aux)?,
        display: description.display,
        synchronization: Synchronization::Fsync,
    };
    from.configuration(machine, host)
}

/// What a golden's bundle is installed in.
#[derive(Debug, Clone)]
pub struct Installation<'a> {
    /// The bundle.
    pub dir: &'a BundleDir,
    /// Of the restore image.
    pub hardware_model: &'a str,
    /// The identity to install with.
    pub machine: &'a BundleMachine,
    /// Virtual cores.
    pub cpus: u32,
    /// Bytes.
    pub memory: u64,
    /// A screen.
    pub display: Option<Display>,
}

/// The machine that a golden is installed in.
///
/// # Errors
/// As [`instance`], naming the bundle.
pub fn installation(of: &Installation<'_>, host: &HostLimits) -> Result<Configuration, VmError> {
    let machine = Machine {
        model: of.hardware_model,
        identifier: &of.machine.machine_identifier,
        mac: of.machine.mac_address,
        cpus: of.cpus,
        memory: of.memory,
        disk: of.dir.disk(),
        aux: of.dir.aux(),
        display: of.display,
        synchronization: Synchronization::Full,
    };
    Source(of.dir.path().to_owned()).configuration(machine, host)
}

struct Machine<'a> {
    model: &'a str,
    identifier: &'a str,
    mac: MacAddress,
    cpus: u32,
    memory: u64,
    disk: PathBuf,
    aux: PathBuf,
    display: Option<Display>,
    synchronization: Synchronization,
}

/// The file that a refusal names.
struct Source(PathBuf);

impl Source {
    fn wrong(&self, why: impl AsRef<str>) -> VmError {
        VmError::invalid(format!("{}: {}", self.0.display(), why.as_ref()))
    }

    fn configuration(&self, machine: Machine<'_>, host: &HostLimits) -> Result<Configuration, VmError> {
        self.representation("hardwareModel", machine.model)?;
        self.representation("machineIdentifier", machine.identifier)?;
        self.cpus(machine.cpus, host)?;
        self.memory(machine.memory, host)?;
        if machine.disk == machine.aux {
            return Err(self.wrong("disk and aux are the same file"));
        }
        let display = machine.display.map(|display| self.screen(display)).transpose()?;
        Ok(Configuration {
            platform: Platform {
                hardware_model: machine.model.to_owned(),
                machine_identifier: machine.identifier.to_owned(),
                auxiliary_storage: machine.aux,
            },
            boot_loader: BootLoader::MacOs,
            cpu_count: machine.cpus,
            memory_bytes: machine.memory,
            disks: vec![Disk {
                image: machine.disk,
                read_only: false,
                caching: Caching::Automatic,
                synchronization: machine.synchronization,
            }],
            networks: vec![Network { attachment: Attachment::Nat, mac_address: machine.mac }],
            vsock: true,
            entropy: true,
            display,
            keyboard_and_pointing_device: display.is_some(),
            memory_balloon: false,
        })
    }

    fn representation(&self, field: &str, text: &str) -> Result<(), VmError> {
        let bytes = decode(text).map_err(|why| self.wrong(format!("{field} is not base64: {why}")))?;
        match bytes.len() {
            0 => Err(self.wrong(format!("{field} is empty"))),
            long if long > MAX_REPRESENTATION => {
                Err(self.wrong(format!("{field} has {long} bytes; at most {MAX_REPRESENTATION} are taken")))
            }
            _ => Ok(()),
        }
    }

    fn cpus(&self, cpus: u32, host: &HostLimits) -> Result<(), VmError> {
        let least = host.cpu_min.max(MIN_CPUS);
        if cpus < least {
            return Err(self
                .wrong(format!("cpuCores {cpus}: a macOS guest takes at least {least}; use a larger InstanceClass")));
        }
        if cpus > host.cpu_max {
            return Err(self.wrong(format!(
                "cpuCores {cpus}: this Mac gives a VM at most {}; use a smaller InstanceClass",
                host.cpu_max
            )));
        }
        Ok(())
    }

    fn memory(&self, bytes: u64, host: &HostLimits) -> Result<(), VmError> {
        if bytes == 0 || !bytes.is_multiple_of(MIB) {
            return Err(self.wrong(format!(
                "memoryBytes {bytes} is not a multiple of 1 MiB; give the InstanceClass a memory in Mi or Gi"
            )));
        }
        let fits = (host.memory_min..=host.memory_max).contains(&bytes);
        fits.then_some(()).ok_or_else(|| {
            self.wrong(format!(
                "memoryBytes {bytes}: this Mac gives a VM between {} and {}; change the InstanceClass",
                host.memory_min, host.memory_max
            ))
        })
    }

    fn screen(&self, display: Display) -> Result<Screen, VmError> {
        let Display { width, height } = display;
        if ![width, height].iter().all(|pixels| (1..=MAX_PIXELS).contains(pixels)) {
            return Err(self.wrong(format!(
                "display {width}x{height}: a screen has 1 to {MAX_PIXELS} pixels in each direction; change the \
                 InstanceClass"
            )));
        }
        Ok(Screen { width, height, pixels_per_inch: PIXELS_PER_INCH })
    }
}

/// The bytes of a representation that a [`Configuration`] holds.
///
/// # Errors
/// When it is not base64.
pub fn decode(text: &str) -> Result<Vec<u8>, base64::DecodeError> {
    STANDARD.decode(text)
}

/// The text by which a representation is kept.
pub fn encode(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// What is said of a hardware model that the host's framework does not know: the golden is newer than the host.
pub fn model_unsupported(macos: u32) -> VmError {
    VmError::new(
        MACRACK_DOMAIN,
        HOST_TOO_OLD,
        format!(
            "the golden's hardware model is not supported by macOS {macos} on this Mac: upgrade the Mac, or use an \
             image that this macOS runs"
        ),
    )
}

impl Configuration {
    /// Every file that the VM opens.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.disks.iter().map(|disk| disk.image.as_path()).chain([self.platform.auxiliary_storage.as_path()])
    }
}
