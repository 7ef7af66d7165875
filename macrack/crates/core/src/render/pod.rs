//! The placeholder pod: how an instance asks the native scheduler for its place.
//!
//! It requests exactly one `macrack.io/macos-vm` and no CPU or memory (so that quotas and limit ranges of the
//! namespace leave it alone), fits only the leased Mac (nodeSelector) and only through the lease's taint. Its
//! finalizer keeps the place taken until the VM is wiped, even when it is deleted by force.

use kube::ResourceExt;
use macrack_api::{MacOSInstance, names};
use serde_json::{Value, json};

/// The placeholder of an instance on that chassis under that lease.
pub fn placeholder(instance: &MacOSInstance, mac_node: &str, lease_uid: &str) -> Value {
    let resources = json!({ "cpu": "0", "memory": "0", names::MACOS_VM: "1" });
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": names::placeholder(&instance.name_any()),
            "namespace": instance.namespace(),
            "labels": {
                "app.kubernetes.io/managed-by": "macrack",
                "app.kubernetes.io/component": "placeholder",
                names::LABEL_INSTANCE: instance.uid(),
            },
            "finalizers": [names::FINALIZER_POD],
        },
        "spec": {
            "nodeSelector": { names::LABEL_SERIAL: mac_node },
            "priorityClassName": "system-node-critical",
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "terminationGracePeriodSeconds": 30,
            "securityContext": { "runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": { "type": "RuntimeDefault" } },
            "containers": [{
                "name": "vm",
                "image": "macrack.io/placeholder",
                "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } },
                "resources": { "requests": resources, "limits": resources },
            }],
            "tolerations": [
                { "key": names::TAINT_LEASE, "value": lease_uid, "effect": "NoSchedule" },
                { "key": "node.kubernetes.io/not-ready", "operator": "Exists" },
                { "key": "node.kubernetes.io/unreachable", "operator": "Exists" },
                { "key": "node.kubernetes.io/unschedulable", "operator": "Exists" },
            ],
        },
    })
}
