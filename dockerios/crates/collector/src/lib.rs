//! The collector: hears the agents in macOS guests. Invariant: a guest speaks for its own machine only, and
//! `status.guest` of exactly that machine is all that it can change.
//!
//! ```text
//! guest ──TLS──▶ token fits the uid? ──▶ pace ──▶ bounded report ──▶ news? ──▶ status.guest
//!   ◀── run | shutdown, at once when it changed, else after 25 s ─────────────────┘
//! ```
//!
//! [`Machines`] is what it asks about machines; [`KubeMachines`] is the real one.

mod counts;
mod heard;
mod key;
mod kube_machines;
mod machines;
mod pace;
pub mod policy;
mod roster;
mod serve;
mod service;

pub use counts::{Count, Counts};
pub use key::ReportKey;
pub use kube_machines::KubeMachines;
pub use machines::{Expected, Known, Later, Look, Machines, NotRecorded, Recorded};
pub use roster::{Roster, Sighting, Stores};
pub use serve::{Collector, Limits, Options};
