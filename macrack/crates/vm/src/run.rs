//! `macrack-vm run`: from files to a VM, and from its end to an exit code.

use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use macrack_vm::announce::Announcer;
use macrack_vm::description;
use macrack_vm::hypervisor::{GuestPort, Hypervisor};
use macrack_vm::launch::{ALREADY_RUNNING, LISTENING, OWNER_GOES, OWNER_RETRY, owner_is_going};
use macrack_vm::service::VmService;
use macrack_vm::vm::{Vm, first_report, forget_first_boot, write_start_failure};
use macrack_wire::classify::MACRACK_DOMAIN;
use macrack_wire::client::connect;
use macrack_wire::layout::MAX_SOCKET_PATH;
use macrack_wire::link::Limits;
use macrack_wire::{ErrorClass, StopCause, VmDescription, VmDir, VmError, VmReport};
use rustix::fs::Mode;
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep, timeout};

/// The grace of a stop by signal: launchd kills a job 20 seconds after it asked it to end.
const SIGNAL_GRACE: Duration = Duration::from_secs(15);
/// How long peers may take to read the last report.
const LAST_WORDS: Duration = Duration::from_secs(2);

const FORCED: u8 = 3;

#[cfg(target_os = "macos")]
use macrack_vm::mac::MacVm as Machine;
#[cfg(all(feature = "sim", target_os = "linux"))]
use macrack_vm::sim::SimulatedVm as Machine;

/// What `run` is told on its command line.
#[derive(Debug)]
pub(crate) struct Options {
    /// The VM's directory.
    pub(crate) dir: PathBuf,
    /// The guest's program, of a simulated VM.
    #[cfg(all(feature = "sim", target_os = "linux"))]
    pub(crate) guest: Option<PathBuf>,
}

pub(crate) fn main(options: &Options) -> ExitCode {
    rustix::process::umask(Mode::from_raw_mode(0o077));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let ended = match runtime {
        Ok(runtime) => runtime.block_on(run(options)),
        Err(error) => Err(error),
    };
    match ended {
        Ok(code) => code,
        Err(error) => {
            tracing::error!(dir = %options.dir.display(), %error, "macrack-vm ends");
            ExitCode::FAILURE
        }
    }
}

async fn run(options: &Options) -> io::Result<ExitCode> {
    let dir = VmDir::new(options.dir.canonicalize()?);
    let mut announcer = Announcer::new(&dir.announcement());
    let uid = dir.path().file_name().unwrap_or_default().to_string_lossy();
    let first = first_report(&uid, Timestamp::now());
    let handed = match dir.read_state() {
        Ok(last) => last.is_some_and(|last| last.first_boot_handed),
        // without it there is no telling whether the script went over; the guest's own disk decides
        Err(error) => {
            tracing::warn!(%error, "the last state is not readable");
            !dir.first_boot().exists()
        }
    };
    let (description, hypervisor) = match prepare(&dir, handed, options).await {
        Ok(prepared) => prepared,
        Err(error) => return refuse(&dir, first, error, handed, &mut announcer).await,
    };
    if handed {
        forget_first_boot(&dir)?;
    }
    let listener = match listen(&dir.socket()) {
        Ok(listener) => listener,
        Err(error) => {
            let error = VmError::new(MACRACK_DOMAIN, 1, error.to_string());
            return refuse(&dir, first, error, handed, &mut announcer).await;
        }
    };
    let (vm, service) = Vm::new(dir.clone(), hypervisor, first, handed);
    // the directory is this process' until its socket is gone: the next one would bind another in its place, and lose that
    let held = vm.hypervisor();
    let service = Arc::new(service);
    stop_on_signals(service.clone())?;
    let server = tokio::spawn(macrack_wire::serve(listener, service, Limits::VM));
    say_listening();
    announcer.listening();
    let cause = vm.run(&description).await;
    tracing::info!(?cause, "the VM has ended");
    if timeout(LAST_WORDS, server).await.is_err() {
        tracing::warn!("a peer did not read the last report");
    }
    std::fs::remove_file(dir.socket())?;
    drop(held);
    Ok(match cause {
        StopCause::GuestShutdown | StopCause::Requested => ExitCode::SUCCESS,
        StopCause::Forced => ExitCode::from(FORCED),
        StopCause::Crashed | StopCause::StartFailed => ExitCode::FAILURE,
    })
}

/// Tells the launcher, if one waits; one that was killed meanwhile is no reason to end.
fn say_listening() {
    let mut output = io::stdout().lock();
    if let Err(error) = writeln!(output, "{LISTENING}").and_then(|()| output.flush()) {
        tracing::warn!(%error, "the launcher has gone");
    }
}

/// The VM, behind this system's hypervisor.
#[cfg(target_os = "macos")]
fn machine(dir: &VmDir, description: &VmDescription, _: &Options) -> Result<Machine, VmError> {
    Ok(Machine::new(dir.clone(), description.clone()))
}

/// The VM, behind the simulated hypervisor, with a guest beside this program.
#[cfg(all(feature = "sim", target_os = "linux"))]
fn machine(dir: &VmDir, description: &VmDescription, options: &Options) -> Result<Machine, VmError> {
    let guest = match &options.guest {
        Some(guest) => guest.clone(),
        None => std::env::current_exe()
            .map_err(|error| VmError::new(MACRACK_DOMAIN, 1, error.to_string()))?
            .with_file_name("macrack-guest"),
    };
    Machine::new(dir.clone(), description.clone(), guest)
}

async fn prepare(dir: &VmDir, handed: bool, options: &Options) -> Result<(VmDescription, Machine), VmError> {
    let description = description::load(dir, handed)?;
    let hypervisor = machine(dir, &description, options)?;
    let patience = Instant::now() + OWNER_GOES;
    loop {
        match hypervisor.validate() {
            Ok(()) => return Ok((description, hypervisor)),
            Err(error)
                if error.class == ErrorClass::AlreadyRunning && owner_is_going(dir) && Instant::now() < patience =>
            {
                // nothing tells when a hypervisor's lock is given back
                sleep(OWNER_RETRY).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Ends before anything ran. If the VM runs in another process, the directory is that one's to write.
async fn refuse(
    dir: &VmDir,
    first: VmReport,
    error: VmError,
    handed: bool,
    announcer: &mut Announcer,
) -> io::Result<ExitCode> {
    tracing::error!(%error, class = ?error.class, "the VM cannot be started");
    // a description that became unreadable under a running VM is no reason to write over its state
    let served = connect(&dir.socket(), LAST_WORDS).await.is_ok();
    if served || error.class == ErrorClass::AlreadyRunning {
        announcer.held();
        return Ok(ExitCode::from(ALREADY_RUNNING));
    }
    write_start_failure(dir, first, error, handed)?;
    Ok(ExitCode::FAILURE)
}

/// Binds the control socket. The one that an earlier, killed run left behind is in the way: this process
/// holds the aux storage, so nobody serves it.
fn listen(socket: &Path) -> io::Result<UnixListener> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", socket.display()));
    let length = socket.as_os_str().as_bytes().len();
    if length > MAX_SOCKET_PATH {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "{}: {length} bytes; the path of a socket has at most {MAX_SOCKET_PATH}. Choose a shorter \
                 state directory",
                socket.display()
            ),
        ));
    }
    match std::fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(named(error)),
        _ => {}
    }
    UnixListener::bind(socket).map_err(named)
}

fn stop_on_signals<P: GuestPort>(service: Arc<VmService<P>>) -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if let Err(refusal) = service.stop(SIGNAL_GRACE).await {
                tracing::info!(%refusal, "a signal came too late");
                return;
            }
        }
    });
    Ok(())
}
