//! The agent in a macOS guest. Invariant: it says what it sees and does one thing only when told: shut the system
//! down in order, once.
//!
//! ```text
//! Probe ──▶ Facts ──▶ Readiness ──▶ watch ──▶ Agent ──report──▶ collector
//!   (look.rs, about once a second)              ◀── run | shutdown ──┘
//! ```
//!
//! [`mac::MacProbe`] looks at a Mac; `directory::DirectoryProbe` reads files (feature `probe-directory`).

pub mod agent;
pub mod chance;
pub mod client;
#[cfg(feature = "probe-directory")]
pub mod directory;
pub mod facts;
pub mod lists;
pub mod look;
pub mod mac;
pub mod programs;
pub mod ready;
pub mod runs;
pub mod shutdown;
pub mod trust;
