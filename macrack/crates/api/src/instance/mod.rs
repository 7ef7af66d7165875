//! `instance.macrack.io`: the macOS VMs of a lease.
pub mod instance_class;
pub mod macos_instance;
