//! What a MacNode's status says: conditions first, the phase derived from them last.

use k8s_openapi::{api::core::v1::Node, jiff::Timestamp};
use macrack_api::{
    MacNode, MacNodeClass, RackConfigSpec, Span,
    condition::ConditionStatus,
    names,
    rack::node::{
        AgentStatus, MacNodeCondition as Is, MacNodePhase as Phase, MacNodeReason as Because, Order, Quarantine,
        VmState,
    },
};
use serde_json::json;

use super::{Facts, Hold};
use crate::{
    clock::{after, rfc3339, span_words},
    conditions::Conditions,
    plan::Plan,
    seen::Seen,
};

/// Whether a lease may be bound to a chassis now.
#[derive(Clone, Debug, PartialEq)]
pub enum Leasable {
    /// Yes.
    Yes,
    /// No: the reason, and a sentence.
    No(Because, String),
}

/// One fact as a condition: holds, why, in words.
type Fact = (ConditionStatus, Because, String);

fn fact(holds: bool, because: Because, words: impl Into<String>) -> Fact {
    (holds.into(), because, words.into())
}

/// Whether the agent reports and its Node is Ready.
fn agent_ready(agent: Option<&AgentStatus>, kube_node: &Seen<Node>) -> Fact {
    let node = match kube_node {
        Seen::Unknown(why) => return (ConditionStatus::Unknown, Because::Unreadable, why.clone()),
        Seen::Absent => {
            return fact(false, Because::NodeMissing, "its Node is missing; it is being made");
        }
        Seen::Present(node) => node,
    };
    if agent.is_none() {
        return fact(
            false,
            Because::AgentNotReported,
            "the agent has not reported yet: install it with the file of `kubectl macrack enroll`",
        );
    }
    match node_ready(node) {
        Some(("True", _)) => fact(true, Because::Heartbeating, "the agent reports and its Node is Ready"),
        Some((_, since)) => {
            let down = match shuts_down(node) {
                true => ": the Mac is being shut down or restarted, and its VMs stop",
                false => "",
            };
            fact(false, Because::NodeNotReady, format!("its Node is not Ready since {}{down}", rfc3339(since)))
        }
        None => fact(false, Because::NodeNotReady, "its Node has not reported yet"),
    }
}

/// Whether the agent said that its Mac goes down, before it did.
fn shuts_down(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|c| c.type_ == "Ready" && c.status == "False" && c.reason.as_deref() == Some("NodeShutdown"))
}

/// The Node's Ready condition: its status, and since when.
fn node_ready(node: &Node) -> Option<(&str, Timestamp)> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions.iter().find(|c| c.type_ == "Ready")?;
    Some((ready.status.as_str(), ready.last_transition_time.as_ref().map_or(Timestamp::UNIX_EPOCH, |t| t.0)))
}

/// Whether the observed hardware is that of the class; the first difference is named.
fn hardware_matches(node: &MacNode, class: &Seen<MacNodeClass>, agent: Option<&AgentStatus>) -> Fact {
    let class = match class {
        Seen::Unknown(why) => return (ConditionStatus::Unknown, Because::Unreadable, why.clone()),
        Seen::Absent => {
            return fact(
                false,
                Because::ClassNotFound,
                format!(
                    "MacNodeClass {:?} does not exist: create it, or correct spec.nodeClassName",
                    node.spec.node_class_name
                ),
            );
        }
        Seen::Present(class) => &class.spec,
    };
    let Some(have) = agent.and_then(|a| a.hardware.as_ref()) else {
        return (
            ConditionStatus::Unknown,
            Because::AgentNotReported,
            "the agent has not reported the hardware yet".into(),
        );
    };
    if have.serial != node.spec.serial {
        return fact(
            false,
            Because::SerialMismatch,
            format!(
                "the Mac says its serial is {}, it was enrolled as {}: another board, or the wrong bootstrap file",
                have.serial, node.spec.serial
            ),
        );
    }
    let differs = |what: &str, have: &dyn std::fmt::Display, want: &dyn std::fmt::Display| {
        fact(
            false,
            Because::Differs,
            format!("{what} is {have}, the class says {want}: correct the class of this MacNode, or the Mac"),
        )
    };
    if have.model != class.model {
        return differs("model", &have.model, &class.model);
    }
    if have.chip != class.chip {
        return differs("chip", &have.chip, &class.chip);
    }
    if have.cpu_cores < class.cpu_cores {
        return differs("cores", &have.cpu_cores, &class.cpu_cores);
    }
    for (what, have, want) in [
        ("memory", &have.memory, &class.memory),
        ("disk", &have.storage, &class.storage),
        ("network", have.link_speed.as_ref().unwrap_or(&class.link_speed), &class.link_speed),
    ] {
        // a quantity that cannot be read is not plenty
        if have.value().zip(want.value()).is_none_or(|(have, want)| have < want) {
            return differs(what, have, want);
        }
    }
    if have.link_speed.is_none() {
        let words =
            "the speed of the network port could not be read: plug the cable in, and see `macrack-agent doctor`";
        return (ConditionStatus::Unknown, Because::Unreadable, words.into());
    }
    fact(true, Because::Matches, "the hardware is that of the class")
}

fn host_prepared(agent: Option<&AgentStatus>) -> Fact {
    let Some(host) = agent.and_then(|a| a.host.as_ref()) else {
        return (ConditionStatus::Unknown, Because::AgentNotReported, "the agent has not reported it yet".into());
    };
    if let Some(finding) = host.findings.iter().find(|finding| finding.unknown) {
        return (ConditionStatus::Unknown, Because::Unreadable, finding.message.clone());
    }
    if !host.entitled {
        return fact(
            false,
            Because::EntitlementMissing,
            "macrack-vm lacks com.apple.security.virtualization: install the signed package",
        );
    }
    if !host.keychain_unlocked {
        return fact(
            false,
            Because::KeychainLocked,
            "the login keychain of the agent's user is locked: turn on automatic login",
        );
    }
    if !host.auto_login {
        return fact(
            false,
            Because::AutoLoginOff,
            "the agent's user does not log in by itself: turn on automatic login (FileVault off)",
        );
    }
    match host.findings.first() {
        Some(finding) => fact(false, Because::NotPrepared, finding.message.clone()),
        None => fact(true, Because::Prepared, "the host can start VMs"),
    }
}

fn quota_healthy(agent: Option<&AgentStatus>, quarantined: bool) -> Fact {
    let Some(agent) = agent else {
        return (ConditionStatus::Unknown, Because::AgentNotReported, "the agent has not reported it yet".into());
    };
    if agent.quota.stuck || quarantined {
        return fact(
            false,
            Because::QuotaStuck,
            format!(
                "the kernel refuses VMs (VZErrorDomain 6) although {} of ours run: the Mac needs a reboot",
                agent.quota.running
            ),
        );
    }
    if agent.quota.foreign > 0 {
        return fact(
            false,
            Because::ForeignVM,
            format!("{} virtualization processes are not MacRack's: end them on the Mac", agent.quota.foreign),
        );
    }
    fact(true, Because::Counting, format!("{} of 2 VMs run", agent.quota.running))
}

fn attached(agent: Option<&AgentStatus>) -> Fact {
    let Some(agent) = agent else {
        return (ConditionStatus::Unknown, Because::AgentNotReported, "the agent has not reported it yet".into());
    };
    let lost: Vec<&str> =
        agent.vms.iter().filter(|vm| vm.state == VmState::Unknown).map(|vm| vm.uid.as_str()).collect();
    if lost.is_empty() {
        return fact(true, Because::Attached, "every VM answers");
    }
    fact(
        false,
        Because::ReattachFailed,
        format!("the process of VM {} cannot be reached: nothing extra is started", lost.join(", ")),
    )
}

/// Seconds that a Mac's clock may be off before it is said.
const SKEW_SAID: u64 = 60;
/// Seconds that it may be off before no lease is bound to it.
const SKEW_REFUSED: u64 = 300;

/// Whether the Mac's clock is within `most` seconds of the API server's.
fn clock(agent: Option<&AgentStatus>, most: u64) -> Fact {
    let Some(agent) = agent else {
        return (ConditionStatus::Unknown, Because::AgentNotReported, "the agent has not reported yet".into());
    };
    match agent.clock_skew_seconds.filter(|ahead| ahead.unsigned_abs() > most) {
        None => fact(true, Because::InStep, "the Mac's clock and the API server's agree"),
        Some(ahead) => fact(
            false,
            Because::ClockSkewed,
            format!(
                "the Mac's clock is {}s {} the API server's: turn on Set time and date automatically, and let the Mac reach its time server; its VMs run on",
                ahead.unsigned_abs(),
                if ahead > 0 { "ahead of" } else { "behind" }
            ),
        ),
    }
}

/// Whether a lease may be bound now, and if not the first thing that stands in the way.
pub fn leasable(
    node: &MacNode,
    class: &Seen<MacNodeClass>,
    kube_node: &Seen<Node>,
    claimed: bool,
    now: Timestamp,
) -> Leasable {
    let no = |because, words: String| Leasable::No(because, words);
    let status = node.status.as_ref();
    let agent = status.and_then(|status| status.agent.as_ref());
    if node.metadata.deletion_timestamp.is_some() {
        return no(Because::Deleting, "the MacNode is being deleted".into());
    }
    if let Some(retirement) = &node.spec.retirement {
        return no(Because::Retired, format!("retired: {}", retirement.reason));
    }
    if let Some(held) = status.and_then(|status| status.lease_ref.as_ref()) {
        return no(Because::Leased, format!("leased until at least {}", rfc3339(held.earliest_release_at.0)));
    }
    if let Some(entry) = super::quarantine::decide(node, now).first() {
        return no(Because::Quarantined, format!("quarantined: {} since {}", entry.reason, rfc3339(entry.since.0)));
    }
    if claimed {
        return no(Because::Reconciling, "a lease names this serial: its binding is written back first".into());
    }
    if let Some(last) = agent.and_then(|a| a.last_lease.as_ref()).filter(|l| l.earliest_release_at.0 > now) {
        return no(
            Because::Reconciling,
            format!("the Mac itself remembers a lease whose floor is {}", rfc3339(last.earliest_release_at.0)),
        );
    }
    for (status, because, words) in [
        agent_ready(agent, kube_node),
        hardware_matches(node, class, agent),
        host_prepared(agent),
        quota_healthy(agent, false),
        attached(agent),
        clock(agent, SKEW_REFUSED),
    ] {
        if status != ConditionStatus::True {
            return no(because, words);
        }
    }
    let in_slots = status.is_some_and(|status| !status.slots.is_empty());
    if in_slots || agent.is_none_or(|a| a.vms.iter().any(|vm| vm.state != VmState::Wiped)) {
        let which = status.and_then(super::remains::words).map(|which| format!(": {which}")).unwrap_or_default();
        return no(Because::NotWiped, format!("remains of a VM are still on the disk and are wiped first{which}"));
    }
    let cordoned = kube_node.present().and_then(|n| n.spec.as_ref()?.unschedulable).unwrap_or(false);
    if node.spec.unschedulable || cordoned {
        return no(Because::Unschedulable, "unschedulable: uncordon its Node, or unset spec.unschedulable".into());
    }
    Leasable::Yes
}

/// Since when its Node is not Ready, once that is longer ago than the timeout.
fn unreachable_since(facts: &Facts, config: &RackConfigSpec) -> Result<Option<Timestamp>, Timestamp> {
    let Some(since) = facts.kube_node.present().and_then(node_ready).filter(|(s, _)| *s != "True").map(|(_, t)| t)
    else {
        return Ok(None);
    };
    let timeout = config.heartbeat_timeout.parse().unwrap_or(Span(60));
    let due = after(since, timeout);
    if due <= facts.clocks.operator { Ok(Some(since)) } else { Err(due) }
}

/// Writes the whole status of the operator's.
pub(super) fn write(facts: &Facts, hold: &Hold, quarantine: Vec<Quarantine>, plan: &mut Plan) {
    let now = facts.clocks.operator;
    let agent = facts.agent();
    let stuck = quarantine.iter().any(|q| q.reason == Because::QuotaStuck.as_str());
    let old = facts.status().map_or(&[][..], |status| &status.conditions);
    let mut conditions = Conditions::over(old, facts.node.metadata.generation, now);
    let ready_agent = agent_ready(agent, &facts.kube_node);
    let answers = ready_agent.0 == ConditionStatus::True;
    for (type_, (status, because, words)) in [
        (Is::AgentReady, ready_agent),
        (Is::HardwareMatchesClass, hardware_matches(&facts.node, &facts.class, agent)),
        (Is::HostPrepared, host_prepared(agent)),
        (Is::QuotaHealthy, quota_healthy(agent, stuck)),
        (Is::VMsAttached, attached(agent)),
        (Is::ClockInStep, clock(agent, SKEW_SAID)),
    ] {
        conditions.set(type_, status, because, words);
    }
    let reboot = super::reboot::decide(facts, &quarantine);
    let (settled, because, words) = &reboot.fact;
    conditions.set(Is::RebootSettled, *settled, *because, words);
    reboot.wake.into_iter().for_each(|moment| plan.wake_at(moment));
    let leasable = leasable(&facts.node, &facts.class, &facts.kube_node, !facts.claim.is_absent(), now);
    match &leasable {
        Leasable::Yes => conditions.set(Is::Leasable, true, Because::Available, "a lease may be bound to it"),
        Leasable::No(because, words) => conditions.set(Is::Leasable, false, *because, words),
    }
    let unreachable = match unreachable_since(facts, &facts.config) {
        Ok(since) => since.filter(|_| agent.is_some()),
        Err(due) => {
            plan.wake_at(due);
            None
        }
    };
    let (phase, ready) = summary(facts, hold, (&quarantine, &reboot.fact), unreachable, answers, &leasable);
    conditions.set(Is::Ready, ready.0, ready.1, ready.2);
    let prefetch = facts
        .lease
        .present()
        .filter(|_| matches!(hold, Hold::Live { .. }))
        .map(|l| l.spec.prefetch_image_names.clone());
    plan.status = Some(json!({
        "observedGeneration": facts.node.metadata.generation,
        "phase": phase,
        "nodeName": names::node(&kube::ResourceExt::name_any(&facts.node)),
        "prefetchImageNames": prefetch.filter(|p| !p.is_empty()),
        "reboot": reboot.reboot,
        "policyRebootAt": reboot.policy_reboot_at,
        "quarantine": (!quarantine.is_empty()).then_some(quarantine),
        "conditions": conditions.done(),
    }));
}

/// The phase, and the summary condition, from what stands in the way first.
fn summary(
    facts: &Facts,
    hold: &Hold,
    (quarantine, reboot): (&[Quarantine], &Fact),
    unreachable: Option<Timestamp>,
    answers: bool,
    leasable: &Leasable,
) -> (Phase, Fact) {
    let now = facts.clocks.operator;
    if let Some(retirement) = &facts.node.spec.retirement {
        return (
            Phase::Retired,
            fact(
                false,
                Because::Retired,
                format!("retired: {}; remove spec.retirement once it is repaired", retirement.reason),
            ),
        );
    }
    if let Some(entry) = quarantine.first() {
        let because = reason_of(&entry.reason);
        let step = if reboot.0 == ConditionStatus::True { String::new() } else { format!("; {}", reboot.2) };
        return (
            Phase::Quarantined,
            fact(
                false,
                because,
                format!(
                    "quarantined since {}{step}; to clear it by hand set spec.clearedQuarantine to {:?}",
                    rfc3339(entry.since.0),
                    entry.token()
                ),
            ),
        );
    }
    if let Some(since) = unreachable {
        return (
            Phase::Unreachable,
            fact(
                false,
                Because::NodeNotReady,
                format!("its agent has not answered for {}; its VMs are not moved", span_words(since, now)),
            ),
        );
    }
    if facts.node.spec.drain {
        let busy = facts.slots().iter().filter(|s| facts.vm(&s.uid).is_none_or(|vm| !vm.at_rest())).count();
        let off = format!("`kubectl macrack maintenance {} --off`", kube::ResourceExt::name_any(&facts.node));
        let words = match busy {
            0 => format!("in maintenance: nothing runs on it; {off} starts everything again"),
            n => format!("in maintenance: {n} of 2 VMs are still being stopped; {off} ends it"),
        };
        let phase = if facts.lease_ref().is_some() { Phase::Leased } else { Phase::Pending };
        return (phase, fact(false, Because::Draining, words));
    }
    if let (Some(lease_ref), Seen::Absent) = (facts.lease_ref(), &facts.class) {
        let words = format!(
            "MacNodeClass {:?} does not exist any more: create it again; the lease that has this Mac goes on, until {} at \
             least, and no VM of it is touched",
            facts.node.spec.node_class_name,
            rfc3339(lease_ref.earliest_release_at.0)
        );
        return (Phase::Leased, fact(false, Because::ClassNotFound, words));
    }
    if let Some(lease_ref) = facts.lease_ref() {
        let running = facts.slots().iter().filter(|s| s.order == Order::Run).count();
        let until = rfc3339(lease_ref.earliest_release_at.0);
        let words = match hold {
            Hold::Live { .. } | Hold::Unreadable => {
                format!("{running} of 2 VMs; not given to anyone else before {until}")
            }
            Hold::Held { .. } => format!("its lease was deleted and is Held until {until}"),
            Hold::Dangling { .. } => {
                format!("its lease is gone; wiped, and given to nobody before {until}")
            }
            _ => format!("being wiped and given back; floor {until}"),
        };
        let words = match facts.status().and_then(super::remains::words) {
            Some(remains) => format!("{words}; {remains}"),
            None => words,
        };
        return (Phase::Leased, fact(answers, if answers { Because::Leased } else { Because::NodeNotReady }, words));
    }
    match leasable {
        Leasable::Yes => (Phase::Ready, fact(true, Because::Available, "a lease may be bound to it")),
        Leasable::No(because, words) => (Phase::Pending, fact(false, *because, words.clone())),
    }
}

fn reason_of(word: &str) -> Because {
    [Because::QuotaStuck, Because::ReattachFailed, Because::SerialMismatch, Because::WipeFailed, Because::ForeignVM]
        .into_iter()
        .find(|b| b.as_str() == word)
        .unwrap_or(Because::Quarantined)
}
