//! `machine.dockerios.io`: shapes, machines, warm capacity, claims.

pub mod claim;
pub mod class;
pub mod macos_machine;
pub mod pool;
