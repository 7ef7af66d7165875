//! The two things of a Mac that need root.
//!
//! ```text
//!   macrack-agent ──hostd.sock──▶ peer's uid? ──▶ log ──▶ Reboot: used approvals ──▶ Power
//!     (its user)                                   │      Wipe:   DHCP leases, vms/<uid>
//!                                                  └─── log: outcome
//! ```
//!
//! Invariants:
//! - **Nobody but the agent's user is heard**: the socket is that user's alone, and the kernel is asked who is at
//!   the other end of every connection.
//! - **One reboot for each approval, and few a day**: an approval is noted on disk as used before the reboot begins, and
//!   what is begun is counted, for nobody can sign an approval here.
//! - **No path comes from a peer.** What a wipe removes lies below the state directory, reached from its root one
//!   directory at a time, never through a symbolic link.
//! - What cannot be written to the log is not done.

pub mod client;
pub mod dhcp;
pub mod journal;
pub mod leftovers;
pub mod power;
pub mod reboots;
pub mod service;

use std::path::{Path, PathBuf};

/// Name of the socket in the directory of `macrack-hostd`.
pub const SOCKET: &str = "hostd.sock";

/// Where `macrack-hostd` keeps its socket, its log and its notes, for the chassis of `state_dir`.
///
/// On a Mac it is one directory of root's, since an agent that could write beside the socket could make root follow
/// links of its own making. A simulated chassis is one of many on its machine and has its own.
pub fn directory(state_dir: &Path) -> PathBuf {
    if cfg!(target_os = "macos") { PathBuf::from("/var/db/macrack-hostd") } else { state_dir.join("hostd") }
}

/// The socket of `macrack-hostd` for the chassis of `state_dir`.
pub fn socket(state_dir: &Path) -> PathBuf {
    directory(state_dir).join(SOCKET)
}
