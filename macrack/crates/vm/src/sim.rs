//! A simulated chassis: its hardware, its kernel and its hypervisor, shared by all processes that run on
//! it through the files of `<state directory>/chassis/`.
//!
//! It is as bad as the real thing: the kernel counts VMs and answers code 6, its counter can stick
//! until a reboot, starts fail, guests ignore their shutdown or fall silent.

mod chassis;
mod guest_disk;
mod hypervisor;
mod kernel;

pub use chassis::{Chassis, ChassisFile, ChassisSpec, Fault, Faults, HostPrepared};
pub use hypervisor::SimulatedVm;
pub use kernel::{Kernel, Occupant, Slot};
