//! `identity.dockerios.io`: what cannot be made again once it is lost.

pub mod machine_identity;
pub mod pool;
