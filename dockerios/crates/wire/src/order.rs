//! What the collector answers. Invariant: the revision changes whenever the order does, and is derived from the
//! machine object, so that every replica gives the same one.

use serde::{Deserialize, Serialize};

/// What the platform wants of the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Order {
    /// Go on.
    Run,
    /// Shut the system down in order, now.
    Shutdown,
}

/// The answer to an accepted report. Fields that a guest does not know are ignored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Reply {
    /// What to do.
    pub order: Order,
    /// Names this order; the guest gives it back as `seenRevision`. At most 128 bytes, opaque.
    pub revision: String,
}
