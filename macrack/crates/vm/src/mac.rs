//! The real hypervisor behind the seam: what `macrack-vz` makes, as a VM process holds it.
//!
//! Invariant: from `validate` on, this process alone holds the VM's directory, by a lock on `vm.json`, which nothing
//! ever writes again. The framework's own lock on the auxiliary storage comes on top: it also tells of programs that
//! know nothing of MacRack.
//!
//! Not yet run on hardware.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::OnceLock;

use macrack_vz::configuration::instance;
use macrack_vz::files::{check, temporary_directories};
use macrack_vz::{Machine, VsockPort, host_limits};
use macrack_wire::classify::{DIRECTORY_HELD, MACRACK_DOMAIN};
use macrack_wire::guest::VSOCK_PORT;
use macrack_wire::{VmDescription, VmDir, VmError};
use tokio::net::UnixStream;

use crate::hypervisor::{Event, GuestPort, Hypervisor};

/// One VM of Virtualization.framework.
#[derive(Debug)]
pub struct MacVm {
    dir: VmDir,
    description: VmDescription,
    held: OnceLock<File>,
    machine: OnceLock<Machine>,
}

impl MacVm {
    /// The VM of `dir`; nothing is opened yet.
    pub fn new(dir: VmDir, description: VmDescription) -> Self {
        MacVm { dir, description, held: OnceLock::new(), machine: OnceLock::new() }
    }

    fn hold(&self) -> Result<File, VmError> {
        let path = self.dir.description();
        let failed = |error: io::Error| VmError::os(path.display(), &error);
        let file = File::open(&path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(TryLockError::WouldBlock) => {
                let words = format!("{}: another process runs this VM", self.dir.path().display());
                Err(VmError::new(MACRACK_DOMAIN, DIRECTORY_HELD, words))
            }
            Err(TryLockError::Error(error)) => Err(failed(error)),
        }
    }

    fn machine(&self) -> Result<&Machine, VmError> {
        self.machine.get().ok_or_else(|| VmError::new(MACRACK_DOMAIN, 1, "used before it was validated"))
    }
}

impl Hypervisor for MacVm {
    type Port = MacPort;

    fn validate(&self) -> Result<(), VmError> {
        if self.held.get().is_none() {
            let held = self.hold()?;
            // set once: validated by one task
            let _ = self.held.set(held);
        }
        let host = host_limits()?;
        let configuration = instance(&self.description, &self.dir, &host)?;
        check(&configuration, &temporary_directories())?;
        let _ = self.machine.set(Machine::new(&configuration)?);
        Ok(())
    }

    async fn start(&self) -> Result<(), VmError> {
        self.machine()?.start().await
    }

    async fn request_stop(&self) -> Result<(), VmError> {
        self.machine()?.request_stop().await
    }

    async fn force_stop(&self) -> Result<(), VmError> {
        self.machine()?.stop().await
    }

    async fn next_event(&self) -> Event {
        match self.machine.get() {
            Some(machine) => machine.next_event().await,
            None => std::future::pending().await,
        }
    }

    fn guest_port(&self) -> MacPort {
        MacPort(self.machine.get().map(|machine| machine.vsock(VSOCK_PORT)))
    }
}

/// The guest's port, over vsock.
#[derive(Debug)]
pub struct MacPort(Option<VsockPort>);

impl GuestPort for MacPort {
    type Stream = UnixStream;

    async fn connect(&self) -> io::Result<UnixStream> {
        let port = self.0.as_ref().ok_or_else(|| io::Error::other("the VM was not validated"))?;
        let descriptor = port.connect().await.map_err(|error| io::Error::other(error.to_string()))?;
        // a stream socket is read and written the same whatever its family
        let stream = StdUnixStream::from(descriptor);
        stream.set_nonblocking(true)?;
        UnixStream::from_std(stream)
    }
}
