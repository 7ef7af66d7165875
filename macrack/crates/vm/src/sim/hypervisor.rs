//! The simulated hypervisor of one `macrack-vm` process. Its guest is a real `macrack-guest`, a child
//! that dies with this process.
//!
//! Invariant: what the kernel, the aux storage's lock and the guest do here is done by the operating
//! system (locks, signals, sockets), so nothing of it depends on this process ending well.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use macrack_wire::classify::{POSIX_DOMAIN, VZ_DOMAIN, VZ_LIMIT};
use macrack_wire::{VmDescription, VmDir, VmError};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::{Child, Command};
use tokio::sync::watch;

use super::chassis::{Chassis, ChassisFile};
use super::guest_disk;
use super::kernel::{NoSlot, Process, Slot};
use crate::hypervisor::{Event, GuestPort, Hypervisor};

/// The words of VZError 6.
const LIMIT_REACHED: &str = "The maximum supported number of active virtual machines has been reached.";
/// How a start fails that was told to, when the code has no words of its own here.
const START_FAILED: &str = "The virtual machine failed to start.";

/// One simulated VM.
#[derive(Debug)]
pub struct SimulatedVm {
    dir: VmDir,
    description: VmDescription,
    chassis: Chassis,
    guest_binary: PathBuf,
    aux: OnceLock<File>,
    process: OnceLock<Process>,
    slot: OnceLock<Slot>,
    guest: OnceLock<Pid>,
    ended: watch::Sender<Option<Event>>,
}

impl SimulatedVm {
    /// The VM of `dir`, on the chassis two directories up, with `guest_binary` as its guest.
    pub fn new(dir: VmDir, description: VmDescription, guest_binary: PathBuf) -> Result<Self, VmError> {
        let state_dir = dir.path().parent().and_then(|vms| vms.parent());
        let state_dir = state_dir.ok_or_else(|| {
            let path = dir.path().display();
            internal(&io::Error::other(format!("{path} is not vms/<uid> of a state directory")))
        })?;
        let chassis = Chassis::open(state_dir).map_err(|error| internal(&error))?;
        Ok(SimulatedVm {
            dir,
            description,
            chassis,
            guest_binary,
            aux: OnceLock::new(),
            process: OnceLock::new(),
            slot: OnceLock::new(),
            guest: OnceLock::new(),
            ended: watch::Sender::new(None),
        })
    }

    fn check_hardware(&self, chassis: &ChassisFile) -> Result<(), VmError> {
        let (cores, memory) = (self.description.cpu_cores, self.description.memory_bytes);
        if cores > chassis.spec.cpu_cores || memory > chassis.spec.memory_bytes {
            return Err(vz(
                2,
                format!(
                    "Invalid virtual machine configuration. {cores} cores and {memory} bytes of memory \
                     are asked of a host that has {} and {}.",
                    chassis.spec.cpu_cores, chassis.spec.memory_bytes
                ),
            ));
        }
        if !chassis.spec.host_prepared.entitlement {
            return Err(vz(
                2,
                "Invalid virtual machine configuration. The process doesn't have the \
                 “com.apple.security.virtualization” entitlement.",
            ));
        }
        Ok(())
    }

    fn lock_aux(&self) -> Result<File, VmError> {
        let path = self.dir.path().join(&self.description.aux);
        let aux = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .map_err(|error| vz(2, format!("auxiliary storage {}: {error}", path.display())))?;
        match aux.try_lock() {
            Ok(()) => Ok(aux),
            Err(TryLockError::WouldBlock) => Err(vz(
                2,
                format!(
                    "Failed to lock auxiliary storage. ({POSIX_DOMAIN} code 35: Resource temporarily \
                     unavailable; another process runs this VM)"
                ),
            )),
            Err(TryLockError::Error(error)) => Err(internal(&error)),
        }
    }

    fn check_disk(&self) -> Result<(), VmError> {
        let path = self.dir.path().join(&self.description.disk);
        let bytes = path.metadata().map_err(|error| vz(5, format!("disk image {}: {error}", path.display())))?.len();
        if bytes == 0 || !bytes.is_multiple_of(512) {
            let path = path.display();
            return Err(vz(5, format!("disk image {path}: {bytes} bytes, not a multiple of 512")));
        }
        Ok(())
    }

    fn enrol(&self) -> io::Result<Process> {
        let kernel = self.chassis.kernel();
        let lock = kernel.lock()?;
        kernel.enrol(&lock, &self.chassis.read()?, &self.description.uid)
    }

    fn take_slot(&self) -> Result<Slot, NoSlot> {
        let kernel = self.chassis.kernel();
        let lock = kernel.lock()?;
        let process = self.process.get().ok_or_else(|| io::Error::other("started before it was validated"))?;
        let chassis = self.chassis.read()?;
        kernel.take_slot(&lock, &chassis, process, &self.description.uid)
    }

    fn boot_guest(&self) -> io::Result<()> {
        guest_disk::mount(&self.dir, &self.description, &self.chassis.file())?;
        let child = Command::new(&self.guest_binary)
            .arg("--root")
            .arg(self.dir.guest_root())
            .arg("--listen")
            .arg(self.dir.guest_socket())
            .arg("--dies-with")
            .arg(std::process::id().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| {
                let binary = self.guest_binary.display();
                io::Error::new(error.kind(), format!("guest {binary}: {error}"))
            })?;
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
        if let Some(pid) = pid.and_then(Pid::from_raw) {
            // set once: a VM starts once
            let _ = self.guest.set(pid);
        }
        tokio::spawn(await_end(child, self.ended.clone()));
        Ok(())
    }

    /// Signals the guest, unless it has ended and been reaped: then its number is nobody's, or another's.
    fn signal(&self, signal: Signal) -> Result<(), VmError> {
        match self.guest.get() {
            Some(pid) if self.ended.borrow().is_none() => {
                kill_process(*pid, signal).map_err(|error| internal(&error.into()))
            }
            Some(_) => Ok(()),
            None => Err(vz(3, "Invalid virtual machine state. It does not run.")),
        }
    }
}

async fn await_end(mut child: Child, ended: watch::Sender<Option<Event>>) {
    let event = match child.wait().await {
        Ok(status) => meaning(status),
        Err(error) => Event::Crashed(internal(&error)),
    };
    ended.send_replace(Some(event));
}

/// A guest that shut down exits with success. One that the power button hit before it could listen to
/// it is simply off.
fn meaning(status: ExitStatus) -> Event {
    if status.success() || status.signal() == Some(Signal::TERM.as_raw()) {
        return Event::GuestStopped;
    }
    Event::Crashed(vz(1, format!("The virtual machine stopped unexpectedly. (guest: {status})")))
}

impl Hypervisor for SimulatedVm {
    type Port = SimulatedPort;

    fn validate(&self) -> Result<(), VmError> {
        let aux = self.lock_aux()?;
        // validated once, by the one process that holds the lock from here on
        let _ = self.aux.set(aux);
        self.check_disk()?;
        let chassis = self.chassis.read().map_err(|error| internal(&error))?;
        self.check_hardware(&chassis)?;
        let process = self.enrol().map_err(|error| internal(&error))?;
        let _ = self.process.set(process);
        Ok(())
    }

    async fn start(&self) -> Result<(), VmError> {
        let faults = self.chassis.faults().map_err(|error| internal(&error))?;
        tokio::time::sleep(Duration::from_millis(faults.start_delay_millis)).await;
        if let Some(code) = faults.fail_start_with {
            let words = if code == VZ_LIMIT { LIMIT_REACHED } else { START_FAILED };
            return Err(vz(code, words));
        }
        let slot = self.take_slot().map_err(|none| match none {
            NoSlot::Limit => vz(VZ_LIMIT, LIMIT_REACHED),
            NoSlot::Rebooted => vz(1, "The host went down while the virtual machine started."),
            NoSlot::Io(error) => internal(&error),
        })?;
        let _ = self.slot.set(slot);
        self.boot_guest().map_err(|error| internal(&error))
    }

    async fn request_stop(&self) -> Result<(), VmError> {
        self.signal(Signal::TERM)
    }

    async fn force_stop(&self) -> Result<(), VmError> {
        self.signal(Signal::KILL)
    }

    async fn next_event(&self) -> Event {
        let mut ended = self.ended.subscribe();
        loop {
            if let Some(event) = ended.borrow_and_update().clone() {
                return event;
            }
            // the sender lives in `self`, so this only ever wakes for a change
            if ended.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    fn guest_port(&self) -> SimulatedPort {
        SimulatedPort { socket: self.dir.guest_socket(), chassis: self.chassis.clone() }
    }
}

/// The guest's port, over a unix socket.
#[derive(Debug)]
pub struct SimulatedPort {
    socket: PathBuf,
    chassis: Chassis,
}

impl GuestPort for SimulatedPort {
    type Stream = UnixStream;

    async fn connect(&self) -> io::Result<UnixStream> {
        let guest = UnixStream::connect(&self.socket).await?;
        let (host, near) = UnixStream::pair()?;
        let (from_guest, to_guest) = guest.into_split();
        let (from_host, to_host) = near.into_split();
        tokio::spawn(pump(from_guest, to_host, self.chassis.clone()));
        tokio::spawn(pump(from_host, to_guest, self.chassis.clone()));
        Ok(host)
    }
}

/// Carries bytes until either side ends; swallows them while the chassis loses its guests.
async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, chassis: Chassis) {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let Ok(count @ 1..) = from.read(&mut buffer).await else {
            return;
        };
        let lost = chassis.faults().is_ok_and(|faults| faults.lose_guest);
        if !lost && to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}

fn vz(code: i64, message: impl Into<String>) -> VmError {
    VmError::new(VZ_DOMAIN, code, message)
}

/// A failure of the simulation itself.
fn internal(error: &io::Error) -> VmError {
    match error.raw_os_error() {
        Some(code) => VmError::new(POSIX_DOMAIN, code.into(), error.to_string()),
        None => vz(1, error.to_string()),
    }
}
