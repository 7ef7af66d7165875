//! A simulated macOS guest: a directory stands for the mounted disk, timers for the boot, SIGTERM for
//! the power button.
//!
//! Invariant: it dies with the process that owns its VM, whatever that one dies of, as the guest of a
//! `VZVirtualMachine` does; a script that it runs dies with it.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use macrack_wire::GuestStage;
use macrack_wire::layout::read_json;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::disk;
use crate::probe::{Facts, Probe, Session};

/// The file in the root that says how this guest behaves; absent means the defaults.
pub const SIMULATION: &str = "simulation.json";

/// How a simulated guest behaves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Simulation {
    /// Milliseconds from start to the login window.
    pub login_window_after_millis: u64,
    /// Milliseconds from the login window to a user's session.
    pub user_session_after_millis: u64,
    /// The stage that this boot never leaves.
    pub hold_at: Option<GuestStage>,
    /// The addresses that it reports.
    pub addresses: Vec<IpAddr>,
    /// What tells this machine from other clones of its disk.
    pub machine: String,
    /// What it says of Xcode's first launch.
    pub first_launch_accepted: Option<bool>,
    /// What it says of its system volume.
    pub system_sealed: Option<bool>,
    /// A JSON file whose `faults` are [`StopFaults`], read whenever a stop is asked for.
    pub faults: Option<PathBuf>,
}

impl Default for Simulation {
    fn default() -> Self {
        Simulation {
            login_window_after_millis: 50,
            user_session_after_millis: 50,
            hold_at: None,
            addresses: Vec::new(),
            machine: String::new(),
            first_launch_accepted: None,
            system_sealed: None,
            faults: None,
        }
    }
}

impl Simulation {
    /// What lies in the directory `root`.
    fn read(root: &Path) -> io::Result<Self> {
        match read_json(&root.join(SIMULATION)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Simulation::default()),
            simulation => simulation,
        }
    }

    fn facts(&self, root: &Path) -> Facts {
        let disk_free_bytes =
            disk::free_bytes(root).inspect_err(|error| tracing::warn!(%error, "free space cannot be read")).ok();
        Facts {
            os_version: disk::os_version(root),
            xcode_version: disk::newest_xcode(root).map(|xcode| xcode.version),
            disk_free_bytes,
            addresses: self.addresses.clone(),
            first_launch_accepted: self.first_launch_accepted,
            system_sealed: self.system_sealed,
        }
    }
}

/// How a simulated guest fails to stop.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StopFaults {
    /// It acknowledges a shutdown and keeps running.
    pub ignore_stop: bool,
    /// It takes this long to go down.
    pub slow_stop_millis: u64,
}

#[derive(Deserialize)]
struct FaultsFile {
    #[serde(default)]
    faults: StopFaults,
}

/// The machine.
#[derive(Debug)]
pub struct SimulatedMac {
    root: PathBuf,
    simulation: Simulation,
    sessions: watch::Receiver<Session>,
    /// Cancelled when the power goes off.
    off: CancellationToken,
}

impl SimulatedMac {
    /// Boots the machine whose disk is the directory `root`. Needs a tokio runtime.
    pub fn boot(root: &Path) -> io::Result<Self> {
        let simulation = Simulation::read(root)?;
        let (session, sessions) = watch::channel(Session::None);
        let off = CancellationToken::new();
        tokio::spawn(come_up(simulation.clone(), session, off.clone()));
        Ok(SimulatedMac { root: root.to_owned(), simulation, sessions, off })
    }

    /// What a machine with the disk `root` would say, without starting it.
    pub fn look(root: &Path) -> io::Result<(Session, Facts)> {
        Ok((Session::None, Simulation::read(root)?.facts(root)))
    }

    /// Resolves when the power goes off.
    pub async fn powered_off(&self) {
        self.off.cancelled().await;
    }

    /// Serves the power button until the power goes off.
    pub async fn power_button(&self) -> io::Result<()> {
        let mut presses = signal(SignalKind::terminate())?;
        loop {
            tokio::select! {
                () = self.off.cancelled() => return Ok(()),
                _ = presses.recv() => self.shut_down()?,
            }
        }
    }

    fn stop_faults(&self) -> io::Result<StopFaults> {
        match &self.simulation.faults {
            Some(path) => Ok(read_json::<FaultsFile>(path)?.faults),
            None => Ok(StopFaults::default()),
        }
    }
}

async fn come_up(simulation: Simulation, session: watch::Sender<Session>, off: CancellationToken) {
    let steps = [
        (GuestStage::AgentStarting, simulation.login_window_after_millis, Session::LoginWindow),
        (GuestStage::LoginWindow, simulation.user_session_after_millis, Session::User),
    ];
    for (leaves, after, reaches) in steps {
        if simulation.hold_at == Some(leaves) {
            break;
        }
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(after)) => session.send_replace(reaches),
            () = off.cancelled() => return,
        };
    }
    off.cancelled().await;
}

impl Probe for SimulatedMac {
    fn sessions(&self) -> watch::Receiver<Session> {
        self.sessions.clone()
    }

    fn facts(&self) -> Facts {
        self.simulation.facts(&self.root)
    }

    fn machine(&self) -> io::Result<String> {
        Ok(self.simulation.machine.clone())
    }

    /// The user of a simulated guest is whoever runs it; its home is the disk.
    fn as_user(&self, program: Command) -> io::Result<Command> {
        if *self.sessions.borrow() != Session::User {
            return Err(io::Error::new(io::ErrorKind::NotFound, "nobody is logged in"));
        }
        let mut command = Command::new("/proc/self/exe");
        command
            .arg("script")
            .arg(std::process::id().to_string())
            .arg(program.get_program())
            .args(program.get_args())
            .current_dir(program.get_current_dir().unwrap_or(&self.root))
            .env("HOME", &self.root)
            .env("PATH", format!("{}:/usr/bin:/bin:/usr/sbin:/sbin", self.root.join("usr/bin").display()))
            .envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
        Ok(command)
    }

    fn hand_over(&self, _path: &Path) -> io::Result<()> {
        Ok(())
    }

    fn shut_down(&self) -> io::Result<()> {
        let faults = self.stop_faults()?;
        if faults.ignore_stop {
            tracing::warn!("a shutdown is ignored, as this chassis is told to");
            return Ok(());
        }
        let off = self.off.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(faults.slow_stop_millis)).await;
            off.cancel();
        });
        Ok(())
    }
}

/// Makes this process die when its parent does. The parent must be `parent`, and must have started
/// this process from a thread that lives as long as itself; if it is gone already, this is an error.
pub fn die_with(parent: u32) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let expected = i32::try_from(parent).ok().and_then(Pid::from_raw);
    if expected.is_none() || getppid() != expected {
        let message = format!("process {parent}, whose guest this is, has gone");
        return Err(io::Error::new(io::ErrorKind::NotFound, message));
    }
    Ok(())
}
