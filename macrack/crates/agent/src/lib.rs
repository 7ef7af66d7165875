//! The Node of one Mac.
pub mod backoff;
pub mod bell;
pub mod images;
