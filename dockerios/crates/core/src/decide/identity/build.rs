//! The master bootdisk: built when there is none of the builder and the pool's template that hold now, only while no machine has
//! the identity.
//!
//! Invariant: `status.bootDisk` is taken away *before* the volume is written or made anew, so that it always tells of
//! a disk that was written whole.

use dockerios_api::{
    MachineIdentity, Name,
    condition::Verdict,
    identity::{
        machine_identity::{BuiltBootDisk, IdentityCondition, IdentityPhase, IdentityReason},
        pool::IdentityPoolSpec,
    },
    names::BOOTDISK_OF,
};
use jiff::SignedDuration;
use k8s_openapi::api::{
    batch::v1::{Job, JobCondition},
    core::v1::{ContainerStateTerminated, PersistentVolumeClaim, Pod},
};
use kube::ResourceExt;

use super::{AGAIN, Pass, all};
use crate::{
    Kind, Object, Seen, Step, Target,
    plan::RefusalCause,
    render::bootdisk::{self, Recipe},
};

/// Bootdisks that are built at once, over all pools: a new template rebuilds every identity that is free.
pub const MOST_BUILDS: usize = 20;
/// How long after a failed build the next one begins.
pub const RETRY: SignedDuration = SignedDuration::from_mins(10);
/// What is said of a bootdisk that is as it should be.
const BUILT: &str = "its bootdisk was built";
const SOON: SignedDuration = SignedDuration::from_secs(10);

/// How a Job stands.
enum Progress {
    Runs(String),
    Built(String),
    /// With the moment it ended.
    Failed(String, Option<jiff::Timestamp>),
}

impl Pass<'_> {
    pub(super) fn boot_disk(&mut self, pool: &IdentityPoolSpec) {
        let builder = match &self.facts.platform {
            Seen::Unknown(why) => return self.unreadable("PlatformConfig default", why),
            platform => platform
                .present()
                .and_then(|platform| platform.spec.boot_disk_builder.as_ref()),
        };
        let volume = match &self.facts.volume {
            Seen::Unknown(why) => return self.unreadable("the volume of its bootdisk", why),
            volume => volume.present().map(AsRef::as_ref),
        };
        let recipe = builder.and_then(|builder| Recipe::of(builder, pool));
        let whole = volume.is_some_and(|volume| usable(volume) && ours(&self.facts.identity, volume));
        match (recipe, &self.before.boot_disk) {
            // without a builder there is no template that could have changed; the pool may name the other one now
            (None, Some(built)) if whole && builder.is_none() && built.template == pool.boot_disk.template => {
                self.available("its bootdisk was built; PlatformConfig default names no bootDiskBuilder now");
            }
            (None, _) if builder.is_none() => self.nothing_to_build_with(
                IdentityReason::BuilderMissing,
                "PlatformConfig default names no bootDiskBuilder: set spec.bootDiskBuilder".to_owned(),
            ),
            // what was built may be of another template, with other boot-args: it is not given out
            (None, _) => self.nothing_to_build_with(
                IdentityReason::TemplateMissing,
                format!(
                    "its pool is built from {}, which PlatformConfig default does not have: set it",
                    pool.boot_disk.template.field()
                ),
            ),
            (Some(recipe), Some(built)) if whole && current(built, recipe) => {
                let template = pool.boot_disk.template;
                self.status.boot_disk = Some(BuiltBootDisk {
                    template,
                    ..built.clone()
                });
                self.available(BUILT);
            }
            (Some(_), Some(_)) => self.forget(whole),
            (Some(recipe), None) => self.build(pool, recipe, volume),
        }
    }

    fn available(&mut self, built: &str) {
        self.status.phase = Some(IdentityPhase::Available);
        self.say(
            IdentityCondition::BootDiskBuilt,
            Verdict::True,
            IdentityReason::Built,
            built,
        );
        self.ready(Verdict::True, IdentityReason::Available, "can be taken");
        self.write(None);
    }

    fn nothing_to_build_with(&mut self, reason: IdentityReason, message: String) {
        self.status.boot_disk = None;
        self.status.phase = Some(IdentityPhase::Generated);
        self.say(IdentityCondition::BootDiskBuilt, Verdict::False, reason, &message);
        self.ready(Verdict::False, reason, message);
        self.write(None);
    }

    /// The disk that the status tells of is gone, or is to be written anew: first the status says so.
    fn forget(&mut self, whole: bool) {
        let (reason, message) = if whole {
            (
                IdentityReason::Building,
                "builder or template changed; its bootdisk is built anew",
            )
        } else {
            (
                IdentityReason::BootDiskLost,
                "the volume of its bootdisk is gone; it is built anew",
            )
        };
        self.status.boot_disk = None;
        self.status.phase = Some(IdentityPhase::BuildingBootDisk);
        self.say(IdentityCondition::BootDiskBuilt, Verdict::False, reason, message);
        self.ready(Verdict::False, reason, message);
        self.write(None);
    }

    fn build(&mut self, pool: &IdentityPoolSpec, recipe: Recipe, volume: Option<&PersistentVolumeClaim>) {
        let (jobs, pods) = match (&self.facts.jobs, &self.facts.pods) {
            (Seen::Unknown(why), _) | (_, Seen::Unknown(why)) => return self.unreadable("its builder", why),
            (jobs, pods) => (all(jobs), all(pods)),
        };
        let identity = &self.facts.identity;
        if let Some(volume) = volume.filter(|volume| !ours(identity, volume)) {
            let name = volume.name_any();
            let message = format!(
                "PersistentVolumeClaim {}/{name} is not of this identity's making; delete or rename it",
                self.facts.platform_namespace
            );
            return self.failed(message, AGAIN);
        }
        let wanted = bootdisk::job_name(&identity.name_any(), recipe);
        let job = jobs.iter().find(|job| job.name_any() == wanted);
        // what another Job still writes, or wrote onto a volume that is gone, is not this build
        let usable = volume.is_some_and(usable);
        let old: Vec<_> = jobs.iter().filter(|job| !usable || job.name_any() != wanted).collect();
        let busy = pods
            .iter()
            .any(|pod| runs(pod) && (job.is_none() || !usable || !of_job(pod, &wanted)));
        if !old.is_empty() || busy || volume.is_some_and(|_| !usable) {
            for job in old.iter().filter(|job| job.metadata.deletion_timestamp.is_none()) {
                self.plan.then(Step::Delete(Target::of(Kind::Job, &job.metadata)));
            }
            if let Some(volume) = volume.filter(|volume| !usable && volume.metadata.deletion_timestamp.is_none()) {
                self.plan
                    .then(Step::Delete(Target::of(Kind::PersistentVolumeClaim, &volume.metadata)));
            }
            self.wake_in(AGAIN);
            return self.building("what an earlier build left is being removed");
        }
        match job {
            None => self.begin(pool, recipe, volume.is_none()),
            Some(job) if job.metadata.deletion_timestamp.is_some() => self.building("the next try comes soon"),
            Some(job) => self.follow(pool, job, pods, recipe),
        }
    }

    fn begin(&mut self, pool: &IdentityPoolSpec, recipe: Recipe, volume_too: bool) {
        match &self.facts.builds {
            Seen::Unknown(why) => return self.unreadable("the builders that run", why),
            Seen::Present(running) if *running >= MOST_BUILDS => {
                self.wake_in(SOON);
                return self.building(&format!(
                    "waits: {running} bootdisks are being built, {MOST_BUILDS} at most"
                ));
            }
            Seen::Present(_) | Seen::Absent => {}
        }
        let namespace = &self.facts.platform_namespace;
        let volume = bootdisk::volume(&self.facts.identity, pool, namespace);
        let made = bootdisk::job(&self.facts.identity, recipe, namespace)
            .and_then(|job| Object::of(Kind::Job, &job))
            .and_then(|job| Ok((job, Object::of(Kind::PersistentVolumeClaim, &volume)?)));
        match made {
            Ok((job, volume)) => {
                if volume_too {
                    self.plan.then(Step::Create(volume));
                }
                self.plan.then(Step::Create(job));
            }
            Err(error) => return self.failed(format!("its builder cannot be written down: {error}"), RETRY),
        }
        match self
            .facts
            .refusal
            .as_ref()
            .filter(|refusal| refusal.cause != RefusalCause::Unproven)
        {
            Some(refusal) => self.failed(format!("{}: {}", refusal.of, refusal.message), AGAIN),
            None => self.building("the builder was started"),
        }
    }

    fn follow(&mut self, pool: &IdentityPoolSpec, job: &Job, pods: &[std::sync::Arc<Pod>], recipe: Recipe) {
        match progress(job, pods) {
            Progress::Runs(detail) => self.building(&detail),
            Progress::Built(sha256) => {
                self.status.boot_disk = Some(BuiltBootDisk {
                    pvc: Name(bootdisk::volume_name(&self.facts.identity.name_any())),
                    sha256,
                    builder_image: recipe.builder.clone(),
                    template_sha256: recipe.template.sha256.clone(),
                    template: pool.boot_disk.template,
                });
                self.available(BUILT);
            }
            Progress::Failed(why, at) => {
                let again = at.unwrap_or(self.now).saturating_add(RETRY).unwrap_or(self.now);
                if again <= self.now {
                    self.plan.then(Step::Delete(Target::of(Kind::Job, &job.metadata)));
                    return self.building("the builder failed and is tried again");
                }
                let until = again.duration_since(self.now);
                self.failed(
                    format!("{why}; tried again at {again}, or when the template changes"),
                    until,
                );
            }
        }
    }

    fn building(&mut self, detail: &str) {
        self.status.phase = Some(IdentityPhase::BuildingBootDisk);
        self.say(
            IdentityCondition::BootDiskBuilt,
            Verdict::False,
            IdentityReason::Building,
            detail,
        );
        self.ready(Verdict::False, IdentityReason::Building, detail);
        self.write(None);
    }

    fn failed(&mut self, why: String, again: SignedDuration) {
        self.status.phase = Some(IdentityPhase::Failed);
        self.say(
            IdentityCondition::BootDiskBuilt,
            Verdict::False,
            IdentityReason::BuildFailed,
            &why,
        );
        self.ready(Verdict::False, IdentityReason::BuildFailed, &why);
        self.write(None);
        self.wake_in(again);
    }
}

/// Whether the volume was made for that identity.
pub(super) fn ours(identity: &MachineIdentity, volume: &PersistentVolumeClaim) -> bool {
    volume.labels().get(BOOTDISK_OF) == Some(&identity.name_any())
}

/// Whether the pod may still write.
pub(super) fn runs(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    !matches!(phase, Some("Succeeded" | "Failed"))
}

fn usable(volume: &PersistentVolumeClaim) -> bool {
    let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
    volume.metadata.deletion_timestamp.is_none() && phase != Some("Lost")
}

fn current(built: &BuiltBootDisk, recipe: Recipe) -> bool {
    built.builder_image == *recipe.builder && built.template_sha256 == recipe.template.sha256
}

/// `batch.kubernetes.io/job-name` is set by the Job controller on its pods.
pub(super) fn of_job(pod: &Pod, job: &str) -> bool {
    pod.labels()
        .get("batch.kubernetes.io/job-name")
        .is_some_and(|name| name == job)
}

/// The condition with which the Job ended that way, `Complete` or `Failed`.
pub(in crate::decide) fn ended<'j>(job: &'j Job, way: &str) -> Option<&'j JobCondition> {
    let conditions = job.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .find(|c| c.type_ == way && c.status == "True")
}

fn progress(job: &Job, pods: &[std::sync::Arc<Pod>]) -> Progress {
    let name = job.name_any();
    let mine = || pods.iter().filter(|pod| of_job(pod, &name));
    if let Some(complete) = ended(job, "Complete") {
        let said = mine().filter_map(|pod| last_words(pod)).find(|end| end.exit_code == 0);
        let at = complete.last_transition_time.as_ref().map(|time| time.0);
        return match said.and_then(|end| digest(end.message.as_deref().unwrap_or_default())) {
            Some(sha256) => Progress::Built(sha256),
            None => Progress::Failed(
                "the builder ended well but its report of the sha256 cannot be found".into(),
                at,
            ),
        };
    }
    if let Some(failed) = ended(job, "Failed") {
        let said = mine()
            .filter_map(|pod| last_words(pod))
            .filter(|end| end.exit_code != 0);
        let newest = said.max_by(|a, b| {
            a.finished_at
                .as_ref()
                .map(|t| t.0)
                .cmp(&b.finished_at.as_ref().map(|t| t.0))
        });
        let own = newest
            .and_then(|end| end.message.as_deref())
            .map(str::trim)
            .filter(|text| !text.is_empty());
        let why = own
            .or(failed.message.as_deref())
            .unwrap_or("the builder failed and said nothing");
        return Progress::Failed(why.to_owned(), failed.last_transition_time.as_ref().map(|time| time.0));
    }
    let waits = mine().find_map(|pod| waiting(pod));
    Progress::Runs(waits.unwrap_or_else(|| "the builder runs".into()))
}

fn digest(said: &str) -> Option<String> {
    let text = said.trim();
    (text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())).then(|| text.to_ascii_lowercase())
}

/// How the first container of a short pod ended.
pub(in crate::decide) fn last_words(pod: &Pod) -> Option<&ContainerStateTerminated> {
    let container = pod.status.as_ref()?.container_statuses.as_ref()?.first()?;
    container.state.as_ref()?.terminated.as_ref()
}

/// Why the pod does not run yet, when kubelet or scheduler say it.
pub(in crate::decide) fn waiting(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let container = status
        .container_statuses
        .iter()
        .flatten()
        .find_map(|c| c.state.as_ref()?.waiting.as_ref());
    let scheduler = status
        .conditions
        .iter()
        .flatten()
        .find(|c| c.type_ == "PodScheduled" && c.status == "False");
    let (reason, message) = match (container, scheduler) {
        (Some(waits), _) => (waits.reason.as_deref(), waits.message.as_deref()),
        (None, Some(waits)) => (waits.reason.as_deref(), waits.message.as_deref()),
        (None, None) => return None,
    };
    let words: Vec<_> = [reason, message].into_iter().flatten().collect();
    (!words.is_empty()).then(|| format!("the builder waits: {}", words.join(": ")))
}
