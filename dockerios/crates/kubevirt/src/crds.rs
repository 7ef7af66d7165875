//! Definitions of these kinds, for a cluster that has not got the real ones.
//!
//! Invariant: structural, so the API server takes them; open, so it prunes nothing that a real KubeVirt or CDI
//! would have kept: every object with named properties keeps unknown ones as well, and status is unchecked.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceSubresourceStatus, CustomResourceSubresources, JSONSchemaProps,
    JSONSchemaPropsOrArray,
};
use kube::CustomResourceExt;

use crate::{CdiConfig, DataVolume, KubeVirt, Plugin, StorageProfile, VirtualMachine, VirtualMachineInstance};

/// Definitions of every kind of this crate. The names, groups, versions and scopes are those of the real ones.
pub fn crds() -> Vec<CustomResourceDefinition> {
    [
        (VirtualMachine::crd(), true),
        // as the real one: its status is part of the object
        (VirtualMachineInstance::crd(), false),
        (DataVolume::crd(), true),
        (StorageProfile::crd(), true),
        (CdiConfig::crd(), false),
        (KubeVirt::crd(), true),
        (Plugin::crd(), false),
    ]
    .into_iter()
    .map(|(crd, status)| opened(crd, status))
    .collect()
}

fn opened(mut crd: CustomResourceDefinition, status: bool) -> CustomResourceDefinition {
    for version in &mut crd.spec.versions {
        version.subresources = status.then(|| CustomResourceSubresources {
            status: Some(CustomResourceSubresourceStatus(serde_json::json!({}))),
            ..Default::default()
        });
        let Some(root) = version
            .schema
            .as_mut()
            .and_then(|schema| schema.open_api_v3_schema.as_mut())
        else {
            continue;
        };
        for (name, property) in root.properties.iter_mut().flatten() {
            if name == "status" {
                *property = JSONSchemaProps {
                    type_: Some("object".into()),
                    x_kubernetes_preserve_unknown_fields: Some(true),
                    ..Default::default()
                };
            } else {
                open(property);
            }
        }
    }
    crd
}

/// Takes away what is an artefact of the types here: `null` for an optional field, required fields, closed word lists.
fn open(schema: &mut JSONSchemaProps) {
    schema.nullable = None;
    schema.required = None;
    schema.enum_ = None;
    schema.one_of = None;
    schema.any_of = None;
    if schema.properties.is_some() {
        schema.x_kubernetes_preserve_unknown_fields = Some(true);
    }
    for property in schema.properties.iter_mut().flatten() {
        open(property.1);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = schema.items.as_mut() {
        open(items);
    }
}
