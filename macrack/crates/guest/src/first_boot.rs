//! The first-boot script: begun at most once in the life of a clone.
//!
//! ```text
//!   NotAsked ─accept─▶ Waiting ─begin─▶ Running ─▶ Done | Failed
//!                                         └─(the guest went down)─▶ Interrupted
//! ```
//!
//! Invariant: every arrow is on the disk, flushed, before its effect. A record that cannot be read counts
//! as a script that may have run: nothing runs. The record of another machine counts as none: a golden
//! that was once an instance brings its own along.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;

use macrack_wire::guest::{MAX_SCRIPT, printable};
use macrack_wire::layout::{read_json, write_json_lasting, write_whole};
use macrack_wire::{FirstBoot, Refusal};
use serde::{Deserialize, Serialize};
use tokio::process::Child;

use crate::boot_log::BootLog;
use crate::bounded::exit_code;
use crate::probe::{Probe, by_interpreter};

/// Where the record, the script and its output lie, below the root of the disk.
pub const DIRECTORY: &str = "Library/Application Support/MacRack";

/// `first-boot.json`.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    /// The machine that it is about; absent in what an early release wrote.
    #[serde(default)]
    machine: Option<String>,
    #[serde(flatten)]
    state: FirstBoot,
}

/// The script of one clone and what became of it.
#[derive(Debug)]
pub struct Script {
    directory: PathBuf,
    machine: Option<String>,
    state: FirstBoot,
    log: Arc<BootLog>,
}

impl Script {
    /// What the disk under `root` says of `machine`. A script that was running when the guest went down
    /// becomes Interrupted here.
    pub fn load(root: &Path, machine: io::Result<String>) -> io::Result<Self> {
        let directory = root.join(DIRECTORY);
        fs::create_dir_all(&directory)?;
        let (machine, unknown) = match machine {
            Ok(machine) => (Some(machine), None),
            Err(error) => (None, Some(error)),
        };
        let log = BootLog::new(directory.join("first-boot.log"), false);
        let mut script = Script { directory, machine, state: FirstBoot::NotAsked, log };
        match read_json::<Record>(&script.record()) {
            Ok(record) if script.is_of_another(&record) => {
                script.forget_text();
                script.log.forget();
            }
            Ok(Record { machine: Some(_), .. }) if let Some(error) = unknown => {
                let why = format!("not run: there is a record, and whose it is cannot be told: {error}");
                script.state = failed(&why);
            }
            Ok(Record { state: FirstBoot::Running, .. }) => {
                if let Err(error) = script.put(FirstBoot::Interrupted) {
                    // it still says Running there, which comes to the same at the next start
                    tracing::error!(%error, "that the first boot was interrupted cannot be put down");
                    script.state = FirstBoot::Interrupted;
                }
                script.forget_text();
            }
            Ok(Record { state, .. }) => {
                script.state = state;
                if script.state != FirstBoot::Waiting {
                    // the guest went down between the end of the script and the end of its text
                    script.forget_text();
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => script.state = failed(&format!("not run, for its record is unreadable: {error}")),
        }
        script.log.await_script(script.state == FirstBoot::Waiting);
        Ok(script)
    }

    fn is_of_another(&self, record: &Record) -> bool {
        match (&record.machine, &self.machine) {
            (Some(then), Some(now)) => then != now,
            _ => false,
        }
    }

    /// What became of it.
    pub fn state(&self) -> &FirstBoot {
        &self.state
    }

    /// What it writes.
    pub fn log(&self) -> Arc<BootLog> {
        self.log.clone()
    }

    /// Takes `text` in. A disk that has been asked before keeps its first answer.
    pub fn accept(&mut self, text: &str) -> Result<(), Refusal> {
        match self.state {
            FirstBoot::NotAsked => {}
            FirstBoot::NotNeeded => {
                return Err(Refusal::denied(
                    "first boot: this guest was told already that there is no script, and went on",
                ));
            }
            _ => return Ok(()),
        }
        if text.len() > MAX_SCRIPT {
            return Err(Refusal::denied(format!(
                "first boot: the script is {} bytes long; at most {MAX_SCRIPT} are taken",
                text.len()
            )));
        }
        self.store(text).map_err(|error| Refusal::denied(format!("first boot: the script cannot be stored: {error}")))
    }

    fn store(&mut self, text: &str) -> io::Result<()> {
        write_whole(&self.text(), text.as_bytes())?;
        fs::set_permissions(self.text(), Permissions::from_mode(0o700))?;
        self.put(FirstBoot::Waiting)?;
        self.log.await_script(true);
        Ok(())
    }

    /// Notes that there is none. Not kept on the disk: the host says so at every start.
    pub fn decline(&mut self) {
        if self.state == FirstBoot::NotAsked {
            self.state = FirstBoot::NotNeeded;
        }
    }

    /// Begins the script if it waits to be begun, having put down first that it runs. A disk that takes
    /// nothing more keeps it from being begun, and nothing else from being answered.
    pub fn begin(&mut self, probe: &impl Probe) -> Option<Child> {
        if self.state != FirstBoot::Waiting {
            return None;
        }
        if let Err(error) = self.put(FirstBoot::Running) {
            self.log.await_script(false);
            self.state = failed(&format!("not begun since this start, for that cannot be put down: {error}"));
            return None;
        }
        match self.spawn(probe) {
            Ok(child) => Some(child),
            Err(error) => {
                self.log.await_script(false);
                self.end(failed(&format!("could not be started: {error}")));
                None
            }
        }
    }

    fn spawn(&self, probe: &impl Probe) -> io::Result<Child> {
        let text = fs::read_to_string(self.text())?;
        let log = self.log.begin()?;
        probe.hand_over(&self.text())?;
        let mut command = probe.as_user(by_interpreter(&self.text(), &text))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        tokio::process::Command::from(command).kill_on_drop(true).spawn()
    }

    /// Puts down how it ended, and removes its text, which may hold secrets.
    pub fn finish(&mut self, ended: io::Result<ExitStatus>) {
        self.end(match ended {
            Ok(status) => FirstBoot::Done { exit_code: exit_code(status) },
            Err(error) => failed(&format!("its end was not seen: {error}")),
        });
    }

    fn end(&mut self, state: FirstBoot) {
        if let Err(error) = self.put(state) {
            // the disk says Running: after the next start it counts as interrupted, so it does now
            self.state = failed(&format!("it ended, which cannot be put down: {error}"));
        }
        self.forget_text();
    }

    /// Lasting: were it lost with the power, the script would run again.
    fn put(&mut self, state: FirstBoot) -> io::Result<()> {
        write_json_lasting(&self.record(), &Record { machine: self.machine.clone(), state: state.clone() })?;
        self.state = state;
        Ok(())
    }

    /// Removes the text, which may hold secrets, unless the script has done so itself.
    fn forget_text(&self) {
        match fs::remove_file(self.text()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::error!(%error, "the first-boot script cannot be removed; that is tried again at the next start");
            }
            _ => {}
        }
    }

    fn record(&self) -> PathBuf {
        self.directory.join("first-boot.json")
    }

    fn text(&self) -> PathBuf {
        self.directory.join("first-boot.sh")
    }
}

fn failed(message: &str) -> FirstBoot {
    FirstBoot::Failed { message: printable(message) }
}

#[cfg(test)]
#[path = "first_boot_tests.rs"]
mod tests;
