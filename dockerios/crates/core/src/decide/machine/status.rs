//! One pass: what it reads, what it plans, and what it says. Every condition is said in every pass.
//!
//! Invariant: what could not be read changes no word of the status but Ready, which says so.

use dockerios_api::{
    Condition, MacOSMachineClassSpec, MacOSMachineStatus, Name, Verdict,
    condition::of,
    machine::macos_machine::{Backing, MacOSMachine, MachineCondition, MachineFailure, MachinePhase, MachineReason},
    names::of_machine,
    text::SpanText,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use super::facts::{Facts, Objects, node_of};
use crate::{
    Kind, News, Plan, Seen, Step, Target,
    decide::clone_right,
    plan::{Refusal, RefusalCause},
    report::Report,
};

/// As often as free space is asked for.
const LOOK_AGAIN: SignedDuration = SignedDuration::from_secs(15);

/// One pass over a machine.
pub(super) struct Pass<'f> {
    pub(super) facts: &'f Facts,
    pub(super) now: Timestamp,
    pub(super) plan: Plan,
    pub(super) report: Report<'f>,
    pub(super) draft: MacOSMachineStatus,
}

impl<'f> Pass<'f> {
    pub(super) fn new(facts: &'f Facts, now: Timestamp) -> Self {
        let machine = &facts.machine;
        let before = machine.status.as_ref();
        let conditions = before.map_or(&[][..], |status| &status.conditions);
        let held = facts.held.present().and_then(|held| held.first());
        let identity_ref = match facts.held.unreadable() {
            Some(_) => before.and_then(|status| status.identity_ref.clone()),
            None => held.map(|identity| Name(identity.name_any())),
        };
        let draft = MacOSMachineStatus {
            observed_generation: machine.metadata.generation,
            identity_ref,
            claim_ref: machine.spec.claim_ref.clone(),
            failure: before.and_then(|status| status.failure.clone()),
            first_ready_at: before.and_then(|status| status.first_ready_at.clone()),
            // stands until it is let in, as the condition does
            awaits_room_in: before.and_then(|status| status.awaits_room_in.clone()),
            ..MacOSMachineStatus::default()
        };
        Self {
            facts,
            now,
            plan: Plan::default(),
            report: Report::after(conditions, machine.metadata.generation, now),
            draft,
        }
    }

    pub(super) fn machine(&self) -> &'f MacOSMachine {
        &self.facts.machine
    }

    /// The status as it stands; none when it has none.
    pub(super) fn before(&self) -> Option<&'f MacOSMachineStatus> {
        self.facts.machine.status.as_ref()
    }

    /// A condition as it stands.
    pub(super) fn stood(&self, kind: MachineCondition) -> Option<&'f Condition> {
        of(&self.before()?.conditions, kind.word())
    }

    /// Whether a condition stands as True.
    pub(super) fn held(&self, kind: MachineCondition) -> bool {
        self.stood(kind)
            .is_some_and(|condition| condition.status == Verdict::True)
    }

    /// Says a condition.
    pub(super) fn say(
        &mut self,
        kind: MachineCondition,
        verdict: impl Into<Verdict>,
        reason: MachineReason,
        message: impl AsRef<str>,
    ) {
        self.report.say(kind, verdict, reason, message);
    }

    /// Says a condition again as it stands, if it does.
    pub(super) fn again(&mut self, kind: MachineCondition) {
        if let Some(stood) = self.stood(kind) {
            self.report.say(kind, stood.status, &stood.reason, &stood.message);
        }
    }

    /// Says all conditions again as they stand.
    pub(super) fn again_all(&mut self) {
        for condition in self.before().into_iter().flat_map(|status| &status.conditions) {
            self.report
                .say(&condition.kind, condition.status, &condition.reason, &condition.message);
        }
    }

    /// Sums up a machine that failed; `left` is what is still to be said of it.
    pub(super) fn sum_up_failed(&mut self, failure: &MachineFailure, left: &str) {
        self.draft.phase = Some(MachinePhase::Failed);
        let message = format!("{}{left}", failure.message);
        self.report
            .say(MachineCondition::Ready, false, &failure.reason, message);
    }

    /// Sums up: the phase, and Ready with the reason that it is not.
    pub(super) fn sum_up(&mut self, phase: MachinePhase, reason: MachineReason, message: impl AsRef<str>) {
        self.draft.phase = Some(phase);
        let verdict = match (phase, reason) {
            // that it stands still is known, whatever will become of it
            (MachinePhase::Unknown, MachineReason::Paused) => Verdict::False,
            (_, MachineReason::Unreadable) | (MachinePhase::Unknown, _) => Verdict::Unknown,
            (MachinePhase::Ready, _) => Verdict::True,
            _ => Verdict::False,
        };
        self.say(MachineCondition::Ready, verdict, reason, message);
    }

    /// How long the class lets something take; `usual` when the class is gone, or what it says is no time. None while it
    /// cannot be read: nothing is given up for that, and it is looked at again soon.
    pub(super) fn patience(
        &mut self,
        of: fn(&MacOSMachineClassSpec) -> &SpanText,
        usual: SignedDuration,
    ) -> Option<SignedDuration> {
        let class = match &self.facts.class {
            Seen::Unknown(_) => {
                self.look_again();
                return None;
            }
            seen => seen.present(),
        };
        Some(span_or(class.map(|class| of(&class.spec)), usual))
    }

    /// Looks again soon: what is waited for may come without any change of an object that leads here, as room, a place
    /// further ahead in the line, or a first list that is empty.
    pub(super) fn look_again(&mut self) {
        self.plan.wake_at(after(self.now, LOOK_AGAIN));
    }

    /// Something could not be read: the status stays as it stands, and says so.
    pub(super) fn unreadable(&mut self, why: &str) {
        let message = format!("{why}; nothing is decided until it can be read");
        let phase = self
            .before()
            .and_then(|status| status.phase)
            .unwrap_or(MachinePhase::Pending);
        if let Some(before) = self.before() {
            self.draft = MacOSMachineStatus {
                observed_generation: self.draft.observed_generation,
                claim_ref: self.draft.claim_ref.take(),
                guest: None,
                conditions: Vec::new(),
                ..before.clone()
            };
        }
        self.again_all();
        self.look_again();
        self.sum_up(phase, MachineReason::Unreadable, message);
    }

    /// What can be read off the objects themselves.
    pub(super) fn describe(&mut self, objects: &Objects) {
        self.draft.backing = backing(objects);
        self.draft.disks = super::disks::made(objects);
        // a VirtualMachine is made after the first status: without one, it was lost, and nobody knows what was before; nor
        // when an operator wrote it that kept no such mark, and a guest has spoken
        let unknown = self.before().is_none_or(|status| {
            status.conditions.is_empty() || (status.phase_since.is_none() && status.guest.is_some())
        });
        if unknown && objects.vm.is_some() {
            self.draft.first_ready_at.get_or_insert(Time(self.now));
        }
        let (vmis, pods) = (self.facts.vmis.present(), self.facts.pods.present());
        let node = node_of(vmis.map_or(&[], Vec::as_slice), pods.map_or(&[], Vec::as_slice));
        self.draft.node_name = node.map(Name);
        let status = objects.vmi.and_then(|vmi| vmi.status.as_ref());
        self.draft.started_at = status
            .and_then(|status| status.since(dockerios_kubevirt::vmi::VmiPhase::Running))
            .cloned();
        let mut addresses: Vec<String> = status
            .into_iter()
            .flat_map(|status| &status.interfaces)
            .flat_map(|interface| interface.ip_address.iter().chain(&interface.ip_addresses))
            .filter(|address| address.len() <= 64)
            .cloned()
            .collect();
        let mut seen = std::collections::BTreeSet::new();
        addresses.retain(|address| seen.insert(address.clone()));
        addresses.truncate(8);
        self.draft.addresses = addresses;
    }

    /// The machine fails: said once, with the last screen kept while there is one. What it holds is given back by the
    /// passes that follow, which see that it failed.
    pub(super) fn fail(&mut self, objects: &Objects, reason: MachineReason, message: impl AsRef<str>) {
        let machine = self.machine();
        let screen = objects
            .vmi
            .filter(|vmi| vmi.metadata.deletion_timestamp.is_none())
            .filter(|vmi| {
                let phase = vmi.status.as_ref().and_then(|status| status.phase);
                phase == Some(dockerios_kubevirt::vmi::VmiPhase::Running)
            });
        let name = of_machine(&machine.name_any(), &machine.uid().unwrap_or_default(), "screen");
        if let Some(vmi) = screen {
            self.plan.then(Step::KeepScreen {
                machine: Target::of(Kind::MacOSMachine, &machine.metadata),
                vmi: Target::of(Kind::VirtualMachineInstance, &vmi.metadata),
                name: name.clone(),
            });
        }
        let message = dockerios_api::condition::clip(message.as_ref());
        self.draft.failure = Some(MachineFailure {
            reason: reason.word().to_owned(),
            message: message.clone(),
            at: Time(self.now),
            screen: screen.map(|_| name),
        });
        self.sum_up(MachinePhase::Failed, reason, message);
    }

    /// What the API server refused, as a reason and a sentence.
    pub(super) fn refused(&self) -> Option<(MachineReason, String)> {
        let home = &self.facts.platform_namespace;
        self.facts.refusal.as_ref().map(|refusal| refused(refusal, home))
    }

    /// The plan, with the status and the events that it is worth.
    pub(super) fn done(mut self) -> Plan {
        self.news();
        self.draft.phase_since = Some(self.phase_since());
        self.draft.conditions = self.report.done();
        // the last step takes the object away, and its status with it; a refusal is told by the pass that follows
        let last = self
            .plan
            .steps
            .iter()
            .any(|step| matches!(step, Step::RemoveFinalizer(..)));
        if !last || self.facts.refusal.is_some() {
            self.plan.report(&self.draft);
        }
        self.plan
    }

    /// Since when it is in the phase that was decided. The first one, Pending, began with the machine.
    fn phase_since(&self) -> Time {
        let created = || self.machine().metadata.creation_timestamp.clone();
        let since = match self.before() {
            Some(before) if before.phase == self.draft.phase => before.phase_since.clone(),
            None if self.draft.phase == Some(MachinePhase::Pending) => created(),
            _ => None,
        };
        since.unwrap_or(Time(self.now))
    }

    fn news(&mut self) {
        let ready = self.report.news(MachineCondition::Ready).map(|news| News {
            warning: alarming(&news.reason),
            ..news
        });
        let draining = self.report.news(MachineCondition::Draining).filter(|_| {
            let drained = |condition: Option<&Condition>| condition.is_some_and(|c| c.status == Verdict::True);
            drained(self.stood(MachineCondition::Draining)) || drained(self.report.said(MachineCondition::Draining))
        });
        let became = [MachineCondition::IdentityAllocated, MachineCondition::DiskCloned]
            .map(|kind| self.report.news(kind).filter(|news| !news.warning));
        let draining = draining.map(|news| News { warning: false, ..news });
        self.plan
            .news
            .extend(became.into_iter().flatten().chain(draining).chain(ready));
    }
}

fn backing(objects: &Objects) -> Vec<Backing> {
    let one = |kind: Kind, name: String| Backing {
        kind: kind.to_string(),
        name,
    };
    let mut all: Vec<Backing> = objects
        .vms
        .iter()
        .map(|vm| one(Kind::VirtualMachine, vm.name_any()))
        .collect();
    all.extend(objects.vmi.map(|vmi| one(Kind::VirtualMachineInstance, vmi.name_any())));
    all.extend(objects.pods.iter().map(|pod| one(Kind::Pod, pod.name_any())));
    all.extend(
        objects
            .data_volumes
            .keys()
            .map(|name| one(Kind::DataVolume, name.clone())),
    );
    all.extend(
        objects
            .volumes
            .keys()
            .map(|name| one(Kind::PersistentVolumeClaim, name.clone())),
    );
    all.sort();
    all.truncate(16);
    all
}

fn refused(refusal: &Refusal, home: &str) -> (MachineReason, String) {
    let Refusal { of, cause, message } = refusal;
    match cause {
        RefusalCause::NameTaken => (
            MachineReason::NameTaken,
            format!(
                "{of} is not this machine's and has the name that it needs; delete or rename that object ({message})"
            ),
        ),
        RefusalCause::Forbidden if of.kind == Kind::DataVolume && clone_right::is_denial(message) => (
            MachineReason::CloneNotPermitted,
            clone_right::denied(home, home, Some(message)),
        ),
        RefusalCause::Forbidden => (
            MachineReason::CreationRefused,
            format!("{of} was refused: {message}; it is tried again by itself once that is mended"),
        ),
        RefusalCause::Unproven => (MachineReason::WaitingForInstance, format!("{of}: {message}")),
    }
}

/// Reasons that a person should look at; all others are steps on an ordinary way.
pub(super) fn alarming(reason: &str) -> bool {
    use MachineReason as R;
    [
        R::ClassNotFound,
        R::NamespaceNotAllowed,
        R::PoolNotFound,
        R::PoolUnfit,
        R::PlatformNotReady,
        R::IdentityExhausted,
        R::NoCardFree,
        R::BelowThreshold,
        R::CapacityUnknown,
        R::CloneTimeout,
        R::CloneNotPermitted,
        R::CreationRefused,
        R::VolumeLost,
        R::Unschedulable,
        R::SchedulingTimeout,
        R::Paused,
        R::ReadinessTimeout,
        R::InstanceFailed,
        R::HookFailed,
        R::DeviceMissing,
        R::IdentityMismatch,
        R::GuestSilent,
        R::NodeLost,
        R::NameTaken,
        R::UncleanShutdown,
    ]
    .into_iter()
    .any(|alarm| alarm.word() == reason)
}

/// `text` as a duration; `otherwise` when it has another form (it was stored past the schema).
pub(super) fn span_or(text: Option<&SpanText>, otherwise: SignedDuration) -> SignedDuration {
    text.and_then(|text| text.span().ok())
        .map_or(otherwise, |span| span.signed())
}

/// A time for people, in whole seconds.
pub(super) fn clock(at: Timestamp) -> String {
    Timestamp::from_second(at.as_second()).unwrap_or(at).to_string()
}

/// `at` later by `by`; the end of time when there is no such time.
pub(super) fn after(at: Timestamp, by: SignedDuration) -> Timestamp {
    at.checked_add(by).unwrap_or(Timestamp::MAX)
}
