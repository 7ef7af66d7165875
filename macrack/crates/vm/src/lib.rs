//! One process per VM.
//!
//! ```text
//!   Starting ──▶ Running ──▶ Stopping ──▶ Stopped
//!      └───────────┴────────────┴───────▶ Failed
//! ```
//!
//! A VM of Virtualization.framework lives and dies with the process that made it, and nothing adopts it.
//! So each VM has a process of its own, which the agent starts ([`launch::spawn`]), leaves alone, and
//! finds again by its directory.
//!
//! Invariants:
//! - **One task owns the VM** ([`vm`]); what it does about a request or an event is decided by a pure
//!   function ([`arbiter`]).
//! - **Nothing that a guest says ends more than the link to it** ([`guest_link`]).
//! - Whoever holds the auxiliary storage owns the directory: a second process touches nothing in it.

pub mod announce;
pub mod arbiter;
pub mod description;
pub mod guest_link;
pub mod hypervisor;
pub mod launch;
pub mod launchd;
pub mod notes;
pub mod rate;
pub mod service;
pub mod vm;

#[cfg(target_os = "macos")]
pub mod mac;
#[cfg(all(feature = "sim", target_os = "linux"))]
pub mod sim;

pub use launch::spawn;
