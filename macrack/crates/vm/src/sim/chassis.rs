//! `chassis.json`: what a simulated Mac is, and what is wrong with it.
//!
//! Invariant: every change is made under the kernel's lock and renamed into place, and the kernel's
//! slots are brought up to date *before* a fault changes, so that a fault never acts on the past.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use macrack_guest::simulated::StopFaults;
use macrack_wire::layout::{read_json, write_json};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use super::kernel::{Kernel, Occupant};

/// What a chassis is made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChassisSpec {
    /// The serial number, in capitals.
    pub serial: String,
    /// For example `Apple M4 Pro`.
    pub chip: String,
    /// For example `Mac16,11`.
    pub model: String,
    /// Physical cores.
    pub cpu_cores: u32,
    /// Bytes.
    pub memory_bytes: u64,
    /// Bytes.
    pub disk_bytes: u64,
    /// Bits per second of the network link.
    pub link_bits_per_second: u64,
    /// The host's macOS version.
    pub host_version: String,
    /// What the host needs to start guests.
    #[serde(default)]
    pub host_prepared: HostPrepared,
}

/// What a host needs to start guests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HostPrepared {
    /// The binary is signed with the virtualization entitlement.
    pub entitlement: bool,
    /// The login keychain of the agent's user is unlocked.
    pub keychain_unlocked: bool,
    /// The agent's user is logged in automatically.
    pub auto_login: bool,
}

impl Default for HostPrepared {
    fn default() -> Self {
        HostPrepared { entitlement: true, keychain_unlocked: true, auto_login: true }
    }
}

/// What is wrong with a chassis; read whenever it matters.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Faults {
    /// How guests fail to stop.
    #[serde(flatten)]
    pub stop: StopFaults,
    /// A VM that ended stays counted until the next boot.
    pub stick_counter: bool,
    /// Every start takes this long.
    pub start_delay_millis: u64,
    /// Every start fails with this code of `VZErrorDomain`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fail_start_with: Option<i64>,
    /// No byte comes through from any guest.
    pub lose_guest: bool,
    /// What is counted without a process stays counted over a reboot too.
    pub stick_over_reboot: bool,
    /// The next reboot does not bring the Mac back: it stays off until somebody starts it by hand.
    pub never_returns: bool,
    /// The next boot finds another board, with this serial.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap_serial: Option<String>,
    /// Seconds that its clock is ahead of this machine's, behind if negative.
    pub clock_offset_seconds: i64,
}

/// One change to what is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A VM that ends stays counted until the next boot.
    StickCounter(bool),
    /// Guests acknowledge a shutdown and keep running until forced.
    IgnoreStop(bool),
    /// Guests take this long to go down.
    SlowStopMillis(u64),
    /// Every start takes this long.
    StartDelayMillis(u64),
    /// Every start fails with this code of `VZErrorDomain`.
    FailStartWith(Option<i64>),
    /// No byte comes through from any guest.
    LoseGuest(bool),
    /// What is counted without a process stays counted over a reboot too.
    StickOverReboot(bool),
    /// The next reboot does not bring the Mac back.
    NeverReturns(bool),
    /// Its clock is that many seconds ahead of this machine's, behind if negative.
    ClockOffsetSeconds(i64),
}

/// The content of `chassis.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChassisFile {
    /// What it is made of.
    #[serde(flatten)]
    pub spec: ChassisSpec,
    /// New at each boot.
    #[serde(rename = "bootID")]
    pub boot_id: String,
    /// How often it was booted since it was made; each reboot counts, whoever asked for it.
    #[serde(default)]
    pub boots: u32,
    /// It went down and did not come back.
    #[serde(default)]
    pub off: bool,
    /// It is shutting down.
    #[serde(default)]
    pub going_down: bool,
    /// What is wrong with it.
    #[serde(default)]
    pub faults: Faults,
}

/// A simulated chassis.
#[derive(Debug, Clone)]
pub struct Chassis {
    directory: PathBuf,
}

impl Chassis {
    /// Makes the chassis of a state directory; an error if it has one already.
    pub fn create(state_dir: &Path, spec: ChassisSpec) -> io::Result<Self> {
        let chassis = Chassis { directory: state_dir.join("chassis") };
        fs::create_dir_all(&chassis.directory)?;
        Kernel::create(&chassis.directory)?;
        let _lock = chassis.kernel().lock()?;
        let file = chassis.file();
        if file.exists() {
            let message = format!("{}: exists already", file.display());
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
        }
        let content = ChassisFile {
            spec,
            boot_id: random_uuid()?,
            boots: 1,
            off: false,
            going_down: false,
            faults: Faults::default(),
        };
        write_json(&file, &content)?;
        Ok(chassis)
    }

    /// The chassis of a state directory.
    pub fn open(state_dir: &Path) -> io::Result<Self> {
        let chassis = Chassis { directory: state_dir.join("chassis") };
        chassis.read()?;
        Ok(chassis)
    }

    /// `chassis.json`.
    pub fn file(&self) -> PathBuf {
        self.directory.join("chassis.json")
    }

    /// What it is, its boot and its faults.
    pub fn read(&self) -> io::Result<ChassisFile> {
        read_json(&self.file())
    }

    /// What is wrong with it.
    pub fn faults(&self) -> io::Result<Faults> {
        Ok(self.read()?.faults)
    }

    /// The present boot.
    pub fn boot_id(&self) -> io::Result<String> {
        Ok(self.read()?.boot_id)
    }

    /// Changes what is wrong with it.
    pub fn set_fault(&self, fault: Fault) -> io::Result<()> {
        self.modify(|content| {
            let faults = &mut content.faults;
            match fault {
                Fault::StickCounter(on) => faults.stick_counter = on,
                Fault::IgnoreStop(on) => faults.stop.ignore_stop = on,
                Fault::SlowStopMillis(millis) => faults.stop.slow_stop_millis = millis,
                Fault::StartDelayMillis(millis) => faults.start_delay_millis = millis,
                Fault::FailStartWith(code) => faults.fail_start_with = code,
                Fault::LoseGuest(on) => faults.lose_guest = on,
                Fault::StickOverReboot(on) => faults.stick_over_reboot = on,
                Fault::NeverReturns(on) => faults.never_returns = on,
                Fault::ClockOffsetSeconds(seconds) => faults.clock_offset_seconds = seconds,
            }
        })
    }

    /// Changes anything about it, atomically.
    pub fn modify(&self, change: impl FnOnce(&mut ChassisFile)) -> io::Result<()> {
        let kernel = self.kernel();
        let lock = kernel.lock()?;
        let mut content = self.read()?;
        kernel.settle(&lock, &content)?;
        change(&mut content);
        write_json(&self.file(), &content)
    }

    /// Goes down in order and comes up again, as `shutdown -r` has it: SIGTERM to the agent and to every `macrack-vm`, and
    /// what has not ended by `limit` is killed by the reboot. Whether all had ended by then.
    pub fn restart_in_order(&self, limit: Duration) -> io::Result<bool> {
        self.modify(|content| content.going_down = true)?;
        let mut processes = Vec::new();
        for (pid, _) in self.running()? {
            let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { continue };
            processes.extend(pidfd_open(pid, PidfdFlags::empty()).map(Some).or_else(ended)?);
        }
        if let Some((agent, _)) = self.directory.parent().map(agent).transpose()?.flatten() {
            processes.push(agent);
        }
        for process in &processes {
            pidfd_send_signal(process, Signal::TERM).or_else(|error| ended(error).map(drop))?;
        }
        let deadline = Instant::now() + limit;
        let mut all = true;
        for process in &processes {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).map_err(io::Error::other)?;
            // a pidfd is readable once its process has ended
            all &= poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&left))? > 0;
        }
        self.reboot()?;
        Ok(all)
    }

    /// Reboots: a new boot, the agent and every `macrack-vm` of the chassis killed, the counter free. Returns when they
    /// are gone. What launchd does after a boot, whoever plays it does: it starts the agent again, unless the Mac is off.
    pub fn reboot(&self) -> io::Result<()> {
        let kernel = self.kernel();
        let lock = kernel.lock()?;
        let mut content = self.read()?;
        content.boot_id = random_uuid()?;
        content.boots = content.boots.saturating_add(1);
        content.off = content.faults.never_returns;
        content.going_down = false;
        if let Some(serial) = content.faults.swap_serial.take() {
            content.spec.serial = serial;
        }
        write_json(&self.file(), &content)?;
        // the agent first, so that it sees nothing of what it must find out after the boot
        if let Some(state_dir) = self.directory.parent() {
            kill_agent(state_dir)?;
        }
        kernel.kill(&lock, None)?;
        kernel.settle(&lock, &content)
    }

    /// Somebody starts a Mac that did not come back, by hand.
    pub fn start_by_hand(&self) -> io::Result<()> {
        self.modify(|content| {
            content.faults.never_returns = false;
            content.off = false;
        })
    }

    /// How many VMs the simulated kernel counts: those that run, and those that stuck.
    pub fn live(&self) -> io::Result<usize> {
        let kernel = self.kernel();
        let lock = kernel.lock()?;
        kernel.settle(&lock, &self.read()?)?;
        kernel.counted(&lock)
    }

    /// The processes that really hold a slot: `(pid, uid)`. A stuck counter counts more than these.
    pub fn running(&self) -> io::Result<Vec<(u32, String)>> {
        let kernel = self.kernel();
        let lock = kernel.lock()?;
        let running = kernel.holders(&lock)?;
        Ok(running.into_iter().map(|Occupant { pid, uid, .. }| (pid, uid)).collect())
    }

    /// Kills the `macrack-vm` of one VM with SIGKILL and returns when it is gone; false if none runs.
    pub fn kill(&self, uid: &str) -> io::Result<bool> {
        let kernel = self.kernel();
        let lock = kernel.lock()?;
        Ok(kernel.kill(&lock, Some(uid))? > 0)
    }

    /// Its kernel.
    pub fn kernel(&self) -> Kernel {
        Kernel::of(&self.directory)
    }
}

/// A process that is gone is nothing to be signalled.
fn ended(error: rustix::io::Errno) -> io::Result<Option<OwnedFd>> {
    if error == rustix::io::Errno::SRCH { Ok(None) } else { Err(error.into()) }
}

/// The `macrack-agent` that holds the lock of this state directory, and that lock. Whatever else holds it, a test for
/// instance, is no process of the chassis.
fn agent(state_dir: &Path) -> io::Result<Option<(OwnedFd, File)>> {
    let path = state_dir.join("agent.lock");
    let Ok(lock) = File::open(&path) else { return Ok(None) };
    let text = fs::read_to_string(&path)?;
    let Some(pid) = text.trim().parse().ok().and_then(Pid::from_raw) else { return Ok(None) };
    let Some(process) = pidfd_open(pid, PidfdFlags::empty()).map(Some).or_else(ended)? else { return Ok(None) };
    let named = |name: String| name.trim() == "macrack-agent";
    if !fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero())).is_ok_and(named) {
        return Ok(None);
    }
    match lock.try_lock() {
        // it has ended, and its number may be another's by now
        Ok(()) => lock.unlock().map(|()| None),
        Err(TryLockError::WouldBlock) => Ok(Some((process, lock))),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Kills that agent, and returns when it is gone.
fn kill_agent(state_dir: &Path) -> io::Result<()> {
    let Some((process, lock)) = agent(state_dir)? else { return Ok(()) };
    match pidfd_send_signal(process, Signal::KILL) {
        Err(error) if error != rustix::io::Errno::SRCH => return Err(error.into()),
        _ => {}
    }
    lock.lock()?;
    lock.unlock()
}

/// A random (version 4) UUID.
fn random_uuid() -> io::Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02X}")).collect();
    Ok(format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]))
}
