//! A run: one process that uses this crate, and everything that it started.
//!
//! Invariant: **a run's processes do not outlive it.** Four nets, each for what the one before it
//! cannot catch:
//!
//! 1. the guard's drop (a test ends, fails or panics);
//! 2. a hook at process exit (a `static` is never dropped, and test binaries keep their control
//!    plane in one);
//! 3. the kernel's parent-death signal (this process dies of a signal; see [`crate::spawn`]);
//! 4. the sweep: each run has a folder whose `owner.lock` it holds while it lives. The next run
//!    finds folders whose lock nobody holds, ends every process that still carries that run's mark
//!    in its environment, and removes the folder. That catches grandchildren in sessions of their
//!    own, which is what MacRack's VM processes are.
//!
//! A held lock says "alive" where a process id cannot: ids are reused, and differ between pid
//! namespaces that share a temp folder. A mark in the environment says "ours" for the same reason.

use std::fs::{self, DirBuilder, File};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, anyhow, bail};
use rustix::fs::{FlockOperation, flock};

use crate::process;

/// Set to anything, it keeps the folder of a run (logs, kubeconfigs) after the run's end, until
/// the next run sweeps.
pub const KEEP: &str = "MACRACK_TEST_KEEP";

const LOCK: &str = "owner.lock";

/// The folder and the mark of this process's run.
pub struct Run {
    dir: PathBuf,
    id: String,
    next_child: AtomicU64,
    _lock: File,
}

impl Run {
    /// The folder that holds this run's state: `<temp>/macrack-testkit-<uid>/<id>`.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The mark that all of this run's processes carry.
    pub(crate) fn mark(&self) -> &str {
        &self.id
    }

    /// A mark for one child and its descendants, unique in this run.
    pub(crate) fn child_mark(&self) -> String {
        format!("{}.{}", self.id, self.next_child.fetch_add(1, Ordering::Relaxed))
    }
}

/// This process's run; begun, after a sweep, by the first call.
///
/// # Errors
/// When the per-user folder under the temp dir cannot be made or belongs to somebody else.
pub fn current() -> Result<&'static Run> {
    static RUN: OnceLock<Result<Run, String>> = OnceLock::new();
    RUN.get_or_init(|| begin().map_err(|e| format!("{e:#}"))).as_ref().map_err(|e| anyhow!("{e}"))
}

/// Ends what killed runs of this user left behind, and says how many processes that were.
///
/// # Errors
/// As for [`current`].
pub fn sweep() -> Result<usize> {
    let root = root()?;
    let _turn = lock_turn(&root)?;
    sweep_locked(&root)
}

fn begin() -> Result<Run> {
    let root = root()?;
    // one run at a time makes or sweeps folders, so that a folder without its lock is never new
    let _turn = lock_turn(&root)?;
    let ended = sweep_locked(&root)?;
    if ended > 0 {
        eprintln!("testkit: ended what a killed run had left behind, processes: {ended}");
    }
    let id = format!("{}-{}", std::process::id(), random_word());
    let dir = root.join(&id);
    DirBuilder::new().mode(0o700).create(&dir).with_context(|| format!("make {}", dir.display()))?;
    let lock = File::create(dir.join(LOCK)).with_context(|| format!("make {}/{LOCK}", dir.display()))?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive).context("lock the run's own folder")?;
    exit::install();
    Ok(Run { dir, id, next_child: AtomicU64::new(0), _lock: lock })
}

/// Ends this run's processes and removes its folder; called by the exit hook.
fn end() {
    let Ok(run) = current() else { return };
    process::end_marked(&run.id);
    if std::env::var_os(KEEP).is_none() {
        let _ = fs::remove_dir_all(&run.dir);
    }
}

fn sweep_locked(root: &Path) -> Result<usize> {
    let mut ended = 0;
    for entry in fs::read_dir(root).with_context(|| format!("read {}", root.display()))? {
        let dir = entry.with_context(|| format!("read {}", root.display()))?.path();
        let Some(id) = dir.file_name().and_then(|n| n.to_str()) else {
            continue;
        };
        if !dir.is_dir() || owner_lives(&dir)? {
            continue;
        }
        ended += process::end_marked(id);
        match fs::remove_dir_all(&dir) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                eprintln!("testkit: cannot remove {}, left by a killed run: {e}", dir.display());
            }
            _ => {}
        }
    }
    Ok(ended)
}

fn owner_lives(dir: &Path) -> Result<bool> {
    let path = dir.join(LOCK);
    let lock = match File::open(&path) {
        Ok(lock) => lock,
        // the exit hook of its owner is removing it this moment, or died while doing so
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(e).with_context(|| format!("open {}", path.display())),
    };
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(false),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(true),
        Err(e) => Err(e).with_context(|| format!("lock {}", path.display())),
    }
}

fn lock_turn(root: &Path) -> Result<File> {
    let path = root.join("turn.lock");
    let file = File::create(&path).with_context(|| format!("make {}", path.display()))?;
    flock(&file, FlockOperation::LockExclusive).with_context(|| format!("lock {}", path.display()))?;
    Ok(file)
}

fn root() -> Result<PathBuf> {
    let uid = rustix::process::getuid().as_raw();
    let root = std::env::temp_dir().join(format!("macrack-testkit-{uid}"));
    match DirBuilder::new().mode(0o700).create(&root) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
            return Err(e).with_context(|| format!("make {}; set TMPDIR to a folder you may write", root.display()));
        }
        _ => {}
    }
    // in a temp folder that all users share, the name could have been taken by another one
    let meta = fs::symlink_metadata(&root).with_context(|| format!("look at {}", root.display()))?;
    if !meta.is_dir() || meta.uid() != uid {
        bail!("{} is not a folder of user {uid}: remove it, or set TMPDIR to a folder of your own", root.display());
    }
    Ok(root)
}

/// Eight letters and digits that no other call returns (in all likelihood).
pub(crate) fn random_word() -> String {
    let mut bits = RandomState::new().build_hasher().finish();
    (0..8)
        .map(|_| {
            let letter = char::from(b"bcdfghjklmnpqrstvwxz2456789abcde"[(bits % 32) as usize]);
            bits /= 32;
            letter
        })
        .collect()
}

#[allow(unsafe_code)]
mod exit {
    //! The one way to run code at process exit is the C library's.

    use std::ffi::c_int;

    unsafe extern "C" {
        fn atexit(hook: extern "C" fn()) -> c_int;
    }

    extern "C" fn hook() {
        // unwinding out of an extern "C" function would abort the process: keep the exit code
        let _ = std::panic::catch_unwind(super::end);
    }

    pub(super) fn install() {
        // SAFETY: `hook` is a function of the required type that lives as long as the program,
        // and does not unwind.
        let refused = unsafe { atexit(hook) };
        if refused != 0 {
            eprintln!("testkit: no exit hook could be set; the next run will sweep");
        }
    }
}
