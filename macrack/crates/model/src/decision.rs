//! One pass: what was read, expanded to the real API types, decided by the real functions of core, and taken back to
//! the few steps that matter here. The same facts are decided once and remembered.
//!
//! Nodes, placeholder pods, Roles and ServiceAccounts are left out: their steps are dropped. An agent here starts what
//! it is ordered to without waiting for a pod, which is the harder case.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, LazyLock, Mutex, PoisonError},
};

use k8s_openapi::jiff::Timestamp;
use macrack_api::{MacNode, MacOSInstance, RackConfigSpec, rack::node::VmState};
use macrack_core::{
    check,
    clock::Clocks,
    decide,
    plan::{Kind, Plan, Ref, Step},
    render::access,
    seen::Seen,
};
use serde_json::Value;

use crate::{
    expand::{self, hour, lease_ref_of, mac_name, number, slot_of, time, uid_of},
    world::{End, Hour, Instance, Lease, LeaseRef, Mac, Slot, Told, Uid},
};

/// An object that a pass is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Of {
    /// By number.
    Mac(u8),
    /// By tenant.
    Lease(u8),
    /// By name.
    Instance(u8),
}

/// A step that changes something in this world.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Act {
    /// Puts our finalizer on.
    Hold(Of),
    /// Takes it off, of the object with that uid.
    LetGo(Of, Uid),
    /// Writes leaseRef.
    Bind { mac: u8, uid: Uid, to: LeaseRef },
    /// Raises the floor.
    Raise { mac: u8, uid: Uid, lease: Uid, to: Hour },
    /// Changes the slots.
    Slots { mac: u8, uid: Uid, lease: Option<Uid>, from: Vec<Slot>, to: Vec<Slot> },
    /// Marks the release as begun.
    Mark { mac: u8, uid: Uid, lease: Uid },
    /// Clears leaseRef.
    Clear { mac: u8, uid: Uid, lease: Uid },
}

/// What the status says that later decisions read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// Of a MacNode.
    Mac { quarantined: bool },
    /// Of a lease.
    Lease { told: Option<Told>, end: Option<End> },
    /// Of an instance.
    Instance { lease: Option<Uid>, full: bool },
    /// It is left as it is.
    Kept,
}

/// What one pass decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// uid of the object that it is about.
    pub uid: Uid,
    /// In order.
    pub acts: Vec<Act>,
    /// Written last.
    pub status: Status,
    /// It asked to be called again when time has passed.
    pub wakes: bool,
    /// What of the rules the plan itself breaks.
    pub broken: Option<String>,
}

/// One thing read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Read<T> {
    /// It is there.
    There(T),
    /// It is not.
    Absent,
    /// Nobody knows.
    Unreadable,
}

impl<T> Read<T> {
    fn seen<U>(&self, expand: impl FnOnce(&T) -> U) -> Seen<U> {
        match self {
            Self::There(thing) => Seen::Present(expand(thing)),
            Self::Absent => Seen::Absent,
            Self::Unreadable => Seen::Unknown("unreadable".into()),
        }
    }
}

impl<T> From<Option<T>> for Read<T> {
    fn from(thing: Option<T>) -> Self {
        thing.map_or(Self::Absent, Self::There)
    }
}

/// The facts of a pass.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Facts {
    /// The operator's clock.
    pub operator: Hour,
    /// The API server's, if it is asked.
    pub server: Hour,
    /// The rest.
    pub about: About,
}

/// What was read, by kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum About {
    /// One chassis.
    Mac {
        n: u8,
        mac: Mac,
        lease: Read<Lease>,
        ending: bool,
        instances: Vec<(u8, Instance)>,
        holders: Vec<(Uid, Read<(u8, Instance)>)>,
        claimants: Vec<Lease>,
    },
    /// One lease; of each candidate, the other leases that name it.
    Lease {
        lease: Lease,
        holder: Read<(u8, Mac)>,
        named: Option<(u8, Mac)>,
        candidates: Vec<(u8, Mac, Vec<Lease>)>,
        ahead: u8,
    },
    /// One instance.
    Instance {
        name: u8,
        instance: Instance,
        lease: Option<Lease>,
        chassis: Read<(u8, Mac)>,
        neighbours: Vec<(u8, Instance)>,
        ending: bool,
    },
}

type Memory = Mutex<HashMap<Facts, Arc<Decision>>>;
static DECIDED: LazyLock<Memory> = LazyLock::new(Memory::default);

/// How many different facts were decided on so far.
pub fn decided() -> usize {
    DECIDED.lock().unwrap_or_else(PoisonError::into_inner).len()
}

/// Decides, or remembers.
pub fn decide(facts: Facts) -> Arc<Decision> {
    let memory = || DECIDED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = memory().get(&facts) {
        return known.clone();
    }
    let uid = match &facts.about {
        About::Mac { mac, .. } => mac.uid,
        About::Lease { lease, .. } => lease.uid,
        About::Instance { instance, .. } => instance.uid,
    };
    let decision = Arc::new(Decision { uid, ..anew(&facts) });
    memory().insert(facts, decision.clone());
    decision
}

fn anew(facts: &Facts) -> Decision {
    let now = time(facts.operator);
    let both = Clocks { operator: now, server: Seen::Present(time(facts.server)) };
    let alone = Clocks { operator: now, server: Seen::Absent };
    match &facts.about {
        About::Mac { n, mac, lease, ending, instances, holders, claimants } => {
            let lease = lease.seen(expand::lease);
            let node = expand::mac(*n, mac);
            let lease_ref = node.status.as_ref().and_then(|s| s.lease_ref.clone());
            let due = lease_ref.as_ref().is_some_and(|r| match lease.present() {
                Some(lease) => decide::lease::needs_server_clock(lease, Some(r), false, now),
                None => now >= r.earliest_release_at.0,
            });
            let clocks = if due { both } else { alone };
            let mut claimants = claimants.iter().map(expand::lease);
            let claim = claimants.find(|l| lease_ref.is_none() && decide::lease::claims(l, &clocks)).into();
            let facts = decide::node::Facts {
                existing: existing(*n, &node),
                kube_node: Seen::Present(expand::kube_node(&node)),
                class: Seen::Present(expand::class()),
                namespace_ending: Seen::Present(*ending),
                instances: Seen::Present(instances.iter().map(|(n, i)| expand::instance(*n, i)).collect()),
                holders: holders
                    .iter()
                    .map(|(uid, read)| (expand::uid(*uid), read.seen(|(n, i)| expand::instance(*n, i))))
                    .collect(),
                sizes: [("small".to_owned(), expand::size())].into(),
                config: RackConfigSpec::default(),
                policy_reboots: Seen::Absent,
                pull_secrets: Default::default(),
                clocks,
                node,
                lease,
                claim,
            };
            let plan = decide::node::decide(&facts);
            let broken = check::node(&facts, &plan).err().or_else(|| awards_blindly(mac, &plan));
            taken(&plan, broken)
        }
        About::Lease { lease, holder, named, candidates, ahead } => {
            let lease = expand::lease(lease);
            let mut facts = decide::lease::Facts {
                holder: holder.seen(|(n, m)| expand::mac(*n, m)),
                named: named.as_ref().map(|(n, m)| expand::mac(*n, m)).into(),
                class: Seen::Present(()),
                candidates: candidates.iter().map(|(n, m, others)| candidate(*n, m, others, &alone)).collect(),
                ahead: usize::from(*ahead),
                clocks: alone,
                lease,
            };
            let lease_ref = facts.holder.present().and_then(|h| h.status.as_ref()?.lease_ref.clone());
            let choosing = facts.holder.is_absent() && decide::lease::choose(&facts).is_some();
            if decide::lease::needs_server_clock(&facts.lease, lease_ref.as_ref(), choosing, now) {
                facts.clocks = both;
            }
            taken(&decide::lease::decide(&facts), None)
        }
        About::Instance { name, instance, lease, chassis, neighbours, ending } => {
            let neighbours: Vec<MacOSInstance> = neighbours.iter().map(|(n, i)| expand::instance(*n, i)).collect();
            let facts = decide::instance::Facts {
                instance: owned(expand::instance(*name, instance), lease.as_ref()),
                lease: lease.as_ref().map(expand::lease).into(),
                chassis: chassis.seen(|(n, m)| expand::mac(*n, m)),
                pod: Seen::Absent,
                pod_in_slot: Seen::Absent,
                size: Seen::Present(expand::size()),
                image: Seen::Absent,
                neighbour_sizes: neighbours.iter().map(|_| expand::size()).collect(),
                neighbours,
                node_class: Seen::Present(expand::class().spec),
                namespace_ending: *ending,
                agent_answers: true,
                clocks: alone,
            };
            taken(&decide::instance::decide(&facts), None)
        }
    }
}

/// Who owns whom is left out: every instance has its owner already.
fn owned(mut instance: MacOSInstance, lease: Option<&Lease>) -> MacOSInstance {
    let owner = lease.map(|l| k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference {
        uid: expand::uid(l.uid),
        ..Default::default()
    });
    instance.metadata.owner_references = owner.map(|o| vec![o]);
    instance
}

fn candidate(n: u8, mac: &Mac, others: &[Lease], clocks: &Clocks) -> decide::lease::Candidate {
    let node = expand::mac(n, mac);
    let claimed = others.iter().map(expand::lease).any(|l| decide::lease::claims(&l, clocks));
    let class = Seen::Present(expand::class());
    let kube_node = Seen::Present(expand::kube_node(&node));
    decide::lease::Candidate {
        name: mac_name(n),
        uid: expand::uid(mac.uid),
        serial: expand::serial(n),
        leasable: decide::node::leasable(&node, &class, &kube_node, claimed, clocks.operator),
        free_at: decide::lease::free_at(&node),
        remembered: decide::node::remembered_floor(&node),
    }
}

/// Everything that a pass applies once and leaves alone is there already.
fn existing(n: u8, node: &MacNode) -> BTreeMap<Ref, String> {
    static KEPT: LazyLock<Vec<BTreeMap<Ref, String>>> = LazyLock::new(|| {
        let hash = access::chassis_hash;
        let hashed = |n| access::chassis_refs(&mac_name(n)).into_iter().map(|o| (o, hash().to_owned())).collect();
        (0..2).map(hashed).collect()
    });
    let mut all = KEPT.get(usize::from(n)).cloned().unwrap_or_default();
    let status = node.status.clone().unwrap_or_default();
    if let Some(r) = &status.lease_ref {
        let inside = status.slots.iter().filter(|s| s.namespace == r.namespace);
        let names: Vec<&str> = inside.map(|s| s.name.as_str()).collect();
        let (role, binding) = access::lease(&mac_name(n), &r.namespace, &names, &[]);
        all.extend([role, binding].map(|(object, body)| (object, access::hash(&body))));
    }
    all
}

/// Nothing extra starts while a VM cannot be reached.
fn awards_blindly(mac: &Mac, plan: &Plan) -> Option<String> {
    let lost = mac.report.iter().flat_map(|r| &r.vms).any(|(_, state)| *state == VmState::Unknown);
    let award = |step: &Step| match step {
        Step::SetSlots { from, to, .. } => {
            let new = |s: &macrack_api::rack::node::Slot| from.iter().all(|f| f.uid != s.uid);
            to.iter().any(|s| new(s) && s.order != macrack_api::rack::node::Order::Wipe)
        }
        _ => false,
    };
    (lost && plan.steps.iter().any(award)).then(|| "a slot given out while a VM cannot be reached".to_owned())
}

fn taken(plan: &Plan, broken: Option<String>) -> Decision {
    Decision {
        uid: 0,
        acts: plan.steps.iter().filter_map(act).collect(),
        status: plan.status.as_ref().map_or(Status::Kept, status),
        wakes: plan.wake.is_some(),
        broken,
    }
}

fn of(object: &Ref) -> Option<Of> {
    match object.kind {
        Kind::MacNode => Some(Of::Mac(number(&object.name))),
        Kind::MacNodeLease => Some(Of::Lease(number(&object.namespace))),
        Kind::MacOSInstance => Some(Of::Instance(number(&object.name))),
        _ => None,
    }
}

fn act(step: &Step) -> Option<Act> {
    let slots = |all: &[macrack_api::rack::node::Slot]| all.iter().map(slot_of).collect();
    Some(match step {
        Step::AddFinalizer { of: object, .. } => Act::Hold(of(object)?),
        Step::RemoveFinalizer { of: object, uid, .. } => Act::LetGo(of(object)?, uid_of(uid.as_deref()?)),
        Step::Bind { mac_node, mac_node_uid, lease_ref } => {
            Act::Bind { mac: number(mac_node), uid: uid_of(mac_node_uid), to: lease_ref_of(lease_ref) }
        }
        Step::RaiseFloor { mac_node, mac_node_uid, lease_uid, to } => {
            Act::Raise { mac: number(mac_node), uid: uid_of(mac_node_uid), lease: uid_of(lease_uid), to: hour(*to) }
        }
        Step::SetSlots { mac_node, mac_node_uid, lease_uid, from, to } => Act::Slots {
            mac: number(mac_node),
            uid: uid_of(mac_node_uid),
            lease: lease_uid.as_deref().map(uid_of),
            from: slots(from),
            to: slots(to),
        },
        Step::MarkReleasing { mac_node, mac_node_uid, lease_uid } => {
            Act::Mark { mac: number(mac_node), uid: uid_of(mac_node_uid), lease: uid_of(lease_uid) }
        }
        Step::ClearLease { mac_node, mac_node_uid, lease_uid } => {
            Act::Clear { mac: number(mac_node), uid: uid_of(mac_node_uid), lease: uid_of(lease_uid) }
        }
        Step::Create { .. }
        | Step::Apply { .. }
        | Step::PatchNode { .. }
        | Step::Own { .. }
        | Step::Delete { .. }
        // nothing is decided from it
        | Step::KeepWipes { .. } => return None,
    })
}

fn status(value: &Value) -> Status {
    let text = |field: &str| value[field].as_str();
    let moment = |field: &str| text(field).and_then(|t| t.parse::<Timestamp>().ok()).map(hour);
    if value.get("leaseFull").is_some() {
        let lease = text("leaseUID").map(uid_of);
        return Status::Instance { lease, full: value["leaseFull"].as_bool().unwrap_or(false) };
    }
    if value.get("boundAt").is_some() {
        let told = text("serial").zip(moment("boundAt")).zip(moment("earliestReleaseAt"));
        let end = value["end"]["reason"].as_str().map(|r| if r == "Broken" { End::Broken } else { End::Expired });
        return Status::Lease { told: told.map(|((s, bound), floor)| Told { mac: number(s), bound, floor }), end };
    }
    Status::Mac { quarantined: value["quarantine"].as_array().is_some_and(|q| !q.is_empty()) }
}
