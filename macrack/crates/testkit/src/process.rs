//! Processes as `/proc` shows them. Invariant: a process is ended only through a pidfd that was
//! opened *before* its mark was read, so that a process id given to somebody else in between is
//! never signalled.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// The environment variable that every process started by this crate carries: a comma-separated
/// list of marks, the outermost run first. Descendants inherit it through any number of `fork`,
/// `setsid` and re-parentings, which is why it and not the process tree says who owns whom.
pub(crate) const MARKS: &str = "MACRACK_TESTKIT_MARKS";

/// A live process that carries the mark asked for.
pub(crate) struct Marked {
    pub(crate) pid: i32,
    pidfd: OwnedFd,
}

/// Every live process whose environment carries `mark`, but for this very process.
pub(crate) fn marked(mark: &str) -> Vec<Marked> {
    let own = std::process::id() as i32;
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| *pid != own)
        .filter_map(|pid| {
            // cheap look first; the one that counts comes after the pidfd holds the process
            carries(pid, mark).then_some(())?;
            let pidfd = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
            carries(pid, mark).then_some(Marked { pid, pidfd })
        })
        .collect()
}

/// Ends (SIGKILL) every process that carries `mark`, waits until they are gone, and says how many
/// there were. Repeats, since a process may fork between the look and the kill.
pub(crate) fn end_marked(mark: &str) -> usize {
    let mut ended = 0;
    for _ in 0..20 {
        let found = marked(mark);
        if found.is_empty() {
            break;
        }
        for process in &found {
            // ESRCH means that it ended by itself, which is as good
            let _ = pidfd_send_signal(&process.pidfd, Signal::KILL);
        }
        for process in &found {
            wait_ended(process.pidfd.as_fd(), Duration::from_secs(5));
        }
        ended += found.len();
    }
    ended
}

/// Waits until the process behind `pidfd` has ended (a zombie has); false when `limit` passed first.
pub(crate) fn wait_ended(pidfd: BorrowedFd<'_>, limit: Duration) -> bool {
    let until = Instant::now() + limit;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        match poll(&mut [PollFd::from_borrowed_fd(pidfd, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => return false,
            Ok(_) => return true,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

/// True while `pid` is a live process (a zombie is not).
pub(crate) fn is_alive(pid: i32) -> bool {
    Pid::from_raw(pid)
        .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok())
        .is_some_and(|pidfd| !wait_ended(pidfd.as_fd(), Duration::ZERO))
}

fn carries(pid: i32, mark: &str) -> bool {
    let Ok(environ) = fs::read(format!("/proc/{pid}/environ")) else {
        return false;
    };
    environ.split(|byte| *byte == 0).any(|pair| {
        std::str::from_utf8(pair)
            .ok()
            .and_then(|pair| pair.strip_prefix(MARKS)?.strip_prefix('='))
            .is_some_and(|marks| marks.split(',').any(|m| m == mark))
    })
}
