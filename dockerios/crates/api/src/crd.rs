//! The CustomResourceDefinitions as installed: what kube derives, minus what would weaken a rule.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::{Map, Value};

/// All kinds, admin's first, in the order in which they are met.
///
/// # Errors
/// A tightened schema does not decode again: a defect of the types in this crate.
pub fn crds() -> Result<Vec<CustomResourceDefinition>, serde_json::Error> {
    let derived = [
        crate::PlatformConfig::crd(),
        crate::MacOSImage::crd(),
        crate::IdentityPool::crd(),
        crate::MachineIdentity::crd(),
        crate::MacOSMachineClass::crd(),
        crate::MacOSMachine::crd(),
        crate::MacOSMachinePool::crd(),
        crate::MacOSMachineClaim::crd(),
    ];
    derived
        .into_iter()
        .map(|crd| serde_json::from_value(tightened(serde_json::to_value(crd)?)))
        .collect()
}

/// A year from 0000 to 9998. The API server keeps times of the year 9999 that our readers cannot hold; one such time
/// would make its object unreadable to the operator.
const TIME_WE_CAN_READ: &str = r"^([0-8]\d|9[0-8])\d\d-|^99([0-8]\d|9[0-8])-";

fn tightened(value: Value) -> Value {
    match value {
        Value::Object(fields) => Value::Object(fields_tightened(fields)),
        Value::Array(items) => Value::Array(items.into_iter().map(tightened).collect()),
        other => other,
    }
}

fn fields_tightened(fields: Map<String, Value>) -> Map<String, Value> {
    let mut kept = Map::new();
    for (key, value) in fields {
        match (key.as_str(), &value) {
            // a PUT of null would be kept, and beat defaults and transition rules
            ("nullable", Value::Bool(_)) => {}
            // Kubernetes knows int32 and int64; the others only earn a warning
            ("format", Value::String(format)) if format.starts_with("uint") || format == "double" => {}
            ("enum", Value::Array(words)) => {
                let words = words.iter().filter(|w| !w.is_null()).cloned().collect();
                kept.insert(key, Value::Array(words));
            }
            ("format", Value::String(format)) if format == "date-time" => {
                kept.insert("pattern".into(), TIME_WE_CAN_READ.into());
                kept.insert(key, value);
            }
            _ => {
                kept.insert(key, tightened(value));
            }
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_node(value: &Value, judge: &mut impl FnMut(&Map<String, Value>)) {
        match value {
            Value::Object(fields) => {
                judge(fields);
                fields.values().for_each(|v| every_node(v, judge));
            }
            Value::Array(items) => items.iter().for_each(|v| every_node(v, judge)),
            _ => {}
        }
    }

    #[test]
    fn no_field_takes_null_and_no_text_or_list_of_a_spec_is_unbounded() {
        for crd in crds().expect("the kinds make schemas") {
            let name = crd.metadata.name.clone().unwrap_or_default();
            let crd = serde_json::to_value(crd).expect("a CRD is JSON");
            let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
            every_node(schema, &mut |node| {
                assert!(!node.contains_key("nullable"), "{name}: {node:?}");
                let bounded = ["maxLength", "enum", "format", "maxItems", "maxProperties"];
                if node.get("type").is_some_and(|t| t == "string" || t == "array") {
                    assert!(
                        bounded.iter().any(|b| node.contains_key(*b)),
                        "{name}: without a bound: {node:?}"
                    );
                }
            });
        }
    }
}
