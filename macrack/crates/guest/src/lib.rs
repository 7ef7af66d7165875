//! The program inside a macOS guest.
//!
//! ```text
//!   AgentStarting ─▶ LoginWindow ─▶ UserSession ─(first boot done, the golden's command agrees)─▶ Ready
//! ```
//!
//! Invariant: **a first-boot script is begun at most once in the life of a clone.** What became of it
//! lies on its own disk and is written before the script begins, so a guest that went down half way
//! finds "it was running" and says Interrupted ([`first_boot`]).
//!
//! The guest listens and its host connects; what the machine is like comes through [`probe::Probe`].

pub mod boot_log;
pub mod bounded;
pub mod disk;
pub mod exec;
pub mod first_boot;
pub mod guest;
#[cfg(target_os = "macos")]
pub mod macos;
pub mod probe;
pub mod readiness;
pub mod self_check;
#[cfg(target_os = "linux")]
pub mod simulated;
pub mod terminal;
