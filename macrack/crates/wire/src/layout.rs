//! The files of one VM directory, `vms/<instance uid>/`: the half of the contract that outlives every
//! process. The agent makes its inventory from these alone.
//!
//! Invariant: a JSON file here is whole or absent, never half written: it is written beside its place,
//! flushed, and renamed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::vm::{LastState, VmDescription};

/// The longest path of a unix socket, in bytes: `sun_path` of Darwin has 104 with its NUL.
pub const MAX_SOCKET_PATH: usize = 103;

/// Whether `text` is a uid as the API server makes them (RFC 9562, in lower case): the name of a directory that leaves no
/// room for a path. Two that differ in case alone would be one directory on a volume of macOS, so only one is a uid.
pub fn is_uid(text: &str) -> bool {
    let fits = |(i, byte): (usize, u8)| match i {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
    };
    text.len() == 36 && text.bytes().enumerate().all(fits)
}

/// The directory of one VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmDir(PathBuf);

impl VmDir {
    /// The directory of the VM whose files lie in `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        VmDir(path.into())
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// `vm.json`: a [`VmDescription`], by the agent.
    pub fn description(&self) -> PathBuf {
        self.0.join("vm.json")
    }

    /// `state.json`: a [`LastState`], by `macrack-vm`.
    pub fn state(&self) -> PathBuf {
        self.0.join("state.json")
    }

    /// `vm.sock`: the control socket, mode 0600.
    pub fn socket(&self) -> PathBuf {
        self.0.join("vm.sock")
    }

    /// `vm.log`: the output of `macrack-vm`, appended to by every run.
    pub fn log(&self) -> PathBuf {
        self.0.join("vm.log")
    }

    /// `journal.log`: what the tenant may read, by `macrack-vm` ([`crate::journal`]).
    pub fn journal(&self) -> PathBuf {
        self.0.join("journal.log")
    }

    /// `first-boot.sh`: mode 0600, there until the guest has acknowledged it.
    pub fn first_boot(&self) -> PathBuf {
        self.0.join("first-boot.sh")
    }

    /// `job.plist`: the launchd job of its process, on a Mac.
    pub fn job(&self) -> PathBuf {
        self.0.join("job.plist")
    }

    /// `up.sock`: where a launcher waits to hear that the process is up; there only meanwhile.
    pub fn announcement(&self) -> PathBuf {
        self.0.join("up.sock")
    }

    /// `manifest.json`: a copy of the golden's manifest, for the record of what this clone is made of.
    /// A simulated guest shows the versions in its `contents`.
    pub fn manifest(&self) -> PathBuf {
        self.0.join("manifest.json")
    }

    /// `guest.sock`: stands for the guest's vsock port where there is none.
    pub fn guest_socket(&self) -> PathBuf {
        self.0.join("guest.sock")
    }

    /// `guest-root`: stands for the mounted disk of a simulated guest.
    pub fn guest_root(&self) -> PathBuf {
        self.0.join("guest-root")
    }

    /// The description; an error names the file.
    pub fn read_description(&self) -> io::Result<VmDescription> {
        read_json(&self.description())
    }

    /// Writes the description, atomically.
    pub fn write_description(&self, description: &VmDescription) -> io::Result<()> {
        write_json(&self.description(), description)
    }

    /// The last state; `None` when no VM process has written one yet.
    pub fn read_state(&self) -> io::Result<Option<LastState>> {
        match read_json(&self.state()) {
            Ok(state) => Ok(Some(state)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes the last state, atomically.
    pub fn write_state(&self, state: &LastState) -> io::Result<()> {
        write_json(&self.state(), state)
    }
}

/// Reads a JSON file; an error names it and keeps its kind.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> io::Result<T> {
    let named = |kind, error: &dyn std::fmt::Display| io::Error::new(kind, format!("{}: {error}", path.display()));
    let bytes = fs::read(path).map_err(|error| named(error.kind(), &error))?;
    serde_json::from_slice(&bytes).map_err(|error| named(io::ErrorKind::InvalidData, &error))
}

/// Writes a JSON file, mode 0600, whole or not at all, as [`write_whole`] does.
pub fn write_json<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    write_whole(path, &serde_json::to_vec_pretty(value)?)
}

/// As [`write_json`], and the directory is flushed too: a rename alone may be lost with the power.
pub fn write_json_lasting<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    write_json(path, value)?;
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(directory)?.sync_all()
}

/// Writes a file, mode 0600, whole or not at all. One process per file at a time; its threads take turns.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // two clones of one golden note its use in the same file: without turns one renames the other's half away
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    let write = |mut file: File| {
        file.write_all(bytes)?;
        file.sync_all()
    };
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&beside)
        .and_then(write)
        .and_then(|()| fs::rename(&beside, path))
        .map_err(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_an_api_server_makes_is_a_uid_and_so_the_name_of_a_directory() {
        assert!(is_uid("0a1b2c3d-0000-4000-8000-00000000b002"));
        for text in [
            "",
            "..",
            "0a1b2c3d-0000-4000-8000-00000000b00",
            "0a1b2c3d-0000-4000-8000-00000000b002x",
            "0A1B2C3D-0000-4000-8000-00000000B002",
            "0a1b2c3d00000-4000-8000-00000000b002",
            "0a1b2c3d-0000-4000-8000-00000000b00g",
            "------------------------------------",
            "000000000000000000000000000000000000",
            "../../../../../../../../../etc/passwd",
            "../../../../../../../../../etc/passw",
        ] {
            assert!(!is_uid(text), "{text}");
        }
    }
}
