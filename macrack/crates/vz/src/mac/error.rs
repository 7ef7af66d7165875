//! From `NSError` and exceptions to errors of ours, with everything that they say.

use std::fmt::Write;
use std::panic::AssertUnwindSafe;

use macrack_wire::VmError;
use macrack_wire::classify::{CODES, EXCEPTION, MACRACK_DOMAIN, VZ_DOMAIN};
use objc2::exception;
use objc2::rc::Retained;
use objc2_foundation::NSError;
use objc2_virtualization::VZErrorCode;

/// How deep underlying errors are followed; the real cause is often the second.
const DEPTH: usize = 4;

/// Domain, code, words, reason, and the errors below, in one line.
pub(super) fn vm_error(error: &NSError) -> VmError {
    VmError::new(&error.domain().to_string(), i64::try_from(error.code()).unwrap_or(i64::MIN), words(error, 0))
}

/// The same of a retained error, as methods return them.
pub(super) fn vm_error_of(error: Retained<NSError>) -> VmError {
    vm_error(&error)
}

fn words(error: &NSError, depth: usize) -> String {
    let mut words = error.localizedDescription().to_string();
    if let Some(reason) = error.localizedFailureReason() {
        let reason = reason.to_string();
        if !words.contains(&reason) {
            let _ = write!(words, " {reason}");
        }
    }
    if depth < DEPTH {
        for below in &error.underlyingErrors() {
            let _ = write!(words, " ({} code {}: {})", below.domain(), below.code(), self::words(&below, depth + 1));
        }
    }
    words
}

/// Runs `work`; an exception of Objective-C, which is how the framework answers misuse, becomes an error.
pub(super) fn caught<R>(work: impl FnOnce() -> R) -> Result<R, VmError> {
    // whatever `work` had in its hands when it was interrupted is dropped with the VM
    exception::catch(AssertUnwindSafe(work)).map_err(|raised| {
        let words = raised.map_or_else(|| "an exception without words".to_owned(), |raised| raised.to_string());
        VmError::new(MACRACK_DOMAIN, EXCEPTION, format!("the framework raised an exception: {words}"))
    })
}

/// As [`caught`], of work that can fail in its own way.
pub(super) fn tried<R>(work: impl FnOnce() -> Result<R, VmError>) -> Result<R, VmError> {
    caught(work).and_then(|outcome| outcome)
}

/// An error in the framework's own domain.
pub(super) fn vz(code: VZErrorCode, words: impl Into<String>) -> VmError {
    VmError::new(VZ_DOMAIN, i64::try_from(code.0).unwrap_or(i64::MIN), words)
}

/// What is said when the queue is gone before it answered.
pub(super) fn gone() -> VmError {
    vz(VZErrorCode::Internal, "the VM was let go before the framework answered")
}

/// The table of codes is the header's: a renumbered one does not compile.
const _: () = {
    const fn is(place: usize, code: VZErrorCode) {
        assert!(CODES[place].code == code.0 as i64);
    }
    is(0, VZErrorCode::Internal);
    is(1, VZErrorCode::InvalidVirtualMachineConfiguration);
    is(2, VZErrorCode::InvalidVirtualMachineState);
    is(3, VZErrorCode::InvalidVirtualMachineStateTransition);
    is(4, VZErrorCode::InvalidDiskImage);
    is(5, VZErrorCode::VirtualMachineLimitExceeded);
    is(6, VZErrorCode::NetworkError);
    is(7, VZErrorCode::OutOfDiskSpace);
    is(8, VZErrorCode::OperationCancelled);
    is(9, VZErrorCode::NotSupported);
    is(10, VZErrorCode::Save);
    is(11, VZErrorCode::Restore);
    is(12, VZErrorCode::RestoreImageCatalogLoadFailed);
    is(13, VZErrorCode::InvalidRestoreImageCatalog);
    is(14, VZErrorCode::NoSupportedRestoreImagesInCatalog);
    is(15, VZErrorCode::RestoreImageLoadFailed);
    is(16, VZErrorCode::InvalidRestoreImage);
    is(17, VZErrorCode::InstallationRequiresUpdate);
    is(18, VZErrorCode::InstallationFailed);
    is(19, VZErrorCode::NetworkBlockDeviceNegotiationFailed);
    is(20, VZErrorCode::NetworkBlockDeviceDisconnected);
    is(21, VZErrorCode::USBControllerNotFound);
    is(22, VZErrorCode::DeviceAlreadyAttached);
    is(23, VZErrorCode::DeviceInitializationFailure);
    is(24, VZErrorCode::DeviceNotFound);
};
