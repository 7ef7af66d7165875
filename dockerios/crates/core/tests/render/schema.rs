//! As much of structural schemas as finds a field that would be pruned and a value that would be refused.

use std::{fs, path::PathBuf};

use serde::Deserialize;
use serde_json::{Value, json};

const FILES: [&str; 2] = [
    "kubevirt/virtualmachines.kubevirt.io.yaml",
    "cdi/datavolumes.cdi.kubevirt.io.yaml",
];

/// The real definitions, when they are beside the repository.
pub fn definitions() -> Option<Vec<Value>> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../../shared/crds");
    if !root.exists() {
        eprintln!("the real definitions are not beside the repository: the schemas were not held against them");
        return None;
    }
    let read = |file: &&str| {
        let text = fs::read_to_string(root.join(file)).expect("the definition is there");
        let first = serde_yaml::Deserializer::from_str(&text).next().expect("a document");
        Value::deserialize(first).expect("the definition is YAML")
    };
    Some(FILES.iter().map(read).collect())
}

/// What the API server would prune or refuse; nothing for kinds of the core.
pub fn faults_of(definitions: &[Value], object: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let Some(definition) = definitions
        .iter()
        .find(|d| d["spec"]["names"]["kind"] == object["kind"])
    else {
        return found;
    };
    let version = object["apiVersion"].as_str().and_then(|text| text.split('/').nth(1));
    let versions = definition["spec"]["versions"].as_array().expect("versions");
    let served = versions
        .iter()
        .find(|v| v["name"].as_str() == version)
        .expect("the version is served");
    let mut body = object.clone();
    // the API server knows these without being told
    body.as_object_mut()
        .expect("an object")
        .retain(|name, _| !["apiVersion", "kind", "metadata"].contains(&name.as_str()));
    walk(&served["schema"]["openAPIV3Schema"], &body, "", &mut found);
    found
}

fn walk(schema: &Value, value: &Value, path: &str, found: &mut Vec<String>) {
    if schema["x-kubernetes-int-or-string"] == json!(true) {
        if !(value.is_string() || value.is_i64()) {
            found.push(format!("{path}: {value} is neither a number nor a text"));
        }
        return;
    }
    let right = match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_i64(),
        _ => true,
    };
    if !right {
        found.push(format!("{path}: {value} is not of type {}", schema["type"]));
    }
    if schema["enum"].as_array().is_some_and(|words| !words.contains(value)) {
        found.push(format!("{path}: {value} is none of {}", schema["enum"]));
    }
    for name in schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
    {
        if value.get(name).is_none() {
            found.push(format!("{path}.{name}: required"));
        }
    }
    for (name, inner) in value.as_object().into_iter().flatten() {
        let at = format!("{path}.{name}");
        match (schema["properties"].get(name), &schema["additionalProperties"]) {
            (Some(property), _) => walk(property, inner, &at, found),
            (None, more) if more.is_object() => walk(more, inner, &at, found),
            _ if schema["x-kubernetes-preserve-unknown-fields"] == json!(true) => {}
            _ => found.push(format!("{at}: there is no such field")),
        }
    }
    for (at, inner) in value.as_array().into_iter().flatten().enumerate() {
        walk(&schema["items"], inner, &format!("{path}[{at}]"), found);
    }
}
