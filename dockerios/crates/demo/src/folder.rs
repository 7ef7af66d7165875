//! The folder that a demo writes in, and the lock that keeps a second demo out of it.
//!
//! Invariant: `demo.lock` lies there, locked and with this process's id in it, from before the first file is touched
//! until after the last one is removed.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};

const LOCK: &str = "demo.lock";
const LOGS: &str = "logs";
/// What a demo writes beside its logs.
const PARTS: [&str; 5] = ["plane", "sim", "template", "manifests", ".kube"];
/// Tries to get hold of the lock. Each that fails is one more demo that ended just then.
const TRIES: usize = 16;

/// A folder in which no other demo works while this lives.
pub(crate) struct Folder {
    path: PathBuf,
    _lock: File,
}

impl Folder {
    /// The folder without what an earlier demo left in it; fails when a demo works in it.
    pub(crate) fn take(dir: &Path) -> Result<Folder> {
        let (path, lock) = locked(dir)?;
        clear(&path, &PARTS)?;
        clear(&path, &[LOGS])?;
        for name in [LOGS, "manifests"] {
            fs::create_dir_all(path.join(name)).with_context(|| format!("write in {}", path.display()))?;
        }
        Ok(Folder { path, _lock: lock })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes what a demo writes, and the folder when it is empty then: it was given, and may hold what is not ours.
    pub(crate) fn leave(self) -> Result<()> {
        clear(&self.path, &PARTS)?;
        clear(&self.path, &[LOGS])?;
        unlock(&self.path)?;
        let _ = fs::remove_dir(&self.path);
        Ok(())
    }

    /// Removes all but the logs; gives the error, and where the logs are that explain it.
    pub(crate) fn keep_logs(self, error: anyhow::Error) -> anyhow::Error {
        let logs = self.path.join(LOGS);
        for entry in fs::read_dir(self.path.join("plane")).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|extension| extension == "log") {
                let _ = fs::copy(&path, logs.join(entry.file_name()));
            }
        }
        // what went wrong first is what is told
        let _ = clear(&self.path, &PARTS).and_then(|()| unlock(&self.path));
        error.context(format!(
            "a step failed; everything was ended. Logs are kept in {}",
            logs.display()
        ))
    }
}

fn locked(dir: &Path) -> Result<(PathBuf, File)> {
    for _ in 0..TRIES {
        fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
        let path = dir.canonicalize().with_context(|| format!("find {}", dir.display()))?;
        let lock = path.join(LOCK);
        // not emptied: it may say who holds it
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&lock);
        let mut file = match opened {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(error).with_context(|| format!("write {}", lock.display())),
        };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(taken(&path, &mut file)),
            Err(TryLockError::Error(error)) => return Err(error).with_context(|| format!("lock {}", lock.display())),
        }
        // a demo that ended in between took the file away that is locked here
        if lies_at(&file, &lock)? {
            file.set_len(0)
                .and_then(|()| write!(file, "{}", std::process::id()))
                .with_context(|| format!("write {}", lock.display()))?;
            return Ok((path, file));
        }
    }
    bail!(
        "{}/{LOCK} is taken away again and again: start no other demo meanwhile",
        dir.display()
    )
}

/// The refusal of a second demo.
fn taken(path: &Path, lock: &mut File) -> anyhow::Error {
    let mut text = String::new();
    // not written yet in the moment in which the other one begins
    let pid = lock
        .read_to_string(&mut text)
        .ok()
        .and_then(|_| text.trim().parse::<u32>().ok());
    let (who, kill) = match pid {
        Some(pid) => (format!("pid {pid}"), format!(", or `kill {pid}`")),
        None => ("pid not known yet".to_owned(), String::new()),
    };
    anyhow!(
        "a demo runs already ({who}) and works in {}. Nothing was started. End that one first, with Ctrl-C in its \
         terminal{kill}; or give this one a folder of its own with --dir",
        path.display()
    )
}

/// Whether a path still leads to an open file.
fn lies_at(file: &File, path: &Path) -> Result<bool> {
    let of = |found: fs::Metadata| (found.dev(), found.ino());
    let open = of(file.metadata().with_context(|| format!("look at {}", path.display()))?);
    match fs::metadata(path) {
        Ok(found) => Ok(of(found) == open),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).with_context(|| format!("look at {}", path.display())),
    }
}

/// Removes folders of a demo, and nothing else that may lie there.
fn clear(path: &Path, names: &[&str]) -> Result<()> {
    for name in names {
        match fs::remove_dir_all(path.join(name)) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("remove {}/{name}", path.display()));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Takes the lock file away; the lock itself is held on until the file is closed.
fn unlock(path: &Path) -> Result<()> {
    match fs::remove_file(path.join(LOCK)) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}/{LOCK}", path.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left_by_an_earlier_one() -> Result<(tempfile::TempDir, PathBuf)> {
        let outer = tempfile::tempdir()?;
        let dir = outer.path().join("state");
        for name in PARTS.iter().chain(&[LOGS]) {
            fs::create_dir_all(dir.join(name))?;
            fs::write(dir.join(name).join("old"), "")?;
        }
        Ok((outer, dir.canonicalize()?))
    }

    #[test]
    fn a_second_demo_is_told_who_works_where_and_touches_nothing() -> Result<()> {
        let (_outer, dir) = left_by_an_earlier_one()?;
        let first = Folder::take(&dir)?;
        fs::create_dir(dir.join("plane"))?;
        let refused = Folder::take(&dir).err().context("a second one got in")?;
        let said = refused.to_string();
        let pid = std::process::id();
        let wanted = format!("a demo runs already (pid {pid}) and works in {}.", dir.display());
        assert!(said.starts_with(&wanted), "{said}");
        assert!(said.contains(&format!("`kill {pid}`")), "{said}");
        assert!(dir.join("plane").is_dir() && dir.join("logs").is_dir() && dir.join("manifests").is_dir());
        first.leave()?;
        assert!(!dir.exists());
        Folder::take(&dir)?.leave()
    }

    #[test]
    fn what_an_earlier_demo_left_goes_and_what_is_not_the_demos_stays() -> Result<()> {
        let (_outer, dir) = left_by_an_earlier_one()?;
        fs::write(dir.join("mine"), "")?;
        let folder = Folder::take(&dir)?;
        for name in PARTS.iter().chain(&[LOGS]) {
            assert!(!dir.join(name).join("old").exists(), "{name}");
        }
        folder.leave()?;
        let left: Vec<_> = fs::read_dir(&dir)?.flatten().map(|entry| entry.file_name()).collect();
        assert_eq!(left, ["mine"]);
        Ok(())
    }

    #[test]
    fn after_a_failure_the_logs_stay_and_the_next_demo_gets_in() -> Result<()> {
        let (_outer, dir) = left_by_an_earlier_one()?;
        let folder = Folder::take(&dir)?;
        fs::create_dir(dir.join("plane"))?;
        fs::write(dir.join("plane/etcd.log"), "no space")?;
        let error = folder.keep_logs(anyhow!("etcd ended"));
        let said = format!("{error:#}");
        assert!(said.contains(&format!("{}/logs: etcd ended", dir.display())), "{said}");
        assert_eq!(fs::read_to_string(dir.join("logs/etcd.log"))?, "no space");
        assert!(!dir.join("plane").exists());
        Folder::take(&dir)?.leave()
    }

    #[test]
    fn a_lock_file_that_was_taken_away_is_not_the_one_that_lies_there_now() -> Result<()> {
        let outer = tempfile::tempdir()?;
        let path = outer.path().join(LOCK);
        let old = File::create(&path)?;
        assert!(lies_at(&old, &path)?);
        unlock(outer.path())?;
        assert!(!lies_at(&old, &path)?);
        let new = File::create(&path)?;
        assert!(!lies_at(&old, &path)? && lies_at(&new, &path)?);
        Ok(())
    }
}
