//! Starting a VM process that outlives whoever starts it.
//!
//! Invariant: the VM process is never a child of the agent and never in its session. `macrack-vm launch`
//! opens a session, starts `macrack-vm run` in it, waits until that one listens (or has ended), and
//! ends. So a signal to the agent's process group misses the VM, and the init process, not the agent,
//! reaps it: whether a VM process lives is told by its socket and `state.json`, never by its number.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use macrack_wire::VmDir;

/// What `run` writes to its standard output, as its only line, once its socket takes connections.
pub const LISTENING: &str = "listening";

/// The exit code of `run` and `launch` when another process runs this VM.
pub const ALREADY_RUNNING: u8 = 4;

/// Starts `binary run --dir dir` in a session of its own, its output appended to `vm.log`, and returns
/// its process id. By then `vm.sock` takes connections, or the process has ended and `state.json` says
/// why; that the VM has started is not awaited.
///
/// Blocks for some milliseconds: in async code call it where blocking is allowed.
///
/// # Errors
/// `AlreadyExists` when another process runs this VM, which is left alone; anything else when the
/// process could not be started or ended without a word in `state.json`.
pub fn spawn(binary: &Path, dir: &Path) -> io::Result<u32> {
    let launcher = Command::new(binary)
        .args([OsStr::new("launch"), OsStr::new("--dir"), dir.as_os_str()])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", binary.display())))?;
    if !launcher.status.success() {
        let said = String::from_utf8_lossy(&launcher.stderr);
        let kind = match launcher.status.code() {
            Some(code) if code == i32::from(ALREADY_RUNNING) => io::ErrorKind::AlreadyExists,
            _ => io::ErrorKind::Other,
        };
        return Err(io::Error::new(kind, said.trim().to_owned()));
    }
    let said = String::from_utf8_lossy(&launcher.stdout);
    said.trim().parse().map_err(|_| {
        let message = format!("{} launch said {said:?}, not a process id", binary.display());
        io::Error::new(io::ErrorKind::InvalidData, message)
    })
}

/// The launcher's part: opens a session, starts this same program in it, and sees it listen.
///
/// # Errors
/// As [`spawn`].
pub fn launch(dir: &Path) -> io::Result<u32> {
    let dir = VmDir::new(dir.canonicalize()?);
    rustix::process::setsid()?;
    let log = OpenOptions::new().create(true).append(true).mode(0o600).open(dir.log())?;
    let mut child = Command::new(std::env::current_exe()?)
        .args([OsStr::new("run"), OsStr::new("--dir"), dir.path().as_os_str()])
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()?;
    if listens(&mut child)? {
        return Ok(child.id());
    }
    let ended = child.wait()?;
    if ended.code() == Some(ALREADY_RUNNING.into()) {
        let message = format!("{}: another process runs this VM", dir.path().display());
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
    }
    let last = dir.read_state()?;
    if last.is_some_and(|last| last.report.pid == child.id() && last.report.state.is_final()) {
        return Ok(child.id());
    }
    Err(io::Error::other(format!(
        "{}: macrack-vm ended with {ended} before it listened; {} says why",
        dir.path().display(),
        dir.log().display()
    )))
}

fn listens(child: &mut Child) -> io::Result<bool> {
    let Some(output) = child.stdout.take() else {
        return Ok(false);
    };
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    Ok(line.trim_end() == LISTENING)
}
