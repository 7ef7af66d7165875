//! One VM of Virtualization.framework.
//!
//! ```text
//!   VmDescription ─┐
//!   golden's model ├─▶ Configuration (data, golden files under tests/) ─▶ VZVirtualMachine on its queue
//!   VmDir          ┘        pure, on every system                          macOS only (module `mac`)
//! ```
//!
//! Invariants:
//! - **What a VM is made of is decided before the framework is asked** ([`configuration`], [`files`]): a wrong
//!   description is refused with the file, the field, the rule and the way out, and the same on Linux.
//! - On macOS, every object of the framework is touched on the VM's own serial queue, its last release included, and
//!   an exception of Objective-C becomes an error.
//!
//! The macOS part is type-checked for `aarch64-apple-darwin` by `ci/darwin-check.sh`. Not yet run on hardware.

pub mod configuration;
mod event;
pub mod files;
pub mod install;

#[cfg(target_os = "macos")]
mod mac;

pub use configuration::{Configuration, HostLimits};
pub use event::Event;
#[cfg(target_os = "macos")]
pub use mac::{Machine, VsockPort, host_limits, install_macos, new_machine_identifier, show};
