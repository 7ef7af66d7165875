//! From a VirtualMachine to an instance that runs: what may keep it from starting.
//!
//! Invariant: only a machine that was never Ready is given up for want of a node or of a launcher that can. The disk of
//! one that was in use may hold what nobody has twice, and an instance that never ran wrote nothing.

use dockerios_api::{
    MachineIdentity, Verdict,
    condition::clip_to,
    machine::macos_machine::{MachineCondition as Condition, MachinePhase as Phase, MachineReason as Reason},
};
use dockerios_kubevirt::{
    VirtualMachine, VirtualMachineInstance, condition,
    names::{FAILURE, POD_SCHEDULED, SYNCHRONIZED},
    vm::RunStrategy,
    vmi::VmiPhase,
};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::{
    devices,
    disks::{self, Disks, USUAL_CLONE},
    facts::Objects,
    instance::{says, since},
    provision,
    run::silent_guest,
    status::{Pass, after, clock},
};
use crate::{Kind, Step, Target};

/// A launcher pod that has no node, or an instance whose domain does not run, fails the machine after so long.
pub const START_DEADLINE: SignedDuration = SignedDuration::from_mins(15);

/// Bytes of what others said that come before the way out, so that this is never cut off.
const TOLD: usize = 700;

/// Whether the guest was Ready at any time of the machine's life. An identity that cannot be read may say so.
fn in_use(pass: &Pass) -> bool {
    let used = |identity: &MachineIdentity| identity.status.as_ref().is_some_and(|status| status.used_at.is_some());
    pass.draft.first_ready_at.is_some() || provision::held(pass.facts).map_or(true, |held| held.is_some_and(used))
}

/// The instance failed by itself.
pub(super) fn ended(pass: &mut Pass, objects: &Objects) {
    let (reason, message) = why_ended(pass, objects);
    pass.say(Condition::InstanceRunning, false, reason, &message);
    let status = objects.vmi.and_then(|vmi| vmi.status.as_ref());
    let ran = status.is_some_and(|status| status.since(VmiPhase::Running).is_some());
    if ran || !in_use(pass) {
        return pass.fail(objects, reason, message);
    }
    silent_guest(pass);
    let message = format!(
        "{}. Disk and identity are kept, and it is not started again by itself: once that is mended, set powerState \
         Stopped, then Running",
        clip_to(&message, TOLD)
    );
    pass.sum_up(Phase::Stopped, reason, message);
}

fn why_ended(pass: &Pass, objects: &Objects) -> (Reason, String) {
    // what KubeVirt said while it tried stands on the instance no more when that has failed
    let known = [Reason::DeviceMissing, Reason::HookFailed]
        .into_iter()
        .find_map(|reason| {
            let stood = pass.stood(Condition::InstanceRunning)?;
            (stood.reason == reason.word()).then(|| (reason, stood.message.clone()))
        });
    if let Some(known) = known {
        return known;
    }
    let status = objects.vmi.and_then(|vmi| vmi.status.as_ref());
    let mut told: Vec<String> = status.and_then(|status| status.reason.clone()).into_iter().collect();
    told.extend(objects.vmi.and_then(|vmi| says(vmi, SYNCHRONIZED, "False")));
    told.extend(objects.vmi.and_then(|vmi| says(vmi, "Ready", "False")));
    if told.is_empty() {
        told.push("KubeVirt gives no reason".to_owned());
    }
    let told = told.join("; ");
    match objects.vmi.and_then(|vmi| devices::missing(vmi, &told)) {
        Some(message) => (Reason::DeviceMissing, message),
        None => (
            Reason::InstanceFailed,
            format!("the instance ended with a failure: {told}"),
        ),
    }
}

/// There is no instance: it was stopped and is to run again, or KubeVirt has not made it yet.
pub(super) fn absent(pass: &mut Pass, objects: &Objects, vm: &VirtualMachine, disks: &Disks) {
    silent_guest(pass);
    if vm.spec.run_strategy != Some(RunStrategy::Once) {
        if let Err((reason, message)) = provision::startable(pass.facts, vm) {
            pass.say(Condition::InstanceRunning, false, reason, &message);
            return provision::wait(pass, reason, message);
        }
        set_strategy(pass, vm, "Once");
        pass.say(
            Condition::InstanceRunning,
            false,
            Reason::Starting,
            "it is being started",
        );
        return pass.sum_up(Phase::Starting, Reason::Starting, "it is being started");
    }
    if *disks == Disks::Missing {
        return provision::proceed(pass, objects);
    }
    disks::retry_once(pass, objects);
    let failure = vm
        .status
        .as_ref()
        .and_then(|status| condition(&status.conditions, FAILURE))
        .filter(|c| c.status == "True");
    let told = failure.and_then(|failure| failure.message.clone());
    let message = match &told {
        Some(told) => format!("KubeVirt cannot make the instance: {told}"),
        None => "KubeVirt is asked to start it".to_owned(),
    };
    let reason = if told.as_deref().is_some_and(names_hook) {
        Reason::HookFailed
    } else {
        Reason::Starting
    };
    pass.say(Condition::InstanceRunning, false, reason, &message);
    if let Disks::Cloning(text, since) = disks {
        return cloning(pass, objects, text, *since);
    }
    let made = vm.metadata.creation_timestamp.as_ref().map(|time| time.0);
    // one that ran before was stopped at some time that nobody keeps: it is not held to a deadline
    let never_ran = pass
        .stood(Condition::InstanceRunning)
        .is_some_and(|stood| made.is_some_and(|made| stood.last_transition_time.0 <= made));
    if let Some(made) = made.filter(|_| never_ran && !in_use(pass)) {
        let due = after(made.max(cloned_at(pass).unwrap_or(made)), START_DEADLINE);
        if pass.now >= due {
            let reason = overdue(reason);
            return pass.fail(objects, reason, format!("not started until {}: {message}", clock(due)));
        }
        pass.plan.wake_at(due);
    }
    pass.sum_up(Phase::Starting, reason, message);
}

/// Changes the run strategy at the version that was seen.
pub(super) fn set_strategy(pass: &mut Pass, vm: &VirtualMachine, strategy: &str) {
    let target = Target::exactly(Kind::VirtualMachine, &vm.metadata);
    pass.plan
        .then(Step::Merge(target, json!({"spec": {"runStrategy": strategy}})));
}

/// Since when the disks are known to be there.
fn cloned_at(pass: &Pass) -> Option<Timestamp> {
    let stood = pass.stood(Condition::DiskCloned)?;
    (stood.status == Verdict::True).then_some(stood.last_transition_time.0)
}

fn cloning(pass: &mut Pass, objects: &Objects, text: &str, since: Option<Timestamp>) {
    let placed = objects.vmi.and_then(|vmi| {
        let placed = condition(&vmi.status.as_ref()?.conditions, POD_SCHEDULED).filter(|c| c.status == "True")?;
        placed.last_transition_time.as_ref().map(|time| time.0)
    });
    let timeout = pass.patience(|class| &class.clone_timeout, USUAL_CLONE);
    if let Some((begun, timeout)) = since.max(placed).zip(timeout) {
        let due = after(begun, timeout);
        if pass.now >= due {
            let message = format!(
                "its disks were not cloned within {}s (cloneTimeout of its class): {}. See the DataVolume and its PVC; CDI never fails a clone by itself",
                timeout.as_secs(),
                clip_to(text, TOLD)
            );
            pass.say(Condition::DiskCloned, false, Reason::CloneTimeout, &message);
            return pass.fail(objects, Reason::CloneTimeout, message);
        }
        pass.plan.wake_at(due);
    }
    pass.sum_up(Phase::Cloning, Reason::Cloning, text);
}

pub(super) fn names_hook(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    text.contains("hook") || text.contains("sidecar")
}

/// The instance is on its way.
pub(super) fn coming(pass: &mut Pass, objects: &Objects, phase: VmiPhase, disks: &Disks) {
    silent_guest(pass);
    disks::retry_once(pass, objects);
    let Some(vmi) = objects.vmi else {
        pass.say(
            Condition::InstanceRunning,
            false,
            Reason::Starting,
            "its launcher pod starts",
        );
        return pass.sum_up(Phase::Starting, Reason::Starting, "its launcher pod starts");
    };
    let (reason, message) = hindrance(vmi, phase);
    pass.say(Condition::InstanceRunning, false, reason, &message);
    match disks {
        Disks::Missing => return provision::proceed(pass, objects),
        Disks::Cloning(text, since) => return cloning(pass, objects, text, *since),
        Disks::Waiting(_) | Disks::Cloned | Disks::Lost(_) => {}
    }
    let unplaced = condition(
        vmi.status.as_ref().map_or(&[], |status| &status.conditions),
        POD_SCHEDULED,
    )
    .filter(|c| c.status == "False")
    .and_then(|c| c.last_transition_time.as_ref())
    .map(|time| time.0);
    let begun = unplaced.or_else(|| since(vmi, phase)).max(cloned_at(pass));
    // it may hold what nobody has twice: that no node has room for it is no reason to take that away
    if let Some(begun) = begun.filter(|_| !in_use(pass)) {
        let due = after(begun, START_DEADLINE);
        if pass.now >= due {
            let reason = overdue(reason);
            let minutes = START_DEADLINE.as_mins();
            return pass.fail(
                objects,
                reason,
                format!("its instance did not run within {minutes} minutes: {message}"),
            );
        }
        pass.plan.wake_at(due);
    }
    let phase = if matches!(disks, Disks::Waiting(_)) {
        Phase::Cloning
    } else {
        Phase::Starting
    };
    pass.sum_up(phase, reason, message);
}

/// What a start that took too long is called.
fn overdue(reason: Reason) -> Reason {
    match reason {
        Reason::HookFailed | Reason::DeviceMissing => reason,
        _ => Reason::SchedulingTimeout,
    }
}

/// What keeps the instance from running.
fn hindrance(vmi: &VirtualMachineInstance, phase: VmiPhase) -> (Reason, String) {
    if let Some(told) = says(vmi, SYNCHRONIZED, "False") {
        if let Some(message) = devices::missing(vmi, &told) {
            return (Reason::DeviceMissing, message);
        }
        let hook = phase == VmiPhase::Scheduled || names_hook(&told);
        let reason = if hook { Reason::HookFailed } else { Reason::Starting };
        return (reason, format!("KubeVirt cannot start it: {told}"));
    }
    if let Some(told) = says(vmi, POD_SCHEDULED, "False") {
        return (Reason::Unschedulable, format!("no node takes it: {told}"));
    }
    let word = match phase {
        VmiPhase::Unset => "has been asked for".to_owned(),
        phase => format!("is {phase:?}"),
    };
    (Reason::Starting, format!("its instance {word}"))
}
