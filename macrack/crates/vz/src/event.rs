//! What a VM tells of itself.

use macrack_wire::VmError;

/// What a VM does of its own accord.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The guest has gone down in an orderly way, or the plug was pulled as asked.
    GuestStopped,
    /// The VM broke.
    Crashed(VmError),
    /// The network card lost what it was plugged into; the VM runs on.
    NetworkLost {
        /// Why.
        error: VmError,
        /// Whether it was plugged in again.
        replugged: bool,
    },
}
