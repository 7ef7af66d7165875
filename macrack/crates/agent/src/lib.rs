//! The Node of one Mac.
pub mod backoff;
pub mod bell;
pub mod host;
pub mod images;
pub mod life;
pub mod orders;
pub mod quota;
pub mod state_dir;
pub mod vms;
