//! Who holds a chassis, from facts alone.

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use macrack_api::MacNodeLease;

use super::Facts;
use crate::{
    clock::{after, floor},
    seen::Seen,
};

/// How a chassis is held.
#[derive(Clone, Debug, PartialEq)]
pub enum Hold {
    /// Nobody's.
    Free,
    /// A lease holds it. The floor that its minimumDuration asks for, if that is later than the one written.
    Live { raise_to: Option<Timestamp> },
    /// Its lease was deleted at `since`, before the floor: still the tenant's.
    Held { since: Timestamp },
    /// The lease is past its end by both clocks: everything is wiped, then it is released.
    Over,
    /// The lease has expired but the floor has not passed by both clocks (they never differ by design of the
    /// schema, but nothing rests on that): everything is wiped, and the floor is waited for.
    Waiting,
    /// The lease is gone without a release: everything is wiped at once. `past` the floor it is released.
    Dangling { past: bool },
    /// The chassis was retired: everything is ordered Wipe, leaseRef stays.
    Broken,
    /// The lease could not be read: nothing changes.
    Unreadable,
}

impl Hold {
    /// Everything on the chassis goes.
    pub fn clears(&self) -> bool {
        matches!(self, Self::Free | Self::Over | Self::Waiting | Self::Dangling { .. } | Self::Broken)
    }
    /// The lease may be taken off once everything is gone.
    pub fn may_release(&self) -> bool {
        matches!(self, Self::Over | Self::Dangling { past: true })
    }
    /// New instances may get a slot.
    pub fn takes_instances(&self) -> bool {
        matches!(self, Self::Live { .. } | Self::Held { .. })
    }
    /// The floor to be written, if it rises.
    pub fn raised_floor(&self) -> Option<Timestamp> {
        match self {
            Self::Live { raise_to } => *raise_to,
            _ => None,
        }
    }

    /// When the passing of time alone changes something.
    pub fn next_moment(&self, facts: &Facts) -> Option<Timestamp> {
        let Some(lease_ref) = facts.lease_ref() else {
            return facts.remembered_floor().filter(|floor_at| *floor_at > facts.clocks.operator);
        };
        let floor_at = lease_ref.earliest_release_at.0;
        match self {
            Self::Live { .. } => {
                let lease = facts.lease.present()?;
                maximum(lease, lease_ref.bound_at.0).map(|end| facts.clocks.look_again(end))
            }
            Self::Held { .. } | Self::Waiting | Self::Dangling { past: false } => {
                Some(facts.clocks.look_again(floor_at))
            }
            _ => None,
        }
    }
}

/// When the lease ends by itself.
pub fn maximum(lease: &MacNodeLease, bound_at: Timestamp) -> Option<Timestamp> {
    let text = lease.spec.maximum_duration.as_ref()?;
    // a stored text that is no duration ends nothing
    Some(after(bound_at, text.parse().ok()?))
}

/// The chassis that a lease's own status names.
fn told(lease: &MacNodeLease) -> Option<&str> {
    lease.status.as_ref()?.serial.as_deref()
}

/// Whether the lease itself says that it has this chassis. Before that no slot is given: were it bound twice, an
/// instance could win one on both.
pub(super) fn is_told(facts: &Facts) -> bool {
    facts.lease.present().and_then(told) == Some(facts.node.spec.serial.as_str())
}

/// How this chassis is held.
pub(super) fn of(facts: &Facts) -> Hold {
    let Some(lease_ref) = facts.lease_ref() else {
        return Hold::Free;
    };
    let floor_at = lease_ref.earliest_release_at.0;
    let past = facts.clocks.both_past(floor_at);
    if lease_ref.releasing {
        // begun is not taken back; the schema holds the same
        return if past { Hold::Over } else { Hold::Waiting };
    }
    if facts.node.spec.retirement.is_some() {
        return Hold::Broken;
    }
    let lease = match &facts.lease {
        Seen::Unknown(_) => return Hold::Unreadable,
        Seen::Absent => return Hold::Dangling { past },
        Seen::Present(lease) if lease.uid().as_deref() != Some(&lease_ref.uid) => return Hold::Dangling { past },
        // bound twice by a decision on stale facts: the lease has the chassis that its status names, and only that
        Seen::Present(lease) if told(lease).is_some_and(|serial| serial != facts.node.spec.serial) => {
            return Hold::Dangling { past };
        }
        Seen::Present(lease) => lease,
    };
    if lease.status.as_ref().is_some_and(|s| s.end.is_some()) {
        // expired, or broken on a chassis that was taken back: over for the tenant, the floor still holds
        return if past { Hold::Over } else { Hold::Waiting };
    }
    if let Some(deleted) = &lease.metadata.deletion_timestamp {
        return if past { Hold::Over } else { Hold::Held { since: deleted.0 } };
    }
    if maximum(lease, lease_ref.bound_at.0).is_some_and(|end| facts.clocks.both_past(end)) {
        return if past { Hold::Over } else { Hold::Waiting };
    }
    let wanted = floor(lease_ref.bound_at.0, &lease.spec.minimum_duration);
    Hold::Live { raise_to: (wanted > floor_at).then_some(wanted) }
}
