//! The seam to the hypervisor: as narrow as one VM needs, and true of Virtualization.framework.

use std::future::Future;
use std::io;
use std::time::Duration;

use macrack_wire::client::Client;
use macrack_wire::link::{Limits, Link};
use macrack_wire::session::Session;
use macrack_wire::{GuestReport, GuestVerb, Role, VmError, WireError};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

pub use macrack_vz::Event;

/// How long a guest may take to take a connection for a session.
const CONNECT: Duration = Duration::from_secs(5);

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

/// A byte stream to the guest, for a session.
///
/// # Errors
/// When the guest does not take it, in 5 s or at all.
pub async fn reach<P: GuestPort>(port: &P) -> io::Result<P::Stream> {
    timeout(CONNECT, port.connect()).await?
}

/// Begins `session` with the guest at the other end of `stream`.
///
/// # Errors
/// When the guest refuses it, or is not understood.
pub async fn begin<S>(stream: S, session: Session) -> Result<Link<S>, WireError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let client: Client<_, GuestVerb, GuestReport> = Client::greet(stream, Limits::GUEST, Role::Vm, Role::Guest).await?;
    let (_, link) = client.open(GuestVerb::Open(session)).await?;
    Ok(link)
}
