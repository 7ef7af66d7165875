//! One decider per kind: facts and `now` in, a [`crate::Plan`] out. Phase is output, never input.

pub mod claim;
pub mod class;
pub mod clone_right;
pub mod identity;
pub mod identity_pool;
pub mod image;
pub mod machine;
pub mod orphan;
pub mod platform;
pub mod pool;
