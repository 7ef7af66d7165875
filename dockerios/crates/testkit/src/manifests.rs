//! Applies manifests as people do: several documents in a file, definitions of kinds before their objects.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::discovery::{ApiCapabilities, Scope};
use kube::{Api, Client, ResourceExt as _};
use serde::Deserialize as _;

use crate::expect::{self, DEADLINE};

/// The field manager of what is applied.
const MANAGER: &str = "dockerios-testkit";
/// Between two questions for a kind that was just defined: discovery cannot be watched.
const ASK: Duration = Duration::from_millis(50);

/// Applies the file at `path` as [`apply_yaml`] does.
///
/// # Errors
/// As [`apply_yaml`].
pub async fn apply_file(client: &Client, path: impl AsRef<Path>) -> Result<Vec<DynamicObject>> {
    let path = path.as_ref();
    let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    apply_yaml(client, &text)
        .await
        .with_context(|| format!("apply {}", path.display()))
}

/// Server-side applies every document of `text`: CustomResourceDefinitions first (returning once they are
/// Established), then Namespaces, then the rest in its order. Objects without a namespace go to the client's default.
///
/// # Errors
/// With the first object that is refused, by kind and name, and the API server's words as [`kube::Error`].
pub async fn apply_yaml(client: &Client, text: &str) -> Result<Vec<DynamicObject>> {
    let mut objects = Vec::new();
    for document in serde_yaml::Deserializer::from_str(text) {
        let value = serde_json::Value::deserialize(document).context("a document is not YAML")?;
        if value.is_null() {
            continue;
        }
        let object: DynamicObject = serde_json::from_value(value).context("a document is no Kubernetes object")?;
        objects.push(object);
    }
    objects.sort_by_key(|object| match kind_of(object) {
        "CustomResourceDefinition" => 0,
        "Namespace" => 1,
        _ => 2,
    });
    let mut applied = Vec::new();
    for object in objects {
        let shown = format!("{} {}", kind_of(&object), object.name_any());
        applied.push(apply(client, object).await.with_context(|| format!("apply {shown}"))?);
    }
    Ok(applied)
}

fn kind_of(object: &DynamicObject) -> &str {
    object.types.as_ref().map_or("", |types| types.kind.as_str())
}

async fn apply(client: &Client, object: DynamicObject) -> Result<DynamicObject> {
    let Some(types) = &object.types else {
        bail!("it has no apiVersion and kind")
    };
    let (resource, capabilities) = served(client, &GroupVersionKind::try_from(types)?).await?;
    let namespace = object
        .namespace()
        .unwrap_or_else(|| client.default_namespace().to_owned());
    let api: Api<DynamicObject> = match capabilities.scope {
        Scope::Namespaced => Api::namespaced_with(client.clone(), &namespace, &resource),
        Scope::Cluster => Api::all_with(client.clone(), &resource),
    };
    let parameters = PatchParams::apply(MANAGER).force();
    let applied = api
        .patch(&object.name_any(), &parameters, &Patch::Apply(&object))
        .await?;
    if resource.kind == "CustomResourceDefinition" {
        let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
        expect::until(
            definitions,
            &applied.name_any(),
            "condition Established",
            is_established,
        )
        .await?;
    }
    Ok(applied)
}

fn is_established(definition: &CustomResourceDefinition) -> bool {
    let conditions = definition.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == "Established" && condition.status == "True")
}

/// How a kind is served. A kind whose definition was just Established may take a moment to be discovered; one whose
/// group is not served at all is refused at once.
async fn served(client: &Client, kind: &GroupVersionKind) -> Result<(ApiResource, ApiCapabilities)> {
    let deadline = tokio::time::Instant::now() + DEADLINE;
    loop {
        let error = match kube::discovery::pinned_kind(client, kind).await {
            Ok(found) => return Ok(found),
            Err(error) => error,
        };
        let defined = Api::<CustomResourceDefinition>::all(client.clone())
            .list(&kube::api::ListParams::default())
            .await
            .is_ok_and(|list| {
                list.items
                    .iter()
                    .any(|d| d.spec.group == kind.group && d.spec.names.kind == kind.kind)
            });
        if !defined || tokio::time::Instant::now() > deadline {
            return Err(error).with_context(|| format!("{} of {} is not served", kind.kind, kind.api_version()));
        }
        tokio::time::sleep(ASK).await;
    }
}
