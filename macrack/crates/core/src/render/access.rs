//! What a chassis' agent may do: exact by resourceNames wherever RBAC can say it; the policies in
//! `deploy/policies` narrow the writes.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use macrack_api::names::{self, AGENT_NAMESPACE, LABEL_SERIAL};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::plan::{Kind, Ref};

/// Annotation that holds the hash of what was applied, so that nothing is written twice.
pub const HASH: &str = "macrack.io/applied";
/// Label by which the operator finds the objects that it keeps for chassis.
pub const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "macrack");

/// Hash of an object as rendered.
pub fn hash(body: &Value) -> String {
    let digest = Sha256::digest(body.to_string());
    digest[..8].iter().map(|b| format!("{b:02x}")).collect()
}

const RBAC: &str = "rbac.authorization.k8s.io";

fn metadata(name: &str, namespace: Option<&str>, mac_node: &str) -> Value {
    let mut metadata = json!({ "name": name, "labels": { MANAGED_BY.0: MANAGED_BY.1, LABEL_SERIAL: mac_node } });
    if let Some(namespace) = namespace {
        metadata["namespace"] = namespace.into();
    }
    metadata
}

fn role(kind: Kind, name: &str, namespace: Option<&str>, mac_node: &str, rules: Value) -> (Ref, Value) {
    let object = Ref { kind, namespace: namespace.unwrap_or_default().into(), name: name.into() };
    let body = json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": format!("{kind:?}"),
        "metadata": metadata(name, namespace, mac_node), "rules": rules,
    });
    (object, body)
}

fn binding(name: &str, namespace: Option<&str>, mac_node: &str, account: &str) -> (Ref, Value) {
    let (kind, role) = if namespace.is_some() {
        (Kind::RoleBinding, Kind::Role)
    } else {
        (Kind::ClusterRoleBinding, Kind::ClusterRole)
    };
    let object = Ref { kind, namespace: namespace.unwrap_or_default().into(), name: name.into() };
    let body = json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": format!("{kind:?}"),
        "metadata": metadata(name, namespace, mac_node),
        "roleRef": { "apiGroup": RBAC, "kind": format!("{role:?}"), "name": name },
        "subjects": [{ "kind": "ServiceAccount", "name": account, "namespace": AGENT_NAMESPACE }],
    });
    (object, body)
}

/// Hash of the objects that every enrolled chassis has: one for all, since nothing but the name differs. So a pass that
/// finds everything in place renders nothing.
pub fn chassis_hash() -> &'static str {
    static HASH: LazyLock<String> = LazyLock::new(|| hash(&chassis("any").into_iter().map(|(_, body)| body).collect()));
    &HASH
}

/// The objects that every enrolled chassis has, by name: those of [`chassis`].
pub fn chassis_refs(mac_node: &str) -> Vec<Ref> {
    let (agent, enroll, node) =
        (names::agent_account(mac_node), names::enroll_account(mac_node), names::node(mac_node));
    let (cluster, enrolling) = (format!("macrack:agent:{mac_node}"), format!("macrack:enroll:{mac_node}"));
    let mut refs = Vec::with_capacity(13);
    for account in [&agent, &enroll] {
        for kind in [Kind::ServiceAccount, Kind::Role, Kind::RoleBinding] {
            refs.push(Ref::namespaced(kind, AGENT_NAMESPACE, account));
        }
    }
    for role in [&cluster, &enrolling] {
        refs.extend([Kind::ClusterRole, Kind::ClusterRoleBinding].map(|kind| Ref::cluster(kind, role)));
    }
    refs.push(Ref::namespaced(Kind::Lease, "kube-node-lease", &node));
    refs.extend([Kind::Role, Kind::RoleBinding].map(|kind| Ref::namespaced(kind, "kube-node-lease", &agent)));
    refs
}

/// The objects that every enrolled chassis has: its two ServiceAccounts and what they may do with or without a lease.
pub fn chassis(mac_node: &str) -> Vec<(Ref, Value)> {
    let (agent, enroll, node) =
        (names::agent_account(mac_node), names::enroll_account(mac_node), names::node(mac_node));
    let account = |name: &str| {
        let object = Ref::namespaced(Kind::ServiceAccount, AGENT_NAMESPACE, name);
        let body = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata(name, Some(AGENT_NAMESPACE), mac_node) });
        (object, body)
    };
    let token_of_agent = json!([{
        "apiGroups": [""], "resources": ["serviceaccounts/token"], "resourceNames": [agent], "verbs": ["create"],
    }]);
    let cluster = format!("macrack:agent:{mac_node}");
    let enrolling = format!("macrack:enroll:{mac_node}");
    let read_node = json!({ "apiGroups": [""], "resources": ["nodes"], "resourceNames": [node], "verbs": ["get"] });
    vec![
        account(&agent),
        account(&enroll),
        role(
            Kind::ClusterRole,
            &cluster,
            None,
            mac_node,
            json!([
                { "apiGroups": ["rack.macrack.io"], "resources": ["macnodes"], "resourceNames": [mac_node], "verbs": ["get", "list", "watch"] },
                { "apiGroups": ["rack.macrack.io"], "resources": ["macnodes/status"], "resourceNames": [mac_node], "verbs": ["get", "patch"] },
                { "apiGroups": [""], "resources": ["nodes"], "resourceNames": [node], "verbs": ["get", "list", "watch"] },
                { "apiGroups": [""], "resources": ["nodes/status"], "resourceNames": [node], "verbs": ["get", "patch"] },
                // what it asks its serving certificate with; `create` cannot be named and stands in deploy/rbac/agents.yaml
                { "apiGroups": ["certificates.k8s.io"], "resources": ["certificatesigningrequests"], "resourceNames": [names::serving_request(mac_node)], "verbs": ["get", "list", "watch", "delete"] },
            ]),
        ),
        binding(&cluster, None, mac_node, &agent),
        role(Kind::ClusterRole, &enrolling, None, mac_node, json!([read_node])),
        binding(&enrolling, None, mac_node, &enroll),
        // the agent renews its own token, the enrolment asks for the agent's first one
        role(Kind::Role, &agent, Some(AGENT_NAMESPACE), mac_node, token_of_agent.clone()),
        binding(&agent, Some(AGENT_NAMESPACE), mac_node, &agent),
        role(Kind::Role, &enroll, Some(AGENT_NAMESPACE), mac_node, token_of_agent),
        binding(&enroll, Some(AGENT_NAMESPACE), mac_node, &enroll),
        // leases cannot be created by name: the operator makes this one, the agent renews it
        (
            Ref::namespaced(Kind::Lease, "kube-node-lease", &node),
            json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": metadata(&node, Some("kube-node-lease"), mac_node),
            }),
        ),
        role(
            Kind::Role,
            &agent,
            Some("kube-node-lease"),
            mac_node,
            json!([{
                "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": [node], "verbs": ["get", "update", "patch"],
            }]),
        ),
        binding(&agent, Some("kube-node-lease"), mac_node, &agent),
    ]
}

/// What the agent may do in the namespace of the tenant that leases its chassis: exactly the instances in its slots.
pub fn lease(mac_node: &str, namespace: &str, instances: &[&str], secrets: &[String]) -> ((Ref, Value), (Ref, Value)) {
    let agent = names::agent_account(mac_node);
    let pods: Vec<String> = instances.iter().map(|i| names::placeholder(i)).collect();
    let mut rules = Vec::new();
    // an empty resourceNames list means "all": a rule without names is left out instead
    if !instances.is_empty() {
        rules = vec![
            json!({ "apiGroups": ["instance.macrack.io"], "resources": ["macosinstances"], "resourceNames": instances, "verbs": ["get", "list", "watch"] }),
            json!({ "apiGroups": ["instance.macrack.io"], "resources": ["macosinstances/status"], "resourceNames": instances, "verbs": ["get", "patch"] }),
            json!({ "apiGroups": [""], "resources": ["pods"], "resourceNames": pods, "verbs": ["get", "list", "watch", "delete"] }),
            json!({ "apiGroups": [""], "resources": ["pods/status"], "resourceNames": pods, "verbs": ["get", "patch"] }),
        ];
    }
    if !secrets.is_empty() {
        // get only: a running watch would outlive the RoleBinding
        rules.push(json!({ "apiGroups": [""], "resources": ["secrets"], "resourceNames": secrets, "verbs": ["get"] }));
    }
    (
        role(Kind::Role, &agent, Some(namespace), mac_node, Value::Array(rules)),
        binding(&agent, Some(namespace), mac_node, &agent),
    )
}

/// The pull secrets that the agent may read in the operator's namespace: exactly these. `secrets` must not be empty for
/// the Role to be of use.
pub fn pull_secrets(mac_node: &str, secrets: &BTreeSet<String>) -> ((Ref, Value), (Ref, Value)) {
    let agent = names::agent_account(mac_node);
    let mut rules = Vec::new();
    // an empty resourceNames list means "all": a rule without names is left out instead
    if !secrets.is_empty() {
        rules.push(json!({ "apiGroups": [""], "resources": ["secrets"], "resourceNames": secrets, "verbs": ["get"] }));
    }
    let namespace = Some(names::SYSTEM_NAMESPACE);
    (role(Kind::Role, &agent, namespace, mac_node, Value::Array(rules)), binding(&agent, namespace, mac_node, &agent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_chassis_grants_nothing_rather_than_everything() {
        let ((_, role), _) = lease("h4xk29q0lw", "team-a", &[], &[]);
        assert_eq!(role["rules"], json!([]));
        let ((_, role), _) = lease("h4xk29q0lw", "team-a", &["build-1"], &["boot".into()]);
        for rule in role["rules"].as_array().unwrap() {
            assert!(!rule["resourceNames"].as_array().unwrap().is_empty(), "{rule}");
        }
    }

    #[test]
    fn the_objects_of_a_chassis_are_known_without_rendering_them() {
        let mut rendered: Vec<Ref> = chassis("h4xk29q0lw").into_iter().map(|(object, _)| object).collect();
        let mut known = chassis_refs("h4xk29q0lw");
        rendered.sort();
        known.sort();
        assert_eq!(known, rendered);
    }

    #[test]
    fn the_hash_follows_the_content() {
        let ((_, one), _) = lease("m", "team-a", &["build-1"], &[]);
        let ((_, two), _) = lease("m", "team-a", &["build-2"], &[]);
        assert_ne!(hash(&one), hash(&two));
        assert_eq!(hash(&one), hash(&one.clone()));
    }
}
