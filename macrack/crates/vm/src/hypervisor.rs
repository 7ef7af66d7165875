//! The seam to the hypervisor: as narrow as one VM needs, and true of Virtualization.framework.

use std::future::Future;
use std::io;

use macrack_wire::VmError;
use tokio::io::{AsyncRead, AsyncWrite};

/// What a VM does of its own accord.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The guest has gone down in an orderly way.
    GuestStopped,
    /// The VM broke.
    Crashed(VmError),
    /// The network card lost what it was plugged into; the VM runs on.
    NetworkLost {
        /// Why.
        error: VmError,
        /// Whether it was plugged in again.
        replugged: bool,
    },
}

/// One VM. Methods take `&self`, for a start may be under way while others are called; what is behind
/// (a dispatch queue, a child process) puts them in order.
pub trait Hypervisor: Send + Sync + 'static {
    /// The way to the guest.
    type Port: GuestPort;

    /// Judges the configuration and takes the auxiliary storage for this process alone. Until this has
    /// succeeded nothing in the VM's directory may be touched: with
    /// [`AlreadyRunning`](macrack_wire::ErrorClass::AlreadyRunning) it belongs to another process.
    fn validate(&self) -> Result<(), VmError>;

    /// Starts the VM; resolves when it runs. Called once, after `validate`.
    fn start(&self) -> impl Future<Output = Result<(), VmError>> + Send;

    /// Presses the power button: the guest may take its time, or ignore it.
    fn request_stop(&self) -> impl Future<Output = Result<(), VmError>> + Send;

    /// Pulls the plug.
    fn force_stop(&self) -> impl Future<Output = Result<(), VmError>> + Send;

    /// The next event; pending for ever when there is none. Cancel-safe.
    fn next_event(&self) -> impl Future<Output = Event> + Send;

    /// The way to the guest.
    fn guest_port(&self) -> Self::Port;
}

/// The guest's port. Connecting fails, or hangs, until the guest listens.
pub trait GuestPort: Send + Sync + 'static {
    /// A byte stream to the guest.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send;

    /// Connects. The caller brings the timeout.
    fn connect(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}
