//! The node is to be emptied: the claim is waited for, up to the platform's deadline.
//!
//! Invariant: the machine is not migrated; it leaves its node by being stopped, and not before its claim let go or the
//! deadline passed. A node that is in use again calls the leaving off.

use dockerios_api::Verdict;
use dockerios_api::machine::macos_machine::{MachineCondition as Condition, MachineReason as Reason};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use super::{
    end::held_by_claim,
    facts::{Objects, terminal},
    instance::{Life, cordoned},
    status::{Pass, after, clock, span_or},
};
use crate::{Kind, Seen, Step, Target};

/// When PlatformConfig is gone: what its schema sets.
const USUAL_DEADLINE: SignedDuration = SignedDuration::from_hours(1);
/// A mark without a cordoned node is called off only after so long: the mark may be seen before the cordon.
const SETTLE: SignedDuration = SignedDuration::from_secs(10);

/// What a drain asks of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drain {
    /// Nothing.
    No,
    /// To leave, once its claim has let go.
    Wait,
    /// To leave now.
    Leave,
}

/// Says whether the machine's node is being drained, and what follows.
pub(super) fn judge(pass: &mut Pass, objects: &Objects, life: &Life) -> Drain {
    let Some(node) = leaving(pass, objects, life) else {
        if left(pass) {
            pass.again(Condition::Draining);
            return Drain::Leave;
        }
        pass.say(Condition::Draining, false, Reason::NotDraining, "its node is in use");
        return Drain::No;
    };
    let stood = pass
        .stood(Condition::Draining)
        .filter(|stood| stood.status == Verdict::True);
    let since = stood.map_or(pass.now, |stood| stood.last_transition_time.0);
    if called_off(pass, objects, &node, since) {
        return Drain::No;
    }
    // a claim that cannot be read is not taken for one that let go
    let claimed = held_by_claim(pass.machine(), &pass.facts.claim).unwrap_or(true);
    if claimed && let Some(until) = waits_until(pass, since) {
        let message =
            format!("node {node} is being drained; its claim is waited for until {until}, then it is stopped");
        pass.say(Condition::Draining, true, Reason::WaitingForClaim, message);
        return Drain::Wait;
    }
    pass.say(
        Condition::Draining,
        true,
        Reason::Draining,
        format!("node {node} is being drained; it is stopped"),
    );
    Drain::Leave
}

/// Until when its claim is waited for, in words; none when that is over. A deadline that cannot be read has not passed.
fn waits_until(pass: &mut Pass, since: Timestamp) -> Option<String> {
    let platform = match &pass.facts.platform {
        Seen::Unknown(why) => {
            let until = format!("the deadline, which cannot be read now ({why})");
            pass.look_again();
            return Some(until);
        }
        platform => platform.present(),
    };
    let said = platform.map(|platform| &platform.spec.drain_deadline);
    let deadline = after(since, span_or(said, USUAL_DEADLINE));
    let waits = pass.now < deadline;
    if waits {
        pass.plan.wake_at(deadline);
    }
    waits.then(|| clock(deadline))
}

/// Whether the machine goes because its node was to be emptied: once its instance is down nothing marks that node any
/// more, and a claim that was waited for long enough does not hold what is left.
fn left(pass: &Pass) -> bool {
    let told = pass
        .stood(Condition::Draining)
        .is_some_and(|stood| stood.status == Verdict::True && stood.reason == Reason::Draining.word());
    told && pass.machine().metadata.deletion_timestamp.is_some()
}

/// The node that the machine is to leave: marked by a refused eviction, or cordoned while KubeVirt has not taken note
/// of where the launcher pod is (the eviction is then refused and never marked).
fn leaving(pass: &Pass, objects: &Objects, life: &Life) -> Option<String> {
    if matches!(life, Life::Down(_)) {
        return None;
    }
    let status = objects.vmi.and_then(|vmi| vmi.status.as_ref());
    let named = |name: &Option<String>| name.clone().filter(|name| !name.is_empty());
    if let Some(marked) = status.and_then(|status| named(&status.evacuation_node_name)) {
        return Some(marked);
    }
    let placed = status.and_then(|status| named(&status.node_name));
    let pod = objects.pods.iter().find(|pod| !terminal(pod))?;
    let node = pod.spec.as_ref().and_then(|spec| named(&spec.node_name))?;
    let known = pass.facts.node.present().filter(|known| known.name_any() == node)?;
    (placed.is_none() && cordoned(known)).then_some(node)
}

/// Whether the node is in use again although the instance is marked.
fn called_off(pass: &mut Pass, objects: &Objects, node: &str, since: Timestamp) -> bool {
    let in_use = matches!(&pass.facts.node, Seen::Present(known) if known.name_any() == node && !cordoned(known));
    if !in_use {
        return false;
    }
    let due = after(since, SETTLE);
    if pass.now < due {
        pass.plan.wake_at(due);
        return false;
    }
    if let Some(vmi) = objects.vmi {
        let vmi = Target::of(Kind::VirtualMachineInstance, &vmi.metadata);
        pass.plan.then(Step::CancelEvacuation {
            vmi,
            node: node.to_owned(),
        });
    }
    pass.say(
        Condition::Draining,
        false,
        Reason::NotDraining,
        format!("node {node} is in use again; the machine stays"),
    );
    true
}
