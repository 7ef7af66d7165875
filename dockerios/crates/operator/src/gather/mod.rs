//! From the world to the facts of one decision, one file per kind. No decision is made here.

pub mod claim;
pub mod class;
pub mod identity;
pub mod identity_pool;
pub mod image;
pub mod machine;
pub mod orphan;
pub mod platform;
pub mod pool;
