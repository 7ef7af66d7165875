//! Decisions, one file per kind.
pub mod catalogue;
pub mod csr;
pub mod image;
pub mod instance;
pub mod lease;
pub mod node;
