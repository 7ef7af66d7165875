//! Starting a VM process that outlives whoever starts it.
//!
//! Invariant: the VM process is never a child of the agent and never in its session. `macrack-vm launch`
//! opens a session, starts `macrack-vm run` in it and ends; so a signal to the agent's process group
//! misses the VM, and the init process, not the agent, reaps it.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use macrack_wire::VmDir;

/// Starts `binary run --dir dir` in a session of its own, its output appended to `vm.log`, and returns
/// its process id. Waits for the launcher, a few milliseconds: in async code call it where blocking is
/// allowed. That the VM starts is not awaited; its socket and `state.json` tell.
pub fn spawn(binary: &Path, dir: &Path) -> io::Result<u32> {
    let launcher = Command::new(binary)
        .args([OsStr::new("launch"), OsStr::new("--dir"), dir.as_os_str()])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", binary.display())))?;
    if !launcher.status.success() {
        let said = String::from_utf8_lossy(&launcher.stderr);
        let message = format!(
            "{} launch ended with {}: {}",
            binary.display(),
            launcher.status,
            said.trim()
        );
        return Err(io::Error::other(message));
    }
    let said = String::from_utf8_lossy(&launcher.stdout);
    said.trim().parse().map_err(|_| {
        let message = format!(
            "{} launch said {:?}, not a process id",
            binary.display(),
            said
        );
        io::Error::new(io::ErrorKind::InvalidData, message)
    })
}

/// The launcher's part: opens a session and starts this same program in it.
pub fn launch(dir: &Path) -> io::Result<u32> {
    let dir = &dir.canonicalize()?;
    rustix::process::setsid()?;
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(VmDir::new(dir).log())?;
    let child = Command::new(std::env::current_exe()?)
        .args([OsStr::new("run"), OsStr::new("--dir"), dir.as_os_str()])
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()?;
    Ok(child.id())
}
