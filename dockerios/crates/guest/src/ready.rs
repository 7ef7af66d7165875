//! Whether work may begin. What that takes is the image's business: it puts executables into a directory, and all of
//! them have to say yes. Invariant: a check that cannot be run, or not in time, says no.
//!
//! Each executable of the directory (`/usr/local/lib/dockerios/ready.d` in a macOS guest) runs as the agent's user,
//! in the order of the names, with the variable `DOCKERIOS_STAGE`; exit status 0 within ten seconds is a yes. Hidden
//! files and files that are not executable are passed over. A file that its group or everybody may write, or that belongs
//! to somebody else, is a no, and so is a directory: whoever may change it would become root. Where there is no check,
//! the stage decides: [`WithoutChecks`].

use std::{
    fs, io,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use dockerios_wire::Stage;

/// What counts as ready while there is no check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum WithoutChecks {
    /// A person's session: images that log in by themselves.
    Session,
    /// The login window is enough.
    Login,
    /// Nothing: without a check a guest never is ready.
    Never,
}

/// How readiness is judged.
#[derive(Debug, Clone)]
pub struct Readiness {
    /// Where the checks are.
    pub directory: PathBuf,
    /// What holds when there are none.
    pub without: WithoutChecks,
    /// Time for one check.
    pub patience: Duration,
    /// Whose checks are run, beside root's: the id of the user that the agent runs as.
    pub owner: u32,
}

impl Readiness {
    /// Ten seconds a check.
    #[must_use]
    pub fn new(directory: PathBuf, without: WithoutChecks) -> Self {
        Self {
            directory,
            without,
            patience: Duration::from_secs(10),
            owner: rustix::process::geteuid().as_raw(),
        }
    }

    /// The stage that is reported for what the probe saw, and why it is not Ready when a check says so.
    pub async fn judge(&self, seen: Stage) -> (Stage, Option<String>) {
        if matches!(seen, Stage::AgentStarting | Stage::ShuttingDown) {
            return (seen, None);
        }
        let waiting = if seen == Stage::Ready { Stage::UserSession } else { seen };
        let checks = match checks(&self.directory, self.owner) {
            Ok(checks) => checks,
            Err(why) => return (waiting, Some(why)),
        };
        if checks.is_empty() {
            let ready = match self.without {
                WithoutChecks::Login => true,
                WithoutChecks::Session => seen != Stage::LoginWindow,
                WithoutChecks::Never => seen == Stage::Ready,
            };
            return (if ready { Stage::Ready } else { waiting }, None);
        }
        for check in checks {
            if let Err(why) = self.ask(&check, waiting).await {
                return (waiting, Some(format!("{}: {why}", check.display())));
            }
        }
        (Stage::Ready, None)
    }

    async fn ask(&self, check: &Path, stage: Stage) -> Result<(), String> {
        let cannot = |e: io::Error| format!("cannot be run: {e}");
        let mut child = tokio::process::Command::new(check)
            .env("DOCKERIOS_STAGE", stage.as_str())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(cannot)?;
        let group = Group::of(&child);
        let answer = tokio::time::timeout(self.patience, child.wait()).await;
        if let Ok(Ok(_)) = answer {
            group.ended();
        }
        match answer {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => Err(format!("says no ({status})")),
            Ok(Err(e)) => Err(cannot(e)),
            Err(_) => Err(format!("gave no answer within {} s", self.patience.as_secs())),
        }
    }
}

/// A check with all that it started. Dropped before the check has ended, it is killed whole: a script that waits for a
/// program of its own would otherwise leave that behind, one more in each round.
struct Group(Option<rustix::process::Pid>);

impl Group {
    fn of(child: &tokio::process::Child) -> Self {
        let leader = child.id().and_then(|id| i32::try_from(id).ok());
        Self(leader.and_then(rustix::process::Pid::from_raw))
    }

    /// The check has ended; from now on its number may be another's.
    fn ended(mut self) {
        self.0 = None;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(leader) = self.0 {
            // gone already: nothing is left to do
            let _ = rustix::process::kill_process_group(leader, rustix::process::Signal::KILL);
        }
    }
}

/// Why somebody else than root and `owner` may change it, and the way out.
fn open_to_others(path: &Path, about: &fs::Metadata, owner: u32) -> Result<(), String> {
    if about.permissions().mode() & 0o022 != 0 {
        return Err(format!("{}: others may write it; chmod go-w it", path.display()));
    }
    if ![0, owner].contains(&about.uid()) {
        return Err(format!(
            "{}: it belongs to the user with id {}, who may change it; chown it to root",
            path.display(),
            about.uid()
        ));
    }
    Ok(())
}

/// The checks in order of their names; none when there is no such directory.
fn checks(directory: &Path, owner: u32) -> Result<Vec<PathBuf>, String> {
    let cannot = |e: io::Error| format!("{}: cannot be read: {e}", directory.display());
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(cannot(e)),
    };
    open_to_others(directory, &fs::metadata(directory).map_err(cannot)?, owner)?;
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(cannot)?.path();
        let hidden = path
            .file_name()
            .is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
        let about = fs::metadata(&path).map_err(|e| format!("{}: cannot be read: {e}", path.display()))?;
        if hidden || !about.is_file() || about.permissions().mode() & 0o111 == 0 {
            continue;
        }
        open_to_others(&path, &about, owner)?;
        found.push(path);
    }
    found.sort();
    Ok(found)
}
