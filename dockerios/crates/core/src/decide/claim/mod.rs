//! `MacOSMachineClaim`: who gets which machine, and until when.

mod hold;

pub use hold::{let_go, orphaned};
