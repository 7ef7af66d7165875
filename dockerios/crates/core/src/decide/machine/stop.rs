//! An orderly stop: the guest is told, then ACPI, then the grace period, then KubeVirt cuts it off.
//!
//! ```text
//! stopRequestedAt ──window──▶ Halted (ACPI) ──grace──▶ cut off by KubeVirt ──▶ nothing runs
//! ```
//!
//! Invariant: a stop that began is carried to its end before the machine is started again; no pod and no VMI is ever
//! deleted by force.

use dockerios_api::machine::macos_machine::{
    MachineCondition as Condition, MachinePhase as Phase, MachineReason as Reason, PowerState,
};
use dockerios_kubevirt::{vm::RunStrategy, vmi::VmiPhase};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use super::{
    facts::Objects,
    instance::{self, Life},
    run::{SILENCE, silent_guest},
    start::set_strategy,
    status::{Pass, after, clock, span_or},
};
use crate::{Kind, News, Step, Target};

/// The longest that a guest gets to shut itself down before ACPI asks it too.
pub const GUEST_WINDOW: SignedDuration = SignedDuration::from_secs(60);
/// macOS needs up to so long; also the least that a class may say.
const USUAL_GRACE: SignedDuration = SignedDuration::from_secs(180);
/// KubeVirt cuts a guest off when its grace period is over; when nothing came of that for so long, it is said, and the
/// VirtualMachine of a machine that ends is deleted.
pub const OVERDUE: SignedDuration = SignedDuration::from_secs(60);

/// Why something is waited for.
pub(super) type Wait = (Reason, String);

/// Whether the machine is to be off, or on its way there.
pub(super) fn wanted(pass: &Pass) -> bool {
    let begun = pass.before().is_some_and(|status| status.stop_requested_at.is_some());
    begun || pass.machine().spec.power_state == PowerState::Stopped
}

/// Stops the machine, which stays.
pub(super) fn proceed(pass: &mut Pass, objects: &Objects, life: &Life) {
    if let Some((reason, message)) = bring_down(pass, objects, life, false) {
        return pass.sum_up(Phase::Stopping, reason, message);
    }
    silent_guest(pass);
    // Halted also takes away an instance that ended by itself, without which the machine could not be started again
    let halted = objects
        .vm
        .is_none_or(|vm| vm.spec.run_strategy == Some(RunStrategy::Halted));
    if let Some(vm) = objects.vm.filter(|_| !halted) {
        set_strategy(pass, vm, "Halted");
    }
    remove_forsaken(pass, objects);
    let settled = halted && objects.vmi.is_none();
    if !settled {
        pass.draft.stop_requested_at = pass.before().and_then(|status| status.stop_requested_at.clone());
    }
    if pass.machine().spec.power_state == PowerState::Stopped {
        off(pass, Reason::Stopped, "it is off");
        return pass.sum_up(
            Phase::Stopped,
            Reason::Stopped,
            "it is off, as asked; disk and identity are kept",
        );
    }
    off(pass, Reason::Starting, "it was stopped and is started again");
    pass.sum_up(Phase::Stopping, Reason::Stopping, "it was stopped and is started again");
}

/// Says that nothing runs; that the last stop was unclean stays said.
fn off(pass: &mut Pass, reason: Reason, message: &str) {
    let unclean = pass
        .stood(Condition::InstanceRunning)
        .is_some_and(|c| c.reason == Reason::UncleanShutdown.word());
    let said = pass.report.said(Condition::InstanceRunning);
    if said.is_some_and(|said| said.reason == Reason::UncleanShutdown.word()) {
        return;
    }
    if unclean {
        pass.again(Condition::InstanceRunning);
    } else {
        pass.say(Condition::InstanceRunning, false, reason, message);
    }
}

/// Takes the next step towards nothing running. None when nothing runs; otherwise what is waited for. `ending`: the
/// machine itself goes, or has failed.
pub(super) fn bring_down(pass: &mut Pass, objects: &Objects, life: &Life, ending: bool) -> Option<Wait> {
    note_unclean(pass, objects);
    if matches!(life, Life::Down(_)) {
        return None;
    }
    let now = pass.now;
    let begun = pass.before().and_then(|status| status.stop_requested_at.clone());
    let requested = begun.clone().unwrap_or(Time(now));
    pass.draft.stop_requested_at = Some(requested.clone());
    let grace = grace(pass, objects);
    let window_ends = after(requested.0, window(pass, requested.0, grace));
    // the guest is told by the status, which is written after the steps of this pass
    let told = begun.is_some() || window_ends <= requested.0;
    let asked = asked(objects);
    if asked.is_none() {
        if told && now >= window_ends {
            halt(pass, objects);
        } else {
            pass.plan.wake_at(window_ends);
        }
    }
    let cut = after(asked.flatten().unwrap_or(window_ends).max(requested.0), grace);
    let overdue = after(cut, OVERDUE);
    if let Life::Lost(why) = life {
        return Some((
            Reason::WaitingForInstance,
            format!(
                "{why}: whether the guest still runs is not known, so nothing of it is freed. It goes on by itself when \
                 the node answers; if the node is known to be off, delete the Node, or its launcher pod with --force"
            ),
        ));
    }
    if now < overdue {
        pass.plan.wake_at(overdue);
        let message = if asked.is_none() && now < window_ends {
            format!(
                "the guest is told to shut down until {}, then by ACPI until {}",
                clock(window_ends),
                clock(cut)
            )
        } else {
            format!(
                "the guest is told to shut down by ACPI until {}, then it is cut off",
                clock(cut)
            )
        };
        let reason = if ending { Reason::ShuttingDown } else { Reason::Stopping };
        pass.say(Condition::InstanceRunning, false, reason, &message);
        return Some((reason, message));
    }
    force(pass, objects, cut, ending)
}

/// KubeVirt should have cut it off by now.
fn force(pass: &mut Pass, objects: &Objects, cut: Timestamp, ending: bool) -> Option<Wait> {
    let still = format!(
        "its grace period ended at {} and its instance is still there",
        clock(cut)
    );
    if ending && let Some(vm) = objects.vm.filter(|vm| vm.metadata.deletion_timestamp.is_none()) {
        pass.plan
            .then(Step::Delete(Target::of(Kind::VirtualMachine, &vm.metadata)));
        pass.plan.news.push(News::warning(
            Reason::UncleanShutdown,
            format!("{still}; its VirtualMachine is deleted, and KubeVirt has to end it"),
        ));
    }
    let message = format!(
        "{still}; see virt-handler on its node: kubectl describe vmi/{}",
        objects.vmi.map(|vmi| vmi.name_any()).unwrap_or_default()
    );
    pass.say(Condition::InstanceRunning, false, Reason::WaitingForInstance, &message);
    Some((Reason::WaitingForInstance, message))
}

/// Whether KubeVirt was asked to stop it, and since when as far as it says.
fn asked(objects: &Objects) -> Option<Option<Timestamp>> {
    let since = objects
        .vmi
        .and_then(|vmi| vmi.metadata.deletion_timestamp.as_ref())
        .map(|time| time.0);
    let halted = objects.vm.is_some_and(|vm| {
        vm.spec.run_strategy == Some(RunStrategy::Halted) || vm.metadata.deletion_timestamp.is_some()
    });
    (halted || since.is_some()).then_some(since)
}

/// Asks KubeVirt to stop it, which asks the guest by ACPI.
fn halt(pass: &mut Pass, objects: &Objects) {
    match (objects.vm, objects.vmi) {
        (Some(vm), _) => set_strategy(pass, vm, "Halted"),
        // its VirtualMachine was taken away from it
        (None, Some(vmi)) => pass
            .plan
            .then(Step::Delete(Target::of(Kind::VirtualMachineInstance, &vmi.metadata))),
        (None, None) => {}
    }
}

/// Removes an instance whose VirtualMachine is gone without it (`--cascade=orphan`): when it has ended, nobody else does. Only
/// for one that is down.
pub(super) fn remove_forsaken(pass: &mut Pass, objects: &Objects) {
    if let Some(vmi) = objects
        .vmi
        .filter(|vmi| objects.vms.is_empty() && vmi.metadata.deletion_timestamp.is_none())
    {
        pass.plan
            .then(Step::Delete(Target::of(Kind::VirtualMachineInstance, &vmi.metadata)));
    }
}

/// The grace period that the instance was made with.
fn grace(pass: &Pass, objects: &Objects) -> SignedDuration {
    let rendered = objects
        .vm
        .map(|vm| &vm.spec.template.spec)
        .or(objects.vmi.map(|vmi| &vmi.spec));
    let seconds = rendered
        .and_then(|spec| spec.termination_grace_period_seconds)
        .filter(|seconds| *seconds > 0);
    let class = pass
        .facts
        .class
        .present()
        .map(|class| &class.spec.termination_grace_period);
    seconds.map_or_else(|| span_or(class, USUAL_GRACE), SignedDuration::from_secs)
}

/// How long the guest gets by itself: nothing when its agent does not speak.
fn window(pass: &Pass, requested: Timestamp, grace: SignedDuration) -> SignedDuration {
    let heard = pass
        .before()
        .and_then(|status| status.guest.as_ref()?.last_report.clone());
    let speaks = heard.is_some_and(|heard| after(heard.0, SILENCE) > requested);
    if speaks {
        GUEST_WINDOW.min(grace / 2)
    } else {
        SignedDuration::ZERO
    }
}

/// Says, once, that the guest was cut off.
fn note_unclean(pass: &mut Pass, objects: &Objects) {
    let stopping = pass.before().is_some_and(|status| status.stop_requested_at.is_some());
    let failed = objects.vmi.is_some_and(|vmi| instance::phase(vmi) == VmiPhase::Failed);
    if !stopping || !failed {
        return;
    }
    let message =
        "the guest did not shut down within its grace period and was cut off; its file system may need a check";
    pass.say(Condition::InstanceRunning, false, Reason::UncleanShutdown, message);
    let known = pass
        .stood(Condition::InstanceRunning)
        .is_some_and(|c| c.reason == Reason::UncleanShutdown.word());
    if !known {
        pass.plan.news.push(News::warning(Reason::UncleanShutdown, message));
    }
}
