//! The agent's side of `hostd.sock`.

use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use macrack_wire::client::{Client, connect};
use macrack_wire::link::Limits;
use macrack_wire::{HostReceipt, HostReport, HostVerb, MacAddress, RefusalKind, Role, WireError};
use tokio::net::UnixStream;

/// How long `macrack-hostd` may take to answer: it ends VMs and removes files, and waits for nobody.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why `macrack-hostd` did not do as asked.
#[derive(Debug, thiserror::Error)]
pub enum HostdError {
    /// This approval was used before. Nothing was done; ask for nothing more with it.
    #[error("{0}")]
    Repeated(String),
    /// Understood and refused. Nothing was done.
    #[error("macrack-hostd refuses: {0}")]
    Refused(String),
    /// Nobody answers at the socket. Nothing was done.
    #[error("macrack-hostd does not answer ({0}): load its LaunchDaemon, see docs/host-preparation.md")]
    NotThere(WireError),
    /// The conversation broke off; it may have been done. Asking again is safe: a reboot is not begun twice.
    #[error("macrack-hostd: {0}")]
    Broken(WireError),
}

type Hostd = Client<UnixStream, HostVerb, HostReport>;

async fn greet(socket: &Path) -> Result<Hostd, HostdError> {
    let stream = connect(socket, PATIENCE).await.map_err(HostdError::NotThere)?;
    Client::greet(stream, Limits::VM.patient(PATIENCE), Role::Agent, Role::Hostd).await.map_err(HostdError::NotThere)
}

async fn ask(socket: &Path, verb: HostVerb) -> Result<HostReport, HostdError> {
    greet(socket).await?.ask(verb).await.map_err(|error| match error {
        WireError::Refused(refusal) if refusal.kind == RefusalKind::Repeated => HostdError::Repeated(refusal.message),
        WireError::Refused(refusal) => HostdError::Refused(refusal.message),
        other => HostdError::Broken(other),
    })
}

/// Reboots the Mac with the approval that `requested_at` names. Returns when the reboot has begun; may be asked
/// again after anything but success, also by a later life of the agent: an approval is used once.
///
/// # Errors
/// [`HostdError::Repeated`] when the approval was used before, and as the other kinds say.
pub async fn reboot(socket: &Path, requested_at: Timestamp, reason: &str) -> Result<(), HostdError> {
    let reason = reason.chars().take(macrack_wire::host::MAX_REASON).collect();
    match ask(socket, HostVerb::Reboot { requested_at, reason }).await? {
        HostReport::Rebooting { .. } => Ok(()),
        other => Err(unexpected(&other)),
    }
}

/// Destroys what only root may of the VM `uid`.
///
/// # Errors
/// As the kinds say; what was destroyed stays destroyed, and asking again goes on.
pub async fn wipe(socket: &Path, uid: &str, mac_addresses: &[MacAddress]) -> Result<HostReceipt, HostdError> {
    let verb = HostVerb::Wipe { uid: uid.to_owned(), mac_addresses: mac_addresses.to_vec() };
    match ask(socket, verb).await? {
        HostReport::Wiped(receipt) if receipt.uid == uid => Ok(receipt),
        other => Err(unexpected(&other)),
    }
}

fn unexpected(report: &HostReport) -> HostdError {
    HostdError::Broken(WireError::OutOfBounds(format!("it answered {report:?} to something else")))
}
