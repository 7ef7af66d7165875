//! A plan: what is to be done, as data that can be printed, compared in a test and judged by `check`.

use k8s_openapi::jiff::Timestamp;
use macrack_api::rack::node::{LeaseRef, Slot, WipeReceipt, WipeRecord};
use serde_json::Value;

/// What one pass decided about one object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Carried out in order; the first that fails ends the pass, and the next pass starts from facts again.
    pub steps: Vec<Step>,
    /// The whole of the operator's part of the status, written last and onto no other object than the one that was
    /// decided on; `None` leaves it.
    pub status: Option<Value>,
    /// Look again at this moment even if nothing changes.
    pub wake: Option<Timestamp>,
}

impl Plan {
    /// Look again at `moment`, or earlier.
    pub fn wake_at(&mut self, moment: Timestamp) {
        self.wake = Some(self.wake.map_or(moment, |wake| wake.min(moment)));
    }
}

/// Which object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ref {
    /// The kind.
    pub kind: Kind,
    /// Empty for cluster-scoped ones.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl Ref {
    /// An object of a namespace.
    pub fn namespaced(kind: Kind, namespace: &str, name: &str) -> Self {
        Self { kind, namespace: namespace.into(), name: name.into() }
    }
    /// An object of the cluster.
    pub fn cluster(kind: Kind, name: &str) -> Self {
        Self { kind, namespace: String::new(), name: name.into() }
    }
}

impl std::fmt::Display for Ref {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { kind, namespace, name } = self;
        if namespace.is_empty() { write!(f, "{kind:?}/{name}") } else { write!(f, "{kind:?}/{namespace}/{name}") }
    }
}

/// Kinds that plans touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// rack.macrack.io
    MacNodeClass,
    /// rack.macrack.io
    MacNode,
    /// rack.macrack.io
    MacNodeLease,
    /// instance.macrack.io
    InstanceClass,
    /// instance.macrack.io
    MacOSInstance,
    /// image.macrack.io
    MacOSImage,
    /// config.macrack.io
    RackConfig,
    /// core
    Node,
    /// core
    Pod,
    /// core
    ServiceAccount,
    /// coordination.k8s.io
    Lease,
    /// rbac.authorization.k8s.io
    Role,
    /// rbac.authorization.k8s.io
    RoleBinding,
    /// rbac.authorization.k8s.io
    ClusterRole,
    /// rbac.authorization.k8s.io
    ClusterRoleBinding,
}

/// One write. Contested ones carry what they were decided on, so that a stale decision fails instead of winning; those
/// to the status of a MacNode its uid first of all, for one made again under the name holds other slots.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Adds our finalizer; only on an object that is not being deleted, at the resourceVersion seen.
    AddFinalizer { of: Ref, finalizer: &'static str, finalizers: Vec<String>, resource_version: String },
    /// Removes every occurrence of our finalizer, and no other, while the list is as it was seen, from the object with
    /// that uid: a paused operator otherwise lets go what was made again under the same name.
    RemoveFinalizer { of: Ref, uid: Option<String>, finalizer: &'static str, finalizers: Vec<String> },
    /// Writes leaseRef where it is empty. The schema's write-once rule decides who wins.
    Bind { mac_node: String, mac_node_uid: String, lease_ref: LeaseRef },
    /// Raises the floor of this lease.
    RaiseFloor { mac_node: String, mac_node_uid: String, lease_uid: String, to: Timestamp },
    /// Changes the slots from what was seen.
    SetSlots { mac_node: String, mac_node_uid: String, lease_uid: Option<String>, from: Vec<Slot>, to: Vec<Slot> },
    /// Keeps what was wiped, before the slots that say so are emptied: `status.wipes` from what was seen. `new` is for the
    /// event: what of `to` was not kept before, with its receipt.
    KeepWipes {
        mac_node: String,
        mac_node_uid: String,
        from: Vec<WipeRecord>,
        to: Vec<WipeRecord>,
        new: Vec<(WipeRecord, WipeReceipt)>,
    },
    /// Marks the release as begun.
    MarkReleasing { mac_node: String, mac_node_uid: String, lease_uid: String },
    /// Clears leaseRef. The schema refuses it while anything is left.
    ClearLease { mac_node: String, mac_node_uid: String, lease_uid: String },
    /// Makes an object that does not exist; one that exists by now is left as it is.
    Create { object: Ref, body: Value },
    /// Server-side apply.
    Apply { object: Ref, body: Value },
    /// Changes a Node's taints from what was seen, and its labels, annotations and cordon.
    PatchNode { name: String, resource_version: String, patch: Value },
    /// Makes the lease an owner of the instance, at the resourceVersion seen.
    Own { instance: Ref, resource_version: String, owners: Value },
    /// Deletes exactly the object with that uid, at once.
    Delete { object: Ref, uid: Option<String> },
}
