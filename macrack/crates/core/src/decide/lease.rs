//! One lease: it is given a chassis, and says what became of it. The truth of a binding is the chassis' leaseRef;
//! everything here is derived from it, but for `status.end`, which records once that the lease ended.

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use macrack_api::{
    MacNode, MacNodeLease, MacNodeLeaseStatus,
    names::{FINALIZER_LEASE, VMS_PER_MAC},
    rack::{
        lease::{
            LeaseEnd, LeaseEndReason, MacNodeLeaseCondition as Is, MacNodeLeasePhase as Phase,
            MacNodeLeaseReason as Because,
        },
        node::{LeaseRef, MacNodePhase, Order},
    },
};
use serde_json::json;

use super::node::Leasable;
use crate::{
    clock::{Clocks, after, floor, rfc3339, span_words, time},
    conditions::Conditions,
    plan::{Kind, Plan, Ref, Step},
    seen::Seen,
};

/// A chassis of the lease's class, as the lease may see it.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The MacNode's name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Its serial.
    pub serial: String,
    /// Whether it can be had now.
    pub leasable: Leasable,
    /// When the lease that holds it could end at the earliest; nobody else's name is in it.
    pub free_at: Option<Timestamp>,
    /// The floor of the last lease that the Mac itself remembers ([`super::node::remembered_floor`]).
    pub remembered: Option<Timestamp>,
}

/// What was seen of one lease.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Both clocks.
    pub clocks: Clocks,
    /// The lease.
    pub lease: MacNodeLease,
    /// The chassis whose leaseRef has this lease's uid.
    pub holder: Seen<MacNode>,
    /// The MacNode that `status.serial` names, when there is one.
    pub named: Seen<MacNode>,
    /// Whether the class exists.
    pub class: Seen<()>,
    /// Every chassis of the class, by name.
    pub candidates: Vec<Candidate>,
    /// How many older leases of the class wait too, for any chassis.
    pub ahead: usize,
}

impl Facts {
    fn status(&self) -> MacNodeLeaseStatus {
        self.lease.status.clone().unwrap_or_default()
    }
    fn deleted(&self) -> bool {
        self.lease.metadata.deletion_timestamp.is_some()
    }
    /// The one chassis of this lease: the one its status names, or before that the one whose leaseRef names it.
    fn chassis(&self) -> Seen<&MacNode> {
        let Some(serial) = self.status().serial else {
            return self.holder.as_ref();
        };
        let uid = self.lease.uid();
        let held = |n: &&MacNode| n.status.as_ref().and_then(|s| s.lease_ref.as_ref()).map(|r| &r.uid) == uid.as_ref();
        match (&self.holder, &self.named) {
            (Seen::Present(holder), _) if holder.spec.serial == serial => Seen::Present(holder),
            (_, Seen::Present(named)) if held(&named) => Seen::Present(named),
            (Seen::Unknown(why), _) | (_, Seen::Unknown(why)) => Seen::Unknown(why.clone()),
            _ => Seen::Absent,
        }
    }
    fn lease_ref(&self) -> Option<&LeaseRef> {
        self.chassis().present()?.status.as_ref()?.lease_ref.as_ref()
    }
    fn has_finalizer(&self) -> bool {
        self.lease.finalizers().iter().any(|f| f == FINALIZER_LEASE)
    }
    fn own_ref(&self) -> Ref {
        Ref::namespaced(Kind::MacNodeLease, &self.lease.namespace().unwrap_or_default(), &self.lease.name_any())
    }
}

/// What is to be done about one lease.
pub fn decide(facts: &Facts) -> Plan {
    let mut plan = Plan::default();
    let end = ended(facts);
    let lives = !facts.deleted() && end.is_none();
    if lives && !facts.has_finalizer() {
        // first the finalizer, then the chassis: a lease without it could vanish while it holds one
        plan.steps.push(Step::AddFinalizer {
            of: facts.own_ref(),
            finalizer: FINALIZER_LEASE,
            finalizers: facts.lease.finalizers().to_vec(),
            resource_version: facts.lease.resource_version().unwrap_or_default(),
        });
    } else if lives && facts.holder.is_absent() && facts.status().bound_at.is_none() {
        bind(facts, &mut plan);
    }
    if let Some(moment) = next_moment(facts) {
        plan.wake_at(moment);
    }
    if may_go(facts, end.as_ref()) && facts.has_finalizer() {
        let finalizers = facts.lease.finalizers().to_vec();
        plan.steps.push(Step::RemoveFinalizer {
            of: facts.own_ref(),
            uid: facts.lease.uid(),
            finalizer: FINALIZER_LEASE,
            finalizers,
        });
    }
    write_status(facts, end, &mut plan);
    plan
}

/// Whether the lease's last hold on a chassis is gone, so that the object may go.
fn may_go(facts: &Facts, end: Option<&LeaseEnd>) -> bool {
    if let Some(end) = end {
        // a broken lease goes at once: its chassis keeps the leaseRef and waits for its own floor and wipe
        // (and how it ended is on record before its last hold goes)
        return facts.status().end.is_some() && (end.reason == LeaseEndReason::Broken || facts.holder.is_absent());
    }
    if !facts.deleted() || !facts.holder.is_absent() {
        return false;
    }
    let Some(earliest) = facts.status().earliest_release_at else {
        return true;
    }; // never bound
    // bound once, and no chassis says so any more: before the floor its MacNode must have been made again and
    // gets its leaseRef back; only past the floor is the lease let go
    facts.clocks.both_past(earliest.0) && !facts.named.is_unknown()
}

/// How the lease ended other than by deletion; once written it stays.
fn ended(facts: &Facts) -> Option<LeaseEnd> {
    let status = facts.status();
    if let Some(end) = status.end {
        return Some(end);
    }
    let now = facts.clocks.operator;
    if facts.chassis().present().is_some_and(|h| h.spec.retirement.is_some()) {
        return Some(LeaseEnd { reason: LeaseEndReason::Broken, at: time(now) });
    }
    if facts.deleted() {
        return None;
    }
    let bound_at = facts.lease_ref().map(|r| r.bound_at.0).or(status.bound_at.map(|t| t.0))?;
    let maximum = super::node::maximum(&facts.lease, bound_at)?;
    facts.clocks.both_past(maximum).then(|| LeaseEnd { reason: LeaseEndReason::Expired, at: time(now) })
}

/// When the passing of time alone changes something; without its chassis, by what the lease itself remembers.
fn next_moment(facts: &Facts) -> Option<Timestamp> {
    let status = facts.status();
    let (bound_at, floor_at) = match facts.lease_ref() {
        Some(lease_ref) => (lease_ref.bound_at.0, lease_ref.earliest_release_at.0),
        None => (status.bound_at?.0, status.earliest_release_at?.0),
    };
    let maximum = super::node::maximum(&facts.lease, bound_at);
    let ahead = [Some(floor_at), maximum].into_iter().flatten().filter(|moment| !facts.clocks.both_past(*moment));
    ahead.map(|moment| facts.clocks.look_again(moment)).min()
}

/// Takes the chassis that falls to this lease: the i-th oldest waiting lease gets the i-th free chassis, so that
/// waiting leases neither race nor overtake each other.
fn bind(facts: &Facts, plan: &mut Plan) {
    if facts.class.present().is_none() {
        return;
    }
    let Some(chosen) = choose(facts) else { return };
    let remembered = chosen.remembered.filter(|floor_at| !facts.clocks.both_past(*floor_at));
    let Some(bound_at) = facts.clocks.bound_at().filter(|_| remembered.is_none()) else {
        // a clock that does not answer, or is behind, is asked again
        plan.wake_at(remembered.map_or(facts.clocks.operator, |floor_at| facts.clocks.look_again(floor_at)));
        return;
    };
    plan.steps.push(Step::Bind {
        mac_node: chosen.name.clone(),
        mac_node_uid: chosen.uid.clone(),
        lease_ref: LeaseRef {
            namespace: facts.lease.namespace().unwrap_or_default(),
            name: facts.lease.name_any(),
            uid: facts.lease.uid().unwrap_or_default(),
            bound_at: time(bound_at),
            earliest_release_at: time(floor(bound_at, &facts.lease.spec.minimum_duration)),
            releasing: false,
        },
    });
}

/// The chassis that falls to this lease now.
pub fn choose(facts: &Facts) -> Option<&Candidate> {
    let mut free = facts.candidates.iter().filter(|c| c.leasable == Leasable::Yes);
    match &facts.lease.spec.serial {
        Some(serial) => free.find(|c| c.serial == *serial),
        None => free.nth(facts.ahead),
    }
}

/// Whether a decision about this lease needs the API server's clock now.
pub fn needs_server_clock(lease: &MacNodeLease, lease_ref: Option<&LeaseRef>, choosing: bool, now: Timestamp) -> bool {
    let earliest = lease_ref.map(|r| r.earliest_release_at.0).or(lease
        .status
        .as_ref()
        .and_then(|s| s.earliest_release_at.as_ref())
        .map(|t| t.0));
    let bound_at =
        lease_ref.map(|r| r.bound_at.0).or(lease.status.as_ref().and_then(|s| s.bound_at.as_ref()).map(|t| t.0));
    let maximum = bound_at.and_then(|b| super::node::maximum(lease, b));
    choosing || [earliest, maximum].into_iter().flatten().any(|moment| now >= moment)
}

fn write_status(facts: &Facts, end: Option<LeaseEnd>, plan: &mut Plan) {
    let (now, old, spec) = (facts.clocks.operator, facts.status(), &facts.lease.spec);
    let chassis = facts.chassis();
    if chassis.is_unknown() {
        return; // what cannot be read now changes nothing, its words neither
    }
    let lease_ref = facts.lease_ref();
    let holder = chassis.present().copied();
    let bound_at = lease_ref.map(|r| r.bound_at.clone()).or(old.bound_at.clone());
    let earliest = lease_ref
        .map(|r| r.earliest_release_at.clone())
        .into_iter()
        .chain(old.earliest_release_at.clone())
        .max_by_key(|t| t.0);
    let past = earliest.as_ref().is_some_and(|e| facts.clocks.both_past(e.0));
    let (phase, ready) = summary(facts, end.as_ref(), past);
    let mut conditions = Conditions::over(&old.conditions, facts.lease.metadata.generation, now);
    conditions.set(Is::Ready, ready.0, ready.1, &ready.2);
    match (holder, &earliest) {
        (Some(holder), Some(earliest)) => {
            conditions.set(Is::Bound, true, Because::Bound, format!("{} is bound", holder.spec.serial));
            let (healthy, because, words) = health(holder);
            conditions.set(Is::ChassisHealthy, healthy, because, words);
            let words = format!("the floor is {}", rfc3339(earliest.0));
            conditions.set(
                Is::FloorElapsed,
                past,
                if past { Because::FloorElapsed } else { Because::FloorNotElapsed },
                words,
            );
        }
        _ => {
            let because = if bound_at.is_some() && end.is_none() { Because::ChassisMissing } else { ready.1 };
            conditions.set(Is::Bound, false, because, &ready.2);
            conditions.set(Is::FloorElapsed, past, if past { Because::FloorElapsed } else { Because::NotBound }, "");
        }
    }
    if [Some(&spec.minimum_duration), spec.maximum_duration.as_ref()]
        .into_iter()
        .flatten()
        .any(|d| d.parse::<macrack_api::Span>().is_err())
    {
        conditions.set(
            Is::DurationsReadable,
            false,
            Because::DurationUnreadable,
            "a stored duration is none; 24h is assumed, never less; write 24h, 36h30m",
        );
    }
    let running =
        holder.and_then(|h| h.status.as_ref()).map(|s| s.slots.iter().filter(|s| s.order == Order::Run).count());
    plan.status = Some(json!({
        "observedGeneration": facts.lease.metadata.generation,
        "phase": phase,
        "serial": old.serial.or(holder.map(|h| h.spec.serial.clone())),
        "nodeName": holder.and_then(|h| h.status.as_ref()?.node_name.clone()).or(old.node_name),
        "boundAt": bound_at,
        "earliestReleaseAt": earliest,
        "instances": running.map(|n| format!("{n}/{VMS_PER_MAC}")),
        "end": end,
        "conditions": conditions.done(),
    }));
}

fn health(holder: &MacNode) -> (bool, Because, String) {
    let status = holder.status.clone().unwrap_or_default();
    if let Some(entry) = status.quarantine.first() {
        return (
            false,
            Because::ChassisQuarantined,
            format!(
                "{} is quarantined: {} since {}; it starts nothing until that is resolved",
                holder.spec.serial,
                entry.reason,
                rfc3339(entry.since.0)
            ),
        );
    }
    match status.phase {
        Some(MacNodePhase::Unreachable) => (
            false,
            Because::ChassisUnreachable,
            format!("{} does not answer; its VMs are not moved, the lease stays", holder.spec.serial),
        ),
        _ => (true, Because::Healthy, format!("{} is usable", holder.spec.serial)),
    }
}

/// The phase, and the summary condition.
fn summary(facts: &Facts, end: Option<&LeaseEnd>, past: bool) -> (Phase, (bool, Because, String)) {
    let chassis = facts.chassis();
    let holder = chassis.present();
    let until = facts.lease_ref().map(|r| rfc3339(r.earliest_release_at.0)).unwrap_or_default();
    if let Some(end) = end {
        return match end.reason {
            LeaseEndReason::Broken => (
                Phase::Broken,
                (false, Because::Broken, "its Mac was retired; make a new lease, its 24 hours begin anew".into()),
            ),
            LeaseEndReason::Expired if holder.is_some() => (
                Phase::Releasing,
                (false, Because::Expired, "maximumDuration has passed; the Mac is wiped and given back".into()),
            ),
            LeaseEndReason::Expired => {
                (Phase::Expired, (false, Because::Expired, "maximumDuration has passed; make a new lease".into()))
            }
        };
    }
    let Some(holder) = holder else {
        if facts.status().bound_at.is_some() {
            return (
                Phase::Bound,
                (
                    false,
                    Because::ChassisMissing,
                    format!(
                        "the MacNode of {} is missing or was made again; its binding is written back when it returns",
                        facts.status().serial.unwrap_or_default()
                    ),
                ),
            );
        }
        return (Phase::Pending, pending(facts));
    };
    if facts.lease_ref().is_some_and(|r| r.releasing) {
        return (Phase::Releasing, (false, Because::Releasing, "wiped; the Mac is being given back".into()));
    }
    if facts.deleted() {
        let left = holder.status.as_ref().map_or(0, |s| s.slots.len());
        return (
            Phase::Held,
            if past {
                (
                    false,
                    Because::StillOccupied,
                    format!("the floor has passed; {left} of its VMs are still being stopped and wiped"),
                )
            } else {
                (
                    false,
                    Because::HeldUntilFloor,
                    format!(
                        "deleted before its floor: the Mac stays yours, is counted, and takes new instances until {until}"
                    ),
                )
            },
        );
    }
    (Phase::Bound, (true, Because::Bound, format!("{} is yours until at least {until}", holder.spec.serial)))
}

/// Why it waits, and when the next chassis can come free at the earliest. Names no other tenant.
fn pending(facts: &Facts) -> (bool, Because, String) {
    let (spec, now) = (&facts.lease.spec, facts.clocks.operator);
    let class = &spec.node_class_name;
    match &facts.class {
        Seen::Absent => {
            return (
                false,
                Because::ClassNotFound,
                format!("MacNodeClass {class:?} does not exist; see `kubectl get mnc`"),
            );
        }
        Seen::Unknown(why) => {
            return (false, Because::Unreadable, format!("MacNodeClass {class:?} cannot be read now: {why}"));
        }
        Seen::Present(()) => {}
    }
    if let Some(serial) = &spec.serial {
        let words = match facts.candidates.iter().find(|c| c.serial == *serial) {
            None => format!("there is no {serial} of class {class}"),
            Some(c) => match (&c.leasable, c.free_at) {
                (Leasable::Yes, _) => return (false, Because::Binding, format!("{serial} is being bound")),
                (_, Some(at)) => {
                    format!("{serial} is not free; it can come free at {} ({})", rfc3339(at), span_words(now, at))
                }
                (Leasable::No(because, _), None) => {
                    format!("{serial} cannot be leased now: {because}")
                }
            },
        };
        return (false, Because::SerialNotAvailable, words);
    }
    if facts.candidates.is_empty() {
        return (false, Because::NoChassisOfClass, format!("there is no {class}; ask your platform team for one"));
    }
    let total = facts.candidates.len();
    let leased = facts.candidates.iter().filter(|c| c.free_at.is_some()).count();
    let free = facts.candidates.iter().filter(|c| c.leasable == Leasable::Yes).count();
    let mut words = if leased == total {
        format!("all {total} {class} are leased")
    } else {
        format!("of {total} {class}: {leased} leased, {free} free, the rest cannot be used now")
    };
    if free > 0 && facts.ahead < free {
        return (false, Because::Binding, format!("a {class} is being bound"));
    } else if facts.ahead > 0 {
        words += &match facts.ahead {
            1 => "; an older lease waits too".to_owned(),
            ahead => format!("; {ahead} older leases wait too"),
        };
    }
    if free == 0
        && let Some(at) = facts.candidates.iter().filter_map(|c| c.free_at).min()
    {
        words += &format!("; the first can come free at {} ({})", rfc3339(at), span_words(now, at));
    }
    (false, Because::NoChassisFree, words)
}

/// When the lease that holds this chassis could end at the earliest: its floor. Never of a chassis that is retired or
/// being deleted: nobody gets that one then.
pub fn free_at(node: &MacNode) -> Option<Timestamp> {
    if node.spec.retirement.is_some() || node.metadata.deletion_timestamp.is_some() {
        return None;
    }
    node.status.as_ref()?.lease_ref.as_ref().map(|r| r.earliest_release_at.0)
}

/// When a bound lease was bound, and its floor.
fn binding(lease: &MacNodeLease) -> Option<(Timestamp, Timestamp)> {
    let status = lease.status.as_ref()?;
    let bound_at = status.bound_at.as_ref()?.0;
    Some((bound_at, status.earliest_release_at.as_ref()?.0.max(after(bound_at, macrack_api::duration::FLOOR))))
}

/// Whether it is on its way out: what is left of it is its floor.
fn is_over(lease: &MacNodeLease, bound_at: Timestamp, clocks: &Clocks) -> bool {
    let ended = lease.status.as_ref().is_some_and(|s| s.end.is_some()) || lease.metadata.deletion_timestamp.is_some();
    ended || super::node::maximum(lease, bound_at).is_some_and(|end| clocks.both_past(end))
}

/// Whether a bound lease still has a claim on its chassis, should the chassis not know of it: while it has, nobody else
/// gets that chassis.
pub fn claims(lease: &MacNodeLease, clocks: &Clocks) -> bool {
    let Some((bound_at, floor_at)) = binding(lease) else {
        return false;
    };
    let ours = lease.finalizers().iter().any(|f| f == FINALIZER_LEASE);
    match (is_over(lease, bound_at, clocks), ours) {
        (false, ours) => ours,
        (true, true) => !clocks.both_past(floor_at),
        // let go already: only the floor itself still counts, and the Mac's own record of it needs both clocks
        (true, false) => clocks.one_before(floor_at),
    }
}

/// Of a lease with a claim: the binding to write back to a chassis that does not know of it. None where the floor may
/// have passed: then it was released a moment ago, and is about to go.
pub fn wants_back(lease: &MacNodeLease, clocks: &Clocks) -> Option<(Timestamp, Timestamp)> {
    let (bound_at, floor_at) = binding(lease)?;
    (!is_over(lease, bound_at, clocks) || clocks.one_before(floor_at)).then_some((bound_at, floor_at))
}
