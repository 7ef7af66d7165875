//! From what a hypervisor said to what can be done about it: a pure table.
//!
//! Sources: `VZError.h` of Apple's Virtualization framework (codes of `VZErrorDomain`), `errno.h` of
//! Darwin and Linux for the POSIX domain, and the wording "Failed to lock auxiliary storage" as seen
//! in the field when two processes open one bundle.

use serde::{Deserialize, Serialize};

/// The domain of errors made by Virtualization.framework.
pub const VZ_DOMAIN: &str = "VZErrorDomain";
/// The domain of errors made by the operating system.
pub const POSIX_DOMAIN: &str = "NSPOSIXErrorDomain";
/// The domain of errors made by macrack-vm itself; [`INVALID_DESCRIPTION`] is its only special code.
pub const MACRACK_DOMAIN: &str = "io.macrack.vm";

/// `VZErrorVirtualMachineLimitExceeded`: the kernel already counts two macOS VMs.
pub const VZ_LIMIT: i64 = 6;
/// In [`MACRACK_DOMAIN`]: the files that the agent wrote do not describe a VM.
pub const INVALID_DESCRIPTION: i64 = 2;

/// What can be done about a failed VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ErrorClass {
    /// The kernel's quota of two is used up, or its counter is stuck. Never retried by itself.
    Limit,
    /// The description or the entitlement is wrong; the same start fails the same way.
    InvalidConfiguration,
    /// The disk image cannot be used.
    DiskImage,
    /// The host's disk is full.
    NoSpace,
    /// Another process runs this very VM: the double start was caught by the aux storage's lock.
    AlreadyRunning,
    /// The guest needs a newer macOS on the host.
    HostTooOld,
    /// Anything else; the message is all there is.
    Other,
}

/// Classifies an error. The wording is consulted before the code for the one failure that has no code
/// of its own.
pub fn classify(domain: &str, code: i64, message: &str) -> ErrorClass {
    let worded = message.to_ascii_lowercase();
    if worded.contains("lock auxiliary storage") {
        return ErrorClass::AlreadyRunning;
    }
    match (domain, code) {
        (VZ_DOMAIN, VZ_LIMIT) => ErrorClass::Limit,
        (VZ_DOMAIN, 2) | (MACRACK_DOMAIN, INVALID_DESCRIPTION) => ErrorClass::InvalidConfiguration,
        (VZ_DOMAIN, 5) => ErrorClass::DiskImage,
        (VZ_DOMAIN, 8) | (POSIX_DOMAIN, 28) => ErrorClass::NoSpace,
        (VZ_DOMAIN, 10006) => ErrorClass::HostTooOld,
        _ => ErrorClass::Other,
    }
}
