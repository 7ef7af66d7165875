//! A real Mac.
//!
//! What a Mac is, is read from what its own tools print ([`tool`]), by pure functions ([`parse`], [`processes`]) that
//! are tested on any machine; two facts that no tool tells without asking the user or root come from the system's
//! libraries (`ffi`).
//!
//! Not yet run on hardware: docs/hardware-test-plan.md says how that is made up for.

pub mod parse;
pub mod processes;
pub mod shutdown;
pub mod tool;

#[cfg(target_os = "macos")]
mod ffi;
#[cfg(target_os = "macos")]
mod this;
#[cfg(target_os = "macos")]
mod utmpx;
#[cfg(target_os = "macos")]
pub use this::Mac;
