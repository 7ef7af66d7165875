//! What an instance's status says: from its slot, its agent's report, and what stands in the way.

use kube::ResourceExt;
use macrack_api::{
    MacNodeStatus,
    condition::ConditionStatus,
    instance::macos_instance::{
        FirstBootState, MacOSInstanceCondition as Is, MacOSInstancePhase as Phase, MacOSInstanceReason as Because,
        PowerState,
    },
    names,
    rack::node::{Order, Slot, VmState},
};
use serde_json::json;

use super::{Facts, full, guest, lease_over};
use crate::{
    clock::rfc3339,
    conditions::Conditions,
    decide::node::{capacity, remains},
    plan::Plan,
    seen::Seen,
};

pub(super) type Word = (Phase, Because, String);

/// Writes the whole of the operator's part.
pub(super) fn write(facts: &Facts, plan: &mut Plan) {
    let old = facts.status();
    let lease_uid = old.lease_uid.clone().or_else(|| facts.lease.present().and_then(ResourceExt::uid));
    let (phase, because, words) = summary(facts);
    let mut conditions = Conditions::over(&old.conditions, facts.instance.metadata.generation, facts.clocks.operator);
    conditions.set(Is::Ready, phase == Phase::Ready, because, &words);
    progress(facts, phase, because, &words, &mut conditions);
    let placed = facts.slot().is_some();
    plan.status = Some(json!({
        "observedGeneration": facts.instance.metadata.generation,
        "phase": phase,
        "leaseUID": lease_uid,
        "leaseFull": full(facts),
        "nodeName": placed.then(|| facts.chassis.present().map(|c| names::node(&c.name_any()))).flatten(),
        "podName": facts.placeholder().map(ResourceExt::name_any),
        "conditions": conditions.done(),
    }));
}

/// The phase and the summary: what stands in the way first.
fn summary(facts: &Facts) -> Word {
    if facts.slot().is_some() {
        return if facts.retired() { retired(facts) } else { placed(facts) };
    }
    waiting(facts)
}

fn retired(facts: &Facts) -> Word {
    let serial = facts.chassis.present().map(|c| c.spec.serial.clone()).unwrap_or_default();
    (
        Phase::Failed,
        Because::ChassisRetired,
        format!("{serial} was retired; this VM's disk is wiped if the Mac ever returns"),
    )
}

/// Why it has no slot.
fn waiting(facts: &Facts) -> Word {
    let name = &facts.instance.spec.lease_name;
    let serial = || facts.chassis.present().map(|c| c.spec.serial.clone()).unwrap_or_default();
    if facts.deleted() {
        return (Phase::Stopping, Because::Stopping, "nothing of it is on any Mac; it goes".into());
    }
    if full(facts) {
        let others: Vec<String> = facts.neighbours.iter().map(ResourceExt::name_any).collect();
        return (
            Phase::Failed,
            Because::LeaseFull,
            format!(
                "lease {name} already holds {}; a Mac carries two macOS VMs, never more. Delete one of them and make this one anew, or lease another Mac",
                others.join(" and ")
            ),
        );
    }
    if lease_over(facts) {
        return (
            Phase::Failed,
            Because::LeaseEnded,
            format!("lease {name} has ended and its Mac was wiped; make a new lease and a new instance"),
        );
    }
    if let Seen::Unknown(why) = &facts.lease {
        return (Phase::Pending, Because::Unreadable, format!("lease {name} cannot be read now: {why}"));
    }
    let Some(lease) = facts.own_lease() else {
        return (
            Phase::Pending,
            Because::LeaseNotFound,
            format!(
                "namespace {} has no lease {name:?}; create one, or delete this instance",
                facts.instance.namespace().unwrap_or_default()
            ),
        );
    };
    let deleted = lease.metadata.deletion_timestamp.as_ref();
    if deleted.is_some_and(|d| facts.instance.creation_timestamp().is_some_and(|c| c.0 <= d.0)) {
        return (
            Phase::Stopped,
            Because::LeaseHeld,
            format!(
                "lease {name} was deleted after this instance was made; make a new instance while the lease is Held"
            ),
        );
    }
    let Some(chassis) = facts.chassis.present() else {
        return match lease.status.as_ref().and_then(|status| status.serial.as_ref()) {
            // an instance that was made a moment ago: its lease is known by name, not yet by uid
            Some(serial) => (Phase::Pending, Because::WaitingForSlot, format!("waits for a slot on {serial}")),
            None => (Phase::Pending, Because::LeasePending, format!("lease {name} waits for a Mac")),
        };
    };
    let status = chassis.status.clone().unwrap_or_default();
    if let Some(entry) = status.quarantine.first() {
        return (
            Phase::Pending,
            Because::ChassisQuarantined,
            format!(
                "{} is quarantined since {} ({}) and starts nothing until that is resolved",
                serial(),
                rfc3339(entry.since.0),
                entry.reason
            ),
        );
    }
    if chassis.spec.drain {
        let words = format!("{} is in maintenance and starts nothing until that is over", serial());
        return (Phase::Pending, Because::ChassisInMaintenance, words);
    }
    if let (Seen::Present(size), Seen::Present(class)) = (&facts.size, &facts.node_class) {
        let mut sizes: Vec<_> = facts.neighbour_sizes.iter().collect();
        sizes.push(size);
        if let Err(misfit) = capacity(class, &sizes) {
            return (
                Phase::Pending,
                Because::DoesNotFit,
                format!("does not fit on {}: {misfit}; use a smaller InstanceClass", serial()),
            );
        }
    }
    if facts.size.is_absent() {
        return (
            Phase::Pending,
            Because::ClassNotFound,
            format!(
                "InstanceClass {:?} does not exist; see `kubectl get mic`",
                facts.instance.spec.instance_class_name
            ),
        );
    }
    (Phase::Pending, Because::WaitingForSlot, format!("waits for a slot on {}{}", serial(), holders(facts, &status)))
}

/// Who holds the slots that it waits for, when both are held.
fn holders(facts: &Facts, status: &MacNodeStatus) -> String {
    if status.slots.len() < names::VMS_PER_MAC {
        return String::new();
    }
    let own = facts.instance.namespace();
    let holder = |slot: &Slot| match remains::state(status, &slot.uid) {
        _ if remains::is_remains(slot) => remains::in_slot(status, slot),
        // another tenant's is not told
        _ if own.as_deref() != Some(&slot.namespace) => format!("slot {} is held", slot.slot),
        Some(state) => format!("slot {} is held by {} ({state:?}, ordered {:?})", slot.slot, slot.name, slot.order),
        None => format!("slot {} is held by {} (ordered {:?})", slot.slot, slot.name, slot.order),
    };
    format!(": {}", status.slots.iter().map(holder).collect::<Vec<_>>().join("; "))
}

/// How far the VM in its slot is.
fn placed(facts: &Facts) -> Word {
    let Some(slot) = facts.slot() else {
        return waiting(facts);
    };
    let vm = facts.vm();
    let said = vm.and_then(|vm| vm.message.clone()).unwrap_or_default();
    let or = |words: &str| {
        if said.is_empty() { words.to_owned() } else { said.clone() }
    };
    let serial = facts.chassis.present().map(|c| c.spec.serial.clone()).unwrap_or_default();
    let state = vm.map(|vm| vm.state);
    if state == Some(VmState::WipeFailed) {
        return (Phase::Stopping, Because::WipeFailed, or("its disk could not be destroyed; the Mac is quarantined"));
    }
    if !facts.agent_answers {
        return (
            Phase::Unknown,
            Because::HostUnreachable,
            format!("{serial} does not answer; the VM may still run, nothing is moved or freed"),
        );
    }
    if slot.order == Order::Wipe {
        return (Phase::Stopping, Because::Wiping, or("its disk is being destroyed"));
    }
    match state {
        None => scheduling(facts),
        Some(VmState::Unknown) => (Phase::Unknown, Because::VMUnknown, or("its process cannot be reached")),
        Some(VmState::Failed) => (Phase::Failed, Because::VMFailed, or("it could not run")),
        Some(VmState::Stopping | VmState::Wiping) => (Phase::Stopping, Because::Stopping, or("being stopped")),
        Some(VmState::Stopped | VmState::Wiped) if slot.order == Order::Stop => stopped(facts),
        // with no word of its agent it was stopped as ordered, and the order has changed
        Some(VmState::Stopped) if said.is_empty() => (Phase::Starting, Because::Starting, "it is being started".into()),
        Some(VmState::Stopped) => (Phase::Stopped, Because::GuestShutdown, said),
        Some(VmState::Waiting | VmState::Wiped | VmState::WipeFailed) => scheduling(facts),
        Some(VmState::Pulling) => (Phase::Pulling, Because::Pulling, or("its golden is being pulled")),
        Some(VmState::Cloning) => (Phase::Cloning, Because::Cloning, or("its disk is being cloned")),
        Some(VmState::Starting) => (Phase::Starting, Because::Starting, or("the VM starts")),
        Some(VmState::Running) if slot.order == Order::Stop => {
            (Phase::Stopping, Because::Stopping, "being stopped".into())
        }
        Some(VmState::Running) if vm.is_some_and(|vm| vm.guest_ready) && guest::is_told(facts) => {
            (Phase::Ready, Because::Ready, "ready for work".into())
        }
        Some(VmState::Running) => guest::booting(facts),
    }
}

fn stopped(facts: &Facts) -> Word {
    if facts.deleted() {
        return (Phase::Stopping, Because::Stopping, "it is stopped; its disk is destroyed next".into());
    }
    if facts.instance.spec.power_state == PowerState::Stopped {
        return (
            Phase::Stopped,
            Because::PoweredOff,
            "spec.powerState is Stopped; its disk and its slot are kept".into(),
        );
    }
    if facts.own_lease().is_some_and(|lease| lease.metadata.deletion_timestamp.is_none()) {
        return stopped_with_its_mac(facts)
            .unwrap_or_else(|| (Phase::Starting, Because::Starting, "it is being started".into()));
    }
    (
        Phase::Stopped,
        Because::LeaseHeld,
        "its lease was deleted: it is stopped and wiped at the floor; make a new instance while the lease is Held"
            .into(),
    )
}

/// Stopped for the sake of its Mac, and started again by itself after that.
fn stopped_with_its_mac(facts: &Facts) -> Option<Word> {
    let chassis = facts.chassis.present()?;
    let serial = &chassis.spec.serial;
    if chassis.spec.drain {
        let words = format!("{serial} is in maintenance; this VM was stopped and runs again by itself after it");
        return Some((Phase::Stopped, Because::ChassisInMaintenance, words));
    }
    let entry = chassis.status.as_ref()?.quarantine.first()?;
    let words = format!(
        "{serial} is quarantined since {} ({}) and is to be rebooted; this VM was stopped cleanly and runs again by \
         itself after it",
        rfc3339(entry.since.0),
        entry.reason
    );
    Some((Phase::Stopped, Because::ChassisQuarantined, words))
}

/// It has a slot; its placeholder or its agent is not that far.
fn scheduling(facts: &Facts) -> Word {
    if let Some(why) = host_too_old(facts) {
        return (Phase::Pending, Because::HostTooOld, why);
    }
    if let Some(said) = facts.vm().and_then(|vm| vm.message.clone()).filter(|m| !m.is_empty()) {
        let sick = facts.chassis.present().and_then(|c| c.status.as_ref()).is_some_and(|s| !s.quarantine.is_empty());
        return (Phase::Scheduled, if sick { Because::ChassisQuarantined } else { Because::Scheduled }, said);
    }
    let Some(pod) = facts.placeholder() else {
        let taken = facts.pod.present().is_some();
        let words =
            if taken { "a pod of that name is still there; it goes first" } else { "its placeholder is being made" };
        return (Phase::Scheduled, Because::WaitingForScheduler, words.into());
    };
    let conditions = pod.status.as_ref().and_then(|s| s.conditions.clone()).unwrap_or_default();
    match conditions.iter().find(|c| c.type_ == "PodScheduled") {
        Some(c) if c.status == "True" => (Phase::Scheduled, Because::Scheduled, "placed; its agent takes it up".into()),
        Some(c) => (Phase::Scheduled, Because::WaitingForScheduler, c.message.clone().unwrap_or_default()),
        None => (Phase::Scheduled, Because::WaitingForScheduler, "waits for the scheduler".into()),
    }
}

/// Why the Mac cannot run the golden, where both are known.
fn host_too_old(facts: &Facts) -> Option<String> {
    let image = facts.image.present()?;
    let host = facts.chassis.present()?.status.as_ref()?.agent.as_ref()?.host_version.as_ref()?;
    let unfit = image.runs_on(host).err()?;
    let name = &facts.instance.spec.image_name;
    Some(format!("image {name} {unfit}; it starts by itself once the Mac is upgraded, or use another image"))
}

/// The conditions on the way, each True, False with the reason, or False with NotYet.
fn progress(facts: &Facts, phase: Phase, because: Because, words: &str, conditions: &mut Conditions<'_>) {
    let state = facts.vm().map(|vm| vm.state);
    let bound = facts.placeholder().and_then(|p| p.spec.as_ref()?.node_name.clone()).is_some();
    let reached = |states: &[VmState]| state.is_some_and(|s| states.contains(&s));
    use VmState::{Cloning, Running, Starting, Stopped, Stopping};
    let image = reached(&[Cloning, Starting, Running, Stopping, Stopped]);
    let disk = reached(&[Starting, Running, Stopping, Stopped]);
    let mut stage = |type_: Is, holds: bool, good: Because| {
        let (reason, words) = if holds {
            (good, "")
        } else if phase == Phase::Ready {
            (Because::NotYet, "")
        } else {
            (because, words)
        };
        conditions.set(type_, holds, reason, words);
    };
    stage(Is::Scheduled, facts.slot().is_some() && bound, Because::Scheduled);
    stage(Is::ImageReady, image, Because::Cached);
    stage(Is::DiskReady, disk, Because::Cloned);
    stage(Is::VMRunning, state == Some(Running), Because::Running);
    stage(Is::GuestReady, phase == Phase::Ready, Because::Ready);
    let result = facts.status().guest.and_then(|g| g.first_boot);
    let (status, reason) = match (&facts.instance.spec.first_boot, result.map(|r| r.state)) {
        (None, _) => (ConditionStatus::True, Because::NotAsked),
        (Some(_), Some(FirstBootState::Done)) => (ConditionStatus::True, Because::ScriptDone),
        (Some(_), Some(FirstBootState::Failed | FirstBootState::Interrupted)) => {
            (ConditionStatus::False, Because::ScriptFailed)
        }
        (Some(_), _) => (ConditionStatus::False, Because::ScriptPending),
    };
    conditions.set(Is::FirstBootDone, status, reason, "");
    if let Some((match_, reason, words)) = guest::contents(facts) {
        conditions.set(Is::ContentsMatch, match_, reason, words);
    }
}
