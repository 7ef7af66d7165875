//! The objects that plans create, as pure functions of class, machine, identity and platform.

pub mod bootdisk;
pub mod import;
pub mod machine;
pub mod probe;
