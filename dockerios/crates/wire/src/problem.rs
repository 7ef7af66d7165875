//! What the collector answers when it does not accept a report. Invariant: one shape for every refusal.

use serde::{Deserialize, Serialize};

/// The body of every answer that is not 200.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    /// For machines.
    pub reason: Reason,
    /// For the person who reads the guest's log.
    pub message: String,
}

/// Why a report was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Reason {
    /// 400: the body is not a report of this protocol.
    Malformed,
    /// 401: no token, or one that this collector did not issue.
    Unauthorized,
    /// 403: the token belongs to another machine.
    TokenOfAnotherMachine,
    /// 404: there is no such machine (any more), or no such path.
    NotFound,
    /// 405: reports are POSTed.
    MethodNotAllowed,
    /// 408: the body did not arrive in time.
    TooSlow,
    /// 413: the body is larger than [`crate::LARGEST_REPORT`].
    TooLarge,
    /// 429: this machine reports more often than it may.
    TooOften,
    /// 503: machines cannot be read or written at the moment; nothing was decided.
    Unavailable,
    /// A reason that a newer collector gives.
    #[serde(other)]
    Other,
}
