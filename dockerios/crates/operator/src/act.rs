//! Carries a plan out: steps in order until one fails, then the status, whole and last.

use std::{sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use dockerios_api::{config::platform_config::SecretKey, names};
use dockerios_core::{
    Id, Kind, Object, Plan, Step, Target,
    plan::{Refusal, RefusalCause},
};
use serde_json::{Value, json};

use crate::{
    api::{Api, Fault, path},
    guard::{Unproven, prove},
    leader::Term,
    queue::Barrier,
    shelf::{place, version_of},
    source::Source,
};

/// What the operator knows and no plan may hold.
pub trait Secrets: Send + Sync {
    /// The token of the machine with that uid.
    fn token(&self, machine_uid: &str) -> String;
    /// The certificate authority of the collector, PEM.
    fn authority(&self) -> String;
    /// The name that the collector's certificate is for, whatever address guests reach it by.
    fn server_name(&self) -> String;
}

/// What carrying out needs.
#[derive(Clone)]
pub struct Hands {
    /// The API server.
    pub api: Api,
    /// Tokens and the authority.
    pub secrets: Arc<dyn Secrets>,
    /// Where images, bootdisks and keys are.
    pub platform_namespace: String,
    /// For how long anything may be written.
    pub term: Term,
}

/// How it went.
#[derive(Debug, Default)]
pub struct Outcome {
    /// What was written and must be seen before the object is decided about again.
    pub barrier: Barrier,
    /// The API server refused a step; a person must act.
    pub refusal: Option<Refusal>,
    /// Something had changed: decide again at once.
    pub conflict: bool,
    /// It could not be done now.
    pub later: Option<String>,
    /// What the plan says of the object stands: its status was written or, where it has none, every step is done.
    pub stands: bool,
}

impl Outcome {
    /// One word for it, of a small vocabulary.
    pub fn word(&self) -> &'static str {
        match self {
            Self { later: Some(_), .. } => "later",
            Self { conflict: true, .. } => "conflict",
            Self { refusal: Some(_), .. } => "refused",
            Self { .. } => "done",
        }
    }
}

/// Whether the stored Secret says what the wanted one does.
fn same_secret(stored: &Value, wanted: &Value) -> bool {
    let none = serde_json::Map::new();
    let wanted = wanted["stringData"].as_object().unwrap_or(&none);
    let stored = stored["data"].as_object().unwrap_or(&none);
    stored.len() == wanted.len()
        && wanted.iter().all(|(key, text)| {
            let text = text.as_str().map(|text| STANDARD.encode(text));
            text.as_deref() == stored.get(key).and_then(Value::as_str)
        })
}

/// Why nothing is written.
const NOT_LEADER: &str = "the leader's Lease may be lost";

enum Stop {
    Conflict(String),
    Refused(Refusal),
    Later(String),
}

impl Hands {
    /// Carries out `plan` about the object `id`, decided on at that resourceVersion. `osk`: where the platform's SMC key
    /// is.
    ///
    /// The status carries the resourceVersion: the API server does not hold a uid in the body of a status write against
    /// the object, and would write it onto one that was made again under the name.
    pub async fn carry_out(&self, id: &Id, version: &str, plan: &Plan, osk: Option<&SecretKey>) -> Outcome {
        let (mut outcome, mut version) = (Outcome::default(), version.to_owned());
        for step in &plan.steps {
            if !self.term.holds() {
                outcome.later = Some(NOT_LEADER.into());
                return outcome;
            }
            match self.step(step, osk).await {
                Ok(written) => {
                    outcome.note(step.id().kind, written.as_ref());
                    if let Some(newer) = written.filter(|_| step.id() == *id).as_ref().and_then(version_text) {
                        version = newer;
                    }
                }
                Err(stop) => {
                    outcome.stopped(id, step, stop);
                    break;
                }
            }
        }
        outcome.stands = plan.status.is_none() && outcome.word() == "done";
        if let Some(status) = &plan.status {
            if !self.term.holds() {
                outcome.later = Some(NOT_LEADER.into());
                return outcome;
            }
            let object = status_of(id, &version, status);
            match self.api.apply_status(id, &object).await {
                Ok(written) => {
                    outcome.note(id.kind, Some(&written));
                    outcome.stands = true;
                }
                // it has changed, or is gone, or another by now: the next pass tells it
                Err(Fault::Conflict(why)) => {
                    tracing::debug!(%id, why, "status not written");
                    outcome.conflict = true;
                }
                Err(Fault::Later(why)) => outcome.later = Some(why),
                Err(Fault::Refused(why)) => {
                    tracing::error!(%id, why, "the API server refuses our status");
                    outcome.later = Some(why);
                }
                Err(Fault::Exists) => outcome.conflict = true,
            }
        }
        outcome
    }

    async fn step(&self, step: &Step, osk: Option<&SecretKey>) -> Result<Option<Value>, Stop> {
        let written = match step {
            Step::Prove(guard) => {
                return match prove(&self.api, guard).await {
                    Ok(()) => Ok(None),
                    Err(error) => Err(unproven(&guard.id(), error)),
                };
            }
            Step::Create(object) => return self.create(object, object.body.clone()).await,
            Step::CreateHookConfig(object) => {
                let body = self.with_osk(object, osk).await?;
                return self.create(object, body).await;
            }
            Step::CreateGuestConfig(object) => return self.create(object, self.with_access(object)).await,
            Step::Replace(object) => self.api.replace(&object.id(), "", &object.body).await,
            Step::ReplaceStatus(object, guard) => {
                if let Some(guard) = guard {
                    prove(&self.api, guard).await.map_err(|e| unproven(&object.id(), e))?;
                }
                self.api.replace(&object.id(), "/status", &object.body).await
            }
            Step::Merge(target, patch) => self.api.merge(&target.id, &on(target, patch.clone())).await,
            Step::AddFinalizer(target, finalizer) => self.finalizers(target, finalizer, true).await,
            Step::RemoveFinalizer(target, finalizer, guard) => {
                if let Some(guard) = guard {
                    prove(&self.api, guard).await.map_err(|e| unproven(&target.id, e))?;
                }
                self.finalizers(target, finalizer, false).await
            }
            Step::Delete(target) => {
                return match self
                    .api
                    .delete(&target.id, &target.uid, target.resource_version.as_deref())
                    .await
                {
                    Ok(_) => Ok(None),
                    Err(Fault::Conflict(why)) => self.gone_or(target, why).await,
                    Err(fault) => Err(stop(&target.id, fault)),
                };
            }
            Step::DeleteLabelled {
                kind,
                namespace,
                label: (key, value),
            } => {
                // a rehearsal first: what is not there need not be deleted over and over
                let label = format!("{key}={value}");
                match self.api.would_delete_labelled(*kind, namespace, &label).await {
                    Ok(there) if there.is_empty() => return Ok(None),
                    Ok(_) => self
                        .api
                        .delete_labelled(*kind, namespace, &label)
                        .await
                        .map(|_| Value::Null),
                    Err(fault) => Err(fault),
                }
            }
            Step::CancelEvacuation { vmi, node } => {
                let body = json!({"evacuationNodeName": node});
                self.api
                    .put(subresource(&vmi.id, "evacuate/cancel"), &body)
                    .await
                    .map(|()| Value::Null)
            }
            Step::KeepScreen { machine, vmi, name } => {
                self.keep_screen(machine, vmi, name).await;
                return Ok(None);
            }
        };
        written.map(Some).map_err(|fault| stop(&step.id(), fault))
    }

    /// POST. What has the name already is either ours, and the step is done, or somebody's, and nothing of it is
    /// touched.
    async fn create(&self, object: &Object, mut body: Value) -> Result<Option<Value>, Stop> {
        let address = object.kind.address();
        body["apiVersion"] = address.api_version().into();
        body["kind"] = address.kind.into();
        let id = object.id();
        match self.api.create(&id, &body).await {
            Ok(written) => Ok(Some(written)),
            Err(Fault::Exists) if id.kind == Kind::Secret => self.replace_secret(object, &body).await,
            Err(Fault::Exists) => {
                let there = self.api.get(&id).await.map_err(|fault| stop(&id, fault))?;
                match there {
                    None => Err(Stop::Conflict(format!("{id} went while it was made"))),
                    Some(there) if ours(object, &there) => Ok(Some(there)),
                    Some(_) => Err(name_taken(&id)),
                }
            }
            Err(fault) => Err(stop(&id, fault)),
        }
    }

    /// The operator may not read Secrets: one that has the name is taken away by our uid label, and made again, unless
    /// a rehearsal of that shows that it is what is wanted. Replacing takes two writes, so an operator that is killed
    /// after each of its writes would replace it for ever.
    async fn replace_secret(&self, object: &Object, body: &Value) -> Result<Option<Value>, Stop> {
        let id = object.id();
        let Some(uid) = object.label(names::MACHINE_UID) else {
            return Err(name_taken(&id));
        };
        let label = format!("{}={uid}", names::MACHINE_UID);
        let ours = self
            .api
            .would_delete_labelled(Kind::Secret, &id.namespace, &label)
            .await;
        let ours = ours.map_err(|fault| stop(&id, fault))?;
        if let Some(same) = ours
            .into_iter()
            .find(|there| place(there).1 == id.name && same_secret(there, body))
        {
            return Ok(Some(same));
        }
        self.api
            .delete_labelled(Kind::Secret, &id.namespace, &label)
            .await
            .map_err(|fault| stop(&id, fault))?;
        match self.api.create(&id, body).await {
            Ok(written) => Ok(Some(written)),
            Err(Fault::Exists) => Err(name_taken(&id)),
            Err(fault) => Err(stop(&id, fault)),
        }
    }

    /// A conflict of a delete means: gone or made again (done), or changed since (decide again).
    async fn gone_or(&self, target: &Target, why: String) -> Result<Option<Value>, Stop> {
        match self.api.get(&target.id).await {
            Ok(Some(there)) if there["metadata"]["uid"] == target.uid.as_str() => Err(Stop::Conflict(why)),
            Ok(_) => Ok(None),
            // no right to read it (Secrets): the next pass will tell
            Err(_) => Err(Stop::Conflict(why)),
        }
    }

    /// Our finalizer and no other, at the very version that was decided on.
    async fn finalizers(&self, target: &Target, finalizer: &str, add: bool) -> Result<Value, Fault> {
        let Some(there) = self.api.get(&target.id).await? else {
            return if add {
                Err(Fault::Conflict("gone".into()))
            } else {
                Ok(Value::Null)
            };
        };
        if there["metadata"]["uid"] != target.uid.as_str() {
            return Err(Fault::Conflict("made again under its name".into()));
        }
        if add && there["metadata"]["deletionTimestamp"].is_string() {
            return Err(Fault::Conflict("being deleted".into()));
        }
        let mut list: Vec<String> = there["metadata"]["finalizers"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .map(Into::into)
            .collect();
        let had = list.iter().any(|f| f == finalizer);
        match (add, had) {
            (true, true) | (false, false) => return Ok(there),
            (true, false) => list.push(finalizer.to_owned()),
            (false, true) => list.retain(|f| f != finalizer),
        }
        self.api
            .merge(&target.id, &on(target, json!({"metadata": {"finalizers": list}})))
            .await
    }

    async fn with_osk(&self, object: &Object, osk: Option<&SecretKey>) -> Result<Value, Stop> {
        let id = object.id();
        let refused = |message: String| {
            Stop::Refused(Refusal {
                of: id.clone(),
                cause: RefusalCause::Forbidden,
                message,
            })
        };
        let Some(SecretKey { name, key }) = osk else {
            return Err(refused(
                "PlatformConfig/default: spec.smc.oskSecretRef is not set; set it".into(),
            ));
        };
        let secret = Id::new(Kind::Secret, &self.platform_namespace, &name.0);
        let there = self.api.get(&secret).await.map_err(|fault| stop(&secret, fault))?;
        let value = there.as_ref().and_then(|secret| secret["data"][key].as_str());
        let Some(value) = value else {
            let at = &self.platform_namespace;
            return Err(refused(format!(
                "Secret {at}/{name} has no key {key}; make it (PlatformConfig spec.smc.oskSecretRef)"
            )));
        };
        let mut body = object.body.clone();
        body["binaryData"] = json!({"osk": value});
        Ok(body)
    }

    fn with_access(&self, object: &Object) -> Value {
        let mut body = object.body.clone();
        let uid = object.label(names::MACHINE_UID).unwrap_or_default();
        body["stringData"]["token"] = self.secrets.token(uid).into();
        body["stringData"]["ca.crt"] = self.secrets.authority().into();
        body["stringData"]["server-name"] = self.secrets.server_name().into();
        body
    }

    /// Evidence: whatever goes wrong here is told and holds nothing up.
    async fn keep_screen(&self, machine: &Target, vmi: &Target, name: &str) {
        /// A ConfigMap holds 1 MiB, base64 included.
        const LIMIT: usize = 700 * 1024;
        /// What the failed machine holds is given back after this step: a guest that shows nothing has so long.
        const PATIENCE: Duration = Duration::from_secs(10);
        let path = subresource(&vmi.id, "vnc/screenshot?moveCursor=false");
        let picture = match self.api.bytes(path, LIMIT, PATIENCE).await {
            Ok(picture) => picture,
            Err(fault) => return tracing::warn!(machine = %machine.id, ?fault, "the last screen could not be taken"),
        };
        let id = Id::new(Kind::ConfigMap, &machine.id.namespace, name);
        // kept with the machine's object, gone with it: owned by it, unlike all else that is the machine's
        let owner = json!({"apiVersion": "machine.dockerios.io/v1alpha1", "kind": "MacOSMachine",
            "name": machine.id.name, "uid": machine.uid});
        let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "immutable": true,
            "metadata": {"name": name, "namespace": machine.id.namespace, "ownerReferences": [owner],
                "labels": {names::MACHINE: machine.id.name}},
            "binaryData": {"screen.png": STANDARD.encode(picture)}});
        if let Err(fault) = self.api.create(&id, &body).await {
            tracing::warn!(machine = %machine.id, ?fault, "the last screen could not be kept");
        }
    }
}

impl Outcome {
    fn note(&mut self, kind: Kind, written: Option<&Value>) {
        if let (Some(source), Some(version)) = (Source::of(kind), written.map(version_of).filter(|v| *v > 0)) {
            self.barrier.push((source, version));
        }
    }

    fn stopped(&mut self, id: &Id, step: &Step, stop: Stop) {
        match stop {
            Stop::Conflict(why) => {
                tracing::debug!(%id, step = %step.id(), why, "changed since it was decided on");
                self.conflict = true;
            }
            Stop::Refused(refusal) => {
                tracing::info!(%id, step = %step.id(), why = refusal.message, "refused");
                self.refusal = Some(refusal);
            }
            Stop::Later(why) => {
                tracing::warn!(%id, step = %step.id(), why, "could not be done now");
                self.later = Some(why);
            }
        }
    }
}

/// Whether what is there is what would have been made: of the same machine, or of the same owner, or (for objects of
/// the platform) with the same labels.
fn ours(object: &Object, there: &Value) -> bool {
    let wanted = &object.body["metadata"];
    if let Some(uid) = object.label(names::MACHINE_UID) {
        return there["metadata"]["labels"][names::MACHINE_UID] == uid;
    }
    if let Some(claim) = object.label(names::CLAIM_UID) {
        return there["metadata"]["labels"][names::CLAIM_UID] == claim;
    }
    if let Some(owner) = wanted["ownerReferences"].get(0) {
        let owners = there["metadata"]["ownerReferences"].as_array();
        return owners.into_iter().flatten().any(|o| o["uid"] == owner["uid"]);
    }
    let labels = wanted["labels"].as_object();
    labels.is_some_and(|labels| !labels.is_empty() && labels.iter().all(|(k, v)| there["metadata"]["labels"][k] == *v))
}

/// A merge patch on that very object.
fn on(target: &Target, mut patch: Value) -> Value {
    patch["metadata"]["uid"] = target.uid.clone().into();
    if let Some(version) = &target.resource_version {
        patch["metadata"]["resourceVersion"] = version.clone().into();
    }
    patch
}

fn version_text(object: &Value) -> Option<String> {
    object["metadata"]["resourceVersion"].as_str().map(str::to_owned)
}

fn status_of(id: &Id, version: &str, status: &Value) -> Value {
    let at = id.kind.address();
    let mut metadata = json!({"name": id.name, "resourceVersion": version});
    if !id.namespace.is_empty() {
        metadata["namespace"] = id.namespace.clone().into();
    }
    json!({"apiVersion": at.api_version(), "kind": at.kind, "metadata": metadata, "status": status})
}

/// KubeVirt serves these beside the object.
fn subresource(vmi: &Id, what: &str) -> String {
    path(vmi).replacen("/apis/kubevirt.io/", "/apis/subresources.kubevirt.io/", 1) + "/" + what
}

fn name_taken(id: &Id) -> Stop {
    let message = format!("{id} exists and is not ours; delete or rename it");
    Stop::Refused(Refusal {
        of: id.clone(),
        cause: RefusalCause::NameTaken,
        message,
    })
}

fn unproven(id: &Id, unproven: Unproven) -> Stop {
    match unproven {
        Unproven::Found(message) => Stop::Refused(Refusal {
            of: id.clone(),
            cause: RefusalCause::Unproven,
            message,
        }),
        Unproven::Fault(fault) => stop(id, fault),
    }
}

fn stop(id: &Id, fault: Fault) -> Stop {
    match fault {
        Fault::Conflict(why) => Stop::Conflict(why),
        Fault::Exists => Stop::Conflict(format!("{id} exists")),
        Fault::Refused(message) => Stop::Refused(Refusal {
            of: id.clone(),
            cause: RefusalCause::Forbidden,
            message,
        }),
        Fault::Later(why) => Stop::Later(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::{Answer, answering, hands};

    #[tokio::test]
    async fn a_status_that_is_not_written_for_want_of_the_lease_is_not_told_as_done() {
        let hands = hands(answering(|_| Answer::Never).await, Term::default());
        let plan = Plan {
            status: Some(json!({"phase": "Ready"})),
            ..Plan::default()
        };
        let id = Id::new(Kind::MacOSMachine, "team", "m");
        let outcome = hands.carry_out(&id, "7", &plan, None).await;
        assert_eq!(outcome.later.as_deref(), Some(NOT_LEADER), "{outcome:?}");
        assert!(!outcome.stands);
    }
    #[tokio::test]
    async fn a_guest_is_told_the_name_that_the_collectors_certificate_is_for_whatever_its_address() {
        let hands = hands(answering(|_| Answer::Never).await, Term::default());
        let address = "https://10.60.0.5:7443";
        let config = Object {
            kind: Kind::Secret,
            body: json!({"metadata": {}, "stringData": {"collector": address}}),
        };
        let written = hands.with_access(&config);
        assert_eq!(written["stringData"]["server-name"], "collector.svc");
        assert_eq!(written["stringData"]["collector"], address);
    }
}
