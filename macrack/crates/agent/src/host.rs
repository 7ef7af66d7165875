//! The seam to the Mac itself: what it is, what lives on it, what a VM of it needs.
//!
//! A Mac answers from its own tools ([`mac`]), a simulated chassis from `chassis/chassis.json` (cargo feature `sim`,
//! Linux).

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use crate::doctor::Check;

pub mod mac;
#[cfg(all(feature = "sim", target_os = "linux"))]
mod simulated;
#[cfg(all(feature = "sim", target_os = "linux"))]
pub use simulated::SimulatedHost;

/// What the host is, in this boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostFacts {
    /// The chassis' serial, in capitals.
    pub serial: String,
    /// For example `Mac16,11`.
    pub model: String,
    /// For example `Apple M4 Pro`.
    pub chip: String,
    /// Physical cores.
    pub cpu_cores: u32,
    /// Bytes.
    pub memory_bytes: u64,
    /// Bytes.
    pub disk_bytes: u64,
    /// Bits per second of the network port in use; `None` when they could not be read.
    pub link_bits_per_second: Option<u64>,
    /// The host's macOS version.
    pub host_version: String,
    /// New at each boot.
    pub boot_id: String,
    /// The program `macrack-vm` carries the virtualization entitlement.
    pub entitled: bool,
    /// The login keychain of the agent's user is unlocked.
    pub keychain_unlocked: bool,
    /// The agent's user is logged in automatically.
    pub auto_login: bool,
    /// Addresses under which the Mac is reached.
    pub addresses: Vec<IpAddr>,
    /// Why `macrack-hostd` does not listen; `None` while it does.
    pub hostd_problem: Option<String>,
    /// What of the above could not be read; what stands there is then no fact.
    pub unread: Vec<Unread>,
}

/// Something of the host that could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unread {
    /// Which check needs it.
    pub check: Check,
    /// Why it could not be read.
    pub why: String,
}

/// A process that holds a VM, or is about to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmProcess {
    /// The process.
    pub pid: u32,
    /// The VM directory that it serves, when it is one of MacRack's; `None` for anybody else's.
    pub dir: Option<PathBuf>,
}

/// The Mac. Calls block: those that ask tools of macOS for as long as such a tool may take, the others for a moment.
pub trait Host: Send + Sync + 'static {
    /// What it is.
    ///
    /// # Errors
    /// When it cannot be read; the last answer then holds.
    fn facts(&self) -> io::Result<HostFacts>;

    /// Free bytes on the volume of the state directory.
    ///
    /// # Errors
    /// When they cannot be measured.
    fn disk_free(&self) -> io::Result<u64>;

    /// Every process on the host that holds a macOS VM.
    ///
    /// # Errors
    /// When the processes cannot be listed; nothing is then known.
    fn vm_processes(&self) -> io::Result<Vec<VmProcess>>;

    /// A new machine identifier, such as the hypervisor accepts.
    ///
    /// # Errors
    /// When none could be made.
    fn machine_identifier(&self) -> io::Result<String>;

    /// Whether it is being shut down or restarted as a whole.
    ///
    /// # Errors
    /// When that cannot be read.
    fn going_down(&self) -> io::Result<bool>;

    /// Its clock.
    fn clock(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// The process that serves the VM directory `dir`, if one lives.
///
/// # Errors
/// As [`Host::vm_processes`].
pub fn process_of(host: &dyn Host, dir: &Path) -> io::Result<Option<u32>> {
    let served = |process: &VmProcess| process.dir.as_deref() == Some(dir);
    Ok(host.vm_processes()?.into_iter().find(served).map(|process| process.pid))
}

/// Why `macrack-hostd` does not listen for this user; `None` while it does.
pub fn hostd_problem(state_dir: &Path) -> Option<String> {
    let socket = macrack_hostd::socket(state_dir);
    let error = std::os::unix::net::UnixStream::connect(&socket).err()?;
    Some(format!("{}: {error}", socket.display()))
}

/// Random bytes.
///
/// # Errors
/// When the operating system has none.
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut bytes)?;
    Ok(bytes)
}
