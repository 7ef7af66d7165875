//! A command that may take only so long and say only so much.
//!
//! Invariant: when [`run`] returns or is dropped, nothing of the command's process group runs on because
//! it was slow, and no more than its last few kilobytes were kept.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use macrack_wire::guest::printable;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::process::Child;
use tokio::time::timeout;

/// What is kept of the output, in bytes: its end.
const KEPT: usize = 4096;
/// How long output may still come after the command has ended: a process that it left behind may hold
/// the pipe for ever.
const REST: Duration = Duration::from_millis(200);

/// How a command ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    /// By itself, with this code; 128 + n stands for signal n, as in a shell.
    Exited(i32),
    /// It was killed at its deadline.
    TimedOut,
}

/// The end of a command and of what it wrote, standard output and standard error in one.
#[derive(Debug, PartialEq, Eq)]
pub struct Outcome {
    /// How it ended.
    pub ended: Ended,
    /// The end of its output.
    pub output: String,
}

impl Outcome {
    /// The last line that is not empty, as a guest may say it.
    pub fn last_line(&self) -> Option<String> {
        self.output.lines().rev().map(printable).find(|line| !line.is_empty())
    }
}

/// The code of an ended process, as a shell counts.
pub fn exit_code(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(-1)
}

/// Runs `command` without input, for `patience` at the longest.
///
/// # Errors
/// When it cannot be started or its end cannot be seen.
pub async fn run(mut command: Command, patience: Duration) -> io::Result<Outcome> {
    let (reader, writer) = io::pipe()?;
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer).process_group(0);
    let mut group = Group(tokio::process::Command::from(command).spawn()?);
    let mut output = Tail { pipe: Receiver::from_owned_fd(OwnedFd::from(reader))?, kept: Vec::new() };
    let ended = tokio::select! {
        // the pipe must be emptied all the while, or the command waits for us
        ended = group.0.wait() => Some(ended?),
        () = async { output.read().await; tokio::time::sleep(patience).await } => None,
        () = tokio::time::sleep(patience) => None,
    };
    let ended = match ended {
        Some(status) => Ended::Exited(exit_code(status)),
        None => {
            drop(group);
            Ended::TimedOut
        }
    };
    if timeout(REST, output.read()).await.is_err() {
        tracing::debug!("a process that the command left behind holds its output");
    }
    Ok(Outcome { ended, output: String::from_utf8_lossy(&output.kept).into_owned() })
}

/// The last bytes of a pipe.
struct Tail {
    pipe: Receiver,
    kept: Vec<u8>,
}

impl Tail {
    /// Reads to the end. Cancel-safe.
    async fn read(&mut self) {
        loop {
            match self.pipe.read_buf(&mut self.kept).await {
                Ok(0) => return,
                Ok(_) => {
                    let surplus = self.kept.len().saturating_sub(KEPT);
                    self.kept.drain(..surplus);
                }
                Err(error) => {
                    tracing::debug!(%error, "output cannot be read");
                    return;
                }
            }
        }
    }
}

/// A child that leads a process group, which is killed unless the child has ended.
struct Group(Child);

impl Drop for Group {
    fn drop(&mut self) {
        // of one that was reaped there is no id any more: the number may be another's by now
        let leader = self.0.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        if let Some(leader) = leader
            && let Err(error) = kill_process_group(leader, Signal::KILL)
        {
            tracing::warn!(%error, "a command that is not wanted any more cannot be killed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    fn shell(text: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", text]);
        command
    }

    #[tokio::test]
    async fn both_outputs_and_the_code_are_there() {
        let outcome = run(shell("echo one; echo two >&2; echo; exit 3"), PATIENCE).await.unwrap();
        assert_eq!(outcome, Outcome { ended: Ended::Exited(3), output: "one\ntwo\n\n".to_owned() });
        assert_eq!(outcome.last_line().as_deref(), Some("two"));
        let killed = run(shell("kill -9 $$"), PATIENCE).await.unwrap();
        assert_eq!((killed.ended, killed.output.as_str()), (Ended::Exited(137), ""));
    }

    #[tokio::test]
    async fn a_megabyte_of_output_neither_blocks_the_command_nor_is_kept() {
        let outcome = run(shell("head -c 1048576 /dev/zero | tr '\\0' x; echo; echo end"), PATIENCE).await.unwrap();
        assert_eq!(outcome.ended, Ended::Exited(0));
        assert_eq!(outcome.last_line().as_deref(), Some("end"));
        assert!(outcome.output.len() <= KEPT, "{}", outcome.output.len());
    }

    #[tokio::test]
    async fn at_the_deadline_the_whole_group_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let pids = dir.path().join("pids");
        let text = format!("sleep 1000 & echo $! $$ > {}; echo waiting; wait", pids.display());
        let outcome = run(shell(&text), Duration::from_millis(700)).await.unwrap();
        assert_eq!(outcome, Outcome { ended: Ended::TimedOut, output: "waiting\n".to_owned() });
        let pids = std::fs::read_to_string(pids).unwrap();
        for pid in pids.split_whitespace() {
            gone(pid).await;
        }
    }

    #[tokio::test]
    async fn a_command_that_is_not_awaited_any_more_is_killed() {
        let dir = tempfile::tempdir().unwrap();
        let pids = dir.path().join("pids");
        let mut running = Box::pin(run(shell(&format!("echo $$ > {}; exec sleep 1000", pids.display())), PATIENCE));
        let pid = loop {
            tokio::select! {
                ended = &mut running => panic!("{ended:?}"),
                () = tokio::time::sleep(Duration::from_millis(5)) => {}
            }
            let pid = std::fs::read_to_string(&pids).unwrap_or_default();
            if pid.ends_with('\n') {
                break pid.trim().to_owned();
            }
        };
        drop(running);
        gone(&pid).await;
    }

    #[tokio::test]
    async fn a_process_that_was_left_behind_does_not_hold_the_answer() {
        let began = std::time::Instant::now();
        let outcome = run(shell("sleep 10 & echo done"), PATIENCE).await.unwrap();
        assert_eq!(outcome, Outcome { ended: Ended::Exited(0), output: "done\n".to_owned() });
        assert!(began.elapsed() < Duration::from_secs(8), "it waited for the process that was left behind");
    }

    /// Not there, or dead and not yet reaped by whoever got it.
    async fn gone(pid: &str) {
        let alive = || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            !stat.is_empty() && !stat.contains(") Z ")
        };
        let gone = async {
            while alive() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, gone).await.unwrap_or_else(|_| panic!("process {pid} runs on"));
    }
}
