//! From a VirtualMachine to Ready, and what may come between.
//!
//! Invariant: Ready is said only of a guest that said so itself in this very run, less than three minutes ago, with
//! the identity that it was given, and only once the identity's `usedAt` is stored. A guest that was Ready once and
//! falls silent is Unknown and keeps everything.

use dockerios_api::{
    Verdict,
    machine::macos_machine::{
        Guest, GuestStage, MachineCondition as Condition, MachinePhase as Phase, MachineReason as Reason,
    },
    names::IDENTITY,
};
use dockerios_kubevirt::{VirtualMachine, names::PAUSED, vmi::VmiPhase};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use super::{
    disks::{self, Disks},
    facts::Objects,
    instance::{Life, says, since},
    provision, start,
    status::{Pass, after, clock},
};
use crate::decide::identity;

/// A guest that said nothing for longer is silent (`dockerios-guest` reports every 30 seconds).
pub const SILENCE: SignedDuration = SignedDuration::from_mins(3);
/// From power-on to Ready, when the class is gone: what its schema sets.
const USUAL_READINESS: SignedDuration = SignedDuration::from_mins(15);

/// The machine is to run and has a VirtualMachine.
pub(super) fn proceed(pass: &mut Pass, objects: &Objects, vm: &VirtualMachine, life: &Life, disks: &Disks) {
    if vm.metadata.deletion_timestamp.is_some() {
        let message = "its VirtualMachine was deleted by somebody; it is made again, with the same disks and identity, once it is gone";
        pass.say(Condition::InstanceRunning, false, Reason::Stopping, message);
        return pass.sum_up(Phase::Stopping, Reason::Stopping, message);
    }
    say_disks(pass, disks);
    match life {
        Life::Lost(why) => lost(pass, why),
        Life::Leaving => {
            let message = "its instance ends; it is started again once it is gone, if it was stopped by somebody else";
            pass.say(Condition::InstanceRunning, false, Reason::Stopping, message);
            silent_guest(pass);
            pass.sum_up(Phase::Stopping, Reason::Stopping, message);
        }
        Life::Down(Some(VmiPhase::Succeeded)) => {
            let message =
                "the guest shut itself down; it is not started again by itself: set powerState Stopped, then Running";
            pass.say(Condition::InstanceRunning, false, Reason::GuestShutDown, message);
            silent_guest(pass);
            pass.sum_up(Phase::Stopped, Reason::GuestShutDown, message);
        }
        Life::Down(Some(_)) => start::ended(pass, objects),
        Life::Down(None) => start::absent(pass, objects, vm, disks),
        Life::Coming(phase) => start::coming(pass, objects, *phase, disks),
        Life::Running => running(pass, objects, vm),
    }
}

fn say_disks(pass: &mut Pass, disks: &Disks) {
    match disks {
        Disks::Cloned => {
            if !pass.held(Condition::DiskCloned) {
                pass.plan.news.extend(disks::copied(&pass.draft.disks));
            }
            let told = disks::told(&pass.draft.disks);
            pass.say(Condition::DiskCloned, true, Reason::Cloned, told);
        }
        Disks::Cloning(text, _) | Disks::Waiting(text) => pass.say(Condition::DiskCloned, false, Reason::Cloning, text),
        Disks::Missing | Disks::Lost(_) => {}
    }
}

/// No word of the guest is expected while nothing runs.
pub(super) fn silent_guest(pass: &mut Pass) {
    pass.say(Condition::GuestReady, false, Reason::Stopped, "nothing runs");
}

fn lost(pass: &mut Pass, why: &str) {
    let message = format!(
        "{why}: whether the guest still runs is not known, so nothing of it is freed. If the node is known to be off, \
         delete the Node, or its launcher pod with --force"
    );
    pass.say(Condition::InstanceRunning, Verdict::Unknown, Reason::NodeLost, &message);
    pass.again(Condition::GuestReady);
    pass.sum_up(Phase::Unknown, Reason::NodeLost, message);
}

/// The domain runs.
fn running(pass: &mut Pass, objects: &Objects, vm: &VirtualMachine) {
    let Some(vmi) = objects.vmi else { return };
    let Some(started) = since(vmi, VmiPhase::Running) else {
        return pass.unreadable("KubeVirt does not say since when the instance runs");
    };
    let was_ready = was_ready(pass, started);
    let guest = pass.before().and_then(|status| status.guest.as_ref());
    let word = Word::of(guest, started, pass.now);
    if let Some(until) = word.good_until.filter(|until| *until > pass.now) {
        pass.plan.wake_at(until);
    }
    let paused = says(vmi, PAUSED, "True");
    say_guest(pass, &word, was_ready, started);
    match &paused {
        Some(told) => pass.say(
            Condition::InstanceRunning,
            false,
            Reason::Paused,
            format!(
                "its processors stand still ({told}); free space on its volume if it was a write error, then unpause it"
            ),
        ),
        None => pass.say(
            Condition::InstanceRunning,
            true,
            Reason::Running,
            format!("runs since {}", clock(started)),
        ),
    }
    if word.ready() && paused.is_none() {
        return ready(pass, vm, started);
    }
    if !was_ready && let Some(timeout) = pass.patience(|class| &class.readiness_timeout, USUAL_READINESS) {
        let due = after(started, timeout);
        if pass.now >= due {
            return timed_out(pass, objects, &word, timeout);
        }
        pass.plan.wake_at(due);
    }
    let (phase, reason) = match (&paused, was_ready, &word.said) {
        (Some(_), true, _) => (Phase::Unknown, Reason::Paused),
        (Some(_), false, _) => (Phase::Starting, Reason::Paused),
        (None, _, Said::Impostor) => (Phase::Starting, Reason::IdentityMismatch),
        (None, true, Said::Nothing | Said::Stale(_)) => (Phase::Unknown, Reason::GuestSilent),
        (None, false, Said::Nothing) => (Phase::Starting, Reason::Booting),
        _ => (Phase::Starting, Reason::GuestNotReady),
    };
    let message = if paused.is_some() {
        pass.report
            .said(Condition::InstanceRunning)
            .map(|said| said.message.clone())
    } else {
        pass.report.said(Condition::GuestReady).map(|said| said.message.clone())
    };
    pass.sum_up(phase, reason, message.unwrap_or_default());
}

/// The guest says that it is ready; it is, once its identity is known as used.
fn ready(pass: &mut Pass, vm: &VirtualMachine, started: Timestamp) {
    let carried = vm
        .spec
        .template
        .metadata
        .as_ref()
        .and_then(|metadata| metadata.labels.get(IDENTITY));
    if let Some(carried) = carried {
        let held = match provision::held(pass.facts) {
            Ok(held) => held,
            Err(why) => return pass.unreadable(&why),
        };
        let Some(held) = held.filter(|held| held.name_any() == *carried) else {
            let message = format!("it runs with identity {carried}, whose record of it is being restored");
            pass.say(
                Condition::IdentityAllocated,
                false,
                Reason::AllocatingIdentity,
                &message,
            );
            return pass.sum_up(Phase::Starting, Reason::AllocatingIdentity, message);
        };
        if held.status.as_ref().is_none_or(|status| status.used_at.is_none()) {
            pass.plan.then(identity::used(held, pass.now));
            return pass.sum_up(
                Phase::Starting,
                Reason::GuestNotReady,
                "the first use of its identity is being recorded",
            );
        }
    }
    pass.draft.first_ready_at.get_or_insert(Time(pass.now));
    let node = pass
        .draft
        .node_name
        .as_ref()
        .map(|node| format!(" on {node}"))
        .unwrap_or_default();
    pass.sum_up(
        Phase::Ready,
        Reason::Ready,
        format!("ready to be used{node}, powered on {}", clock(started)),
    );
}

fn timed_out(pass: &mut Pass, objects: &Objects, word: &Word, timeout: SignedDuration) {
    let last = pass
        .report
        .said(Condition::GuestReady)
        .map(|said| said.message.clone())
        .unwrap_or_default();
    let reason = match word.said {
        Said::Impostor => Reason::IdentityMismatch,
        _ => Reason::ReadinessTimeout,
    };
    let message = format!(
        "not ready within {}s after power-on (readinessTimeout of its class): {last}. status.failure.screen names the ConfigMap with its last screen",
        timeout.as_secs()
    );
    pass.fail(objects, reason, message);
}

/// Whether the guest was ready since it was powered on. GuestReady leaves False only by being ready, and is said from
/// the machine's first pass on; a status that was lost is no proof that it never was.
fn was_ready(pass: &Pass, started: Timestamp) -> bool {
    pass.stood(Condition::GuestReady)
        .is_none_or(|stood| match stood.status {
            Verdict::False => stood.last_transition_time.0 > started,
            Verdict::True | Verdict::Unknown => stood.last_transition_time.0 >= started,
        })
}

fn say_guest(pass: &mut Pass, word: &Word, was_ready: bool, started: Timestamp) {
    let (verdict, reason, message) = match &word.said {
        Said::Ready => (
            Verdict::True,
            Reason::Ready,
            if word.cut_off {
                "the guest says that it is ready, and that its run before was cut off: its file system may need a check"
                    .to_owned()
            } else {
                "the guest says that it is ready".to_owned()
            },
        ),
        Said::Impostor => (
            Verdict::False,
            Reason::IdentityMismatch,
            "the guest shows another serial or UUID than its identity has: it did not boot from its own bootdisk"
                .to_owned(),
        ),
        Said::NotReady(stage) => (
            Verdict::False,
            Reason::GuestNotReady,
            format!("the guest reports {stage}, and is not ready"),
        ),
        Said::Nothing if was_ready => (
            Verdict::Unknown,
            Reason::GuestSilent,
            format!("nothing was heard of the guest since {}", clock(started)),
        ),
        Said::Stale(at) if was_ready => (
            Verdict::Unknown,
            Reason::GuestSilent,
            format!("nothing was heard of the guest since {}", clock(*at)),
        ),
        Said::Nothing => (
            Verdict::False,
            Reason::Booting,
            format!("powered on {}, the guest has not reported yet", clock(started)),
        ),
        Said::Stale(at) => (
            Verdict::False,
            Reason::GuestNotReady,
            format!("not ready, and nothing was heard of the guest since {}", clock(*at)),
        ),
    };
    pass.say(Condition::GuestReady, verdict, reason, message);
}

/// The guest's word in this run.
struct Word {
    said: Said,
    /// When it is too old to count.
    good_until: Option<Timestamp>,
    /// Whether it says that its run before did not end in order.
    cut_off: bool,
}

enum Said {
    Ready,
    NotReady(String),
    /// Not the machine that it should be.
    Impostor,
    /// Something, too long ago.
    Stale(Timestamp),
    Nothing,
}

impl Word {
    fn of(guest: Option<&Guest>, started: Timestamp, now: Timestamp) -> Self {
        // times in a status have whole seconds
        let whole = Timestamp::from_second(started.as_second()).unwrap_or(started);
        let reported = guest.and_then(|guest| Some((guest, guest.last_report.as_ref()?.0)));
        // what a guest said before it was powered on is of another run
        let Some((guest, at)) = reported.filter(|(_, at)| *at >= whole) else {
            return Self {
                said: Said::Nothing,
                good_until: None,
                cut_off: false,
            };
        };
        let until = after(at, SILENCE);
        let said = if now >= until {
            Said::Stale(at)
        } else if guest.identity_mismatch == Some(true) {
            Said::Impostor
        } else if guest.ready && guest.stage != Some(GuestStage::ShuttingDown) {
            Said::Ready
        } else {
            Said::NotReady(guest.stage.map_or("no stage".to_owned(), |stage| format!("{stage:?}")))
        };
        Self {
            said,
            good_until: Some(until),
            cut_off: guest.clean_shutdown == Some(false),
        }
    }

    fn ready(&self) -> bool {
        matches!(self.said, Said::Ready)
    }
}
