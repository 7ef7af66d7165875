//! The first-boot script: begun at most once in the life of a disk.
//!
//! ```text
//!   NotAsked ─accept─▶ Waiting ─begin─▶ Running ─▶ Done | Failed
//!                                         └─(the guest went down)─▶ Interrupted
//! ```
//!
//! Invariant: every arrow is on the disk before its effect. A record that cannot be read counts as a
//! script that may have run: nothing runs.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};

use macrack_wire::guest::{MAX_MESSAGE, MAX_SCRIPT};
use macrack_wire::layout::{read_json, write_json, write_whole};
use macrack_wire::{FirstBoot, Refusal};
use tokio::process::Child;

use crate::probe::Probe;

/// Where the record, the script and its output lie, below the root of the disk.
pub const DIRECTORY: &str = "Library/Application Support/MacRack";

/// The script of one disk and what became of it.
#[derive(Debug)]
pub struct Script {
    directory: PathBuf,
    state: FirstBoot,
}

impl Script {
    /// What the disk under `root` says. A script that was running when the guest went down becomes
    /// Interrupted here.
    pub fn load(root: &Path) -> io::Result<Self> {
        let directory = root.join(DIRECTORY);
        fs::create_dir_all(&directory)?;
        let mut script = Script { directory, state: FirstBoot::NotAsked };
        match read_json(&script.record()) {
            Ok(FirstBoot::Running) => {
                script.put(FirstBoot::Interrupted)?;
                fs::remove_file(script.text())?;
            }
            Ok(state) => script.state = state,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => script.state = failed(format!("not run, for its record is unreadable: {error}")),
        }
        Ok(script)
    }

    /// What became of it.
    pub fn state(&self) -> &FirstBoot {
        &self.state
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
        self.put(FirstBoot::Waiting)
    }

    /// Notes that there is none. Not kept on the disk: the host says so at every start.
    pub fn decline(&mut self) {
        if self.state == FirstBoot::NotAsked {
            self.state = FirstBoot::NotNeeded;
        }
    }

    /// Begins the script if it waits to be begun, having put down first that it runs.
    pub fn begin(&mut self, probe: &impl Probe) -> io::Result<Option<Child>> {
        if self.state != FirstBoot::Waiting {
            return Ok(None);
        }
        self.put(FirstBoot::Running)?;
        match self.spawn(probe) {
            Ok(child) => Ok(Some(child)),
            Err(error) => {
                self.put(failed(format!("could not be started: {error}")))?;
                Ok(None)
            }
        }
    }

    fn spawn(&self, probe: &impl Probe) -> io::Result<Child> {
        let text = fs::read_to_string(self.text())?;
        let log = File::create(self.directory.join("first-boot.log"))?;
        let mut command = probe.script(&self.text(), &text);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        tokio::process::Command::from(command).kill_on_drop(true).spawn()
    }

    /// Puts down how it ended, and removes its text, which may hold secrets.
    pub fn finish(&mut self, ended: io::Result<ExitStatus>) -> io::Result<()> {
        let state = match ended {
            Ok(status) => FirstBoot::Done { exit_code: exit_code(status) },
            Err(error) => failed(format!("its end was not seen: {error}")),
        };
        self.put(state)?;
        fs::remove_file(self.text())
    }

    fn put(&mut self, state: FirstBoot) -> io::Result<()> {
        write_json(&self.record(), &state)?;
        self.state = state;
        Ok(())
    }

    fn record(&self) -> PathBuf {
        self.directory.join("first-boot.json")
    }

    fn text(&self) -> PathBuf {
        self.directory.join("first-boot.sh")
    }
}

fn exit_code(status: ExitStatus) -> i32 {
    // as a shell counts: 128 + n for signal n
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(-1)
}

fn failed(message: String) -> FirstBoot {
    let printable = message.chars().filter(|c| !c.is_control());
    let mut kept = String::new();
    for c in printable {
        if kept.len() + c.len_utf8() > MAX_MESSAGE {
            break;
        }
        kept.push(c);
    }
    FirstBoot::Failed { message: kept }
}
