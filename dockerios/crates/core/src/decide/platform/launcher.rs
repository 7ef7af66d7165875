//! Which virt-launcher image machines are started with, and what it can do.
//!
//! Invariant: an image is known by its digest; one that is named by a tag is probed again whenever its probe is gone,
//! and its digest is what kubelet says it pulled.

use std::sync::Arc;

use dockerios_api::{
    PlatformConfig,
    condition::Verdict,
    config::platform_config::{Launcher, Nvme, PlatformReason as Reason},
    names::PROBE_OF,
};
use dockerios_kubevirt::KubeVirt;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::{batch::v1::Job, core::v1::Pod},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::ResourceExt;
use serde::Deserialize;

use super::{AGAIN, Facts, Said, kubevirt, unreadable};
use crate::{
    Kind, Object, Plan, Seen, Step, Target,
    decide::identity::{ended, last_words, waiting},
    plan::RefusalCause,
    render::probe,
};

/// Images of which the answer is kept.
const KEPT: usize = 16;
/// How long after a failed probe the next one begins.
const RETRY: SignedDuration = SignedDuration::from_mins(10);

/// What the launcher that machines are started with can do, as it was probed last. While `LauncherCapable` says
/// NotProbed this may be an earlier launcher.
pub fn current(platform: &PlatformConfig) -> Option<&Launcher> {
    platform.status.as_ref()?.launchers.first()
}

/// The part of virt-operator's own record that names the launcher (KubeVirt's `KubeVirtDeploymentConfig`).
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Deployment {
    registry: String,
    image_prefix: String,
    kube_virt_version: String,
    virt_launcher_image: String,
}

/// The image that KubeVirt starts machines with: the one that virt-operator was told (`VIRT_LAUNCHER_IMAGE`), else the
/// one of its own registry, prefix and version. `None` until virt-operator has deployed and recorded it.
pub fn image_of(kubevirt: &KubeVirt) -> Option<String> {
    let record = kubevirt.status.as_ref()?.observed_deployment_config.as_ref()?;
    let deployment: Deployment = serde_json::from_str(record).ok()?;
    if !deployment.virt_launcher_image.is_empty() {
        return Some(deployment.virt_launcher_image);
    }
    let Deployment {
        registry,
        image_prefix,
        kube_virt_version: version,
        ..
    } = deployment;
    let separator = if version.starts_with("sha256:") { '@' } else { ':' };
    let known = !registry.is_empty() && !version.is_empty();
    known.then(|| format!("{registry}/{image_prefix}virt-launcher{separator}{version}"))
}

/// What is known of all launchers, that of KubeVirt first, and the judgement on it. Plans its probe if need be.
pub(super) fn judge(facts: &Facts, before: &[Launcher], plan: &mut Plan, now: Timestamp) -> (Vec<Launcher>, Said) {
    let kept = before.to_vec();
    let image = match kubevirt(facts) {
        Ok(kubevirt) => image_of(kubevirt),
        Err(said) => return (kept, said),
    };
    let Some(image) = image else {
        return (
            kept,
            not_probed("KubeVirt has not recorded its launcher image yet (status.observedDeploymentConfig)"),
        );
    };
    let (jobs, pods) = match (&facts.jobs, &facts.pods) {
        (Seen::Unknown(why), _) | (_, Seen::Unknown(why)) => return (kept, unreadable("the launcher's probe", why)),
        (jobs, pods) => (
            jobs.present().map_or(&[][..], Vec::as_slice),
            pods.present().map_or(&[][..], Vec::as_slice),
        ),
    };
    let key = probe::key(&image);
    let mine = |labels: &std::collections::BTreeMap<String, String>| labels.get(PROBE_OF) == Some(&key);
    for job in jobs
        .iter()
        .filter(|job| !mine(job.labels()) && job.metadata.deletion_timestamp.is_none())
    {
        plan.then(Step::Delete(Target::of(Kind::Job, &job.metadata)));
    }
    let pinned = image.split_once('@').map(|(_, digest)| digest);
    if let Some(known) = pinned.and_then(|digest| before.iter().find(|launcher| launcher.digest == digest)) {
        let said = capable(known, &image);
        return (first(known.clone(), before), said);
    }
    let Some(job) = jobs.iter().find(|job| mine(job.labels())) else {
        return (kept, begin(facts, &image, plan, now));
    };
    let pods: Vec<_> = pods.iter().filter(|pod| mine(pod.labels())).collect();
    match answer(job, &pods, pinned) {
        Answer::Found(launcher) => {
            let said = capable(&launcher, &image);
            (first(launcher, before), said)
        }
        Answer::Waits(detail) => (kept, not_probed(&format!("{image} is being probed: {detail}"))),
        Answer::Failed(why, ended) => {
            let again = ended.unwrap_or(now).saturating_add(RETRY).unwrap_or(now);
            if again <= now && job.metadata.deletion_timestamp.is_none() {
                plan.then(Step::Delete(Target::of(Kind::Job, &job.metadata)));
            }
            plan.wake_at(again.max(now.saturating_add(SignedDuration::from_secs(5)).unwrap_or(now)));
            (
                kept,
                not_probed(&format!("{image} could not be probed: {why}; tried again at {again}")),
            )
        }
    }
}

fn begin(facts: &Facts, image: &str, plan: &mut Plan, now: Timestamp) -> Said {
    // a Job is always JSON; without it nothing is begun, and the next pass tries again
    if let Ok(job) = Object::of(Kind::Job, &probe::job(image, &facts.platform_namespace)) {
        plan.then(Step::Create(job));
    }
    match facts
        .refusal
        .as_ref()
        .filter(|refusal| refusal.cause != RefusalCause::Unproven)
    {
        Some(refusal) => {
            plan.wake_at(now.saturating_add(AGAIN).unwrap_or(now));
            not_probed(&format!(
                "{image} could not be probed: {}: {}",
                refusal.of, refusal.message
            ))
        }
        None => not_probed(&format!("{image} is being probed")),
    }
}

fn not_probed(message: &str) -> Said {
    (Verdict::Unknown, Reason::NotProbed, message.to_owned())
}

fn capable(launcher: &Launcher, image: &str) -> Said {
    let no = |reason, device: &str| {
        let message = format!(
            "the QEMU of {image} has no {device} device (stock builds have none): build a launcher that has, and set \
             VIRT_LAUNCHER_IMAGE of virt-operator; see docs/launcher.md"
        );
        (Verdict::False, reason, message)
    };
    match launcher {
        Launcher { smc: false, .. } => no(Reason::SmcMissing, "isa-applesmc"),
        Launcher {
            nvme: Nvme::Missing, ..
        } => no(Reason::NvmeMissing, "nvme"),
        Launcher { nvme, .. } => (
            Verdict::True,
            Reason::Capable,
            format!("{image} has isa-applesmc and nvme ({nvme:?})"),
        ),
    }
}

/// The list with that one in front.
fn first(launcher: Launcher, before: &[Launcher]) -> Vec<Launcher> {
    let others = before.iter().filter(|other| other.digest != launcher.digest).cloned();
    std::iter::once(launcher.clone()).chain(others).take(KEPT).collect()
}

enum Answer {
    Found(Launcher),
    Waits(String),
    Failed(String, Option<Timestamp>),
}

fn answer(job: &Job, pods: &[&Arc<Pod>], pinned: Option<&str>) -> Answer {
    if let Some(complete) = ended(job, "Complete") {
        let at = complete.last_transition_time.as_ref().map(|time| time.0);
        let good = pods
            .iter()
            .find_map(|pod| Some((pod, last_words(pod).filter(|end| end.exit_code == 0)?)));
        let Some((pod, end)) = good else {
            return Answer::Failed("its pod is gone".to_owned(), at);
        };
        let digest = pinned.map(str::to_owned).or_else(|| pulled(pod));
        return match (probe::parse(end.message.as_deref().unwrap_or_default()), digest) {
            (Ok(found), Some(digest)) => Answer::Found(Launcher {
                digest,
                nvme: found.nvme,
                smc: found.smc,
                nic_models: found.nic_models,
                probed_at: at.map(Time),
            }),
            (Err(why), _) => Answer::Failed(why, at),
            (_, None) => Answer::Failed("kubelet tells no digest of the image (imageID)".to_owned(), at),
        };
    }
    if let Some(failed) = ended(job, "Failed") {
        let said = pods
            .iter()
            .find_map(|pod| last_words(pod).filter(|end| end.exit_code != 0)?.message.clone());
        let why = said
            .or_else(|| failed.message.clone())
            .unwrap_or_else(|| "the probe said nothing".to_owned());
        return Answer::Failed(
            why.trim().to_owned(),
            failed.last_transition_time.as_ref().map(|time| time.0),
        );
    }
    Answer::Waits(
        pods.iter()
            .find_map(|pod| waiting(pod))
            .unwrap_or_else(|| "the probe runs".to_owned()),
    )
}

/// The digest of what kubelet pulled.
fn pulled(pod: &Pod) -> Option<String> {
    let id = &pod.status.as_ref()?.container_statuses.as_ref()?.first()?.image_id;
    let (_, digest) = id.rsplit_once("sha256:")?;
    (digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit())).then(|| format!("sha256:{digest}"))
}
