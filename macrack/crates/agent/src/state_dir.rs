//! The state directory of one chassis, and the lock that one agent holds on it.
//!
//! Invariant: whoever changes anything in it holds `agent.lock`, so a second agent does nothing at all.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use macrack_wire::VmDir;
use macrack_wire::layout::MAX_SOCKET_PATH;
use rustix::fs::{FlockOperation, flock};

/// Length of a uid as the API server makes them.
const UID: usize = 36;

/// Why a state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateDirError {
    /// Another agent has it.
    #[error(
        "another macrack-agent{} works on {}: it holds agent.lock there; one chassis has one agent, end the other one first",
        pid.as_ref().map(|pid| format!(" (process {pid})")).unwrap_or_default(),
        dir.display()
    )]
    Locked {
        /// The directory.
        dir: PathBuf,
        /// Who, as far as it said.
        pid: Option<String>,
    },
    /// The sockets in it would have no room.
    #[error(
        "{}: with {length} bytes the sockets of its VMs cannot be bound (at most {MAX_SOCKET_PATH}); choose a shorter --state-dir",
        dir.display()
    )]
    TooLong {
        /// The directory.
        dir: PathBuf,
        /// Length of the longest socket path in it.
        length: usize,
    },
    /// The operating system's answer.
    #[error("{}: {source}", path.display())]
    Io {
        /// What was touched.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
}

/// The state directory of one chassis.
#[derive(Debug, Clone)]
pub struct StateDir(PathBuf);

/// Held for as long as the agent runs.
#[derive(Debug)]
pub struct Lock(#[allow(dead_code, reason = "the lock ends with the descriptor")] File);

impl StateDir {
    /// Opens it; makes what is missing, for its user alone.
    ///
    /// # Errors
    /// When it cannot be made or its path is too long.
    pub fn open(path: &Path) -> Result<Self, StateDirError> {
        let named = |path: &Path| {
            let path = path.to_owned();
            move |source| StateDirError::Io { path, source }
        };
        let make = |path: &Path| DirBuilder::new().recursive(true).mode(0o700).create(path);
        make(path).map_err(named(path))?;
        let root = path.canonicalize().map_err(named(path))?;
        let dir = StateDir(root);
        for sub in [dir.vms(), dir.images(), dir.wipes()] {
            make(&sub).map_err(named(&sub))?;
        }
        let socket = dir.vm(&"0".repeat(UID)).guest_socket();
        let length = socket.as_os_str().as_bytes().len();
        if length > MAX_SOCKET_PATH {
            return Err(StateDirError::TooLong { dir: dir.0, length });
        }
        Ok(dir)
    }

    /// Takes the lock.
    ///
    /// # Errors
    /// When another agent holds it.
    pub fn lock(&self) -> Result<Lock, StateDirError> {
        let path = self.0.join("agent.lock");
        let named = |source| StateDirError::Io { path: path.clone(), source };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(named)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let pid = fs::read_to_string(&path).ok().map(|pid| pid.trim().to_owned());
                let pid = pid.filter(|pid| !pid.is_empty());
                return Err(StateDirError::Locked { dir: self.0.clone(), pid });
            }
            Err(error) => return Err(named(error.into())),
        }
        file.set_len(0).map_err(named)?;
        writeln!(file, "{}", std::process::id()).map_err(named)?;
        Ok(Lock(file))
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The directory of VMs.
    pub fn vms(&self) -> PathBuf {
        self.0.join("vms")
    }

    /// The directory of one VM.
    pub fn vm(&self, uid: &str) -> VmDir {
        VmDir::new(self.vms().join(uid))
    }

    /// The directory of goldens.
    pub fn images(&self) -> PathBuf {
        self.0.join("images")
    }

    /// The journals and receipts of wipes.
    pub fn wipes(&self) -> PathBuf {
        self.0.join("wipes")
    }

    /// The current token.
    pub fn token(&self) -> PathBuf {
        self.0.join("token")
    }

    /// What is known of the kernel's counter.
    pub fn quota(&self) -> PathBuf {
        self.0.join("quota.json")
    }

    /// The last reboot that was asked of the host.
    pub fn reboot(&self) -> PathBuf {
        self.0.join("reboot.json")
    }

    /// The last lease that was seen.
    pub fn last_lease(&self) -> PathBuf {
        self.0.join("last-lease.json")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_agent_is_told_who_holds_the_chassis_and_a_dead_one_holds_nothing() {
        let root = tempfile::tempdir().unwrap();
        let dir = StateDir::open(root.path()).unwrap();
        let lock = dir.lock().unwrap();
        let refused = dir.lock().unwrap_err().to_string();
        assert!(refused.contains(&format!("process {}", std::process::id())), "{refused}");
        assert!(refused.contains("one chassis has one agent"), "{refused}");
        drop(lock);
        dir.lock().unwrap();
    }

    #[test]
    fn a_state_directory_too_deep_for_sockets_is_refused_at_once() {
        let root = tempfile::tempdir().unwrap();
        let refused = StateDir::open(&root.path().join("x".repeat(90))).unwrap_err().to_string();
        assert!(refused.contains("shorter --state-dir"), "{refused}");
    }
}
