//! Starting a VM process that outlives whoever starts it.
//!
//! Invariant: the VM process is never a child of the agent and never in its session. `macrack-vm launch`
//! opens a session, starts `macrack-vm run` in it, waits until that one listens (or has ended), and
//! ends. So a signal to the agent's process group misses the VM, and the init process, not the agent,
//! reaps it: whether a VM process lives is told by its socket and `state.json`, never by its number.
//!
//! On a Mac the process is a job of launchd instead ([`launchd`](crate::launchd)), which owes the launcher nothing;
//! what it has to say comes through [`announce`](crate::announce).

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use macrack_wire::VmDir;
use macrack_wire::layout::write_whole;

use crate::announce::{Heard, hear};
use crate::launchd::{self, Launchd};

/// How long launchd may take to start a job's process, and that to come up.
const JOB_PATIENCE: Duration = Duration::from_secs(30);

/// How long a start waits for the process of an ended run to be gone: longer than its last words take.
pub const OWNER_GOES: Duration = Duration::from_secs(5);
/// How often it looks meanwhile: nothing tells.
pub const OWNER_RETRY: Duration = Duration::from_millis(10);

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

/// The launcher's part: starts this same program apart from everybody, and sees it listen.
///
/// # Errors
/// As [`spawn`].
pub fn launch(dir: &Path) -> io::Result<u32> {
    let dir = VmDir::new(dir.canonicalize()?);
    if cfg!(target_os = "macos") {
        launch_job(&Launchd::of_this_user(), &std::env::current_exe()?, &dir)
    } else {
        launch_session(&dir)
    }
}

/// Forgets what was kept for the VM's process outside its directory, before the directory goes: on a Mac, its job.
/// A process that lives is ended with it. Blocks.
///
/// # Errors
/// When it is still there.
pub fn forget(dir: &VmDir) -> io::Result<()> {
    if cfg!(target_os = "macos") {
        Launchd::of_this_user().remove(&launchd::label(launchd::uid(dir)?))?;
    }
    Ok(())
}

/// Starts `binary` as a job of launchd.
///
/// # Errors
/// As [`spawn`].
pub fn launch_job(launchd: &Launchd, binary: &Path, dir: &VmDir) -> io::Result<u32> {
    let socket = dir.announcement();
    match std::fs::remove_file(&socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // bound before the process can come
    let listener = UnixListener::bind(&socket)?;
    let started = (|| {
        write_whole(&dir.job(), &launchd::job(binary, dir)?)?;
        start_job(launchd, dir)?;
        hear(listener, JOB_PATIENCE)
    })();
    std::fs::remove_file(&socket)?;
    match started? {
        Heard::Listening(pid) => Ok(pid),
        Heard::Held(_) => Err(held(dir)),
        Heard::Ended(pid) => ended(dir, pid, "its job ended"),
        Heard::Nobody => Err(io::Error::other(format!(
            "{}: launchd took its job, and no process came within {JOB_PATIENCE:?}; {} may say why",
            dir.path().display(),
            dir.log().display()
        ))),
    }
}

/// Starts the job, after the process of an ended run if that has yet to end.
fn start_job(launchd: &Launchd, dir: &VmDir) -> io::Result<()> {
    let label = launchd::label(launchd::uid(dir)?);
    let until = Instant::now() + OWNER_GOES;
    loop {
        match launchd.start(&label, &dir.job()) {
            Err(error)
                if error.kind() == io::ErrorKind::AlreadyExists && owner_is_going(dir) && Instant::now() < until =>
            {
                thread::sleep(OWNER_RETRY);
            }
            ended => return ended,
        }
    }
}

/// Whether the process that runs this VM has said its last word, and only has to end.
pub fn owner_is_going(dir: &VmDir) -> bool {
    let last = dir.read_state();
    last.is_ok_and(|last| last.is_some_and(|last| last.report.state.is_final()))
}

fn held(dir: &VmDir) -> io::Error {
    let message = format!("{}: another process runs this VM", dir.path().display());
    io::Error::new(io::ErrorKind::AlreadyExists, message)
}

/// The process ended before it listened, in the way that `how` says: well enough if it left its last word.
fn ended(dir: &VmDir, pid: u32, how: &str) -> io::Result<u32> {
    let last = dir.read_state()?;
    if last.is_some_and(|last| last.report.pid == pid && last.report.state.is_final()) {
        return Ok(pid);
    }
    Err(io::Error::other(format!(
        "{}: {how} before it listened; {} says why",
        dir.path().display(),
        dir.log().display()
    )))
}

fn launch_session(dir: &VmDir) -> io::Result<u32> {
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
    let status = child.wait()?;
    if status.code() == Some(ALREADY_RUNNING.into()) {
        return Err(held(dir));
    }
    ended(dir, child.id(), &format!("macrack-vm ended with {status}"))
}

fn listens(child: &mut Child) -> io::Result<bool> {
    let Some(output) = child.stdout.take() else {
        return Ok(false);
    };
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    Ok(line.trim_end() == LISTENING)
}
