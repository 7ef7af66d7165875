//! What of a wipe only root may do: asked of `macrack-hostd`.

use std::io;
use std::path::Path;

use macrack_wire::{HostReceipt, MacAddress};

/// Has the DHCP leases of `macs` struck out, and removed what the agent's user could not remove.
///
/// # Errors
/// When `macrack-hostd` does not answer or could not do it: the wipe is then not done.
pub(super) async fn wipe(state_dir: &Path, uid: &str, macs: &[MacAddress]) -> io::Result<HostReceipt> {
    let socket = macrack_hostd::socket(state_dir);
    #[cfg(all(feature = "sim", target_os = "linux"))]
    if !socket.exists() {
        return without_hostd(state_dir, uid, macs);
    }
    macrack_hostd::client::wipe(&socket, uid, macs).await.map_err(io::Error::other)
}

/// A simulated chassis may do without `macrack-hostd`: its lease file is its own user's.
#[cfg(all(feature = "sim", target_os = "linux"))]
fn without_hostd(state_dir: &Path, uid: &str, macs: &[MacAddress]) -> io::Result<HostReceipt> {
    let dhcp_leases = macrack_hostd::dhcp::strike_file(&state_dir.join("chassis/dhcpd_leases"), macs)?;
    Ok(HostReceipt { uid: uid.to_owned(), at: jiff::Timestamp::now(), dhcp_leases, leftovers: 0 })
}
