//! From a restore image (IPSW) to a golden's bundle: what is asked, what is needed, what is said. The work itself is
//! macOS only.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use macrack_wire::classify::VZ_DOMAIN;
use macrack_wire::{BundleDir, VmError};

use crate::configuration::{Configuration, HostLimits, Installation, MIB, MIN_CPUS, installation};
use crate::files::{SECTOR, swept};

/// Smallest disk that is made: a restored macOS with room for its own updates. Xcode wants a hundred more.
pub const MIN_DISK: u64 = 40 << 30;
/// Memory of the machine that installs, unless the restore image wants more.
pub const MEMORY: u64 = 8 << 30;
/// The screen of the machine that installs: Setup Assistant, later, wants one.
pub const SCREEN: macrack_wire::Display = macrack_wire::Display { width: 1920, height: 1080 };

/// Where the restore image comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RestoreImage {
    /// Apple's newest that this Mac supports; it is downloaded beside the bundle.
    Latest,
    /// A file.
    File(PathBuf),
}

impl FromStr for RestoreImage {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "" => Err("--ipsw wants a file or the word latest".to_owned()),
            "latest" => Ok(RestoreImage::Latest),
            path => Ok(RestoreImage::File(path.into())),
        }
    }
}

/// A size as Kubernetes writes quantities: `120G`, `100Gi`, or bytes.
///
/// # Errors
/// In words, with the accepted form.
pub fn parse_size(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 6] = [
        ("Mi", 1 << 20),
        ("Gi", 1 << 30),
        ("Ti", 1 << 40),
        ("M", 1_000_000),
        ("G", 1_000_000_000),
        ("T", 1_000_000_000_000),
    ];
    let form = || format!("{text:?} is no size: a whole number with M, G, T, Mi, Gi or Ti is expected, as in 120G");
    let (digits, unit) =
        UNITS.iter().find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?, *unit))).unwrap_or((text, 1));
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(form());
    }
    digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit)).ok_or_else(form)
}

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The restore image.
    pub from: RestoreImage,
    /// The folder to be made.
    pub into: PathBuf,
    /// Length of the disk, in bytes.
    pub disk_bytes: u64,
}

impl Request {
    /// Judges what was asked, before anything is made. `temporary` are directories in which no disk may lie.
    ///
    /// # Errors
    /// Naming the argument, the rule and the way out.
    pub fn check(&self, temporary: &[PathBuf]) -> Result<(), VmError> {
        let into = self.into.display();
        if self.disk_bytes < MIN_DISK || !self.disk_bytes.is_multiple_of(SECTOR) {
            return Err(VmError::invalid(format!(
                "--disk-size {}: at least {MIN_DISK} bytes in whole sectors of {SECTOR}; 120G holds macOS and one Xcode",
                self.disk_bytes
            )));
        }
        if let RestoreImage::File(file) = &self.from {
            let found =
                fs::metadata(file).map_err(|error| VmError::invalid(format!("--ipsw {}: {error}", file.display())))?;
            if !found.is_file() {
                return Err(VmError::invalid(format!("--ipsw {}: not a file", file.display())));
            }
        }
        if let Some(why) = swept(&self.into, temporary) {
            return Err(VmError::invalid(format!("--into {into}: {why}; choose another folder")));
        }
        match fs::read_dir(&self.into).map(|mut entries| entries.next().is_none()) {
            Ok(true) => Ok(()),
            Ok(false) => Err(VmError::invalid(format!(
                "--into {into}: is not empty; choose a new folder, nothing is overwritten"
            ))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(VmError::invalid(format!("--into {into}: {error}"))),
        }
    }

    /// Where Apple's newest image is kept: beside the bundle, by its own name, so that a second install finds it.
    ///
    /// # Errors
    /// When `url` does not end in the name of a restore image.
    pub fn download(&self, url: &str) -> Result<PathBuf, VmError> {
        let name = url.rsplit('/').next().unwrap_or_default();
        let plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-+".contains(&byte));
        if !url.starts_with("https://") || !plain || !name.ends_with(".ipsw") || name.starts_with('.') {
            return Err(VmError::invalid(format!(
                "Apple's catalogue names {url:?}, which is no restore image; give --ipsw a file"
            )));
        }
        Ok(self.into.parent().unwrap_or(Path::new(".")).join(name))
    }
}

/// What a restore image is and wants, of the hardware models in it the one that this host can be best.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirements {
    /// The macOS in it.
    pub os_version: String,
    /// Its build.
    pub build: String,
    /// `VZMacHardwareModel.dataRepresentation`, base64.
    pub hardware_model: String,
    /// Fewest virtual cores.
    pub cpu_min: u32,
    /// Least memory, in bytes.
    pub memory_min: u64,
}

impl Requirements {
    /// Cores and memory of the machine that installs.
    ///
    /// # Errors
    /// When this Mac cannot give what the image wants.
    pub fn machine(&self, host: &HostLimits) -> Result<(u32, u64), VmError> {
        size(&self.os_version, self.cpu_min, self.memory_min, host)
    }
}

/// Cores and memory of a machine for a macOS that wants so much at least.
fn size(os_version: &str, cpu_min: u32, memory_min: u64, host: &HostLimits) -> Result<(u32, u64), VmError> {
    let cpus = cpu_min.max(host.cpu_min).max(MIN_CPUS);
    let memory = memory_min.max(host.memory_min).max(MEMORY).div_ceil(MIB).saturating_mul(MIB);
    if cpus > host.cpu_max || memory > host.memory_max {
        return Err(VmError::invalid(format!(
            "macOS {os_version} wants {cpus} cores and {memory} bytes of memory; this Mac gives a VM at most {} and \
             {}: use a larger Mac",
            host.cpu_max, host.memory_max
        )));
    }
    Ok((cpus, memory))
}

/// The machine that an installed bundle is booted in, to be finished by hand: it is the one that it was installed in,
/// with a screen.
///
/// # Errors
/// When the folder is no bundle, or this Mac cannot run it.
pub fn finishing(dir: &BundleDir, host: &HostLimits) -> Result<Configuration, VmError> {
    let unread = |error: std::io::Error| VmError::invalid(format!("{error}; `macrack-vm install` makes a bundle"));
    let bundle = dir.read().map_err(unread)?;
    let machine = dir.read_machine().map_err(unread)?;
    let (cpus, memory) = size(&bundle.os_version, bundle.cpu_count_min, bundle.memory_min, host)?;
    let of = Installation {
        dir,
        hardware_model: &bundle.hardware_model,
        machine: &machine,
        cpus,
        memory,
        display: Some(bundle.display.unwrap_or(SCREEN)),
    };
    installation(&of, host)
}

/// How far an installation has come; written to stderr, one line each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// Apple is asked for its newest image.
    Asking,
    /// The image is being downloaded to this file.
    Downloading(String, PathBuf),
    /// The image is being read.
    Reading(PathBuf),
    /// This will be installed.
    Found(Requirements),
    /// Percent of the installation.
    Installing(u8),
    /// macOS is installed, and the machine goes down.
    Stopping,
    /// The bundle is whole.
    Done(PathBuf),
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Progress::Asking => write!(f, "asking Apple for the newest macOS that this Mac supports"),
            Progress::Downloading(url, to) => write!(f, "downloading {url} to {}", to.display()),
            Progress::Reading(file) => write!(f, "reading {}", file.display()),
            Progress::Found(found) => write!(
                f,
                "macOS {} ({}), at least {} cores and {} MiB",
                found.os_version,
                found.build,
                found.cpu_min,
                found.memory_min / MIB
            ),
            Progress::Installing(percent) => write!(f, "installing: {percent} %"),
            Progress::Stopping => write!(f, "installed; the machine goes down"),
            Progress::Done(bundle) => write!(f, "{} is a golden's bundle", bundle.display()),
        }
    }
}

/// Percent, as progress is shown: only whole ones that are new, never backwards.
pub fn percent(fraction: f64, shown: Option<u8>) -> Option<u8> {
    let percent = (fraction.clamp(0.0, 1.0) * 100.0).floor() as u8;
    shown.is_none_or(|shown| percent > shown).then_some(percent)
}

/// A failed installation in words for the person at the Mac.
pub fn explain(error: &VmError) -> String {
    let meaning = match (error.domain.as_str(), error.code) {
        (VZ_DOMAIN, 10_001) => {
            "Apple's catalogue of restore images cannot be reached: check the network, or give --ipsw a file"
        }
        (VZ_DOMAIN, 10_002) => {
            "Apple's catalogue of restore images is not understood by this macOS: upgrade the Mac, or give --ipsw a file"
        }
        (VZ_DOMAIN, 10_003) => "Apple has no restore image that this Mac supports: upgrade the Mac",
        (VZ_DOMAIN, 10_004) => "the restore image cannot be read: it is cut off or damaged; download it again",
        (VZ_DOMAIN, 10_005) => "the file is no restore image for virtual Macs: take an IPSW of macOS for Apple silicon",
        (VZ_DOMAIN, 10_006) => {
            "the restore image is newer than this Mac can install: upgrade the Mac's macOS, then run this again"
        }
        (VZ_DOMAIN, 10_007) => {
            "the installation failed half way: delete the folder and run this again; Console.app on the Mac says more"
        }
        _ => error.class.way_out(),
    };
    format!("{error}: {meaning}")
}
