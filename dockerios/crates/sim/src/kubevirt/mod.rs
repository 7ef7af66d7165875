//! Plays virt-controller, and virt-api's refusals.

pub(crate) mod admission;
pub(crate) mod launcher;
mod vm;
mod vmi;

pub(crate) use vm::machine;
pub(crate) use vmi::instance;
