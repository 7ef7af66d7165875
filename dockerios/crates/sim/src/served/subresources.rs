//! The aggregated API `subresources.kubevirt.io/v1`: evacuate/cancel and vnc/screenshot.
//!
//! Invariant: the API server has asked who may; here it is only asked what.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::{Path, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, put},
};
use dockerios_kubevirt::{VirtualMachineInstance, vmi::VmiPhase};
use kube::{
    ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use super::picture;
use crate::{guest::Stage, queue::Key, world::World};

const GROUP: &str = "subresources.kubevirt.io";

pub(super) fn routes() -> Router<Arc<World>> {
    let one = "/apis/subresources.kubevirt.io/v1/namespaces/{namespace}/virtualmachineinstances/{name}";
    let machine = "/apis/subresources.kubevirt.io/v1/namespaces/{namespace}/virtualmachines/{name}";
    Router::new()
        .route("/healthz", get(|| async { "ok" }))
        .route("/apis", get(groups))
        .route("/apis/subresources.kubevirt.io", get(group))
        .route("/apis/subresources.kubevirt.io/v1", get(resources))
        .route(&format!("{one}/evacuate/cancel"), put(cancel))
        .route(&format!("{machine}/evacuate/cancel"), put(cancel))
        .route(&format!("{one}/vnc/screenshot"), get(screenshot))
}

fn described() -> Value {
    let version = json!({"groupVersion": format!("{GROUP}/v1"), "version": "v1"});
    json!({"name": GROUP, "versions": [version], "preferredVersion": version})
}

async fn groups() -> Json<Value> {
    Json(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [described()]}))
}

async fn group() -> Json<Value> {
    let mut group = described();
    group["kind"] = json!("APIGroup");
    group["apiVersion"] = json!("v1");
    Json(group)
}

async fn resources() -> Json<Value> {
    let one = |name: &str, verbs: &[&str]| json!({"name": name, "singularName": "", "namespaced": true, "kind": "VirtualMachineInstance", "verbs": verbs});
    Json(json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{GROUP}/v1"),
        "resources": [
            one("virtualmachineinstances/evacuate/cancel", &["update"]),
            one("virtualmachines/evacuate/cancel", &["update"]),
            one("virtualmachineinstances/vnc/screenshot", &["get"]),
        ],
    }))
}

fn failure(code: StatusCode, reason: &str, message: String) -> Response {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason,
                        "code": code.as_u16(), "message": message});
    (code, Json(status)).into_response()
}

fn cannot(error: &kube::Error) -> Response {
    match error {
        kube::Error::Api(status) => {
            let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            failure(code, &status.reason, status.message.clone())
        }
        other => failure(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", other.to_string()),
    }
}

/// Takes the mark of an evacuation away. The body names the node, when it is not to hit a later one.
async fn cancel(
    State(world): State<Arc<World>>,
    Path((namespace, name)): Path<(String, String)>,
    body: String,
) -> Response {
    let asked: Value = match body.trim() {
        "" => Value::Null,
        text => match serde_json::from_str(text) {
            Ok(value) => value,
            Err(error) => {
                return failure(
                    StatusCode::BAD_REQUEST,
                    "BadRequest",
                    format!("Can not unmarshal Request body: {error}"),
                );
            }
        },
    };
    let api = world.api::<VirtualMachineInstance>(&namespace);
    let vmi = match api.get(&name).await {
        Ok(vmi) => vmi,
        Err(error) => return cannot(&error),
    };
    let marked = vmi
        .status
        .as_ref()
        .and_then(|status| status.evacuation_node_name.clone());
    let Some(marked) = marked else {
        // nothing to take away
        return StatusCode::OK.into_response();
    };
    if let Some(named) = asked["evacuationNodeName"].as_str()
        && named != marked
    {
        let message = format!("VMI {namespace}/{name} is asked to leave node {marked:?}, not {named:?}");
        return failure(StatusCode::CONFLICT, "Conflict", message);
    }
    let patch = json!({"metadata": {"resourceVersion": vmi.resource_version()},
                       "status": {"evacuationNodeName": null}});
    if asked["dryRun"].is_array() {
        return StatusCode::OK.into_response();
    }
    match api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await {
        Ok(_) => StatusCode::OK.into_response(),
        Err(error) => cannot(&error),
    }
}

async fn screenshot(State(world): State<Arc<World>>, Path((namespace, name)): Path<(String, String)>) -> Response {
    let Some(vmi) = world.instance(&Key::new(&*namespace, &*name)) else {
        let message = format!("virtualmachineinstance.kubevirt.io {name:?} not found");
        return failure(StatusCode::NOT_FOUND, "NotFound", message);
    };
    let runs = vmi.status.as_ref().and_then(|status| status.phase) == Some(VmiPhase::Running);
    let Some(stage) = vmi.uid().and_then(|uid| world.domains.stage(&uid)).filter(|_| runs) else {
        return failure(StatusCode::CONFLICT, "Conflict", "VMI is not running".to_owned());
    };
    let picture = match stage {
        Stage::Booting => picture::picker(),
        Stage::AgentStarting => picture::progress(),
        Stage::LoginWindow => picture::login(),
        Stage::UserSession => picture::desktop(),
    };
    ([(header::CONTENT_TYPE, "image/png")], picture).into_response()
}
