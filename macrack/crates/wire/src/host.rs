//! What the agent asks of `macrack-hostd`, the only part that runs as root.
//!
//! Invariant: there are two verbs, and neither carries a path. What root touches is derived from a uid and from
//! MAC addresses, whose forms leave no room for anything else.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::vm::MacAddress;

/// The longest reason of a reboot that is taken, in characters.
pub const MAX_REASON: usize = 256;

/// Most MAC addresses that one wipe names: a VM has one.
pub const MAX_MACS: usize = 4;

/// What the agent asks of `macrack-hostd`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all_fields = "camelCase")]
pub enum HostVerb {
    /// Reboot the Mac, once for each approval. Refused as
    /// [`Repeated`](crate::RefusalKind::Repeated) when this approval, or a later one, was used before.
    Reboot {
        /// `MacNode.status.reboot.requestedAt`, which names the approval.
        requested_at: Timestamp,
        /// For the log, at most [`MAX_REASON`] characters.
        reason: String,
    },
    /// Destroy what only root may of one VM: its DHCP leases, and files in its directory that the agent's user
    /// could not remove. Repeating it is harmless.
    Wipe {
        /// The instance's uid.
        uid: String,
        /// Its addresses, at most [`MAX_MACS`].
        #[serde(default)]
        mac_addresses: Vec<MacAddress>,
    },
}

/// What `macrack-hostd` answers: what the last request on this connection did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "did", rename_all_fields = "camelCase")]
pub enum HostReport {
    /// Nothing was asked yet.
    Nothing,
    /// The reboot has begun.
    Rebooting {
        /// The approval that was used.
        requested_at: Timestamp,
    },
    /// The wipe is done and was looked over afterwards.
    Wiped(HostReceipt),
}

/// What a wipe by root did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostReceipt {
    /// The instance's uid.
    pub uid: String,
    /// When it was done, by the host's clock.
    pub at: Timestamp,
    /// DHCP leases that were struck out.
    pub dhcp_leases: u32,
    /// Files and directories that were removed.
    pub leftovers: u32,
}
