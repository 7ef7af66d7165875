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
pub mod pulls;
mod quarantine;
mod reboot;
pub(crate) mod remains;
mod status;
mod wipes;

use std::collections::BTreeMap;

use k8s_openapi::{api::core::v1::Node, jiff::Timestamp};
use kube::ResourceExt;
use macrack_api::{
    InstanceClassSpec, MacNode, MacNodeClass, MacNodeLease, MacOSInstance, RackConfigSpec, names,
    rack::node::{AgentStatus, LeaseRef, MacNodeStatus, Quarantine, Slot, VmState},
};

pub use hold::{Hold, maximum};
pub use orders::capacity;
pub use status::{Leasable, leasable};
pub use wipes::{digest, in_words, wiped};

use crate::{
    clock::Clocks,
    plan::{Kind, Plan, Ref, Step},
    render::access,
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
    /// Of each image that the chassis is to have (`prefetchImageNames`, and those of `holders`) and that has one: the
    /// Secret in the operator's namespace that its registry wants to see.
    pub pull_secrets: BTreeMap<String, String>,
    /// Instance classes by name.
    pub sizes: BTreeMap<String, InstanceClassSpec>,
    /// The Kubernetes Node.
    pub kube_node: Seen<Node>,
    /// Hashes of the objects that exist for this chassis. Once its slots are empty and its lease is on its way out, the
    /// access in the tenant's namespace is read from the API server itself; what cannot be read counts as there.
    pub existing: BTreeMap<Ref, String>,
    /// While leaseRef is empty: a bound lease, not yet over, that names this serial.
    pub claim: Seen<MacNodeLease>,
    /// The settings.
    pub config: RackConfigSpec,
    /// When the policy last approved a reboot of each other chassis, from the API server itself. Read only while one of this
    /// chassis may be asked for or approved; Absent when nobody asked.
    pub policy_reboots: Seen<Vec<Timestamp>>,
}

impl Facts {
    pub(crate) fn status(&self) -> Option<&MacNodeStatus> {
        self.node.status.as_ref()
    }
    pub(crate) fn lease_ref(&self) -> Option<&LeaseRef> {
        self.status()?.lease_ref.as_ref()
    }
    pub(crate) fn agent(&self) -> Option<&AgentStatus> {
        self.status()?.agent.as_ref()
    }
    /// The slots as they are.
    pub(crate) fn slots(&self) -> &[Slot] {
        self.status().map_or(&[], |status| &status.slots)
    }
    /// What the agent says of a VM.
    fn vm(&self, uid: &str) -> Option<VmState> {
        remains::state(self.status()?, uid)
    }
    /// The floor of the last lease that the Mac itself remembers.
    fn remembered_floor(&self) -> Option<Timestamp> {
        remembered_floor(&self.node)
    }
    /// The agent has reported, and nothing of anybody is left on the disk.
    fn disk_is_empty(&self) -> bool {
        self.agent().is_some_and(|a| a.vms.iter().all(|vm| vm.state == VmState::Wiped))
    }
}

/// The floor of the last lease that a Mac itself remembers, whatever became of its MacNode.
pub fn remembered_floor(node: &MacNode) -> Option<Timestamp> {
    let last = node.status.as_ref()?.agent.as_ref()?.last_lease.as_ref()?;
    Some(last.earliest_release_at.0)
}

/// What is to be done about one chassis.
pub fn decide(facts: &Facts) -> Plan {
    let mut plan = Plan::default();
    let node = &facts.node;
    let (name, mac_node_uid) = (node.name_any(), node.uid().unwrap_or_default());
    let hold = hold::of(facts);

    place::finalizer(facts, &mut plan);
    if node.metadata.deletion_timestamp.is_some() && facts.lease_ref().is_none() {
        return plan; // nothing holds it: it may go, and `gone` clears up behind it
    }
    let quarantine = quarantine::decide(node, facts.clocks.operator);
    place::restore_lease(facts, &mut plan);
    place::ensure(facts, &quarantine, &mut plan);
    place::revoke(facts, &mut plan);
    place::hand_on_pull_secrets(facts, &mut plan);
    if let (Some(to), Some(lease_ref)) = (hold.raised_floor(), facts.lease_ref()) {
        let (mac_node, mac_node_uid) = (name.clone(), mac_node_uid.clone());
        plan.steps.push(Step::RaiseFloor { mac_node, mac_node_uid, lease_uid: lease_ref.uid.clone(), to });
    }
    wipes::keep(facts, &mut plan);
    let slots = orders::decide(facts, &hold, &quarantine);
    if slots != facts.slots() {
        plan.steps.push(Step::SetSlots {
            mac_node: name.clone(),
            mac_node_uid,
            lease_uid: facts.lease_ref().map(|r| r.uid.clone()),
            from: facts.slots().to_vec(),
            to: slots.clone(),
        });
    }
    match releasable(facts, &hold).filter(|_| slots.is_empty()) {
        Some(lease_ref) => release(facts, lease_ref, &quarantine, &mut plan),
        // the access follows the slots as they are now: what was just decided is granted in the next pass
        None => place::grant(facts, &hold, &mut plan),
    }
    if let Some(moment) = hold.next_moment(facts) {
        plan.wake_at(moment);
    }
    status::write(facts, &hold, quarantine, &mut plan);
    plan
}

/// Whether this pass may ask for a reboot or approve one. It is then decided on what the API server itself says, one
/// chassis at a time, and the reboots of the others are counted first.
pub fn settles_reboot(node: &MacNode, now: Timestamp) -> bool {
    let status = node.status.as_ref();
    let reboot = status.and_then(|status| status.reboot.as_ref());
    let under_way = reboot.is_some_and(|r| r.approved_at.is_some() && r.done_boot_id.is_none());
    let quarantine = quarantine::decide(node, now);
    !under_way && reboot::needed(&quarantine, status.and_then(|status| status.agent.as_ref())).is_some()
}

/// The lease that may be taken off now: it is over, and nothing of it is left in a slot or on the disk.
fn releasable<'a>(facts: &'a Facts, hold: &Hold) -> Option<&'a LeaseRef> {
    let empty = facts.slots().is_empty() && facts.disk_is_empty();
    facts.lease_ref().filter(|_| empty && hold.may_release() && facts.node.spec.retirement.is_none())
}

/// The end of a lease, in the order that leaves nothing behind at a crash after any step:
/// access gone → `releasing` → taint back to unleased → leaseRef cleared.
fn release(facts: &Facts, lease_ref: &LeaseRef, quarantine: &[Quarantine], plan: &mut Plan) {
    let (name, uid) = (facts.node.name_any(), lease_ref.uid.clone());
    let mac_node_uid = facts.node.uid().unwrap_or_default();
    let account = names::agent_account(&name);
    let access = [Kind::RoleBinding, Kind::Role].map(|kind| Ref::namespaced(kind, &lease_ref.namespace, &account));
    // only what is there: deleting what is gone would be a write in each life of an operator that is killed at its first
    for object in access.into_iter().filter(|object| facts.existing.contains_key(object)) {
        plan.steps.push(Step::Delete { object, uid: None });
    }
    if !lease_ref.releasing {
        let (mac_node, mac_node_uid) = (name.clone(), mac_node_uid.clone());
        plan.steps.push(Step::MarkReleasing { mac_node, mac_node_uid, lease_uid: uid.clone() });
        if plan.steps.iter().any(place::writes_node) {
            return; // that write still carries the tenant's taint: it is turned in the next pass
        }
        plan.steps.extend(place::patch_node(facts, None, quarantine));
    }
    if facts.kube_node.is_unknown() {
        return; // its taint may still be the tenant's
    }
    plan.steps.push(Step::ClearLease { mac_node: name, mac_node_uid, lease_uid: uid });
}

/// Clears up after a MacNode that is gone: its Node and its access. Whatever else bears its label is another's: a tenant
/// may label what is theirs, and one object that we may not delete would keep all that comes after it.
pub fn gone(mac_node: &str, kube_node: &Seen<Node>, existing: &BTreeMap<Ref, String>) -> Plan {
    let (chassis, account) = (access::chassis_refs(mac_node), names::agent_account(mac_node));
    let of_a_lease = |object: &Ref| matches!(object.kind, Kind::Role | Kind::RoleBinding) && object.name == account;
    let mut plan = Plan::default();
    if let Seen::Present(node) = kube_node {
        plan.steps.push(Step::Delete { object: Ref::cluster(Kind::Node, &names::node(mac_node)), uid: node.uid() });
    }
    let ours = existing.keys().filter(|object| chassis.contains(object) || of_a_lease(object));
    plan.steps.extend(ours.map(|object| Step::Delete { object: object.clone(), uid: None }));
    plan
}
