//! `MachineIdentity`: proven unique, given a bootdisk, taken, and taken back.
//!
//! ```text
//! unique? ──▶ finalizer ──▶ bootdisk ──▶ Available ──take──▶ Allocated ──machine gone, nothing runs──▶ Released
//!    └─ collision, broken rule ─▶ Quarantined ◀─────────────────────────── policy Quarantine ─────────────┤
//!                                      └── annotation ──▶ Available ◀── policy Recycle, or never used ────┘
//! ```
//!
//! Invariants: every write of the status is a PUT at the resourceVersion that was decided on, at most one in a pass,
//! and before anything else is made; a machine that is not there frees nothing, only the proof that nothing runs with
//! the identity does; a machine made again under the name is another one; what could not be read decides nothing. The
//! finalizer comes only after the proof of uniqueness, so an identity that has it and no status has lost its status:
//! it is then held for the machine whose objects carry it, and else treated as used.

mod build;
mod hands;
mod unique;

use std::sync::Arc;

use dockerios_api::{
    IdentityPool, MacOSMachine, MachineIdentity, MachineIdentityStatus, PlatformConfig,
    condition::{Verdict, of},
    identity::{
        machine_identity::{IdentityClaimRef, IdentityCondition, IdentityPhase, IdentityReason},
        pool::IdentityReclaimPolicy,
    },
    names::{ALLOCATED, RELEASE},
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::{
        batch::v1::Job,
        core::v1::{PersistentVolumeClaim, Pod},
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::ResourceExt;
use serde_json::json;

use crate::{
    Guard, Kind, News, Plan, Seen, Step, Target,
    plan::{Refusal, RefusalCause},
    report::Report,
};

pub use build::{MOST_BUILDS, RETRY};
pub(in crate::decide) use build::{ended, last_words, waiting};
pub use hands::{NotTakeable, Standing, give_back, standing, take, takeable, unused, used};

/// How long until something is looked at again that no event announces.
const AGAIN: SignedDuration = SignedDuration::from_secs(60);

/// What the decision reads.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The identity.
    pub identity: Arc<MachineIdentity>,
    /// Its pool.
    pub pool: Seen<Arc<IdentityPool>>,
    /// PlatformConfig `default`.
    pub platform: Seen<Arc<PlatformConfig>>,
    /// All identities, this one too.
    pub fleet: Seen<Vec<Arc<MachineIdentity>>>,
    /// The machine that has the namespace and name of `status.claimRef` now, whatever its uid. Absent without one.
    pub machine: Seen<Arc<MacOSMachine>>,
    /// VirtualMachines, VMIs and launcher pods that carry it, by label or firmware UUID.
    pub carriers: Seen<Vec<Carrier>>,
    /// The volume of its bootdisk.
    pub volume: Seen<Arc<PersistentVolumeClaim>>,
    /// Jobs that build its bootdisk.
    pub jobs: Seen<Vec<Arc<Job>>>,
    /// Their pods.
    pub pods: Seen<Vec<Arc<Pod>>>,
    /// Bootdisk builds of all identities that have not ended.
    pub builds: Seen<usize>,
    /// Where bootdisks are.
    pub platform_namespace: String,
    /// What the API server refused in the last pass.
    pub refusal: Option<Refusal>,
}

/// An object that carries the identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Carrier {
    /// Kind, namespace and name, for people.
    pub object: String,
    /// The machine that its labels name, if they name one.
    pub machine: Option<IdentityClaimRef>,
    /// Whether that very machine exists.
    pub stored: bool,
}

/// One pass.
struct Pass<'a> {
    facts: &'a Facts,
    now: Timestamp,
    before: MachineIdentityStatus,
    status: MachineIdentityStatus,
    report: Report<'a>,
    plan: Plan,
}

/// Decides about one identity.
pub fn decide(facts: &Facts, now: Timestamp) -> Plan {
    let before = hands::status(&facts.identity);
    let conditions = facts
        .identity
        .status
        .as_ref()
        .map_or(&[][..], |status| &status.conditions);
    let mut report = Report::after(conditions, facts.identity.metadata.generation, now);
    for said in conditions {
        report.say(&said.kind, said.status, &said.reason, &said.message);
    }
    let mut pass = Pass {
        facts,
        now,
        status: before.clone(),
        before,
        report,
        plan: Plan::default(),
    };
    match pass.before.claim_ref.clone() {
        Some(claim) => pass.claimed(&claim),
        None => pass.free(),
    }
    pass.plan
}

impl Pass<'_> {
    fn claimed(&mut self, claim: &IdentityClaimRef) {
        match &self.facts.machine {
            Seen::Unknown(why) => self.unreadable("its machine", why),
            Seen::Present(_) if claim.uid.is_empty() => {
                self.ready(
                    Verdict::Unknown,
                    IdentityReason::Unreadable,
                    format!(
                        "status.claimRef names machine {}/{} without a uid, so nobody can tell whether it is that \
                         one; it is neither given out nor freed. Delete that machine if it does not use it",
                        claim.namespace, claim.name
                    ),
                );
                self.write(None);
            }
            Seen::Present(machine) if machine.metadata.uid.as_ref() == Some(&claim.uid) => self.held(claim),
            Seen::Present(_) | Seen::Absent => self.dangling(claim),
        }
    }

    /// Its machine exists.
    fn held(&mut self, claim: &IdentityClaimRef) {
        let message = format!("machine {}/{} has it", claim.namespace, claim.name);
        if self.deleting() {
            let message = format!("{message}; it is deleted when that machine is gone");
            self.ready(Verdict::False, IdentityReason::Deleting, message);
        } else if !self.has_finalizer() {
            return self.plan.then(Step::AddFinalizer(self.exactly(), ALLOCATED));
        } else {
            self.ready(Verdict::True, IdentityReason::Allocated, message);
        }
        self.say_unique();
        self.status.phase = Some(IdentityPhase::Allocated);
        self.write(None);
    }

    /// Its machine is gone, or another one has the name now.
    fn dangling(&mut self, claim: &IdentityClaimRef) {
        let gone = format!("machine {}/{} (uid {}) is gone", claim.namespace, claim.name, claim.uid);
        match &self.facts.carriers {
            Seen::Unknown(why) => return self.unreadable("what runs with it", why),
            Seen::Present(carriers) if !carriers.is_empty() => {
                let message = format!(
                    "{gone}, but {} still carries it; it is freed when that is gone",
                    list(carriers)
                );
                return self.still_running(message);
            }
            Seen::Present(_) | Seen::Absent => {}
        }
        let said = of(&self.before.conditions, IdentityCondition::Ready.word());
        let told = said.is_some_and(|ready| ready.reason == IdentityReason::StillRunning.word());
        if let Some(refusal) = self.unproven().filter(|_| !told) {
            return self.still_running(format!(
                "{gone}, but {}; it is freed when that is gone",
                refusal.message
            ));
        }
        if let Some(policy) = self.policy() {
            let reason = IdentityReason::Reclaiming;
            let news = match policy {
                _ if self.before.used_at.is_none() => format!("{gone} and never was Ready; available again"),
                policy => format!("{gone}; taken back, policy {policy:?}"),
            };
            self.plan.then(give_back(&self.facts.identity, policy, self.now));
            self.plan.news.push(News::normal(reason, news));
            self.wake_in(AGAIN);
        }
    }

    fn still_running(&mut self, message: String) {
        self.ready(Verdict::False, IdentityReason::StillRunning, message);
        self.write(None);
        self.wake_in(AGAIN);
    }

    /// No machine has it, as far as its status goes.
    fn free(&mut self) {
        match &self.facts.carriers {
            Seen::Unknown(why) => return self.unreadable("what runs with it", why),
            Seen::Present(carriers) if !carriers.is_empty() => return self.carried(carriers),
            Seen::Present(_) | Seen::Absent => {}
        }
        if self.deleting() {
            return self.leave();
        }
        if self.lost_status() {
            // nobody knows whether it was used
            self.status.used_at = Some(Time(self.now));
            return self.reclaim("its status was lost, so nobody can tell whether it was used");
        }
        if self.before.used_at.is_some() {
            return if self.was_quarantined() {
                self.quarantined()
            } else {
                self.reclaim("its machine is gone")
            };
        }
        if self.annotated() {
            let without = json!({"metadata": {"annotations": {RELEASE: null}}});
            return self.plan.then(Step::Merge(self.exactly(), without));
        }
        self.prepare();
    }

    /// Objects carry it though its status names no machine: the status was lost, or somebody made them by hand.
    fn carried(&mut self, carriers: &[Carrier]) {
        let mut machines: Vec<_> = carriers
            .iter()
            .filter(|c| c.stored)
            .filter_map(|c| c.machine.clone())
            .collect();
        machines.sort_by(|a, b| a.uid.cmp(&b.uid));
        machines.dedup();
        // every way of giving it back changes its words: one that still says Allocated was not given back
        let kept = self.before.used_at.is_some() && !self.says(IdentityReason::Allocated);
        if let ([machine], false) = (machines.as_slice(), kept) {
            // whether it was Ready is not known: the policy shall apply
            self.status.used_at.get_or_insert(Time(self.now));
            let message = format!(
                "machine {}/{} has it, as its objects say",
                machine.namespace, machine.name
            );
            self.ready(Verdict::True, IdentityReason::Allocated, message);
            self.status.phase = Some(IdentityPhase::Allocated);
            self.status.claim_ref = Some(machine.clone());
            return self.write(None);
        }
        self.wake_in(AGAIN);
        // one that was used keeps its words: they say that it is quarantined
        if self.before.used_at.is_none() {
            if self.lost_status() {
                self.status.used_at = Some(Time(self.now));
            } else {
                self.status.phase = Some(IdentityPhase::Released);
            }
            let message = format!("no machine has it, but {} carries it; delete that", list(carriers));
            self.ready(Verdict::False, IdentityReason::StillRunning, message);
            self.write(None);
        }
    }

    /// It was used and no machine has it: what the policy says.
    fn reclaim(&mut self, why: &str) {
        let lost = self.lost_status();
        let Some(policy) = self.policy() else { return };
        match policy {
            IdentityReclaimPolicy::Delete if !lost => {
                self.plan.then(Step::Delete(self.exactly()));
                let note = format!("{why}; deleted with its bootdisk, as its pool says");
                self.plan.news.push(News::normal(IdentityReason::Reclaiming, note));
            }
            IdentityReclaimPolicy::Recycle => {
                self.status.used_at = None;
                self.status.phase = Some(IdentityPhase::Released);
                self.ready(Verdict::False, IdentityReason::Reclaiming, format!("{why}; free again"));
                self.write(Some(self.unused()));
            }
            IdentityReclaimPolicy::Quarantine | IdentityReclaimPolicy::Delete => {
                self.status.phase = Some(IdentityPhase::Quarantined);
                let message = if lost {
                    format!("{why}; {}", hands::WAY_OUT)
                } else {
                    hands::QUARANTINED.to_owned()
                };
                self.ready(Verdict::False, IdentityReason::QuarantinedByPolicy, message);
                self.write(Some(self.unused()));
            }
        }
    }

    /// Kept aside until a person decides.
    fn quarantined(&mut self) {
        if self.annotated() {
            self.status.used_at = None;
            self.status.phase = Some(IdentityPhase::Released);
            self.ready(
                Verdict::False,
                IdentityReason::Reclaiming,
                "released from quarantine by annotation",
            );
            self.write(Some(self.unused()));
            self.wake_in(AGAIN);
        }
    }

    /// From Generated to Available.
    fn prepare(&mut self) {
        if let Err(refusals) =
            dockerios_identity::Identity::try_from(crate::render::bootdisk::fields(&self.facts.identity))
        {
            let message = format!("it breaks a rule: {refusals}; delete it");
            self.ready(Verdict::False, IdentityReason::Invalid, message);
            self.status.phase = Some(IdentityPhase::Quarantined);
            return self.write(None);
        }
        if !self.proven_unique() {
            return;
        }
        if !self.has_finalizer() {
            return self.plan.then(Step::AddFinalizer(self.exactly(), ALLOCATED));
        }
        match &self.facts.pool {
            Seen::Unknown(why) => self.unreadable("its pool", why),
            Seen::Absent => {
                let message = format!(
                    "IdentityPool {} is not there: it is kept and given to nobody; make the pool again, or delete it",
                    self.facts.identity.spec.pool_name
                );
                self.ready(Verdict::False, IdentityReason::PoolNotFound, message);
                self.status.phase = Some(IdentityPhase::Quarantined);
                self.write(None);
            }
            Seen::Present(pool) => self.boot_disk(&pool.spec),
        }
    }

    /// It is being deleted and nobody has it: its Jobs and its volume first, the finalizer last.
    fn leave(&mut self) {
        if !self.has_finalizer() {
            return;
        }
        let (jobs, pods) = match (&self.facts.jobs, &self.facts.pods) {
            (Seen::Unknown(why), _) | (_, Seen::Unknown(why)) => return self.unreadable("its builder", why),
            (jobs, pods) => (all(jobs), all(pods)),
        };
        let volume = match &self.facts.volume {
            Seen::Unknown(why) => return self.unreadable("its volume", why),
            volume => volume
                .present()
                .filter(|volume| build::ours(&self.facts.identity, volume)),
        };
        if jobs.is_empty() && !pods.iter().any(|pod| build::runs(pod)) && volume.is_none() {
            let guard = Some(self.unused());
            return self.plan.then(Step::RemoveFinalizer(self.exactly(), ALLOCATED, guard));
        }
        for job in jobs.iter().filter(|job| job.metadata.deletion_timestamp.is_none()) {
            self.plan.then(Step::Delete(Target::of(Kind::Job, &job.metadata)));
        }
        if let Some(volume) = volume.filter(|volume| volume.metadata.deletion_timestamp.is_none()) {
            self.plan
                .then(Step::Delete(Target::of(Kind::PersistentVolumeClaim, &volume.metadata)));
        }
        self.wake_in(AGAIN);
    }

    /// The policy of its pool. Quarantine when the pool is gone; none when it could not be read (which is said).
    fn policy(&mut self) -> Option<IdentityReclaimPolicy> {
        match &self.facts.pool {
            Seen::Present(pool) => Some(pool.spec.reclaim_policy),
            Seen::Absent => Some(IdentityReclaimPolicy::Quarantine),
            Seen::Unknown(why) => {
                self.unreadable("its pool", why);
                None
            }
        }
    }

    fn lost_status(&self) -> bool {
        let nothing = self.before.unique_at.is_none() && self.before.conditions.is_empty();
        nothing && self.before.used_at.is_none() && self.has_finalizer()
    }

    fn was_quarantined(&self) -> bool {
        self.says(IdentityReason::QuarantinedByPolicy)
    }

    fn says(&self, reason: IdentityReason) -> bool {
        let ready = of(&self.before.conditions, IdentityCondition::Ready.word());
        ready.is_some_and(|ready| ready.reason == reason.word())
    }

    fn annotated(&self) -> bool {
        self.facts
            .identity
            .annotations()
            .get(RELEASE)
            .is_some_and(|value| value == "true")
    }

    fn deleting(&self) -> bool {
        self.facts.identity.metadata.deletion_timestamp.is_some()
    }

    fn has_finalizer(&self) -> bool {
        self.facts
            .identity
            .finalizers()
            .iter()
            .any(|finalizer| finalizer == ALLOCATED)
    }

    fn unproven(&self) -> Option<&Refusal> {
        self.facts
            .refusal
            .as_ref()
            .filter(|refusal| refusal.cause == RefusalCause::Unproven)
    }

    fn unused(&self) -> Guard {
        unused(&self.facts.identity)
    }

    fn exactly(&self) -> Target {
        Target::exactly(Kind::MachineIdentity, &self.facts.identity.metadata)
    }

    fn wake_in(&mut self, span: SignedDuration) {
        self.plan
            .wake_at(self.now.saturating_add(span).unwrap_or(Timestamp::MAX));
    }

    /// Says that something could not be read. One that was used keeps its words, since they say that it is
    /// quarantined; one that lost its status keeps having none, since that is how the loss is known.
    fn unreadable(&mut self, what: &str, why: &str) {
        self.wake_in(AGAIN);
        if self.before.claim_ref.is_some() || (self.before.used_at.is_none() && !self.lost_status()) {
            let message = format!("cannot see {what} now ({why}); nothing is freed and nothing given out");
            self.status.clone_from(&self.before);
            self.ready(Verdict::Unknown, IdentityReason::Unreadable, message);
            self.write(None);
        }
    }

    fn ready(&mut self, verdict: Verdict, reason: IdentityReason, message: impl AsRef<str>) {
        self.say(IdentityCondition::Ready, verdict, reason, message);
    }

    fn say(&mut self, kind: IdentityCondition, verdict: Verdict, reason: IdentityReason, message: impl AsRef<str>) {
        self.report.say(kind, verdict, reason, message);
    }

    /// The one write of this pass, if it changes anything: before all steps that were planned already.
    fn write(&mut self, guard: Option<Guard>) {
        let generation = self.facts.identity.metadata.generation;
        let report = std::mem::replace(&mut self.report, Report::after(&[], generation, self.now));
        self.plan.news.extend(report.news(IdentityCondition::Ready));
        self.status.conditions = report.done();
        self.status.observed_generation = generation;
        if self.status != self.before {
            let step = hands::write(&self.facts.identity, self.status.clone(), guard);
            self.plan.steps.insert(0, step);
        }
    }
}

fn all<T>(seen: &Seen<Vec<T>>) -> &[T] {
    seen.present().map_or(&[], Vec::as_slice)
}

fn list(carriers: &[Carrier]) -> String {
    let names: Vec<_> = carriers.iter().take(3).map(|carrier| carrier.object.as_str()).collect();
    match carriers.len().checked_sub(3) {
        Some(more) if more > 0 => format!("{} and {more} more", names.join(", ")),
        _ => names.join(", "),
    }
}
