//! From what a hypervisor said to what can be done about it: a pure table.
//!
//! Sources: `VZError.h` of Apple's Virtualization framework up to macOS 27 (codes of `VZErrorDomain`), `errno.h` of
//! Darwin and Linux for the POSIX domain, and what was seen in the field where a failure has no code of its own:
//! "Failed to lock auxiliary storage" when two processes open one bundle, code 1 and code -9 when the host's user has
//! no session or its keychain is locked, code 2 when the entitlement is missing.

use serde::{Deserialize, Serialize};

/// The domain of errors made by Virtualization.framework.
pub const VZ_DOMAIN: &str = "VZErrorDomain";
/// The domain of errors made by the operating system.
pub const POSIX_DOMAIN: &str = "NSPOSIXErrorDomain";
/// The domain of errors made by macrack-vm itself; its codes are the constants below.
pub const MACRACK_DOMAIN: &str = "io.macrack.vm";

/// `VZErrorVirtualMachineLimitExceeded`: the kernel already counts two macOS VMs.
pub const VZ_LIMIT: i64 = 6;
/// In [`MACRACK_DOMAIN`]: the files that the agent wrote do not describe a VM.
pub const INVALID_DESCRIPTION: i64 = 2;
/// In [`MACRACK_DOMAIN`]: another process holds this VM's directory.
pub const DIRECTORY_HELD: i64 = 4;
/// In [`MACRACK_DOMAIN`]: the disk is none that can be used.
pub const INVALID_DISK: i64 = 5;
/// In [`MACRACK_DOMAIN`]: the framework raised an exception, which says that it was misused.
pub const EXCEPTION: i64 = 9;
/// In [`MACRACK_DOMAIN`]: the host's framework does not know the golden's hardware model.
pub const HOST_TOO_OLD: i64 = 10_006;

/// What can be done about a failed VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ErrorClass {
    /// The kernel's quota of two is used up, or its counter is stuck. Never retried by itself.
    Limit,
    /// The description is wrong; the same start fails the same way.
    InvalidConfiguration,
    /// The binary is not signed with the virtualization entitlement.
    NotEntitled,
    /// The host's user has no graphical session, or its login keychain is locked.
    HostSession,
    /// The disk image cannot be used.
    DiskImage,
    /// The host's disk is full.
    NoSpace,
    /// Another process runs this very VM: the double start was caught by the aux storage's lock.
    AlreadyRunning,
    /// The guest needs a newer macOS on the host.
    HostTooOld,
    /// The VM's network failed.
    Network,
    /// The VM broke, or was asked for what its state does not allow.
    Internal,
    /// Somebody ended the work.
    Cancelled,
    /// A saved state could not be written or read.
    SavedState,
    /// The restore image, or Apple's catalogue of them, cannot be used.
    RestoreImage,
    /// The installation of macOS failed.
    Installation,
    /// A device that MacRack gives to no VM: a bug here.
    Unused,
    /// Anything else, of this release or a later one; the message is all there is.
    #[serde(other)]
    Other,
}

/// What is done about it, by whom. Exactly one per class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// The agent counts the host's VM processes; with fewer than two the counter is stuck and the Mac is quarantined.
    Count,
    /// The agent leaves the VM alone and attaches to the process that runs it.
    Attach,
    /// Nothing is tried again until somebody has changed the instance, its class or its image.
    Change,
    /// Nothing is tried again until somebody has put the host right.
    PrepareHost,
    /// Room has to be made on the host.
    MakeRoom,
    /// The instance has failed; a restart is a matter of its owner.
    Report,
    /// The installation is run again, with what the words say put right.
    InstallAgain,
}

/// A code of the framework.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    /// In [`VZ_DOMAIN`].
    pub code: i64,
    /// As `VZError.h` has it, without its prefix.
    pub name: &'static str,
    /// Its class, when the words say nothing else.
    pub class: ErrorClass,
}

const fn known(code: i64, name: &'static str, class: ErrorClass) -> Known {
    Known { code, name, class }
}

/// Every code of `VZErrorDomain`.
pub const CODES: [Known; 31] = {
    use ErrorClass as C;
    [
        known(1, "Internal", C::Internal),
        known(2, "InvalidVirtualMachineConfiguration", C::InvalidConfiguration),
        known(3, "InvalidVirtualMachineState", C::Internal),
        known(4, "InvalidVirtualMachineStateTransition", C::Internal),
        known(5, "InvalidDiskImage", C::DiskImage),
        known(VZ_LIMIT, "VirtualMachineLimitExceeded", C::Limit),
        known(7, "NetworkError", C::Network),
        known(8, "OutOfDiskSpace", C::NoSpace),
        known(9, "OperationCancelled", C::Cancelled),
        known(10, "NotSupported", C::HostTooOld),
        known(11, "Save", C::SavedState),
        known(12, "Restore", C::SavedState),
        known(10_001, "RestoreImageCatalogLoadFailed", C::RestoreImage),
        known(10_002, "InvalidRestoreImageCatalog", C::RestoreImage),
        known(10_003, "NoSupportedRestoreImagesInCatalog", C::HostTooOld),
        known(10_004, "RestoreImageLoadFailed", C::RestoreImage),
        known(10_005, "InvalidRestoreImage", C::RestoreImage),
        known(10_006, "InstallationRequiresUpdate", C::HostTooOld),
        known(10_007, "InstallationFailed", C::Installation),
        known(20_001, "NetworkBlockDeviceNegotiationFailed", C::Unused),
        known(20_002, "NetworkBlockDeviceDisconnected", C::Unused),
        known(30_001, "USBControllerNotFound", C::Unused),
        known(30_002, "DeviceAlreadyAttached", C::Unused),
        known(30_003, "DeviceInitializationFailure", C::Unused),
        known(30_004, "DeviceNotFound", C::Unused),
        known(40_001, "GuestProvisioningInvalidFullName", C::Unused),
        known(40_002, "GuestProvisioningInvalidUsername", C::Unused),
        known(40_003, "GuestProvisioningInvalidPassword", C::Unused),
        known(50_001, "EFISecureBootEnrollmentFailed", C::Unused),
        known(50_002, "EFIVariableInaccessible", C::Unused),
        // in no header: what macOS 26 says when the host's user has no key of its own (tart#1137)
        known(-9, "(security error, undocumented)", C::HostSession),
    ]
};

/// Failures that look like another one: what the words hold, lower case, and what it then is. The first row that
/// matches wins, whatever the code.
pub const WORDS: [(&str, ErrorClass); 6] = [
    ("lock auxiliary storage", ErrorClass::AlreadyRunning),
    ("com.apple.security.virtualization", ErrorClass::NotEntitled),
    ("current host key", ErrorClass::HostSession),
    ("code -25308", ErrorClass::HostSession),
    ("unable to access security information", ErrorClass::HostSession),
    ("no space left on device", ErrorClass::NoSpace),
];

/// Classifies an error. The words are consulted before the code, for the failures that have no code of their own.
pub fn classify(domain: &str, code: i64, message: &str) -> ErrorClass {
    let worded = message.to_ascii_lowercase();
    if let Some((_, class)) = WORDS.iter().find(|(words, _)| worded.contains(words)) {
        return *class;
    }
    match (domain, code) {
        (VZ_DOMAIN, code) => {
            let known = CODES.iter().find(|known| known.code == code);
            known.map_or(ErrorClass::Other, |known| known.class)
        }
        (MACRACK_DOMAIN, INVALID_DESCRIPTION) => ErrorClass::InvalidConfiguration,
        (MACRACK_DOMAIN, DIRECTORY_HELD) => ErrorClass::AlreadyRunning,
        (MACRACK_DOMAIN, INVALID_DISK) => ErrorClass::DiskImage,
        (MACRACK_DOMAIN, EXCEPTION) => ErrorClass::Internal,
        (MACRACK_DOMAIN, HOST_TOO_OLD) => ErrorClass::HostTooOld,
        (POSIX_DOMAIN, 28) => ErrorClass::NoSpace,
        _ => ErrorClass::Other,
    }
}

impl ErrorClass {
    /// Every class.
    pub const ALL: [ErrorClass; 16] = {
        use ErrorClass as C;
        [
            C::Limit,
            C::InvalidConfiguration,
            C::NotEntitled,
            C::HostSession,
            C::DiskImage,
            C::NoSpace,
            C::AlreadyRunning,
            C::HostTooOld,
            C::Network,
            C::Internal,
            C::Cancelled,
            C::SavedState,
            C::RestoreImage,
            C::Installation,
            C::Unused,
            C::Other,
        ]
    };

    /// What is done about it.
    pub fn action(self) -> Action {
        use ErrorClass as C;
        match self {
            C::Limit => Action::Count,
            C::AlreadyRunning => Action::Attach,
            C::InvalidConfiguration | C::DiskImage => Action::Change,
            C::NotEntitled | C::HostSession | C::HostTooOld => Action::PrepareHost,
            C::NoSpace => Action::MakeRoom,
            C::RestoreImage | C::Installation => Action::InstallAgain,
            C::Network | C::Internal | C::Cancelled | C::SavedState | C::Unused | C::Other => Action::Report,
        }
    }

    /// The way out, for the person who must act.
    pub fn way_out(self) -> &'static str {
        use ErrorClass as C;
        match self {
            C::Limit => {
                "the agent counts this Mac's VMs; with fewer than two the kernel's counter is stuck, and the Mac is \
                 quarantined until a reboot"
            }
            C::InvalidConfiguration => {
                "correct the InstanceClass or the image that the words name, and make the instance anew"
            }
            C::NotEntitled => {
                "sign macrack-vm with com.apple.security.virtualization; `macrack-agent doctor` shows what it carries"
            }
            C::HostSession => {
                "log the agent's user in on the Mac (automatic login) and unlock its login keychain; never run as root"
            }
            C::DiskImage => "make the instance anew; if its golden's disk is at fault, push the golden again",
            C::NoSpace => "free space on the Mac, or let goldens be evicted",
            C::AlreadyRunning => "another process runs this VM and is left alone; the agent attaches to it",
            C::HostTooOld => "upgrade macOS on the Mac, or use an image that it runs",
            C::Network => "restart the instance; if it comes again, look at the Mac's network settings and firewall",
            C::Internal => {
                "restart the instance; if every start fails so, see whether the agent's user is logged in and its \
                 keychain unlocked (`macrack-agent doctor`)"
            }
            C::Cancelled => "start it again",
            C::SavedState => "start the instance from its disk",
            C::RestoreImage => "fetch the restore image again, or name another file",
            C::Installation => "install again into a fresh folder; vm.log and Console.app on the Mac say more",
            C::Unused => "MacRack uses no such device: report this as a bug",
            C::Other => "look at vm.log on the Mac",
        }
    }
}
