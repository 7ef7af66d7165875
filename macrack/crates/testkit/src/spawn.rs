//! Starts processes that die with this one.
//!
//! The kernel sends the parent-death signal when the **thread** that forked ends, not when the
//! process does: a test's thread would take the control plane of all tests with it. So every
//! process is forked by one thread that never ends.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{OnceLock, mpsc};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::sync::watch;

use crate::process::{self, MARKS};
use crate::run;

/// What a running process has shown so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    /// Bytes of output copied to the log.
    pub(crate) logged: u64,
    /// Set once the process has been reaped.
    pub(crate) exit: Option<ExitStatus>,
}

/// A process started by this run. Not ended on drop: its owner decides how.
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) log: PathBuf,
    pidfd: OwnedFd,
    progress: watch::Receiver<Progress>,
}

impl Process {
    /// Starts `command` in a process group of its own (so that Ctrl-C reaches only us, who then
    /// end things in order), its output appended to `log`, carrying the run's mark and `mark`.
    pub(crate) fn start(mut command: Command, mark: &str, log: &Path) -> Result<Process> {
        let what = command.get_program().to_string_lossy().into_owned();
        let run = run::current()?;
        let outer = std::env::var(MARKS).map(|m| m + ",").unwrap_or_default();
        let file = File::options()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("open the log {}", log.display()))?;
        let (reader, writer) = io::pipe().context("make a pipe")?;
        command
            .env(MARKS, format!("{outer}{},{mark}", run.mark()))
            .stdin(Stdio::null())
            .stdout(writer.try_clone().context("copy a pipe")?)
            .stderr(writer)
            .process_group(0);
        let child = fork(command).with_context(|| format!("start {what}"))?;
        let pid = child.id() as i32;
        let pidfd = Pid::from_raw(pid)
            .ok_or_else(|| anyhow!("{what} got no process id"))
            .and_then(|pid| Ok(pidfd_open(pid, PidfdFlags::empty())?))
            .with_context(|| format!("open {what} as a pidfd"))?;
        let (seen, progress) = watch::channel(Progress::default());
        let attended = pidfd.try_clone().context("copy a pidfd")?;
        rustix::io::ioctl_fionbio(&reader, true).context("read a pipe without waiting")?;
        std::thread::spawn(move || attend(child, &attended, reader, file, &seen));
        Ok(Process { pid, log: log.to_owned(), pidfd, progress })
    }

    pub(crate) fn signal(&self, signal: Signal) {
        // ESRCH means that it has ended by itself
        let _ = pidfd_send_signal(&self.pidfd, signal);
    }

    pub(crate) fn is_running(&self) -> bool {
        !process::wait_ended(self.pidfd.as_fd(), Duration::ZERO)
    }

    /// Blocks until it has ended; false when `limit` passed first.
    pub(crate) fn wait_blocking(&self, limit: Duration) -> bool {
        process::wait_ended(self.pidfd.as_fd(), limit)
    }

    pub(crate) fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.clone()
    }

    /// Resolves when the process has ended.
    pub(crate) async fn ended(&self) -> Option<ExitStatus> {
        let mut progress = self.progress.clone();
        progress.wait_for(|p| p.exit.is_some()).await.ok().and_then(|p| p.exit)
    }

    pub(crate) fn log_text(&self) -> String {
        std::fs::read(&self.log).map(|b| String::from_utf8_lossy(&b).into_owned()).unwrap_or_default()
    }

    /// The last `lines` of the log, indented for an error message.
    pub(crate) fn log_tail(&self, lines: usize) -> String {
        let text = self.log_text();
        let all: Vec<_> = text.lines().collect();
        all[all.len().saturating_sub(lines)..].iter().map(|l| format!("    {l}\n")).collect()
    }
}

/// Copies the output to the log and reaps the process at its end; goes on for what its
/// descendants still write.
///
/// Whoever sees `exit` finds all that the process itself wrote in the log: it is published only
/// when the pipe was empty after the end.
fn attend(
    mut child: std::process::Child,
    pidfd: &OwnedFd,
    mut output: io::PipeReader,
    mut log: File,
    seen: &watch::Sender<Progress>,
) {
    let mut buffer = [0; 16 * 1024];
    let mut running = true;
    loop {
        let mut fds = vec![PollFd::new(&output, PollFlags::IN)];
        if running {
            fds.push(PollFd::new(pidfd, PollFlags::IN));
        }
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => {
                eprintln!("testkit: cannot attend process {}: {e}", child.id());
                return;
            }
        }
        let ended = running && fds.last().is_some_and(|fd| !fd.revents().is_empty());
        let more = copy(&mut output, &mut log, &mut buffer, seen);
        if ended {
            running = false;
            if let Ok(status) = child.wait() {
                seen.send_modify(|p| p.exit = Some(status));
            }
        }
        if !more {
            // nobody can write any more; its end is all that is left to wait for
            if running && let Ok(status) = child.wait() {
                seen.send_modify(|p| p.exit = Some(status));
            }
            return;
        }
    }
}

/// Copies what is there now; false at the end of the output.
fn copy(output: &mut io::PipeReader, log: &mut File, buffer: &mut [u8], seen: &watch::Sender<Progress>) -> bool {
    loop {
        match output.read(buffer) {
            Ok(0) => return false,
            Ok(n) => {
                // a full disk must not block the process on its output
                let _ = log.write_all(&buffer[..n]);
                seen.send_modify(|p| p.logged += n as u64);
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return e.kind() == io::ErrorKind::WouldBlock,
        }
    }
}

type Order = (Command, mpsc::Sender<io::Result<std::process::Child>>);

fn fork(command: Command) -> Result<std::process::Child> {
    static FORKER: OnceLock<mpsc::Sender<Order>> = OnceLock::new();
    let forker = FORKER.get_or_init(|| {
        let (orders, inbox) = mpsc::channel::<Order>();
        std::thread::spawn(move || {
            for (mut command, answer) in inbox {
                die_with_parent(&mut command);
                let _ = answer.send(command.spawn());
            }
        });
        orders
    });
    let (answer, outcome) = mpsc::channel();
    forker.send((command, answer)).map_err(|_| anyhow!("the forking thread has ended"))?;
    Ok(outcome.recv().map_err(|_| anyhow!("the forking thread has ended"))??)
}

#[allow(unsafe_code)]
fn die_with_parent(command: &mut Command) {
    let parent = rustix::process::getpid();
    let arm = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // the parent may have died before the signal was armed
        if rustix::process::getppid() != Some(parent) {
            return Err(io::Error::from_raw_os_error(rustix::io::Errno::SRCH.raw_os_error()));
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes two system calls and neither allocates,
    // locks nor unwinds.
    unsafe {
        command.pre_exec(arm);
    }
}
