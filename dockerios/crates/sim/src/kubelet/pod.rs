//! Pods on played nodes.
//!
//! Invariant: a launcher pod ends when its domain has ended, never before; a pod on a lost node stays as it is; a
//! pod that is being deleted goes when its containers have ended.

use std::sync::Arc;

use anyhow::Result;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::{
    ResourceExt,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::program::{self, Outcome};
use crate::{
    domains::State,
    faults::Fault,
    kubevirt::launcher::PROVISIONING,
    queue::{Again, Key},
    world::{World, now, unless},
};
use dockerios_kubevirt::names;

/// Works on one.
pub(crate) async fn pod(world: Arc<World>, key: Key) -> Result<Again> {
    let Some(pod) = world.pod(&key) else {
        return Ok(None);
    };
    let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) else {
        return Ok(None);
    };
    if !world.options.nodes.iter().any(|shape| shape.name == node) || world.node_is_lost(node) {
        return Ok(None);
    }
    let instance = pod.annotations().get(names::DOMAIN);
    let instance = instance.and_then(|name| world.instance(&Key::new(&*key.namespace, &**name)));
    if instance.is_some_and(|vmi| world.instance_fault(Fault::Stranded, &vmi).is_some()) {
        return Ok(None);
    }
    let launcher = pod
        .labels()
        .get(names::APP_LABEL)
        .is_some_and(|value| value == names::LAUNCHER);
    let provisioning = pod.annotations().contains_key(PROVISIONING);
    let domain = match pod.labels().get(names::CREATED_BY) {
        Some(uid) if launcher && !provisioning => world.domains.state(uid),
        _ => None,
    };
    if pod.metadata.deletion_timestamp.is_some() {
        return terminate(&world, &pod, domain).await;
    }
    match phase(&pod) {
        "Pending" => begin(&world, &pod).await,
        "Running" if provisioning => {
            end(&world, &pod, 0, String::new()).await?;
            Ok(None)
        }
        "Running" if launcher => {
            match domain {
                Some(State::Ended) => end(&world, &pod, 0, String::new()).await?,
                Some(State::Killed) => end(&world, &pod, 137, "the grace period was over".to_owned()).await?,
                Some(State::Crashed) => end(&world, &pod, 1, "QEMU ended unexpectedly".to_owned()).await?,
                Some(State::Defining | State::Up | State::Refused(_)) | None => {}
            }
            Ok(None)
        }
        "Running" => run(&world, &pod).await,
        _ => Ok(None),
    }
}

fn phase(pod: &Pod) -> &str {
    pod.status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .unwrap_or("Pending")
}

/// A pod being deleted: its processes are asked to end; when they have, it goes.
async fn terminate(world: &World, pod: &Pod, domain: Option<State>) -> Result<Again> {
    if matches!(domain, Some(State::Defining | State::Up | State::Refused(_))) && phase(pod) == "Running" {
        let uid = pod.labels().get(names::CREATED_BY).cloned().unwrap_or_default();
        let grace = pod
            .metadata
            .deletion_grace_period_seconds
            .and_then(|grace| u32::try_from(grace).ok());
        if domain == Some(State::Up) {
            // what KubeVirt adds for the pod is not the guest's
            world
                .domains
                .press_power_button(&uid, grace.unwrap_or(30).saturating_sub(30));
        } else {
            world.domains.end(&uid, State::Killed);
        }
        return Ok(None);
    }
    world.programs.stop(&pod.uid().unwrap_or_default());
    let now = DeleteParams::default().grace_period(0).preconditions(Preconditions {
        uid: pod.uid(),
        resource_version: None,
    });
    let api = world.api::<Pod>(&pod.namespace().unwrap_or_default());
    match api.delete(&pod.name_any(), &now).await {
        // gone, or another one of the same name
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(None),
        other => other.map(|_| None).map_err(Into::into),
    }
}

/// What is mounted must be there.
async fn missing(world: &World, pod: &Pod) -> Result<Option<String>> {
    let namespace = pod.namespace().unwrap_or_default();
    let volumes = pod.spec.clone().and_then(|spec| spec.volumes).unwrap_or_default();
    for volume in &volumes {
        if let Some(map) = volume.config_map.as_ref().filter(|map| map.optional != Some(true)) {
            let there = world.api::<ConfigMap>(&namespace).get_metadata_opt(&map.name).await?;
            if there.is_none() {
                return Ok(Some(format!(
                    "MountVolume.SetUp failed for volume {:?} : configmap {:?} not found",
                    volume.name, map.name
                )));
            }
        }
        if let Some(secret) = volume.secret.as_ref().filter(|secret| secret.optional != Some(true)) {
            let name = secret.secret_name.clone().unwrap_or_default();
            if world.api::<Secret>(&namespace).get_metadata_opt(&name).await?.is_none() {
                return Ok(Some(format!(
                    "MountVolume.SetUp failed for volume {:?} : secret {name:?} not found",
                    volume.name
                )));
            }
        }
    }
    Ok(None)
}

async fn begin(world: &Arc<World>, pod: &Pod) -> Result<Again> {
    let uid = pod.uid().unwrap_or_default();
    if let Some(left) = world.left(&uid, "start", world.options.timings.pod_start) {
        return Ok(Some(left));
    }
    if let Some(why) = missing(world, pod).await? {
        world
            .tell(pod, kube::runtime::events::EventType::Warning, "FailedMount", why)
            .await;
        return Ok(Some(std::time::Duration::from_secs(1)));
    }
    if let Some(image) = program::unknown_image(world, pod) {
        let message = format!("the simulator plays no image {image:?}");
        let waiting = json!({"waiting": {"reason": "ErrImagePull", "message": message}});
        return status(world, pod, "Pending", &waiting, false).await.map(|()| None);
    }
    let running = json!({"running": {"startedAt": now()}});
    status(world, pod, "Running", &running, true).await?;
    Ok(None)
}

async fn run(world: &Arc<World>, pod: &Arc<Pod>) -> Result<Again> {
    let uid = pod.uid().unwrap_or_default();
    match world.programs.outcome(&uid) {
        None => world.programs.start(world, pod),
        Some(None) => {}
        Some(Some(Outcome { code, message })) => {
            end(world, pod, code, message).await?;
        }
    }
    Ok(None)
}

async fn end(world: &World, pod: &Pod, code: i32, message: String) -> Result<()> {
    let reason = if code == 0 { "Completed" } else { "Error" };
    let word = if code == 0 { "Succeeded" } else { "Failed" };
    let started = pod.status.as_ref().and_then(|status| status.start_time.as_ref());
    let state = json!({"terminated": {
        "exitCode": code, "reason": reason, "message": message, "startedAt": started, "finishedAt": now(),
    }});
    status(world, pod, word, &state, false).await
}

/// An address of the pod network that follows from the pod.
fn address(pod: &Pod) -> String {
    let mut hash = crc32fast::Hasher::new();
    hash.update(pod.uid().unwrap_or_default().as_bytes());
    let [_, a, b, c] = hash.finalize().to_be_bytes();
    format!("10.{}.{b}.{}", 64 + a % 64, c.clamp(1, 254))
}

async fn status(world: &World, pod: &Pod, phase: &str, state: &Value, ready: bool) -> Result<()> {
    let containers = pod
        .spec
        .as_ref()
        .map(|spec| spec.containers.clone())
        .unwrap_or_default();
    let statuses: Vec<_> = containers
        .iter()
        .map(|container| {
            json!({"name": container.name, "image": container.image, "imageID": image_id(container.image.as_deref().unwrap_or_default()), "restartCount": 0, "ready": ready,
                   "started": ready, "state": state})
        })
        .collect();
    let word = if ready { "True" } else { "False" };
    let mut conditions = vec![
        json!({"type": "Initialized", "status": "True", "lastTransitionTime": now()}),
        json!({"type": "Ready", "status": word, "lastTransitionTime": now()}),
        json!({"type": "ContainersReady", "status": word, "lastTransitionTime": now()}),
    ];
    let known = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.clone())
        .unwrap_or_default();
    conditions.extend(
        known
            .iter()
            .filter(|one| one.type_ == "PodScheduled")
            .map(|one| json!(one)),
    );
    let mut status = json!({"phase": phase, "conditions": conditions, "containerStatuses": statuses});
    if phase != "Pending" {
        let ip = address(pod);
        status["podIP"] = json!(ip);
        status["podIPs"] = json!([{"ip": ip}]);
        status["hostIP"] = json!("10.0.0.1");
        let started = pod.status.as_ref().and_then(|status| status.start_time.as_ref());
        status["startTime"] = started.map_or_else(|| json!(now()), |time| json!(time));
    }
    let api = world.api::<Pod>(&pod.namespace().unwrap_or_default());
    // of the pod that was decided on
    let patch = Patch::Merge(json!({"metadata": {"uid": pod.uid()}, "status": status}));
    match api.patch_status(&pod.name_any(), &PatchParams::default(), &patch).await {
        Err(kube::Error::Api(answer)) if answer.code == 409 => Ok(()),
        other => unless(other, 404).map(drop),
    }
}

/// What a kubelet says it runs: the reference with its digest. A reference without one gets the digest of its own text.
fn image_id(image: &str) -> String {
    match image.split_once('@') {
        Some(_) => image.to_owned(),
        None => {
            let digest = Sha256::digest(image);
            let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{image}@sha256:{digest}")
        }
    }
}
