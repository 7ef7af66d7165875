//! Thin: watches, gathers what a decision reads, carries plans out. What to do is decided in `dockerios-core`.
//!
//! ```text
//! feed ──▶ world ──route──▶ queue ──▶ gather ──▶ decide ──▶ check ──▶ act ──▶ (seen again by feed)
//! ```
//!
//! Invariants: one task decides, so ranks computed from the caches agree with each other; one pass at a time per
//! object; an object whose last write has not been seen again is not decided about; only the leader does any of it.

pub mod act;
pub mod acting;
pub mod api;
pub mod collect;
pub mod feed;
pub mod gather;
pub mod guard;
pub mod headroom;
pub mod index;
pub mod leader;
pub mod metrics;
pub mod options;
pub mod pass;
#[cfg(test)]
mod peer;
pub mod promise;
pub mod queue;
pub mod rights;
pub mod route;
pub mod run;
pub mod shelf;
pub mod source;
pub mod world;
