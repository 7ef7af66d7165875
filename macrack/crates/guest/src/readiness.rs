//! The command by which a golden says that it is ready.
//!
//! ```text
//!   Waiting ─(a user session, first boot done)─▶ Running ─▶ Ready
//!                                                   └─▶ NotReady | TimedOut | Failed ─(wait)─▶ run again
//!   any ─(the session ended)─▶ Waiting
//! ```
//!
//! Invariant: it runs only in a user session whose first boot is done, one run at a time, each bounded in
//! time and output. A golden without the file is ready by answering; a file that cannot be run is not the
//! same as none.

use std::fs::Metadata;
use std::future::pending;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use macrack_wire::guest::printable;
use macrack_wire::{Readiness, ReadinessState};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use crate::bounded::{self, Ended, Outcome};
use crate::first_boot::DIRECTORY;
use crate::probe::Probe;

/// How patient the gate is.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// One run may take this long.
    pub patience: Duration,
    /// Between the first two runs.
    pub first_wait: Duration,
    /// The wait doubles up to this.
    pub longest_wait: Duration,
}

impl Pace {
    /// A golden that warms up for minutes is asked often enough at this pace, and one that never gets
    /// ready costs a command a minute.
    pub const NORMAL: Pace = Pace {
        patience: Duration::from_secs(60),
        first_wait: Duration::from_secs(1),
        longest_wait: Duration::from_secs(60),
    };
}

/// The gate in front of Ready.
#[derive(Debug)]
pub struct Gate {
    path: PathBuf,
    pace: Pace,
    said: Option<Readiness>,
    step: Step,
    wait: Duration,
}

#[derive(Debug)]
enum Step {
    /// Nothing is due.
    Rest,
    /// A run is under way.
    Run(Running),
    /// The next run begins then.
    Retry(Instant),
}

/// A run, ended with this value.
#[derive(Debug)]
struct Running(JoinHandle<io::Result<Outcome>>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Gate {
    /// The gate of the golden whose disk is mounted at `root`.
    pub fn new(root: &Path, pace: Pace) -> Self {
        let mut gate = Gate { path: command(root), pace, said: None, step: Step::Rest, wait: pace.first_wait };
        gate.close();
        gate
    }

    /// How the command stands; `None` when the golden has none.
    pub fn said(&self) -> Option<&Readiness> {
        self.said.as_ref()
    }

    /// Takes in whether the command may run: a user is logged in and the first boot is done.
    pub fn tend(&mut self, due: bool, probe: &impl Probe) {
        if !due {
            return self.close();
        }
        let begins = match self.step {
            Step::Rest => self.waits(),
            Step::Retry(at) => at <= Instant::now(),
            Step::Run(_) => false,
        };
        if begins {
            self.begin(probe);
        }
    }

    /// Waits until there is something to tend to. Cancel-safe.
    pub async fn progress(&mut self) {
        match &mut self.step {
            Step::Rest => pending().await,
            Step::Retry(at) => sleep_until(*at).await,
            Step::Run(running) => {
                let ended = (&mut running.0).await.unwrap_or_else(|lost| Err(io::Error::other(lost)));
                self.judge(ended);
            }
        }
    }

    /// A first boot may bring the command along, so whether there is one is asked when it is due.
    fn waits(&mut self) -> bool {
        if self.said.is_none() {
            self.close();
        }
        self.said.as_ref().is_some_and(|said| said.state != ReadinessState::Ready)
    }

    fn close(&mut self) {
        self.step = Step::Rest;
        self.wait = self.pace.first_wait;
        let waiting = Readiness { state: ReadinessState::Waiting, exit_code: None, message: None };
        self.said = match self.path.symlink_metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            // what is wrong with it is said when it is due
            _ => Some(waiting),
        };
    }

    fn begin(&mut self, probe: &impl Probe) {
        match runnable(&self.path).and_then(|()| probe.as_user(Command::new(&self.path))) {
            Ok(command) => {
                let patience = self.pace.patience;
                self.step = Step::Run(Running(tokio::spawn(bounded::run(command, patience))));
                // a later run is not news: what the last one said stands until it ends
                if self.said.as_ref().is_none_or(|said| said.state == ReadinessState::Waiting) {
                    self.said = Some(Readiness { state: ReadinessState::Running, exit_code: None, message: None });
                }
            }
            Err(error) => self.judge(Err(error)),
        }
    }

    fn judge(&mut self, ended: io::Result<Outcome>) {
        let said = judged(ended, &self.path, self.pace.patience);
        if said.state == ReadinessState::Ready {
            self.step = Step::Rest;
        } else {
            self.step = Step::Retry(Instant::now() + self.wait);
            self.wait = (self.wait * 2).min(self.pace.longest_wait);
        }
        self.said = Some(said);
    }
}

/// What a run says.
fn judged(ended: io::Result<Outcome>, path: &Path, patience: Duration) -> Readiness {
    let (state, exit_code, message) = match ended {
        Ok(outcome) => match outcome.ended {
            Ended::Exited(0) => (ReadinessState::Ready, Some(0), outcome.last_line()),
            Ended::Exited(code) => (ReadinessState::NotReady, Some(code), outcome.last_line()),
            Ended::TimedOut => {
                let said = outcome.last_line().map(|line| format!("; it last said: {line}")).unwrap_or_default();
                (ReadinessState::TimedOut, None, Some(printable(&format!("ended after {patience:?}{said}"))))
            }
        },
        Err(error) => {
            (ReadinessState::Failed, None, Some(printable(&format!("{} cannot be run: {error}", path.display()))))
        }
    };
    Readiness { state, exit_code, message }
}

/// Where the golden whose disk is mounted at `root` has its command, if it has one.
pub(crate) fn command(root: &Path) -> PathBuf {
    root.join(DIRECTORY).join("ready")
}

/// Whether a file can be a command.
pub(crate) fn is_executable(file: &Metadata) -> bool {
    file.is_file() && file.permissions().mode() & 0o111 != 0
}

fn runnable(path: &Path) -> io::Result<()> {
    if !is_executable(&path.metadata()?) {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "it is no executable file; chmod +x it, or remove it from the golden",
        ));
    }
    Ok(())
}

#[cfg(test)]
#[path = "readiness_tests.rs"]
mod tests;
