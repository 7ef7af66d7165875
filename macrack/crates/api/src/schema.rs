//! From Rust types to CustomResourceDefinitions as installed.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::Value;

/// Every CustomResourceDefinition, in the order in which a person meets the kinds.
///
/// # Errors
/// When a generated schema does not decode again; that is a defect of the types here.
pub fn crds() -> Result<Vec<CustomResourceDefinition>, serde_json::Error> {
    [
        crate::MacNodeClass::crd(),
        crate::MacNode::crd(),
        crate::MacNodeLease::crd(),
        crate::InstanceClass::crd(),
        crate::MacOSInstance::crd(),
        crate::MacOSImage::crd(),
        crate::RackConfig::crd(),
    ]
    .into_iter()
    .map(|crd| {
        let mut value = serde_json::to_value(crd)?;
        strip(&mut value);
        serde_json::from_value(value)
    })
    .collect()
}

/// Years that every reader's times can hold. The API server itself keeps `9999-12-31T23:59:59Z`, which is past the last
/// moment that ours can: whoever may write one such time would make the object unreadable to the operator.
const READABLE_TIME: &str = "^([0-8][0-9]{3}|9[0-8][0-9]{2}|99[0-8][0-9]|999[0-8])-";

/// Removes what would weaken a rule or say a falsehood, and keeps times within what can be read.
///
/// kube-derive turns every `Option` into `nullable: true`. The API server then *keeps* a `null` instead of
/// pruning or defaulting it, and a PUT of null would beat a default and a transition rule together.
/// `format: uint…` and `int…` beyond Kubernetes' own two are noise that the API server warns about.
fn strip(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.remove("nullable");
            if let Some(Value::String(format)) = map.get("format")
                && (format.starts_with("uint") || format == "double")
            {
                map.remove("format");
            }
            if map.get("format").is_some_and(|format| format == "date-time") {
                map.insert("pattern".into(), READABLE_TIME.into());
            }
            if let Some(Value::Array(variants)) = map.get_mut("enum") {
                variants.retain(|v| !v.is_null());
            }
            map.values_mut().for_each(strip);
        }
        Value::Array(items) => items.iter_mut().for_each(strip),
        _ => {}
    }
}
