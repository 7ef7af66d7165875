//! Goldens in an OCI registry.
//!
//! ```text
//!   bundle ──chunk, hash, LZ4──▶ blobs ──▶ registry ──ranges──▶ hash, LZ4, hash ──▶ sparse disk
//!            push                                               pull
//! ```
//!
//! | module | duty |
//! |---|---|
//! | [`reference`] | names of goldens, pinned and tagged |
//! | [`layout`] | the manifest: Tart's layers and annotations, read and written (pure) |
//! | [`lz4`] | Apple's framing of LZ4 (pure) |
//! | [`auth`] | challenges, pull secrets (pure) |
//! | [`client`] | one registry over HTTP: tokens, redirects, mirrors, retries |
//! | [`resume`] | what an answer to a ranged request means (pure) |
//! | [`pull`], [`push`] | whole goldens, in parallel |
//!
//! Invariant: nothing that came over the network is used before its digest was checked, and no more of it
//! is kept in memory or on the disk than the manifest announced.

pub mod auth;
pub mod client;
pub mod digest;
pub mod error;
pub mod layout;
pub mod lz4;
pub mod pull;
pub mod push;
pub mod reference;
pub mod resume;
pub mod retry;
pub mod sparse;

pub use auth::Credentials;
pub use client::{Client, Options};
pub use error::{Class, Error};
pub use layout::{Facts, Golden};
pub use reference::{Reference, Target};
