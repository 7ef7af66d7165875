//! One decider per kind: facts and `now` in, a [`crate::Plan`] out. Phase is output, never input.

pub mod claim;
pub mod identity;
