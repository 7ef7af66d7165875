//! `macrack-hostd`: root's two verbs.

use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use macrack_hostd::journal::Journal;
use macrack_hostd::power::Power;
use macrack_hostd::reboots::Reboots;
use macrack_hostd::service::{Host, serve};
use macrack_wire::layout::MAX_SOCKET_PATH;
use rustix::fs::{FlockOperation, flock};
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};

/// Does for macrack-agent the two things that need root: an approved reboot, and the wipe of what only root may remove
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Serve until SIGTERM
    Serve(Serve),
}

#[derive(Debug, clap::Args)]
struct Serve {
    /// The user that macrack-agent runs as, by number: nobody else is heard
    #[arg(long)]
    agent_uid: u32,
    /// The state directory of macrack-agent: nothing outside it is removed
    #[arg(long)]
    state_dir: PathBuf,
    /// Where socket, log and notes are kept, of root alone; by default /var/db/macrack-hostd
    #[arg(long)]
    dir: Option<PathBuf>,
    /// The leases of bootpd
    #[arg(long, default_value = "/var/db/dhcpd_leases")]
    dhcp_leases: PathBuf,
}

fn main() -> ExitCode {
    let Verb::Serve(arguments) = Cli::parse().verb;
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_target(false).with_ansi(false).init();
    match start(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("macrack-hostd: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start(arguments: &Serve) -> Result<()> {
    let named = |path: &Path| path.display().to_string();
    let state_dir = arguments.state_dir.canonicalize().with_context(|| named(&arguments.state_dir))?;
    let power = power(&state_dir)?;
    let dir = arguments.dir.clone().unwrap_or_else(|| macrack_hostd::directory(&state_dir));
    own(&dir)?;
    let lock = dir.join("hostd.lock");
    let lock_file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&lock)
        .with_context(|| named(&lock))?;
    if flock(&lock_file, FlockOperation::NonBlockingLockExclusive).is_err() {
        bail!("another macrack-hostd works on {}: end it first", dir.display());
    }
    let host = Host {
        agent_uid: arguments.agent_uid,
        state_dir,
        dhcp_leases: arguments.dhcp_leases.clone(),
        journal: Journal::new(dir.join("hostd.log")),
        reboots: Reboots::new(dir.join("reboots.json")),
        power,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let listener = listen(&dir.join(macrack_hostd::SOCKET), arguments.agent_uid)?;
        tracing::info!(agent_uid = arguments.agent_uid, dir = %dir.display(), "serves");
        tokio::select! {
            () = serve(listener, host) => {}
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        Ok(())
    })
}

/// Makes the directory, or checks that the one that is there is nobody else's to write: whoever can write beside
/// the socket could make root follow links of their own making.
fn own(dir: &Path) -> Result<()> {
    let named = || dir.display().to_string();
    DirBuilder::new().recursive(true).mode(0o700).create(dir).with_context(named)?;
    let about = fs::symlink_metadata(dir).with_context(named)?;
    let me = rustix::process::geteuid().as_raw();
    if !about.is_dir() || about.uid() != me || about.mode() & 0o022 != 0 {
        bail!(
            "{}: must be a directory that only its user may write, of user {me}: remove what is there, or correct its \
             owner and mode",
            dir.display()
        );
    }
    // the agent's user must be able to pass through it to the socket
    fs::set_permissions(dir, Permissions::from_mode(0o711)).with_context(named)
}

/// Binds the socket for the agent's user alone. The caller holds the lock, so one that is there is of an earlier life.
fn listen(socket: &Path, agent_uid: u32) -> Result<UnixListener> {
    let named = || socket.display().to_string();
    let length = socket.as_os_str().as_bytes().len();
    if length > MAX_SOCKET_PATH {
        bail!(
            "{}: {length} bytes, the path of a socket has at most {MAX_SOCKET_PATH}: shorten --dir",
            socket.display()
        );
    }
    match fs::remove_file(socket) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error).with_context(named),
        _ => {}
    }
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
    let listener = UnixListener::bind(socket).with_context(named)?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    fs::set_permissions(socket, Permissions::from_mode(0o600)).with_context(named)?;
    lchown(socket, Some(agent_uid), None).with_context(named)?;
    Ok(listener)
}

#[cfg(target_os = "macos")]
fn power(_: &Path) -> Result<Box<dyn Power>> {
    if !rustix::process::geteuid().is_root() {
        bail!("must run as root: install its LaunchDaemon, see docs/host-preparation.md");
    }
    Ok(Box::new(macrack_hostd::power::Mac))
}

#[cfg(all(feature = "sim", target_os = "linux"))]
fn power(state_dir: &Path) -> Result<Box<dyn Power>> {
    macrack_vm::sim::Chassis::open(state_dir)
        .context("this build simulates a Mac, and the state directory holds none")?;
    Ok(Box::new(macrack_hostd::power::Simulated { state_dir: state_dir.to_owned() }))
}

#[cfg(not(any(target_os = "macos", all(feature = "sim", target_os = "linux"))))]
fn power(_: &Path) -> Result<Box<dyn Power>> {
    bail!(
        "this build cannot reboot {}. On Linux, a build with the cargo feature `sim` simulates a Mac",
        std::env::consts::OS
    );
}
