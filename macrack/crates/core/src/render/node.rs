//! The Kubernetes Node of a chassis: labels, taints and cordon are the operator's, status is the agent's.

use k8s_openapi::api::core::v1::{Node, Taint};
use kube::ResourceExt;
use macrack_api::{MacNode, names, rack::node::LeaseRef};
use serde_json::{Map, Value, json};

/// The taint that a leaseRef implies.
fn taint(lease: Option<&LeaseRef>) -> Value {
    match lease {
        Some(lease) => {
            json!({ "key": names::TAINT_LEASE, "value": lease.uid, "effect": "NoSchedule" })
        }
        None => json!({ "key": names::TAINT_UNLEASED, "value": "true", "effect": "NoSchedule" }),
    }
}

fn label_value(text: &str) -> String {
    let clean: String =
        text.chars().map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' }).collect();
    clean.trim_matches(|c: char| !c.is_ascii_alphanumeric()).chars().take(63).collect()
}

/// Labels that the operator keeps; a `null` takes one away.
fn labels(mac_node: &MacNode, lease: Option<&LeaseRef>) -> Map<String, Value> {
    let name = mac_node.name_any();
    let mut labels = Map::new();
    let mut put = |key: &str, value: Value| labels.insert(key.to_owned(), value);
    put("kubernetes.io/os", "darwin".into());
    put("kubernetes.io/arch", "arm64".into());
    put("kubernetes.io/hostname", names::node(&name).into());
    put(names::LABEL_SERIAL, name.clone().into());
    put(names::LABEL_LEASE, lease.map_or(Value::Null, |l| l.uid.clone().into()));
    let agent = mac_node.status.as_ref().and_then(|s| s.agent.as_ref());
    if let Some(hardware) = agent.and_then(|a| a.hardware.as_ref()) {
        put(names::LABEL_CHIP, label_value(&hardware.chip).into());
        put(names::LABEL_MEMORY, label_value(&hardware.memory.0).into());
    }
    if let Some(version) = agent.and_then(|a| a.host_version.as_ref()) {
        put(names::LABEL_HOST_VERSION, label_value(version).into());
    }
    for (key, value) in mac_node.labels() {
        if key.starts_with("topology.kubernetes.io/") || key.starts_with("rack.macrack.io/") {
            put(key, value.clone().into());
        }
    }
    labels
}

/// A new Node, with its taint from the first moment.
pub fn new(mac_node: &MacNode, lease: Option<&LeaseRef>) -> Value {
    let mut labels = labels(mac_node, lease);
    labels.retain(|_, value| !value.is_null());
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": names::node(&mac_node.name_any()), "labels": labels },
        "spec": { "taints": [taint(lease)] },
    })
}

/// The merge patch that brings a Node to what it should be; `None` when it is.
///
/// Taints are one list without merge keys, which the node controller writes too: the caller sends the
/// resourceVersion that this was computed from.
pub fn patch(node: &Node, mac_node: &MacNode, lease: Option<&LeaseRef>, quarantined: bool) -> Option<Value> {
    let mut patch = json!({});
    let mut wanted = labels(mac_node, lease);
    wanted.retain(|key, value| node.labels().get(key).map(String::as_str) != value.as_str());
    if !wanted.is_empty() {
        patch["metadata"]["labels"] = Value::Object(wanted);
    }
    let spec = node.spec.clone().unwrap_or_default();
    let current = spec.taints.unwrap_or_default();
    let is_ours = |t: &Taint| t.key == names::TAINT_LEASE || t.key == names::TAINT_UNLEASED;
    let ours: Vec<Value> = current
        .iter()
        .filter(|t| is_ours(t))
        .map(|t| json!({ "key": t.key, "value": t.value, "effect": t.effect }))
        .collect();
    if ours != [taint(lease)] {
        let others = current.iter().filter(|t| !is_ours(t)).map(|t| json!(t));
        patch["spec"]["taints"] = others.chain([taint(lease)]).collect();
    }
    let by_us = node.annotations().contains_key(names::ANNOTATION_CORDONED);
    let cordoned = spec.unschedulable.unwrap_or(false);
    if quarantined && !cordoned {
        patch["spec"]["unschedulable"] = true.into();
        patch["metadata"]["annotations"][names::ANNOTATION_CORDONED] = "quarantined".into();
    } else if !quarantined && by_us {
        patch["spec"]["unschedulable"] = Value::Null;
        patch["metadata"]["annotations"][names::ANNOTATION_CORDONED] = Value::Null;
    }
    (patch != json!({})).then_some(patch)
}
