//! A VM's process as a job of launchd: what the job is, and how it is started and removed.
//!
//! Each VM is a job of its own, so that the end of the agent, its upgrade, or the end of any other VM takes nothing
//! with it: launchd ends the process group of a job that ends. The job is never started again by itself: whether a VM
//! runs is decided by orders, not by launchd.
//!
//! Invariant: a job whose process lives is never removed by a start.
//!
//! Compiled and tested everywhere, with a stand-in for `launchctl`; with launchd itself not yet run on hardware.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use macrack_wire::VmDir;
use serde::Serialize;

/// The beginning of the jobs' labels.
const LABEL: &str = "io.macrack.vm.";
/// What `launchctl print` exits with when there is no such job (`launchctl error 113`).
const NO_SUCH_JOB: i32 = 113;
/// Seconds between launchd's SIGTERM and its SIGKILL; a VM's own grace on a signal is less.
pub const EXIT_TIMEOUT: u32 = 20;
/// How long a removed job may take to be gone, and how often it is looked for: nothing tells.
const GONE: Duration = Duration::from_secs(EXIT_TIMEOUT as u64 + 5);
const LOOK: Duration = Duration::from_millis(50);

/// The label of the job of the VM `uid`.
pub fn label(uid: &str) -> String {
    format!("{LABEL}{uid}")
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Job<'a> {
    label: String,
    program_arguments: [&'a str; 4],
    run_at_load: bool,
    process_type: &'static str,
    abandon_process_group: bool,
    limit_load_to_session_type: &'static str,
    working_directory: &'static str,
    /// Octal 077: the VM's files are its user's alone.
    umask: u32,
    exit_time_out: u32,
    standard_out_path: &'a str,
    standard_error_path: &'a str,
}

/// The job that runs `binary` for the VM in `dir`, as a property list.
///
/// There is no `KeepAlive`: an ended VM stays ended. `Interactive` keeps the system from slowing the VM down as it
/// does with background work; `Aqua` is the session of the logged-in user, whose keychain guests need.
///
/// # Errors
/// When a path is not UTF-8, as property lists are.
pub fn job(binary: &Path, dir: &VmDir) -> io::Result<Vec<u8>> {
    let log = dir.log();
    let log = utf8(&log)?;
    let job = Job {
        label: label(uid(dir)?),
        program_arguments: [utf8(binary)?, "run", "--dir", utf8(dir.path())?],
        run_at_load: true,
        process_type: "Interactive",
        abandon_process_group: true,
        limit_load_to_session_type: "Aqua",
        working_directory: "/",
        umask: 0o077,
        exit_time_out: EXIT_TIMEOUT,
        standard_out_path: log,
        standard_error_path: log,
    };
    let mut text = Vec::new();
    plist::to_writer_xml(&mut text, &job).map_err(io::Error::other)?;
    text.push(b'\n');
    Ok(text)
}

/// The uid of the VM in `dir`.
///
/// # Errors
/// When it is not UTF-8.
pub fn uid(dir: &VmDir) -> io::Result<&str> {
    utf8(Path::new(dir.path().file_name().unwrap_or_default()))
}

fn utf8(path: &Path) -> io::Result<&str> {
    let refused =
        || io::Error::new(io::ErrorKind::InvalidInput, format!("{}: a job's paths are UTF-8", path.display()));
    path.to_str().ok_or_else(refused)
}

/// How a job stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobState {
    /// launchd does not know it.
    Absent,
    /// It is known, and has no process.
    Loaded,
    /// It is known, and this is its process.
    Running(u32),
}

/// What `launchctl print` said of a job. A process id stands there exactly while there is a process.
pub fn job_state(printed: &str) -> JobState {
    let pid = printed.lines().find_map(|line| line.trim().strip_prefix("pid = ")?.parse().ok());
    pid.map_or(JobState::Loaded, JobState::Running)
}

/// launchd, as one user reaches it.
#[derive(Debug, Clone)]
pub struct Launchd {
    launchctl: PathBuf,
    domain: String,
}

impl Launchd {
    /// The graphical session of the user `uid`, by `launchctl`.
    pub fn new(launchctl: impl Into<PathBuf>, uid: u32) -> Self {
        Launchd { launchctl: launchctl.into(), domain: format!("gui/{uid}") }
    }

    /// The graphical session of this process' user.
    pub fn of_this_user() -> Self {
        Launchd::new("/bin/launchctl", rustix::process::getuid().as_raw())
    }

    /// How the job stands.
    ///
    /// # Errors
    /// When launchd does not say: then it is neither there nor absent.
    pub fn state(&self, label: &str) -> io::Result<JobState> {
        let said = self.call(&["print", &format!("{}/{label}", self.domain)])?;
        match said.status.code() {
            Some(0) => Ok(job_state(&String::from_utf8_lossy(&said.stdout))),
            Some(NO_SUCH_JOB) => Ok(JobState::Absent),
            _ => Err(self.failed("print", &said)),
        }
    }

    /// Starts the job in the file `job`; one of its label that has ended is removed before.
    ///
    /// # Errors
    /// `AlreadyExists` when its process lives; anything else when launchd refused.
    pub fn start(&self, label: &str, job: &Path) -> io::Result<()> {
        match self.state(label)? {
            JobState::Running(pid) => {
                let words = format!("{label}: its process {pid} lives");
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, words));
            }
            JobState::Loaded => self.remove(label)?,
            JobState::Absent => {}
        }
        let said = self.call(&["bootstrap", &self.domain, utf8(job)?])?;
        said.status.success().then_some(()).ok_or_else(|| self.failed("bootstrap", &said))
    }

    /// Removes the job, its process with it if it has one, and looks that it is gone.
    ///
    /// # Errors
    /// When launchd still knows it after the time that it gives a process to end.
    pub fn remove(&self, label: &str) -> io::Result<()> {
        if self.state(label)? == JobState::Absent {
            return Ok(());
        }
        // its answer may be "in progress": whether it is gone is looked at
        let said = self.call(&["bootout", &format!("{}/{label}", self.domain)])?;
        let until = Instant::now() + GONE;
        while self.state(label)? != JobState::Absent {
            if Instant::now() >= until {
                return Err(self.failed("bootout", &said));
            }
            thread::sleep(LOOK);
        }
        Ok(())
    }

    fn call(&self, arguments: &[&str]) -> io::Result<Output> {
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", self.launchctl.display()));
        Command::new(&self.launchctl).args(arguments).stdin(Stdio::null()).output().map_err(named)
    }

    fn failed(&self, verb: &str, said: &Output) -> io::Error {
        let words = String::from_utf8_lossy(&said.stderr);
        io::Error::other(format!(
            "launchctl {verb} in {} ended with {}: {}; the agent's user must be logged in on this Mac (automatic login)",
            self.domain,
            said.status,
            words.trim()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_job_of_a_vm_is_this_property_list() {
        let dir = VmDir::new("/Users/macrack/state/vms/0a1b2c3d-0000-4000-8000-00000000b002");
        let text = String::from_utf8(job(Path::new("/usr/local/bin/macrack-vm"), &dir).unwrap()).unwrap();
        assert_eq!(text, include_str!("../tests/job.plist"), "{text}");
        assert!(!text.contains("KeepAlive"), "an ended VM stays ended");
    }

    #[test]
    fn a_path_with_markup_in_it_stays_a_path() {
        let dir = VmDir::new("/Users/a & <b>/vms/u");
        let text = job(Path::new("/bin/vm"), &dir).unwrap();
        let read: plist::Dictionary = plist::from_bytes(&text).unwrap();
        let arguments = read.get("ProgramArguments").and_then(plist::Value::as_array).unwrap();
        assert_eq!(arguments[3].as_string(), Some("/Users/a & <b>/vms/u"));
    }

    #[test]
    fn a_job_runs_exactly_while_a_process_id_is_printed() {
        let printed = "gui/501/io.macrack.vm.u = {\n\tactive count = 1\n\tpath = /Users/m/job.plist\n\tstate = running\n\n\
                       \tprogram = /usr/local/bin/macrack-vm\n\tpid = 4711\n\timmediate reason = speculative\n}\n";
        assert_eq!(job_state(printed), JobState::Running(4711));
        assert_eq!(job_state(&printed.replace("\tpid = 4711\n", "\tlast exit code = 0\n")), JobState::Loaded);
        assert_eq!(job_state(&printed.replace("4711", "none")), JobState::Loaded);
        assert_eq!(job_state(""), JobState::Loaded);
    }
}
