//! The Mac that this program runs on.
//!
//! Not yet run on hardware.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use jiff::Timestamp;

use super::parse::{self, SYSCTLS};
use super::tool::run;
use super::{ffi, processes, shutdown, utmpx};
use crate::doctor::Check;
use crate::host::{Host, HostFacts, Unread, VmProcess, hostd_problem};

/// Which version of a program was looked at: its inode, its length, its time of change.
type Version = (u64, u64, i64);

/// What does not change while this program runs.
#[derive(Debug, Clone)]
struct Fixed {
    serial: String,
    machine: parse::Sysctl,
    disk_bytes: u64,
    user: String,
}

/// The Mac that this program runs on.
#[derive(Debug)]
pub struct Mac {
    state_dir: PathBuf,
    vm_binary: PathBuf,
    fixed: OnceLock<Fixed>,
    /// The signature costs a process to read, and changes only with the program.
    entitled: Mutex<Option<(Version, bool)>>,
}

impl Mac {
    /// The Mac, seen from the agent that works in `state_dir` and starts `vm_binary`.
    pub fn new(state_dir: &Path, vm_binary: &Path) -> Self {
        Mac {
            state_dir: state_dir.to_owned(),
            vm_binary: vm_binary.to_owned(),
            fixed: OnceLock::new(),
            entitled: Mutex::new(None),
        }
    }

    fn fixed(&self) -> io::Result<Fixed> {
        if let Some(fixed) = self.fixed.get() {
            return Ok(fixed.clone());
        }
        let names: Vec<&str> = ["-n"].into_iter().chain(SYSCTLS).collect();
        let state_dir = self.state_dir.to_string_lossy();
        let device = parse::device(&run("/bin/df", &["-P", &state_dir])?)?;
        let disk = parse::physical_disk(&run("/usr/sbin/diskutil", &["info", "-plist", &device])?)?;
        let fixed = Fixed {
            serial: parse::serial(&run("/usr/sbin/ioreg", &["-a", "-r", "-d", "1", "-c", "IOPlatformExpertDevice"])?)?,
            machine: parse::sysctl(&run("/usr/sbin/sysctl", &names)?)?,
            disk_bytes: parse::disk_size(&run("/usr/sbin/diskutil", &["info", "-plist", &disk])?)?,
            user: String::from_utf8_lossy(&run("/usr/bin/id", &["-un"])?).trim().to_owned(),
        };
        Ok(self.fixed.get_or_init(|| fixed).clone())
    }

    /// Whether `macrack-vm` carries the entitlement.
    fn entitled(&self) -> io::Result<bool> {
        let about = fs::metadata(&self.vm_binary)?;
        let version = (about.ino(), about.len(), about.mtime());
        let mut known = self.entitled.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, entitled)) = *known
            && of == version
        {
            return Ok(entitled);
        }
        let binary = self.vm_binary.to_string_lossy();
        // an unsigned program makes it fail, which says the same as no entitlement
        let entitled = match run("/usr/bin/codesign", &["-d", "--entitlements", "-", "--xml", &binary]) {
            Ok(printed) => parse::entitled(&printed)?,
            Err(error) if error.to_string().contains("not signed at all") => false,
            Err(error) => return Err(error),
        };
        *known = Some((version, entitled));
        Ok(entitled)
    }
}

/// Whether `user` logs in by itself: it is chosen, and its password lies where the login window finds it.
fn logs_in(user: &str) -> io::Result<bool> {
    let settings = match fs::read("/Library/Preferences/com.apple.loginwindow.plist") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        read => read?,
    };
    let chosen = parse::auto_login_user(&settings)?.as_deref() == Some(user);
    Ok(chosen && Path::new("/etc/kcpassword").exists())
}

impl Host for Mac {
    fn facts(&self) -> io::Result<HostFacts> {
        let fixed = self.fixed()?;
        let version = fs::read("/System/Library/CoreServices/SystemVersion.plist")?;
        let mut unread = Vec::new();
        let mut fact = |check, read: io::Result<bool>| {
            read.unwrap_or_else(|error| {
                unread.push(Unread { check, why: error.to_string() });
                false
            })
        };
        let entitled = fact(Check::Entitlement, self.entitled());
        let keychain_unlocked = fact(Check::Keychain, ffi::keychain_unlocked());
        let auto_login = fact(Check::AutoLogin, logs_in(&fixed.user));
        let port = run("/sbin/route", &["-n", "get", "default"])
            .and_then(|route| parse::default_port(&route).ok_or_else(|| io::Error::other("there is no default route")))
            .and_then(|port| run("/sbin/ifconfig", &[&port]));
        let (link, addresses) = match port {
            Ok(port) => (parse::link_speed(&port), parse::addresses(&port)),
            Err(error) => {
                unread.push(Unread { check: Check::Link, why: error.to_string() });
                (None, Vec::new())
            }
        };
        Ok(HostFacts {
            serial: fixed.serial,
            model: fixed.machine.model,
            chip: fixed.machine.chip,
            cpu_cores: fixed.machine.cpu_cores,
            memory_bytes: fixed.machine.memory_bytes,
            disk_bytes: fixed.disk_bytes,
            link_bits_per_second: link,
            host_version: parse::system_version(&version)?,
            boot_id: fixed.machine.boot_id,
            entitled,
            keychain_unlocked,
            auto_login,
            addresses,
            hostd_problem: hostd_problem(&self.state_dir),
            unread,
        })
    }

    fn disk_free(&self) -> io::Result<u64> {
        let volume = rustix::fs::statvfs(&self.state_dir)?;
        Ok(volume.f_bavail.saturating_mul(volume.f_frsize))
    }

    fn vm_processes(&self) -> io::Result<Vec<VmProcess>> {
        processes::vm_processes(&run("/bin/ps", &["-axww", "-o", "pid=,command="])?, ffi::responsible)
    }

    fn machine_identifier(&self) -> io::Result<String> {
        macrack_vz::new_machine_identifier().map_err(|error| io::Error::other(error.to_string()))
    }

    fn going_down(&self) -> io::Result<bool> {
        let logged = utmpx::newest()?;
        Ok(shutdown::goes_down(logged.boot, logged.shutdown, Timestamp::now().as_second()))
    }
}
