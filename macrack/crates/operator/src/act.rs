//! Steps become API calls. Contested writes carry what they were decided on; a stale one fails and is decided anew.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams, Preconditions},
};
use macrack_api::{names::MANAGER, own_status};
use macrack_core::plan::{Kind, Ref, Step};
use serde_json::{Map, Value, json};

/// How a pass ended that did not end well.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// What was decided on has changed: decide again at once.
    #[error("changed meanwhile: {0}")]
    Conflict(String),
    /// The API server refused a creation, in its words: tried again, ever later.
    #[error("{0}")]
    Refused(String),
    /// It will not work until something else changes: try again, ever later.
    #[error("{0}")]
    Transient(String),
}

impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Self {
        match &error {
            kube::Error::Api(status) if matches!(status.code, 409 | 404) => Self::Conflict(status.message.clone()),
            // a JSON patch whose `test` failed, or a rule that another writer made true meanwhile
            kube::Error::Api(status) if status.code == 422 => Self::Conflict(status.message.clone()),
            _ => Self::Transient(error.to_string()),
        }
    }
}

/// API group, version and plural of a kind.
pub fn resource(kind: Kind) -> ApiResource {
    let (group, version, plural) = match kind {
        Kind::MacNodeClass => ("rack.macrack.io", "v1alpha1", "macnodeclasses"),
        Kind::MacNode => ("rack.macrack.io", "v1alpha1", "macnodes"),
        Kind::MacNodeLease => ("rack.macrack.io", "v1alpha1", "macnodeleases"),
        Kind::InstanceClass => ("instance.macrack.io", "v1alpha1", "instanceclasses"),
        Kind::MacOSInstance => ("instance.macrack.io", "v1alpha1", "macosinstances"),
        Kind::MacOSImage => ("image.macrack.io", "v1alpha1", "macosimages"),
        Kind::RackConfig => ("config.macrack.io", "v1alpha1", "rackconfigs"),
        Kind::Node => ("", "v1", "nodes"),
        Kind::Pod => ("", "v1", "pods"),
        Kind::ServiceAccount => ("", "v1", "serviceaccounts"),
        Kind::Lease => ("coordination.k8s.io", "v1", "leases"),
        Kind::Role => ("rbac.authorization.k8s.io", "v1", "roles"),
        Kind::RoleBinding => ("rbac.authorization.k8s.io", "v1", "rolebindings"),
        Kind::ClusterRole => ("rbac.authorization.k8s.io", "v1", "clusterroles"),
        Kind::ClusterRoleBinding => ("rbac.authorization.k8s.io", "v1", "clusterrolebindings"),
    };
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, &format!("{kind:?}")), plural)
}

/// Carries out steps and writes statuses.
#[derive(Clone)]
pub struct Actor {
    client: Client,
}

impl Actor {
    /// With that client.
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    fn api(&self, object: &Ref) -> Api<DynamicObject> {
        let resource = resource(object.kind);
        if object.namespace.is_empty() {
            Api::all_with(self.client.clone(), &resource)
        } else {
            Api::namespaced_with(self.client.clone(), &object.namespace, &resource)
        }
    }

    async fn json_patch(&self, api: &Api<DynamicObject>, name: &str, status: bool, ops: Value) -> kube::Result<()> {
        let patch = serde_json::from_value(ops).map_err(kube::Error::SerdeError)?;
        let patch = Patch::Json::<()>(patch);
        let params = PatchParams { field_manager: Some(MANAGER.into()), ..PatchParams::default() };
        if status {
            api.patch_status(name, &params, &patch).await?
        } else {
            api.patch(name, &params, &patch).await?
        };
        Ok(())
    }

    async fn merge(&self, of: &Ref, body: Value) -> Result<(), Failure> {
        let params = PatchParams { field_manager: Some(MANAGER.into()), ..PatchParams::default() };
        self.api(of).patch(&of.name, &params, &Patch::Merge(body)).await?;
        Ok(())
    }

    /// Carries out one step.
    pub async fn step(&self, step: &Step) -> Result<(), Failure> {
        match step {
            Step::AddFinalizer { of, finalizer, finalizers, resource_version } => {
                let mut all = finalizers.clone();
                all.push((*finalizer).to_owned());
                self.merge(of, json!({ "metadata": { "resourceVersion": resource_version, "finalizers": all } })).await
            }
            Step::RemoveFinalizer { of, uid, finalizer, finalizers } => {
                let left: Vec<&String> = finalizers.iter().filter(|f| f != finalizer).collect();
                // one made again under the same name may carry the same list: it is not the one that was decided on
                let mut ops: Vec<Value> =
                    uid.iter().map(|uid| json!({ "op": "test", "path": "/metadata/uid", "value": uid })).collect();
                ops.push(json!({ "op": "test", "path": "/metadata/finalizers", "value": finalizers }));
                ops.push(json!({ "op": "replace", "path": "/metadata/finalizers", "value": left }));
                let done = self.json_patch(&self.api(of), &of.name, false, Value::Array(ops)).await;
                gone_is_fine(done.map_err(Failure::from), of, &self.api(of)).await
            }
            Step::Own { instance, resource_version, owners } => {
                self.merge(
                    instance,
                    json!({ "metadata": { "resourceVersion": resource_version, "ownerReferences": owners } }),
                )
                .await
            }
            Step::PatchNode { name, resource_version, patch } => {
                let mut patch = patch.clone();
                patch["metadata"]["resourceVersion"] = json!(resource_version);
                self.merge(&Ref::cluster(Kind::Node, name), patch).await
            }
            Step::Create { object, body } => {
                let body: DynamicObject =
                    serde_json::from_value(body.clone()).map_err(|e| Failure::Transient(e.to_string()))?;
                match self
                    .api(object)
                    .create(&PostParams { field_manager: Some(MANAGER.into()), ..PostParams::default() }, &body)
                    .await
                {
                    Ok(_) => Ok(()),
                    Err(kube::Error::Api(status)) if status.code == 409 && status.reason == "AlreadyExists" => Ok(()),
                    Err(kube::Error::Api(status)) if (400..500).contains(&status.code) => {
                        Err(Failure::Refused(status.message))
                    }
                    Err(error) => Err(Failure::Transient(error.to_string())),
                }
            }
            Step::Apply { object, body } => {
                let params = PatchParams::apply(MANAGER).force();
                self.api(object).patch(&object.name, &params, &Patch::Apply(body)).await?;
                Ok(())
            }
            Step::Delete { object, uid } => {
                let preconditions = uid.clone().map(|uid| Preconditions { uid: Some(uid), resource_version: None });
                // a placeholder has no process behind it that would want a grace
                let grace_period_seconds = (object.kind == Kind::Pod).then_some(0);
                let params = DeleteParams { preconditions, grace_period_seconds, ..DeleteParams::background() };
                match self.api(object).delete(&object.name, &params).await {
                    Ok(_) => Ok(()),
                    Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
                    Err(error) => Err(error.into()),
                }
            }
            Step::Bind { .. }
            | Step::RaiseFloor { .. }
            | Step::SetSlots { .. }
            | Step::KeepWipes { .. }
            | Step::MarkReleasing { .. }
            | Step::ClearLease { .. } => {
                let (mac_node, ops) = chassis_patch(step);
                Ok(self.json_patch(&self.api(&Ref::cluster(Kind::MacNode, mac_node)), mac_node, true, ops).await?)
            }
        }
    }

    /// Writes the operator's part of the status, which stood as `was`, of the very object with that uid: one made again
    /// under the same name must not inherit a boundAt. An object that is gone has none to write.
    ///
    /// # Errors
    /// `Conflict` when another object has the name by now, `Transient` when the schema or a policy refuses, or nobody
    /// answers.
    pub async fn status(&self, of: &Ref, uid: &str, was: &Value, status: &Value) -> Result<(), Failure> {
        let api = self.api(of);
        let part = part(was, status);
        for ops in own_status::patches(uid, &part) {
            match self.json_patch(&api, &of.name, true, ops).await {
                Ok(()) => return Ok(()),
                Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
                Err(kube::Error::Api(status)) if own_status::does_not_fit(&status) => {}
                Err(kube::Error::Api(status)) if status.code == 422 => return Err(Failure::Transient(status.message)),
                Err(error) => return Err(error.into()),
            }
        }
        Err(Failure::Conflict(format!(
            "{of} is no more the one with uid {uid}; the status that was decided is dropped"
        )))
    }
}

/// What is written: all of `status`, and nulls for what `was` said and it does not.
fn part(was: &Value, status: &Value) -> Map<String, Value> {
    let fields = |value: &Value| value.as_object().cloned().unwrap_or_default();
    let mut part: Map<String, Value> = fields(was).into_iter().map(|(field, _)| (field, Value::Null)).collect();
    part.extend(fields(status));
    part
}

/// The JSON patch of a contested write on a chassis: tests what it was decided on.
fn chassis_patch(step: &Step) -> (&str, Value) {
    let test = |path: &str, value: Value| json!({ "op": "test", "path": path, "value": value });
    let chassis = |uid: &str| test("/metadata/uid", uid.into());
    let holder = |uid: &str| test("/status/leaseRef/uid", uid.into());
    match step {
        Step::Bind { mac_node, mac_node_uid, lease_ref } => (
            mac_node,
            json!([
                chassis(mac_node_uid),
                // where another lease's reference stands the schema's write-once rule refuses this
                { "op": "add", "path": "/status/leaseRef", "value": lease_ref },
            ]),
        ),
        Step::RaiseFloor { mac_node, mac_node_uid, lease_uid, to } => (
            mac_node,
            json!([
                chassis(mac_node_uid),
                holder(lease_uid),
                { "op": "replace", "path": "/status/leaseRef/earliestReleaseAt", "value": Time(*to) },
            ]),
        ),
        Step::SetSlots { mac_node, mac_node_uid, lease_uid, from, to } => {
            let mut ops = vec![chassis(mac_node_uid)];
            ops.extend(lease_uid.iter().map(|uid| holder(uid)));
            ops.push(test("/status/slots", json!(from)));
            ops.push(json!({ "op": "replace", "path": "/status/slots", "value": to }));
            (mac_node, Value::Array(ops))
        }
        Step::KeepWipes { mac_node, mac_node_uid, from, to, .. } => {
            let mut ops = vec![chassis(mac_node_uid)];
            // an empty list is left out of a status: it has no path that could be tested
            ops.extend((!from.is_empty()).then(|| test("/status/wipes", json!(from))));
            ops.push(json!({ "op": "add", "path": "/status/wipes", "value": to }));
            (mac_node, Value::Array(ops))
        }
        Step::MarkReleasing { mac_node, mac_node_uid, lease_uid } => (
            mac_node,
            json!([
                chassis(mac_node_uid),
                holder(lease_uid),
                { "op": "replace", "path": "/status/leaseRef/releasing", "value": true },
            ]),
        ),
        Step::ClearLease { mac_node, mac_node_uid, lease_uid } => (
            mac_node,
            json!([
                chassis(mac_node_uid),
                holder(lease_uid),
                { "op": "remove", "path": "/status/leaseRef" },
            ]),
        ),
        _ => ("", json!([])),
    }
}

/// Removing a finalizer from an object that went meanwhile is done.
async fn gone_is_fine(result: Result<(), Failure>, of: &Ref, api: &Api<DynamicObject>) -> Result<(), Failure> {
    match result {
        Err(Failure::Conflict(why)) => match api.get_opt(&of.name).await {
            Ok(None) => Ok(()),
            _ => Err(Failure::Conflict(why)),
        },
        other => other,
    }
}
