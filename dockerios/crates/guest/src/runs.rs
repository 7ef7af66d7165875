//! What the guest notes of its runs on its own disk, so that it can say after a boot how the run before ended.
//!
//! ```text
//! boot ─▶ "running" ──the system ends this agent (SIGTERM)──▶ "ended" ─▶ next boot: clean
//!                  └──power cut, panic, cut off after the grace──▶      next boot: not clean
//! ```
//!
//! Invariant: a note says something of this machine only. One that another machine left, such as whoever prepared the
//! golden image, is no word about a machine that was cloned from it.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use serde::{Deserialize, Serialize};

/// No note is larger, in bytes.
const LARGEST: u64 = 4096;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    /// Uid of the machine object.
    machine: String,
    /// Names the boot.
    boot: String,
    /// Whether the system ended this agent in order.
    ended: bool,
    /// How the run before this one ended; None when there was none.
    #[serde(default)]
    before: Option<bool>,
}

/// The notes. Clones share them.
#[derive(Clone, Debug)]
pub struct Runs {
    path: PathBuf,
    running: Arc<Mutex<Option<Note>>>,
}

impl Runs {
    /// Kept in the file at `path`, whose directory is made when it is needed.
    #[must_use]
    pub fn at(path: PathBuf) -> Self {
        Self {
            path,
            running: Arc::default(),
        }
    }

    /// Notes that this boot of the machine runs. Gives how the run before ended, as far as that is known: true when
    /// the system ended it in order.
    ///
    /// # Errors
    /// When nothing can be noted; nothing is known then, now or after the next boot.
    pub fn began(&self, machine: &str, boot: &str) -> Result<Option<bool>, String> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let found = self.read().filter(|note| note.machine == machine);
        let before = found.and_then(|note| {
            // an agent that was started again within a boot knows what its predecessor knew
            if note.boot == boot {
                note.before
            } else {
                Some(note.ended)
            }
        });
        let note = Note {
            machine: machine.to_owned(),
            boot: boot.to_owned(),
            ended: false,
            before,
        };
        self.write(&note)?;
        *running = Some(note);
        Ok(before)
    }

    /// Notes that the system ends this agent. Nothing to note before [`Runs::began`].
    ///
    /// # Errors
    /// When it cannot be noted; the run then counts as cut off.
    pub fn ended(&self) -> Result<(), String> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        match &*running {
            Some(note) => self.write(&Note {
                ended: true,
                ..note.clone()
            }),
            None => Ok(()),
        }
    }

    /// The last note. One that cannot be read, torn by a power cut, says nothing.
    fn read(&self) -> Option<Note> {
        let small = fs::metadata(&self.path).is_ok_and(|about| about.is_file() && about.len() <= LARGEST);
        let bytes = small.then(|| fs::read(&self.path).ok()).flatten()?;
        serde_json::from_slice(&bytes).ok()
    }

    /// Whole, and on the disk, or not at all.
    fn write(&self, note: &Note) -> Result<(), String> {
        let written = || -> io::Result<()> {
            let directory = self.path.parent().unwrap_or(Path::new("/"));
            fs::create_dir_all(directory)?;
            let beside = self.path.with_extension("new");
            let mut file = File::create(&beside)?;
            file.write_all(&serde_json::to_vec(note)?)?;
            file.sync_all()?;
            fs::rename(&beside, &self.path)?;
            File::open(directory)?.sync_all()
        };
        written().map_err(|e| format!("{}: cannot be written: {e}", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_the_system_ended_was_clean_and_one_that_was_cut_off_was_not() {
        let dir = tempfile::tempdir().expect("a directory");
        let start = || Runs::at(dir.path().join("state/run.json"));
        let first = start();
        assert_eq!(first.began("m", "b1"), Ok(None), "there was no run before");
        first.ended().expect("noted");
        assert_eq!(start().began("m", "b2"), Ok(Some(true)));
        // an agent that crashes is started again in the same boot
        assert_eq!(start().began("m", "b2"), Ok(Some(true)));
        // the power went
        assert_eq!(start().began("m", "b3"), Ok(Some(false)));
    }

    #[test]
    fn an_agent_that_was_replaced_within_a_boot_has_not_ended_that_boot() {
        let dir = tempfile::tempdir().expect("a directory");
        let start = || Runs::at(dir.path().join("run.json"));
        let old = start();
        assert_eq!(old.began("m", "b1"), Ok(None));
        old.ended().expect("noted");
        assert_eq!(start().began("m", "b1"), Ok(None));
        assert_eq!(start().began("m", "b2"), Ok(Some(false)));
    }

    #[test]
    fn what_another_machine_or_a_torn_write_left_says_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("run.json");
        assert_eq!(Runs::at(path.clone()).began("golden", "b1"), Ok(None));
        assert_eq!(Runs::at(path.clone()).began("m", "b2"), Ok(None));
        fs::write(&path, "{\"machine\": \"m\", \"bo").expect("written");
        assert_eq!(Runs::at(path).began("m", "b3"), Ok(None));
    }

    #[test]
    fn a_disk_that_takes_no_note_is_said_by_the_files_name() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("taken"), "").expect("written");
        let runs = Runs::at(dir.path().join("taken/run.json"));
        let said = runs.began("m", "b1").expect_err("a file is no directory");
        assert!(said.contains("taken/run.json: cannot be written"), "{said}");
        assert_eq!(runs.ended(), Ok(()), "nothing began");
    }
}
