//! What scenes wait for, said in the product's own words.

use std::panic::Location;
use std::time::Duration;

use anyhow::{Context as _, Result};
use dockerios_api::machine::claim::ClaimPhase;
use dockerios_api::machine::macos_machine::MachinePhase;
use dockerios_api::{MacOSMachine, MacOSMachineClaim, MachineIdentity};
use dockerios_testkit::expect::{self, Object};
use k8s_openapi::api::events::v1::Event;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt as _};
use serde_json::Value;

/// Longest wait of a scene: two cores play a whole fleet, several scenes at once.
pub const PATIENCE: Duration = Duration::from_secs(400);

/// Waits until the object is so; `what` completes the sentence "there is no sign of …".
///
/// # Errors
/// After [`PATIENCE`]; with the object as last seen.
#[track_caller]
pub fn until<K: Object>(
    api: &Api<K>,
    name: &str,
    what: impl Into<String>,
    holds: impl FnMut(&K) -> bool + Send,
) -> impl Future<Output = Result<K>> + Send {
    let (caller, api, name, what) = (Location::caller(), api.clone(), name.to_owned(), what.into());
    async move {
        let met = expect::until_within(api, &name, &what, PATIENCE, holds).await;
        met.with_context(|| caller.to_string())
    }
}

/// Waits until the object is gone.
///
/// # Errors
/// After [`PATIENCE`]; with the object as last seen.
#[track_caller]
pub fn gone<K: Object>(api: &Api<K>, name: &str) -> impl Future<Output = Result<()>> + Send {
    let (caller, api, name) = (Location::caller(), api.clone(), name.to_owned());
    async move {
        expect::gone_within(api, &name, PATIENCE)
            .await
            .with_context(|| caller.to_string())
    }
}

/// Waits until the condition has that status.
///
/// # Errors
/// After [`PATIENCE`].
#[track_caller]
pub fn condition<K: Object>(
    api: &Api<K>,
    name: &str,
    kind: &'static str,
    status: &'static str,
) -> impl Future<Output = Result<K>> + Send {
    until(api, name, format!("condition {kind}={status}"), move |object| {
        condition_of(object, kind).is_some_and(|found| found["status"] == status)
    })
}

/// Waits until the condition has that reason.
///
/// # Errors
/// After [`PATIENCE`].
#[track_caller]
pub fn reason<K: Object>(
    api: &Api<K>,
    name: &str,
    kind: &'static str,
    reason: &'static str,
) -> impl Future<Output = Result<K>> + Send {
    until(
        api,
        name,
        format!("condition {kind} with reason {reason}"),
        move |object| condition_of(object, kind).is_some_and(|found| found["reason"] == reason),
    )
}

/// The condition of that type, as JSON.
pub fn condition_of<K: serde::Serialize>(object: &K, kind: &str) -> Option<Value> {
    let object = serde_json::to_value(object).ok()?;
    let conditions = object.pointer("/status/conditions")?.as_array()?;
    conditions.iter().find(|condition| condition["type"] == kind).cloned()
}

/// Waits until the machine is in that phase.
///
/// # Errors
/// After [`PATIENCE`].
#[track_caller]
pub fn machine(
    api: &Api<MacOSMachine>,
    name: &str,
    phase: MachinePhase,
) -> impl Future<Output = Result<MacOSMachine>> + Send {
    until(api, name, format!("phase {phase:?}"), move |machine| {
        machine_phase(machine) == Some(phase)
    })
}

/// A machine's phase.
pub fn machine_phase(machine: &MacOSMachine) -> Option<MachinePhase> {
    machine.status.as_ref()?.phase
}

/// Waits until the claim is in that phase.
///
/// # Errors
/// After [`PATIENCE`].
#[track_caller]
pub fn claim(
    api: &Api<MacOSMachineClaim>,
    name: &str,
    phase: ClaimPhase,
) -> impl Future<Output = Result<MacOSMachineClaim>> + Send {
    until(api, name, format!("phase {phase:?}"), move |claim| {
        claim.status.as_ref().and_then(|status| status.phase) == Some(phase)
    })
}

/// Waits until the claim is Bound; gives the machine that it has.
///
/// # Errors
/// After [`PATIENCE`].
pub async fn claimed(client: &Client, namespace: &str, claim: &str) -> Result<MacOSMachine> {
    let claims: Api<MacOSMachineClaim> = Api::namespaced(client.clone(), namespace);
    let bound = self::claim(&claims, claim, ClaimPhase::Bound).await?;
    let machines: Api<MacOSMachine> = Api::namespaced(client.clone(), namespace);
    Ok(machines.get(&machine_of(&bound)?).await?)
}

/// Name of the machine that a Bound claim has.
///
/// # Errors
/// When it has none.
pub fn machine_of(claim: &MacOSMachineClaim) -> Result<String> {
    let told = claim.status.as_ref().and_then(|status| status.machine_ref.as_ref());
    Ok(told
        .with_context(|| format!("claim {} has no machineRef", claim.name_any()))?
        .name
        .0
        .clone())
}

/// Waits until no object of the kind is left in the namespace.
///
/// # Errors
/// After [`PATIENCE`]; with the names of those that are left.
#[track_caller]
pub fn none_left<K: Object>(api: &Api<K>) -> impl Future<Output = Result<()>> {
    let none = count(api, "none", |objects| objects.is_empty());
    async move { none.await.map(drop) }
}

/// Waits until the objects of the kind, taken together, are so.
///
/// # Errors
/// After [`PATIENCE`]; with the names of those that are there.
#[track_caller]
pub fn count<K: Object>(
    api: &Api<K>,
    what: &str,
    holds: impl Fn(&[K]) -> bool,
) -> impl Future<Output = Result<Vec<K>>> {
    expect::all_within(api.clone(), what, PATIENCE, holds)
}

/// Waits for an event about an object, by reason; gives its note.
///
/// # Errors
/// After [`PATIENCE`]; with the events that there are.
pub async fn event(client: &Client, namespace: &str, about: &str, reason: &str) -> Result<String> {
    let api: Api<Event> = Api::namespaced(client.clone(), namespace);
    let told = |event: &&Event| event.regarding.as_ref().and_then(|r| r.name.as_deref()) == Some(about);
    let events = count(&api, &format!("event {reason} about {about}"), |events| {
        events
            .iter()
            .filter(told)
            .any(|event| event.reason.as_deref() == Some(reason))
    })
    .await?;
    let found = events
        .iter()
        .filter(told)
        .find(|event| event.reason.as_deref() == Some(reason));
    Ok(found.and_then(|event| event.note.clone()).unwrap_or_default())
}

/// The identity that the machine with that uid has, by the identity's own word.
///
/// # Errors
/// When the identities cannot be listed.
pub async fn identity_of(client: &Client, uid: &str) -> Result<Option<MachineIdentity>> {
    let api: Api<MachineIdentity> = Api::all(client.clone());
    let all = api.list(&ListParams::default()).await?.items;
    Ok(all.into_iter().find(|identity| holder(identity) == Some(uid)))
}

/// Uid of the machine that has the identity.
pub fn holder(identity: &MachineIdentity) -> Option<&str> {
    Some(identity.status.as_ref()?.claim_ref.as_ref()?.uid.as_str())
}
