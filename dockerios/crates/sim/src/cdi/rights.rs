//! Who may clone. Invariant: cloning out of another namespace takes `create datavolumes/source` there; the refusal
//! has CDI's words.

use anyhow::Result;
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use kube::{Api, Client, api::PostParams};
use serde_json::{Value, json};

/// Looks at the request of an admission review; `Some` is a refusal.
pub(crate) async fn refusal(client: &Client, request: &Value) -> Result<Option<String>> {
    let source = &request["object"]["spec"]["source"];
    let origin = if source["pvc"].is_object() {
        &source["pvc"]
    } else {
        &source["snapshot"]
    };
    let Some(from) = origin["namespace"].as_str() else {
        return Ok(None);
    };
    if Some(from) == request["namespace"].as_str() {
        return Ok(None);
    }
    let user = &request["userInfo"];
    let review: SubjectAccessReview = serde_json::from_value(json!({
        "spec": {
            "user": user["username"], "groups": user["groups"], "uid": user["uid"], "extra": user["extra"],
            "resourceAttributes": {
                "namespace": from, "verb": "create", "group": "cdi.kubevirt.io", "resource": "datavolumes",
                "subresource": "source", "name": origin["name"],
            },
        },
    }))?;
    let answer = Api::<SubjectAccessReview>::all(client.clone())
        .create(&PostParams::default(), &review)
        .await?;
    let allowed = answer.status.is_some_and(|status| status.allowed);
    let username = user["username"].as_str().unwrap_or_default();
    Ok((!allowed).then(|| format!("User {username} has insufficient permissions in clone source namespace {from}")))
}
