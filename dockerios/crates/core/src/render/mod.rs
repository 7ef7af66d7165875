//! The objects that plans create, as pure functions of class, machine, identity and platform.

pub mod machine;
