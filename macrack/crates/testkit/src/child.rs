//! Guards for our own binaries.
//!
//! Invariant: a [`Child`] that is dropped has ended, and so has everything that it or an earlier
//! life of it started, also what moved to a session of its own - MacRack's VM processes outlive
//! their agent by design, but not the test.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::Signal;

use crate::spawn::Process;
use crate::{process, run};

/// A program to run, and how.
#[derive(Clone, Debug)]
pub struct Program {
    path: PathBuf,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    dir: Option<PathBuf>,
}

impl Program {
    /// The program at `path`; see [`bin`] for our own.
    pub fn new(path: impl Into<PathBuf>) -> Program {
        Program { path: path.into(), args: Vec::new(), env: Vec::new(), dir: None }
    }

    /// With one more argument.
    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Program {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// With more arguments.
    #[must_use]
    pub fn args<A: AsRef<OsStr>>(self, args: impl IntoIterator<Item = A>) -> Program {
        args.into_iter().fold(self, Program::arg)
    }

    /// With an environment variable, on top of the inherited ones.
    #[must_use]
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Program {
        self.env.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// In this working folder.
    #[must_use]
    pub fn current_dir(mut self, dir: impl Into<PathBuf>) -> Program {
        self.dir = Some(dir.into());
        self
    }

    /// Starts it; its output goes to `<name>-<n>.log` in the run's folder.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(self, name: &str) -> Result<Child> {
        let run = run::current()?;
        let mark = run.child_mark();
        let log = run.dir().join(format!("{name}-{}.log", mark.rsplit('.').next().unwrap_or("0")));
        let process = self.spawn(&mark, &log)?;
        Ok(Child { name: name.to_owned(), program: self, mark, process })
    }

    /// Starts it with its output in the file `log` (appended).
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_logging_to(self, name: &str, log: &Path) -> Result<Child> {
        let mark = run::current()?.child_mark();
        let process = self.spawn(&mark, log)?;
        Ok(Child { name: name.to_owned(), program: self, mark, process })
    }

    fn spawn(&self, mark: &str, log: &Path) -> Result<Process> {
        let mut command = Command::new(&self.path);
        command.args(&self.args).envs(self.env.iter().cloned());
        if let Some(dir) = &self.dir {
            command.current_dir(dir);
        }
        Process::start(command, mark, log)
    }
}

/// A running program. Dropping it ends it and everything it started; in a failing test the drop
/// also prints the end of its log.
pub struct Child {
    name: String,
    program: Program,
    mark: String,
    process: Process,
}

impl Child {
    /// Its process id (of its present life).
    pub fn pid(&self) -> i32 {
        self.process.pid
    }

    /// Where its output goes.
    pub fn log_path(&self) -> &Path {
        &self.process.log
    }

    /// Its output so far, of all its lives.
    pub fn log(&self) -> String {
        self.process.log_text()
    }

    /// True until it has ended.
    pub fn is_running(&self) -> bool {
        self.process.is_running()
    }

    /// Processes that it or an earlier life of it started and that are alive, itself not among them.
    pub fn descendants(&self) -> Vec<i32> {
        process::marked(&self.mark).into_iter().map(|p| p.pid).filter(|pid| *pid != self.process.pid).collect()
    }

    /// SIGKILLs it, and nothing that it started. Returns when it has ended.
    ///
    /// # Errors
    /// When the kernel takes more than ten seconds for it.
    pub fn kill9(&self) -> Result<()> {
        self.process.signal(Signal::KILL);
        if !self.process.wait_blocking(Duration::from_secs(10)) {
            bail!("{} (process {}) survives SIGKILL", self.name, self.pid());
        }
        Ok(())
    }

    /// SIGTERMs it and waits for its end.
    ///
    /// # Errors
    /// When it has not ended after `limit`, with the end of its log.
    pub async fn terminate(&self, limit: Duration) -> Result<ExitStatus> {
        self.process.signal(Signal::TERM);
        self.wait(limit).await.context("after SIGTERM")
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// When it has not ended after `limit`, with the end of its log.
    pub async fn wait(&self, limit: Duration) -> Result<ExitStatus> {
        match tokio::time::timeout(limit, self.process.ended()).await {
            Ok(Some(status)) => Ok(status),
            Ok(None) => bail!("nobody knows how {} ended", self.name),
            Err(_) => bail!("{} still runs after {limit:.1?}; its log ends:\n{}", self.name, self.process.log_tail(20)),
        }
    }

    /// Waits until its output contains `text`.
    ///
    /// # Errors
    /// When it ends first, or `limit` passes; with the end of its log.
    pub async fn until_logged(&self, text: &str, limit: Duration) -> Result<()> {
        let mut progress = self.process.progress();
        let logged = async {
            loop {
                let ended = progress.borrow_and_update().exit;
                if self.log().contains(text) {
                    return Ok(());
                }
                if let Some(status) = ended {
                    let tail = self.process.log_tail(20);
                    bail!("{} ended ({status}) without saying {text:?}; its log ends:\n{tail}", self.name);
                }
                progress.changed().await.map_err(|_| anyhow!("nobody reads the output of {}", self.name))?;
            }
        };
        tokio::time::timeout(limit, logged).await.unwrap_or_else(|_| {
            let tail = self.process.log_tail(20);
            Err(anyhow!("{} has not said {text:?} in {limit:.1?}; its log ends:\n{tail}", self.name))
        })
    }

    /// Starts it again after its end, as before. What earlier lives started is still its own.
    ///
    /// # Errors
    /// When it still runs or cannot be started.
    pub fn restart(&mut self) -> Result<()> {
        self.restart_as(self.program.clone())
    }

    /// Like [`Child::restart`], as another program: another version, other arguments.
    ///
    /// # Errors
    /// When it still runs or cannot be started.
    pub fn restart_as(&mut self, program: Program) -> Result<()> {
        if self.is_running() {
            bail!("{} (process {}) still runs: end it before it is started again", self.name, self.pid());
        }
        self.process = program.spawn(&self.mark, &self.process.log)?;
        self.program = program;
        Ok(())
    }

    /// Ends it and everything it started, at once.
    pub fn end(&self) {
        process::end_marked(&self.mark);
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the log of {} ends:\n{}", self.name, self.process.log_tail(40));
        }
        self.end();
    }
}

/// True while `pid` is alive.
pub fn is_alive(pid: i32) -> bool {
    process::is_alive(pid)
}

/// The folder where cargo puts this workspace's binaries: the one above the test's own.
///
/// # Errors
/// When the present executable's place is not known.
pub fn bin_dir() -> Result<PathBuf> {
    let exe = std::env::current_exe().context("find the present executable")?;
    let dir = exe.parent().ok_or_else(|| anyhow!("{} lies in no folder", exe.display()))?;
    let inner = dir.file_name().is_some_and(|name| name == "deps" || name == "examples");
    Ok(if inner { dir.parent().unwrap_or(dir) } else { dir }.to_owned())
}

/// The path of one of this workspace's binaries, for instance `macrack-agent`. It is built when it
/// is absent or older than its sources, with the features that `./test` builds it with.
///
/// # Errors
/// When cargo cannot build it; the message names the command.
pub fn bin(name: &str) -> Result<PathBuf> {
    // one build at a time; a second caller finds the binary fresh
    static BUILDING: Mutex<()> = Mutex::new(());
    let _turn = BUILDING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let dir = bin_dir()?;
    let path = dir.join(name);
    if is_fresh(&path) {
        return Ok(path);
    }
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(&workspace).args(["build", "--quiet", "--workspace", "--all-features", "--bin", name]);
    if dir.file_name().is_some_and(|profile| profile == "release") {
        command.arg("--release");
    }
    if let Some(target) = dir.parent() {
        command.arg("--target-dir").arg(target);
    }
    let shown = format!("cargo build --workspace --all-features --bin {name}");
    let output = command.output().with_context(|| format!("run `{shown}`"))?;
    if !output.status.success() || !path.is_file() {
        bail!(
            "{name} is not built and `{shown}` in {} failed:\n{}",
            workspace.display(),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(path)
}

/// True when the binary is there and no source that cargo lists in its dep-info file is newer.
fn is_fresh(path: &Path) -> bool {
    let modified = |path: &Path| std::fs::metadata(path).and_then(|m| m.modified());
    let (Ok(built), Ok(dep_info)) = (modified(path), std::fs::read_to_string(path.with_extension("d"))) else {
        return false;
    };
    sources(&dep_info).all(|source| modified(Path::new(&source)).unwrap_or(SystemTime::now()) <= built)
}

/// The sources in a dep-info file: `target: source source…`, blanks inside a path escaped.
fn sources(dep_info: &str) -> impl Iterator<Item = String> {
    let list = dep_info.split_once(": ").map_or("", |(_, list)| list);
    let marked = list.replace("\\ ", "\u{0}");
    marked.split_whitespace().map(|s| s.replace('\u{0}', " ")).collect::<Vec<_>>().into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dep_info_file_lists_sources_with_blanks_in_their_paths() {
        let listed: Vec<_> = sources("/t/debug/x: /a/b.rs /a/c\\ d.rs\n").collect();
        assert_eq!(listed, ["/a/b.rs", "/a/c d.rs"]);
    }

    #[test]
    fn an_absent_binary_is_not_fresh() {
        assert!(!is_fresh(Path::new("/nowhere/macrack-agent")));
    }
}
