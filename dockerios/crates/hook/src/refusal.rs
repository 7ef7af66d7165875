//! Why a machine does not start. Invariant: a refusal names the object, the rule and the way out, and never
//! contains the key.

use std::fmt;

/// The rule that refused, for callers that count or compare; the sentence is in [`Refusal`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The VirtualMachineInstance is not JSON of the expected shape.
    VmiNotUnderstood,
    /// A required annotation is absent or empty.
    AnnotationAbsent,
    /// An annotation has a value outside its list.
    AnnotationInvalid,
    /// System disk and bootdisk are the same volume.
    SameVolume,
    /// Not UTF-8, or larger than [`crate::transform()`] accepts.
    DomainUnreadable,
    /// Not well-formed XML.
    DomainMalformed,
    /// A namespace prefix that nothing declares.
    UndeclaredPrefix,
    /// A document type declaration: entities could hide or multiply content.
    DocumentType,
    /// Well-formed, but not a domain of the kind that is expected here.
    DomainNotUnderstood,
    /// No disk has the alias of the named volume.
    DiskNotFound,
    /// More than one disk has it.
    DiskAmbiguous,
    /// The disk lacks a part that is needed, or has it twice, or is no plain disk.
    DiskNotUnderstood,
    /// The bootdisk is not on SATA.
    BootDiskNotOnSata,
    /// The system disk is on a bus that the mode does not start from.
    SystemDiskBus,
    /// Neither domain nor VirtualMachineInstance has a serial for the NVMe disk.
    SerialMissing,
    /// A serial that does not fit NVMe's field: 20 printable ASCII characters.
    SerialUnusable,
    /// A PCI address that cannot be read.
    AddressNotUnderstood,
    /// Every usable slot of bus 0 is taken.
    NoFreeSlot,
    /// The NVMe device is there already, where macOS does not look, on a taken slot, or as another device.
    Misplaced,
    /// QEMU arguments in the domain that cannot be read.
    ArgumentsNotUnderstood,
    /// An SMC with another key, or a second one.
    OtherSmc,
    /// An argument that switches PCI hotplug the other way.
    HotplugConflict,
    /// An override of the system disk that says something else.
    OverrideConflict,
    /// A vendor is wanted of a CPU that is no named model.
    CpuNotNamed,
    /// The CPU says another vendor already.
    OtherVendor,
    /// The answer did not pass the hook's own check of it.
    SelfCheck,
}

/// A domain that was not changed, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    reason: Reason,
    message: String,
}

impl Refusal {
    /// `what` names object and rule, `way_out` what the reader can do.
    pub(crate) fn new(reason: Reason, what: impl fmt::Display, way_out: impl fmt::Display) -> Self {
        Self {
            reason,
            message: format!("{what}; {way_out}"),
        }
    }

    /// The rule.
    pub fn reason(&self) -> Reason {
        self.reason
    }

    /// The same refusal without any of the secrets in its sentence.
    pub(crate) fn without(mut self, secrets: &[&str]) -> Self {
        for secret in secrets {
            if self.message.contains(secret) {
                self.message = self.message.replace(secret, "(the key)");
            }
        }
        self
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.reason, self.message)
    }
}

impl std::error::Error for Refusal {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_in_a_sentence_is_taken_out_of_it() {
        let refusal = Refusal::new(Reason::DiskNotFound, "no disk SECRET-SECRET", "name one");
        let clean = refusal.without(&["SECRET-SECRET"]);
        assert_eq!(clean.to_string(), "DiskNotFound: no disk (the key); name one");
    }
}
