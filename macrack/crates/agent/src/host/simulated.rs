//! A simulated chassis: `<state dir>/chassis/`.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use jiff::{SignedDuration, Timestamp};
use macrack_vm::sim::Chassis;

use super::{Host, HostFacts, VmProcess, hostd_problem, random};
use crate::images::copy::allocated;

/// The chassis of a state directory.
#[derive(Debug, Clone)]
pub struct SimulatedHost {
    chassis: Chassis,
    state_dir: PathBuf,
}

impl SimulatedHost {
    /// The chassis of `state_dir`.
    ///
    /// # Errors
    /// When there is no readable `chassis/chassis.json`.
    pub fn open(state_dir: &Path) -> io::Result<Self> {
        let chassis = Chassis::open(state_dir)?;
        if chassis.read()?.off {
            return Err(io::Error::other("this simulated Mac is off"));
        }
        Ok(SimulatedHost { chassis, state_dir: state_dir.to_owned() })
    }
}

impl Host for SimulatedHost {
    fn facts(&self) -> io::Result<HostFacts> {
        let file = self.chassis.read()?;
        let spec = file.spec;
        Ok(HostFacts {
            serial: spec.serial,
            model: spec.model,
            chip: spec.chip,
            cpu_cores: spec.cpu_cores,
            memory_bytes: spec.memory_bytes,
            disk_bytes: spec.disk_bytes,
            link_bits_per_second: Some(spec.link_bits_per_second),
            host_version: spec.host_version,
            boot_id: file.boot_id,
            entitled: spec.host_prepared.entitlement,
            keychain_unlocked: spec.host_prepared.keychain_unlocked,
            auto_login: spec.host_prepared.auto_login,
            addresses: vec![IpAddr::V4(Ipv4Addr::LOCALHOST)],
            // a simulated chassis may have none at all
            hostd_problem: macrack_hostd::directory(&self.state_dir)
                .exists()
                .then(|| hostd_problem(&self.state_dir))
                .flatten(),
            unread: Vec::new(),
        })
    }

    /// The simulated disk less what the state directory takes on the real one: goldens and clones are
    /// almost all holes, so a simulated terabyte needs no real one.
    fn disk_free(&self) -> io::Result<u64> {
        let disk = self.chassis.read()?.spec.disk_bytes;
        Ok(disk.saturating_sub(used(&self.state_dir)?))
    }

    /// Those that the processes' own command lines name. A simulated chassis is one of many on its
    /// machine, so only what serves directories of this one counts; foreign VMs are those that the
    /// chassis' kernel counts beside them.
    fn vm_processes(&self) -> io::Result<Vec<VmProcess>> {
        let vms = self.state_dir.join("vms");
        let mut found: Vec<VmProcess> = Vec::new();
        for entry in fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
            // a process that ends while it is looked at is no error
            let Ok(line) = fs::read(format!("/proc/{pid}/cmdline")) else { continue };
            if let Some(dir) = served(&line).filter(|dir| dir.starts_with(&vms)) {
                found.push(VmProcess { pid, dir: Some(dir) });
            }
        }
        for (pid, _) in self.chassis.running()? {
            if found.iter().all(|process| process.pid != pid) {
                found.push(VmProcess { pid, dir: None });
            }
        }
        Ok(found)
    }

    fn machine_identifier(&self) -> io::Result<String> {
        Ok(random::<16>()?.iter().map(|b| format!("{b:02x}")).collect())
    }

    fn going_down(&self) -> io::Result<bool> {
        Ok(self.chassis.read()?.going_down)
    }

    /// This machine's, off by what the chassis says; a chassis that cannot be read has no clock of its own.
    fn clock(&self) -> Timestamp {
        let off = self.chassis.faults().map_or(0, |faults| faults.clock_offset_seconds);
        let now = Timestamp::now();
        now.checked_add(SignedDuration::from_secs(off)).unwrap_or(now)
    }
}

/// The directory that `macrack-vm run --dir DIR` serves.
fn served(command_line: &[u8]) -> Option<PathBuf> {
    let arguments: Vec<&[u8]> = command_line.split(|b| *b == 0).collect();
    let program = Path::new(OsStr::from_bytes(arguments.first()?));
    if program.file_name()? != "macrack-vm" || arguments.get(1) != Some(&b"run".as_slice()) {
        return None;
    }
    let flag = arguments.iter().position(|argument| *argument == b"--dir")?;
    Some(PathBuf::from(OsStr::from_bytes(arguments.get(flag + 1)?)))
}

fn used(dir: &Path) -> io::Result<u64> {
    let mut total = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        // what is removed while it is counted takes no room
        let Ok(kind) = entry.file_type() else { continue };
        total += match kind.is_dir() {
            true => used(&entry.path()).unwrap_or(0),
            false => allocated(&entry.path()).unwrap_or(0),
        };
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_process_is_known_by_its_own_command_line() {
        for (line, dir) in [
            (&b"/opt/bin/macrack-vm\0run\0--dir\0/s/vms/a\0"[..], Some("/s/vms/a")),
            (b"/opt/bin/macrack-vm\0launch\0--dir\0/s/vms/a\0", None),
            (b"vim\0run\0--dir\0/s/vms/a\0", None),
            (b"/opt/bin/macrack-vm\0run\0--dir", None),
            (b"", None),
        ] {
            assert_eq!(served(line).as_deref(), dir.map(Path::new));
        }
    }
}
