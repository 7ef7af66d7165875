//! Guards for processes. Invariant: a [`Proc`] that was dropped has ended, and so has everything it started.

use std::fs::OpenOptions;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::Signal;
use tokio::sync::watch;

use crate::run::{self, PROC, RUN};

/// How often a log is looked at for an awaited line.
const LOOK: Duration = Duration::from_millis(20);

/// A running process whose output goes to a file. Dropped, it is killed together with what it started; while a test
/// panics, the drop prints the end of its log.
pub struct Proc {
    name: String,
    mark: String,
    log: PathBuf,
    pid: u32,
    exit: watch::Receiver<Option<ExitStatus>>,
    reaper: Option<JoinHandle<()>>,
}

impl Proc {
    /// Starts `command` in a process group of its own, its output appended to `log`. It also ends when the present
    /// process does, however that ends.
    ///
    /// # Errors
    /// When the log cannot be written or the command not be started.
    pub fn spawn(name: &str, mut command: Command, log: impl AsRef<Path>) -> Result<Proc> {
        let log = log.as_ref();
        let run = run::current()?;
        let mark = format!("{}.{}", run.name(), run.next());
        let output = OpenOptions::new().create(true).append(true).open(log);
        let output = output.with_context(|| format!("open the log {} of {name}", log.display()))?;
        let errors = output
            .try_clone()
            .with_context(|| format!("open the log {} twice", log.display()))?;
        command
            .env(RUN, run.name())
            .env(PROC, &mark)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .process_group(0);
        let shown = command.get_program().to_owned();
        let mut child =
            spawn_from_lasting_thread(command).with_context(|| format!("start {name} ({})", shown.display()))?;
        let pid = child.id();
        let (tell, exit) = watch::channel(None);
        let reaper = std::thread::spawn(move || {
            if let Ok(status) = child.wait() {
                tell.send_replace(Some(status));
            }
        });
        Ok(Proc {
            name: name.to_owned(),
            mark,
            log: log.to_owned(),
            pid,
            exit,
            reaper: Some(reaper),
        })
    }

    /// The name it was given.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Where its output goes.
    pub fn log_path(&self) -> &Path {
        &self.log
    }

    /// The whole log; empty when it cannot be read.
    pub fn log(&self) -> String {
        std::fs::read(&self.log).map_or_else(|_| String::new(), |bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The last `lines` lines of the log.
    pub fn tail(&self, lines: usize) -> String {
        let log = self.log();
        let from = log.lines().count().saturating_sub(lines);
        log.lines().skip(from).map(|line| format!("  {line}\n")).collect()
    }

    /// True until it has ended.
    pub fn is_running(&self) -> bool {
        self.exit().is_none()
    }

    /// How it ended; `None` while it runs.
    pub fn exit(&self) -> Option<ExitStatus> {
        *self.exit.borrow()
    }

    /// Processes that it started and that are alive.
    pub fn descendants(&self) -> Vec<u32> {
        run::marked(PROC, &self.mark)
            .into_iter()
            .filter(|pid| *pid != self.pid)
            .collect()
    }

    /// Kills it, not what it started, and waits for its end.
    ///
    /// # Errors
    /// When it has not ended after ten seconds.
    pub async fn kill9(&self) -> Result<ExitStatus> {
        self.signal(Signal::KILL);
        self.wait(Duration::from_secs(10)).await.context("after SIGKILL")
    }

    /// Asks it to end (SIGTERM) and waits for that.
    ///
    /// # Errors
    /// When it has not ended after `limit`; with the end of its log.
    pub async fn terminate(&self, limit: Duration) -> Result<ExitStatus> {
        self.signal(Signal::TERM);
        self.wait(limit).await.context("after SIGTERM")
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// When it has not ended after `limit`; with the end of its log.
    pub async fn wait(&self, limit: Duration) -> Result<ExitStatus> {
        let mut exit = self.exit.clone();
        let ended = tokio::time::timeout(limit, exit.wait_for(Option::is_some)).await;
        match ended {
            Ok(Ok(status)) => status.ok_or_else(|| anyhow!("{} ended in an unknown way", self.name)),
            Ok(Err(_)) => bail!("{} (process {}) cannot be waited for", self.name, self.pid),
            Err(_) => bail!(
                "{} still runs after {limit:.1?}; its log ends:\n{}",
                self.name,
                self.tail(25)
            ),
        }
    }

    /// Waits until its log contains `text`.
    ///
    /// # Errors
    /// When it ends without that, or `limit` passes; with the end of its log.
    pub async fn until_logged(&self, text: &str, limit: Duration) -> Result<()> {
        let deadline = tokio::time::Instant::now() + limit;
        loop {
            // asked before the log is read: what it wrote last counts
            let exit = self.exit();
            if self.log().contains(text) {
                return Ok(());
            }
            if let Some(status) = exit {
                bail!(
                    "{} ended ({status}) without saying {text:?}; its log ends:\n{}",
                    self.name,
                    self.tail(25)
                );
            }
            if tokio::time::Instant::now() > deadline {
                bail!(
                    "{} did not say {text:?} in {limit:.1?}; its log ends:\n{}",
                    self.name,
                    self.tail(25)
                );
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    fn signal(&self, signal: Signal) {
        // once reaped, the number may be another's
        if self.is_running() {
            run::signal(self.pid, signal);
        }
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "the log of {} ({}) ends:\n{}",
                self.name,
                self.log.display(),
                self.tail(40)
            );
        }
        self.signal(Signal::KILL);
        run::kill_marked(PROC, &self.mark);
        if let Some(reaper) = self.reaper.take() {
            let _ = reaper.join();
        }
    }
}

/// True while a process with this number is there and has not ended (a zombie has).
pub fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

type Order = (Command, mpsc::Sender<std::io::Result<Child>>);

/// Starts a child from a thread that lasts as long as the process: the kernel's parent-death signal comes when the
/// *thread* that started the child ends, and a test's thread ends with the test.
fn spawn_from_lasting_thread(mut command: Command) -> Result<Child> {
    static STARTER: OnceLock<mpsc::Sender<Order>> = OnceLock::new();
    let starter = STARTER.get_or_init(|| {
        let (sender, orders) = mpsc::channel::<Order>();
        std::thread::spawn(move || {
            for (mut command, reply) in orders {
                let _ = reply.send(command.spawn());
            }
        });
        sender
    });
    die_with_parent(&mut command);
    let (reply, answer) = mpsc::channel();
    starter
        .send((command, reply))
        .map_err(|_| anyhow!("the thread that starts processes has ended"))?;
    Ok(answer.recv().context("the thread that starts processes has ended")??)
}

#[allow(unsafe_code)]
fn die_with_parent(command: &mut Command) {
    let parent = rustix::process::getpid();
    let arm = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // the parent may have ended before the signal was armed
        if rustix::process::getppid() == Some(parent) {
            Ok(())
        } else {
            Err(std::io::Error::from(rustix::io::Errno::SRCH))
        }
    };
    // SAFETY: between fork and exec only async-signal-safe calls are allowed: these are two system calls, and the
    // error is a number: nothing is allocated and no lock is taken.
    unsafe {
        command.pre_exec(arm);
    }
}
