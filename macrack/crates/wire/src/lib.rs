//! What `macrack-agent`, `macrack-vm`, `macrack-guest` and `macrack-hostd` say to each other.
//!
//! ```text
//!   macrack-agent ──vm.sock──▶ macrack-vm ──vsock (guest.sock)──▶ macrack-guest
//!                  Describe                 Describe, Watch
//!                  Stop, Watch              RunFirstBoot, NoFirstBoot, Shutdown
//!
//!   macrack-agent ──hostd.sock──▶ macrack-hostd (root)
//!                  Reboot, Wipe
//! ```
//!
//! Invariant: **no peer can make the other one panic, grow without bound, or wait for ever.** A frame is
//! bounded before it is read ([`frame`]), a half-sent frame and an unread answer have a deadline
//! ([`link`]), the first frame says which protocol is spoken ([`hello`]), and what cannot be understood
//! is answered with an error that says so ([`message`]).
//!
//! [`layout`] names the files of one VM directory, which are the other half of the contract.

pub mod bundle;
pub mod classify;
pub mod client;
pub mod frame;
pub mod guest;
pub mod hello;
pub mod host;
pub mod journal;
pub mod layout;
pub mod link;
pub mod message;
pub mod serve;
pub mod session;
pub mod vm;

mod error;

pub use bundle::{BundleDir, BundleMachine, GoldenBundle};
pub use client::{VmClient, VmWatch};
pub use error::WireError;
pub use guest::{FirstBoot, GuestReport, GuestStage, GuestVerb, Readiness, ReadinessState};
pub use hello::{Hello, PROTOCOL, Role};
pub use host::{HostReceipt, HostReport, HostVerb};
pub use layout::VmDir;
pub use link::Link;
pub use message::{Refusal, RefusalKind};
pub use serve::{Answer, Listen, Service, serve, serve_connection};
pub use session::Session;
pub use vm::{
    Display, ErrorClass, LastState, MacAddress, StopCause, VmDescription, VmError, VmReport, VmState, VmVerb,
};
