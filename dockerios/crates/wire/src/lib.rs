//! The words between the agent in a macOS guest and the collector, protocol v1. Invariant: what [`Report::parse`]
//! hands out is bounded in every string and list, so that it can be stored without looking at it again.
//!
//! One request: `POST /v1/machines/<uid>/report` with `Authorization: Bearer <token>` and a [`Report`]. The answer
//! is a long poll: it comes at once when the order differs from the one the guest has seen, else after at most
//! [`LONGEST_POLL`]. No time of the guest's clock is ever sent.

mod order;
mod problem;
mod refusal;
mod report;
mod volume;

use std::time::Duration;

pub use order::{Order, Reply};
pub use problem::{Problem, Reason};
pub use refusal::{Refusal, shown};
pub use report::{Report, Software, Stage};
pub use volume::{CA, COLLECTOR, Collector, LABEL, MACHINE_ID, SERVER_NAME, TOKEN, Token, Volume};

/// A report is not larger than this, in bytes. Sixteen times what the bounds of a [`Report`] allow in practice.
pub const LARGEST_REPORT: usize = 64 * 1024;

/// A collector does not hold an answer back for longer.
pub const LONGEST_POLL: Duration = Duration::from_secs(30);

/// An agent that has nothing new to say speaks at least this often.
pub const LONGEST_SILENCE: Duration = Duration::from_secs(30);

/// The path that a machine's guest posts to.
#[must_use]
pub fn report_path(uid: &str) -> String {
    format!("/v1/machines/{uid}/report")
}

/// Whether this can be the uid of a Kubernetes object: what may stand in a path and in a message.
#[must_use]
pub fn is_uid(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}
