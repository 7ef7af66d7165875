//! What is on a Mac of VMs that no instance has: which slot it keeps, in words.

use macrack_api::{
    MacNodeStatus,
    rack::node::{Slot, VmState},
};

/// What stands in such a slot where others have an instance's namespace and name.
pub(super) const NAMESPACE: &str = "none";
pub(super) const NAME: &str = "orphan";
/// So many are named, the rest is counted.
const NAMED: usize = 2;

/// Whether the remains of a VM are wiped in this slot that no instance has.
pub(crate) fn is_remains(slot: &Slot) -> bool {
    (slot.namespace.as_str(), slot.name.as_str()) == (NAMESPACE, NAME)
}

/// What the agent says of a VM.
pub(crate) fn state(status: &MacNodeStatus, uid: &str) -> Option<VmState> {
    status.agent.as_ref()?.vms.iter().find(|vm| vm.uid == uid).map(|vm| vm.state)
}

/// The remains in a slot: which, how far they are, and what is to come.
pub(crate) fn in_slot(status: &MacNodeStatus, slot: &Slot) -> String {
    let state = state(status, &slot.uid).map_or("not reported yet".to_owned(), |state| format!("{state:?}"));
    format!("slot {} is kept by the remains of VM {} ({state}), which are wiped first", slot.slot, slot.uid)
}

/// All of them on a Mac; `None` without any.
pub(super) fn words(status: &MacNodeStatus) -> Option<String> {
    let kept = status.slots.iter().filter(|slot| is_remains(slot)).map(|slot| in_slot(status, slot));
    let vms = status.agent.as_ref().map(|agent| agent.vms.as_slice()).unwrap_or_default();
    let bare = vms.iter().filter(|vm| vm.state != VmState::Wiped && status.slots.iter().all(|s| s.uid != vm.uid));
    let bare = bare.map(|vm| format!("VM {} ({:?}) has no slot yet", vm.uid, vm.state));
    let mut all: Vec<String> = kept.chain(bare).collect();
    let more = all.len().saturating_sub(NAMED);
    all.truncate(NAMED);
    if more > 0 {
        all.push(format!("{more} more"));
    }
    (!all.is_empty()).then(|| all.join("; "))
}
