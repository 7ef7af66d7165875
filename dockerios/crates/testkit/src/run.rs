//! One life of the present process: its folder, and the means by which everything it starts ends with it.
//!
//! Four means, since none covers all: guards end their process when dropped; the kernel kills children when the
//! process ends (`PR_SET_PDEATHSIG`); a guardian, a shell that waits for the end of its input, kills grandchildren
//! when it ends by whatever cause; and each start sweeps what runs whose process is gone have left, should even the
//! guardian have been killed. Processes are recognised by a variable in their environment, never by a number that the
//! kernel may have given to another.
//!
//! Folders: `<temporary folder>/dockerios-testkit-<user>/<pid>-<start time>/`. Logs stay there for a day.

use std::fs::File;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};

/// Marks every process that a run started, with the run's name.
pub(crate) const RUN: &str = "DOCKERIOS_TESTKIT_RUN";
/// Marks one process and what it started.
pub(crate) const PROC: &str = "DOCKERIOS_TESTKIT_PROC";

/// How long logs of earlier runs stay.
const KEPT: Duration = Duration::from_secs(24 * 3600);

/// Waits until its input ends, kills what carries the mark (`$1`), and drops the data of control planes under `$2`.
/// Three rounds: what is killed may have been starting another.
const GUARDIAN: &str = r#"
cat >/dev/null
for round in 1 2 3; do
  for file in $(grep -lszxF -e "$1" /proc/[0-9]*/environ); do
    pid=${file#/proc/}
    kill -KILL "${pid%/environ}"
  done
done
rm -rf "$2"/plane-*/etcd
"#;

/// The present process' run.
pub(crate) struct Run {
    name: String,
    dir: PathBuf,
    count: AtomicUsize,
    /// Locked as long as this process lives.
    _owner: File,
    /// Its input ends when this process does.
    _guardian: Mutex<Child>,
}

/// The run of the present process; begun, and leftovers swept, by the first call.
pub(crate) fn current() -> Result<&'static Run> {
    static CURRENT: OnceLock<Result<Run, String>> = OnceLock::new();
    CURRENT
        .get_or_init(|| begin().map_err(|e| format!("{e:#}")))
        .as_ref()
        .map_err(|e| anyhow!("{e}"))
}

impl Run {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// A number that this run has not given yet.
    pub(crate) fn next(&self) -> usize {
        self.count.fetch_add(1, Ordering::Relaxed)
    }

    /// A new folder, for instance `plane-0`.
    pub(crate) fn new_dir(&self, kind: &str) -> Result<PathBuf> {
        let dir = self.dir.join(format!("{kind}-{}", self.next()));
        std::fs::create_dir(&dir).with_context(|| format!("make {}", dir.display()))?;
        Ok(dir)
    }
}

fn begin() -> Result<Run> {
    let user = rustix::process::getuid().as_raw();
    let base = std::env::temp_dir().join(format!("dockerios-testkit-{user}"));
    sweep(&base);
    let pid = std::process::id();
    let name = format!("{pid}-{}", start_time(pid)?);
    let dir = base.join(&name);
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&dir)
        .with_context(|| format!("make {}", dir.display()))?;
    let owner = File::create(dir.join("owner")).with_context(|| format!("make {}/owner", dir.display()))?;
    flock(&owner, FlockOperation::LockExclusive).with_context(|| format!("lock {}/owner", dir.display()))?;
    let guardian = Command::new("sh")
        .args(["-c", GUARDIAN, "guardian", &format!("{RUN}={name}")])
        .arg(&dir)
        .env_remove(RUN)
        .env_remove(PROC)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .context("start a shell that ends what this process leaves")?;
    Ok(Run {
        name,
        dir,
        count: AtomicUsize::new(0),
        _owner: owner,
        _guardian: Mutex::new(guardian),
    })
}

/// Ends what runs of dead processes left, and removes their old folders. Whatever cannot be read is left alone.
fn sweep(base: &Path) {
    for entry in std::fs::read_dir(base).into_iter().flatten().flatten() {
        let dir = entry.path();
        let Ok(owner) = File::open(dir.join("owner")) else {
            continue;
        };
        if flock(&owner, FlockOperation::NonBlockingLockExclusive).is_err() {
            continue;
        }
        if let Some(name) = entry.file_name().to_str() {
            kill_marked(RUN, name);
        }
        let age = owner
            .metadata()
            .and_then(|data| data.modified())
            .ok()
            .and_then(|time| time.elapsed().ok());
        if age.is_some_and(|age| age > KEPT) {
            let _ = std::fs::remove_dir_all(&dir);
            continue;
        }
        for plane in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            let _ = std::fs::remove_dir_all(plane.path().join("etcd"));
        }
    }
}

/// Processes whose environment holds `variable=value`, the present one never among them.
pub(crate) fn marked(variable: &str, value: &str) -> Vec<u32> {
    let wanted = format!("{variable}={value}");
    let carries = |pid: &u32| {
        std::fs::read(format!("/proc/{pid}/environ"))
            .is_ok_and(|environ| environ.split(|byte| *byte == 0).any(|entry| entry == wanted.as_bytes()))
    };
    let own = std::process::id();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| *pid != own).filter(carries).collect()
}

/// Kills every process that carries the mark, until there is none.
pub(crate) fn kill_marked(variable: &str, value: &str) {
    // a process that cannot be killed (uninterruptible) must not hold the test for ever
    for _ in 0..100 {
        let found = marked(variable, value);
        if found.is_empty() {
            return;
        }
        for pid in found {
            signal(pid, Signal::KILL);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Sends a signal; a process that is gone is no error.
pub(crate) fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

/// In clock ticks since boot: field 22 of `/proc/<pid>/stat`, counted after the name, which may hold blanks.
fn start_time(pid: u32) -> Result<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).context("read the present process' start time")?;
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    after_name
        .split_whitespace()
        .nth(19)
        .map(str::to_owned)
        .context("the present process has no start time in /proc")
}
