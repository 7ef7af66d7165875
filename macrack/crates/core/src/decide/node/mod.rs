//! One chassis: who holds it, what runs on it, when it is given back.
//!
//! ```text
//!            bind (lease controller)
//!   Free ───────────────────────────▶ Live ──lease deleted──▶ Held
//!     ▲                                 │ maximumDuration       │ floor, by both clocks
//!     │ leaseRef cleared                ▼                       ▼
//!     └── taint unleased ◀─ releasing ◀─ access gone ◀─ all Wiped ◀─ Over
//!   a lease that is gone: Dangling: everything is wiped at once, the chassis waits for its own floor
//!   a retired chassis:    Broken:   everything is ordered Wipe, the leaseRef stays
//! ```
//!
//! Invariants (`check.rs` judges every plan, the schema refuses what slips through): a slot is emptied only when
//! ordered Wipe and reported Wiped; leaseRef is cleared only past the floor by both clocks, with empty slots;
//! at most two slots; what could not be read frees nothing.

mod hold;
mod orders;
mod place;
mod quarantine;
mod status;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use macrack_api::{
    InstanceClassSpec, MacNode, MacNodeClass, MacNodeLease, MacOSInstance, RackConfigSpec, names,
    rack::node::{LeaseRef, MacNodeStatus, VmState},
};

pub use hold::{Hold, maximum};
pub use orders::capacity;
pub use status::{Leasable, leasable};

use crate::{
    clock::Clocks,
    plan::{Kind, Plan, Ref, Step},
    seen::Seen,
};

/// What was seen of one chassis and of what hangs on it.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Both clocks; the server's is read only when a moment seems to have come.
    pub clocks: Clocks,
    /// The chassis itself.
    pub node: MacNode,
    /// Its class.
    pub class: Seen<MacNodeClass>,
    /// The lease at leaseRef's namespace and name, whatever its uid. Absent also when there is no leaseRef.
    pub lease: Seen<MacNodeLease>,
    /// Whether the tenant's namespace is being deleted (true also when it is gone).
    pub namespace_ending: Seen<bool>,
    /// Every instance made for this lease (by lease uid).
    pub instances: Seen<Vec<MacOSInstance>>,
    /// For each uid in a slot: the instance of that namespace and name, whatever its uid.
    pub holders: BTreeMap<String, Seen<MacOSInstance>>,
    /// Instance classes by name.
    pub sizes: BTreeMap<String, InstanceClassSpec>,
    /// The Kubernetes Node.
    pub kube_node: Seen<Node>,
    /// Hashes of the objects that exist for this chassis.
    pub existing: BTreeMap<Ref, String>,
    /// While leaseRef is empty: a bound lease, not yet over, that names this serial.
    pub claim: Seen<MacNodeLease>,
    /// The settings.
    pub config: RackConfigSpec,
}

impl Facts {
    fn status(&self) -> MacNodeStatus {
        self.node.status.clone().unwrap_or_default()
    }
    fn lease_ref(&self) -> Option<&LeaseRef> {
        self.node.status.as_ref()?.lease_ref.as_ref()
    }
    /// What the agent says of a VM.
    fn vm(&self, uid: &str) -> Option<VmState> {
        let agent = self.node.status.as_ref()?.agent.as_ref()?;
        agent.vms.iter().find(|vm| vm.uid == uid).map(|vm| vm.state)
    }
    /// The agent has reported, and nothing of anybody is left on the disk.
    fn disk_is_empty(&self) -> bool {
        let agent = self.node.status.as_ref().and_then(|s| s.agent.as_ref());
        agent.is_some_and(|a| a.vms.iter().all(|vm| vm.state == VmState::Wiped))
    }
}

/// What is to be done about one chassis.
pub fn decide(facts: &Facts) -> Plan {
    let mut plan = Plan::default();
    let node = &facts.node;
    let name = node.name_any();
    let hold = hold::of(facts);

    place::finalizer(facts, &mut plan);
    if node.metadata.deletion_timestamp.is_some() && facts.lease_ref().is_none() {
        return plan; // nothing holds it: it may go, and `gone` clears up behind it
    }
    place::restore_lease(facts, &mut plan);
    place::ensure(facts, &mut plan);
    if let (Some(to), Some(lease_ref)) = (hold.raised_floor(), facts.lease_ref()) {
        plan.steps.push(Step::RaiseFloor { mac_node: name.clone(), lease_uid: lease_ref.uid.clone(), to });
    }
    let slots = orders::decide(facts, &hold);
    let was = facts.status().slots;
    if slots != was {
        plan.steps.push(Step::SetSlots {
            mac_node: name.clone(),
            lease_uid: facts.lease_ref().map(|r| r.uid.clone()),
            from: was,
            to: slots.clone(),
        });
    }
    // the access follows the slots as they are now: what was just decided is granted in the next pass
    place::grant(facts, &hold, &mut plan);
    if slots.is_empty() && facts.status().slots.is_empty() {
        release(facts, &hold, &mut plan);
    }
    if let Some(moment) = hold.next_moment(facts) {
        plan.wake_at(moment);
    }
    status::write(facts, &hold, &mut plan);
    plan
}

/// The end of a lease, in the order that leaves nothing behind at a crash after any step:
/// access gone → `releasing` → taint back to unleased → leaseRef cleared.
fn release(facts: &Facts, hold: &Hold, plan: &mut Plan) {
    let Some(lease_ref) = facts.lease_ref() else {
        return;
    };
    if !hold.may_release() || !facts.disk_is_empty() || facts.node.spec.retirement.is_some() {
        return;
    }
    let (name, uid) = (facts.node.name_any(), lease_ref.uid.clone());
    let account = names::agent_account(&name);
    for kind in [Kind::RoleBinding, Kind::Role] {
        plan.steps.push(Step::Delete { object: Ref::namespaced(kind, &lease_ref.namespace, &account), uid: None });
    }
    if !lease_ref.releasing {
        plan.steps.push(Step::MarkReleasing { mac_node: name.clone(), lease_uid: uid.clone() });
    }
    if !plan.steps.iter().any(|s| matches!(s, Step::PatchNode { .. })) {
        plan.steps.extend(place::patch_node(facts, None));
    }
    plan.steps.push(Step::ClearLease { mac_node: name, lease_uid: uid });
}

/// Clears up after a MacNode that is gone: its Node and its access.
pub fn gone(mac_node: &str, kube_node: &Seen<Node>, existing: &BTreeMap<Ref, String>) -> Plan {
    let mut plan = Plan::default();
    if let Seen::Present(node) = kube_node {
        plan.steps.push(Step::Delete { object: Ref::cluster(Kind::Node, &names::node(mac_node)), uid: node.uid() });
    }
    plan.steps.extend(existing.keys().map(|object| Step::Delete { object: object.clone(), uid: None }));
    plan
}
