//! Admission: virt-api's refusals, CDI's question who may clone, and evictions of launcher pods.
//!
//! Invariant: an eviction of a launcher pod is always denied under strategy `External`; the instance is marked only
//! when it runs on the node of that pod, so one that has no node yet is refused and not marked, as in KubeVirt.

use std::sync::Arc;

use anyhow::Result;
use axum::{Json, Router, extract::State, routing::post};
use dockerios_kubevirt::{VirtualMachineInstance, names};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::{cdi::rights, kubevirt::admission, queue::Key, world::World};

pub(super) const MACHINES: &str = "/validate/machines";
pub(super) const VOLUMES: &str = "/validate/datavolumes";
pub(super) const EVICTIONS: &str = "/validate/evictions";

pub(super) fn routes() -> Router<Arc<World>> {
    Router::new()
        .route(MACHINES, post(machines))
        .route(VOLUMES, post(volumes))
        .route(EVICTIONS, post(evictions))
}

fn answer(review: &Value, denied: Option<(u16, &str, String)>) -> Json<Value> {
    let mut response = json!({"uid": review["request"]["uid"], "allowed": denied.is_none()});
    if let Some((code, reason, message)) = denied {
        response["status"] = json!({"status": "Failure", "code": code, "reason": reason, "message": message});
    }
    Json(json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}))
}

async fn machines(State(world): State<Arc<World>>, Json(review): Json<Value>) -> Json<Value> {
    let object = &review["request"]["object"];
    // what is on its way out is not looked at any more, or its finalizers would stay for ever
    let going = object["metadata"]["deletionTimestamp"].is_string();
    let found = if going {
        Vec::new()
    } else {
        admission::refusals(object, &world.options.feature_gates)
    };
    let denied = (!found.is_empty()).then(|| (422, "Invalid", found.join(", ")));
    answer(&review, denied)
}

async fn volumes(State(world): State<Arc<World>>, Json(review): Json<Value>) -> Json<Value> {
    let denied = match rights::refusal(&world.client, &review["request"]).await {
        Ok(refusal) => refusal.map(|message| (403, "Forbidden", message)),
        Err(error) => Some((500, "InternalError", format!("cannot tell who may clone: {error:#}"))),
    };
    answer(&review, denied)
}

async fn evictions(State(world): State<Arc<World>>, Json(review): Json<Value>) -> Json<Value> {
    let request = &review["request"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let dry = request["dryRun"] == json!(true);
    let denied = match evict(
        &world,
        Key::new(text(&request["namespace"]), text(&request["name"])),
        dry,
    )
    .await
    {
        Ok(denied) => denied.map(|message| (429, "TooManyRequests", message)),
        Err(error) => Some((
            500,
            "InternalError",
            format!("cannot tell whether the pod may go: {error:#}"),
        )),
    };
    answer(&review, denied)
}

async fn evict(world: &World, key: Key, dry: bool) -> Result<Option<String>> {
    let Some(pod) = world.api::<Pod>(&key.namespace).get_opt(&key.name).await? else {
        return Ok(None);
    };
    if pod
        .labels()
        .get(names::APP_LABEL)
        .is_none_or(|value| value != names::LAUNCHER)
    {
        return Ok(None);
    }
    let Some(name) = pod.annotations().get(names::DOMAIN) else {
        return Ok(None);
    };
    let api = world.api::<VirtualMachineInstance>(&key.namespace);
    let Some(vmi) = api.get_opt(name).await? else {
        return Ok(None);
    };
    if !matches!(vmi.spec.eviction_strategy.as_deref(), Some("External" | "LiveMigrate")) {
        return Ok(None);
    }
    let status = vmi.status.clone().unwrap_or_default();
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    if !dry && status.evacuation_node_name.is_none() && node.is_some() && status.node_name == node {
        let patch = json!({"metadata": {"resourceVersion": vmi.resource_version()},
                           "status": {"evacuationNodeName": node}});
        api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
    }
    Ok(Some(format!(
        "Eviction triggered evacuation of VMI \"{}/{name}\"",
        key.namespace
    )))
}
