//! The framework itself. Everything that can be decided without it is decided elsewhere in this crate.
//!
//! Not yet run on hardware.
#![allow(unsafe_code, reason = "every call of Virtualization.framework is one of Objective-C")]

mod build;
mod delegate;
mod error;
mod install;
mod machine;
mod queue;
mod window;

use macrack_wire::VmError;
use objc2::rc::autoreleasepool;
use objc2_virtualization::{VZMacMachineIdentifier, VZVirtualMachineConfiguration};

pub use install::install_macos;
pub use machine::{Machine, VsockPort};
pub use window::show;

use crate::configuration::{HostLimits, encode};

/// What this host's framework allows.
///
/// # Errors
/// When the framework raises an exception.
pub fn host_limits() -> Result<HostLimits, VmError> {
    error::caught(|| {
        // SAFETY: class properties, readable from any thread
        let (cpu_min, cpu_max, memory_min, memory_max) = unsafe {
            (
                VZVirtualMachineConfiguration::minimumAllowedCPUCount(),
                VZVirtualMachineConfiguration::maximumAllowedCPUCount(),
                VZVirtualMachineConfiguration::minimumAllowedMemorySize(),
                VZVirtualMachineConfiguration::maximumAllowedMemorySize(),
            )
        };
        HostLimits {
            cpu_min: u32::try_from(cpu_min).unwrap_or(u32::MAX),
            cpu_max: u32::try_from(cpu_max).unwrap_or(u32::MAX),
            memory_min,
            memory_max,
        }
    })
}

/// A machine identifier that no other VM has, base64 of its `dataRepresentation`.
///
/// # Errors
/// When the framework raises an exception.
pub fn new_machine_identifier() -> Result<String, VmError> {
    // SAFETY: a new object, used and released here
    error::caught(|| {
        autoreleasepool(|_| unsafe { encode(&VZMacMachineIdentifier::new().dataRepresentation().to_vec()) })
    })
}
