//! This agent's part of a status, onto the very object that it is about.
//!
//! Invariant: what is known of an object is never written onto one made again under its name. MacNode and MacOSInstance
//! are custom resources, where only a JSON Patch holds the uid ([`own_status`] says why); Node and Pod are built in,
//! where the API server refuses another `metadata.uid` in the body.

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use macrack_api::names::AGENT_MANAGER;
use macrack_api::{MacNode, MacOSInstance, own_status};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::report::agent::AgentReport;
use crate::report::instance::InstanceReport;
use crate::report::pod::{PodAct, PodReport};

/// Writes `status.agent` of the MacNode that the report is for.
///
/// # Errors
/// When it is refused: above all, with 422, when another MacNode has the name by now.
pub async fn tell_mac_node(api: &Api<MacNode>, name: &str, report: &AgentReport) -> kube::Result<()> {
    let part = [("agent".to_owned(), json!(report.status))].into_iter().collect();
    write_own(api, name, &report.mac_node, &part).await
}

/// Writes `status.vm` and `status.guest` of the instance with that `uid`.
///
/// # Errors
/// As for [`tell_mac_node`].
pub async fn tell_instance(
    api: &Api<MacOSInstance>,
    name: &str,
    uid: &str,
    report: &InstanceReport,
) -> kube::Result<()> {
    // null takes away what a guest said that is there no more
    let part = [("vm".to_owned(), json!(report.vm)), ("guest".to_owned(), json!(report.guest))].into_iter().collect();
    write_own(api, name, uid, &part).await
}

/// Writes `part` of the status of the object with that `uid`; fields that are null are taken away.
///
/// # Errors
/// As for [`tell_mac_node`].
pub async fn write_own<K>(api: &Api<K>, name: &str, uid: &str, part: &Map<String, Value>) -> kube::Result<()>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    let params = PatchParams { field_manager: Some(AGENT_MANAGER.to_owned()), ..PatchParams::default() };
    let [into, first] = own_status::patches(uid, part);
    let send = async |ops: Value| {
        let patch = serde_json::from_value(ops).map_err(kube::Error::SerdeError)?;
        api.patch_status(name, &params, &Patch::Json::<()>(patch)).await.map(drop)
    };
    match send(into).await {
        Err(kube::Error::Api(refusal)) if own_status::does_not_fit(&refusal) => send(first).await,
        other => other,
    }
}

/// Does what was decided about the placeholder that the report is for.
///
/// # Errors
/// As for [`tell_mac_node`].
pub async fn tell_pod(api: &Api<Pod>, name: &str, report: PodReport) -> kube::Result<()> {
    match report.act {
        PodAct::Tell(status) => {
            let body = json!({ "metadata": { "uid": report.uid }, "status": status });
            api.patch_status(name, &PatchParams::default(), &Patch::Strategic(body)).await.map(drop)
        }
        PodAct::Finish => {
            let only_this = Preconditions { uid: Some(report.uid), resource_version: None };
            let params = DeleteParams::default().grace_period(0).preconditions(only_this);
            api.delete(name, &params).await.map(drop)
        }
    }
}

/// Applies what [`crate::node::patch`] made of a Node, whose uid it carries.
///
/// # Errors
/// As for [`tell_mac_node`].
pub async fn tell_node(api: &Api<Node>, name: &str, patch: &Value) -> kube::Result<()> {
    api.patch_status(name, &PatchParams::apply(AGENT_MANAGER).force(), &Patch::Apply(patch)).await.map(drop)
}
