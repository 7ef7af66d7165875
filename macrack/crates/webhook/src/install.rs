//! What the API server is told: the webhook configuration and the policies.
//!
//! The configuration is narrow on purpose ([`crate::lint`] says how narrow): creations and changed specs of
//! MacRack's own kinds, never a deletion, a status, or an object that is being deleted.

use k8s_openapi::{
    ByteString,
    api::admissionregistration::v1::{
        MatchCondition, RuleWithOperations, ServiceReference, ValidatingAdmissionPolicy,
        ValidatingAdmissionPolicyBinding, ValidatingWebhook, ValidatingWebhookConfiguration, WebhookClientConfig,
    },
};
use kube::{
    Api, Client, Resource,
    api::{ObjectMeta, Patch, PatchParams},
};
use macrack_api::{
    InstanceClass, MacNodeClass, MacNodeLease, MacOSImage, MacOSInstance, VERSION,
    names::{MANAGER, SYSTEM_NAMESPACE},
};
use serde::{Serialize, de::DeserializeOwned};

use crate::{Error, Reach, options::api, routes::path};

/// The ValidatingWebhookConfiguration's name.
pub const CONFIGURATION: &str = "macrack";
/// The Service in front of the webhook, in `macrack-system`.
pub const SERVICE: &str = "macrack-webhook";
/// cert-manager's Certificate whose CA its injector puts into the configuration, in `macrack-system`.
pub const CERTIFICATE: &str = "macrack-webhook";

/// Who the API server has to trust.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// These CAs, PEM.
    Bundle(String),
    /// Left to cert-manager's injector.
    Injected,
}

/// The configuration as it is applied.
pub fn configuration(reach: &Reach, trust: &Trust) -> ValidatingWebhookConfiguration {
    let annotations = (*trust == Trust::Injected)
        .then(|| [("cert-manager.io/inject-ca-from".to_owned(), format!("{SYSTEM_NAMESPACE}/{CERTIFICATE}"))].into());
    ValidatingWebhookConfiguration {
        metadata: ObjectMeta { name: Some(CONFIGURATION.into()), annotations, ..Default::default() },
        webhooks: Some(vec![
            // all that the rules of these two speak of is immutable: they are asked about creations alone
            webhook::<MacOSInstance>(reach, trust, "Namespaced", &["CREATE"]),
            webhook::<InstanceClass>(reach, trust, "Cluster", &["CREATE"]),
            webhook::<MacNodeLease>(reach, trust, "Namespaced", &["CREATE", "UPDATE"]),
            webhook::<MacOSImage>(reach, trust, "Cluster", &["CREATE", "UPDATE"]),
            webhook::<MacNodeClass>(reach, trust, "Cluster", &["CREATE", "UPDATE"]),
        ]),
    }
}

fn webhook<K: Resource<DynamicType = ()>>(
    reach: &Reach,
    trust: &Trust,
    scope: &str,
    operations: &[&str],
) -> ValidatingWebhook {
    let plural = K::plural(&()).into_owned();
    let group = K::group(&()).into_owned();
    let condition = |name: &str, expression: &str| MatchCondition { name: name.into(), expression: expression.into() };
    let path = path::<K>();
    let (service, url) = match reach {
        Reach::Service => (
            Some(ServiceReference {
                namespace: SYSTEM_NAMESPACE.into(),
                name: SERVICE.into(),
                path: Some(path),
                port: Some(443),
            }),
            None,
        ),
        Reach::Url(base) => (None, Some(format!("{}{path}", base.trim_end_matches('/')))),
    };
    let ca_bundle = match trust {
        Trust::Bundle(pem) => Some(ByteString(pem.clone().into_bytes())),
        Trust::Injected => None,
    };
    ValidatingWebhook {
        name: format!("{plural}.{group}"),
        admission_review_versions: vec!["v1".into()],
        client_config: WebhookClientConfig { ca_bundle, service, url },
        failure_policy: Some("Fail".into()),
        match_conditions: Some(vec![
            condition("not-being-deleted", "!has(object.metadata.deletionTimestamp)"),
            condition("spec-changes", "oldObject == null || object.spec != oldObject.spec"),
        ]),
        match_policy: Some("Equivalent".into()),
        rules: Some(vec![RuleWithOperations {
            api_groups: Some(vec![group]),
            api_versions: Some(vec![VERSION.into()]),
            operations: Some(operations.iter().map(|o| (*o).to_owned()).collect()),
            resources: Some(vec![plural]),
            scope: Some(scope.into()),
        }]),
        side_effects: "None".into(),
        timeout_seconds: Some(5),
        ..Default::default()
    }
}

/// Applies the configuration; one that is there is brought to this.
///
/// # Errors
/// When the API server refuses.
pub async fn register(client: &Client, reach: &Reach, trust: &Trust) -> Result<(), Error> {
    let wanted = configuration(reach, trust);
    let configurations: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    apply(&configurations, CONFIGURATION, &wanted)
        .await
        .map_err(api("apply ValidatingWebhookConfiguration macrack"))?;
    tracing::info!(?reach, "the webhook is registered");
    Ok(())
}

async fn apply<K>(api: &Api<K>, name: &str, wanted: &K) -> kube::Result<()>
where
    K: Resource + Clone + Serialize + DeserializeOwned + std::fmt::Debug,
{
    let params = PatchParams::apply(MANAGER).force();
    api.patch(name, &params, &Patch::Apply(wanted)).await.map(|_| ())
}

const POLICIES: [(&str, &str); 4] = [
    ("agents.yaml", include_str!("../../../deploy/policies/agents.yaml")),
    ("owned.yaml", include_str!("../../../deploy/policies/owned.yaml")),
    ("pods.yaml", include_str!("../../../deploy/policies/pods.yaml")),
    ("leases.yaml", include_str!("../../../deploy/policies/leases.yaml")),
];

/// A policy or its binding.
#[derive(Clone, Debug)]
pub enum Policy {
    /// What is refused.
    Policy(Box<ValidatingAdmissionPolicy>),
    /// That it is.
    Binding(Box<ValidatingAdmissionPolicyBinding>),
}

/// The policies of `deploy/policies`, which belong to this version.
///
/// # Errors
/// When a built-in manifest does not read; a defect.
pub fn policies() -> Result<Vec<Policy>, Error> {
    let mut policies = Vec::new();
    for (file, text) in POLICIES {
        let unread = |e: &dyn std::fmt::Display| Error::Manifest(format!("{file}: {e}"));
        for document in serde_yaml::Deserializer::from_str(text) {
            let value: serde_json::Value = serde::Deserialize::deserialize(document).map_err(|e| unread(&e))?;
            policies.push(match value["kind"].as_str() {
                Some("ValidatingAdmissionPolicy") => {
                    Policy::Policy(serde_json::from_value(value).map_err(|e| unread(&e))?)
                }
                Some("ValidatingAdmissionPolicyBinding") => {
                    Policy::Binding(serde_json::from_value(value).map_err(|e| unread(&e))?)
                }
                kind => return Err(unread(&format!("{kind:?} is no policy"))),
            });
        }
    }
    Ok(policies)
}

/// Applies the policies, before any agent is enrolled.
///
/// # Errors
/// When the API server refuses.
pub async fn install_policies(client: &Client) -> Result<(), Error> {
    let all: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
    for policy in policies()? {
        match policy {
            Policy::Policy(p) => apply(&all, p.metadata.name.as_deref().unwrap_or_default(), &p).await,
            Policy::Binding(b) => apply(&bindings, b.metadata.name.as_deref().unwrap_or_default(), &b).await,
        }
        .map_err(api("apply the admission policies"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lint;

    #[test]
    fn our_own_configuration_has_no_finding() {
        for reach in [Reach::Service, Reach::Url("https://127.0.0.1:8443".into())] {
            for trust in [Trust::Bundle("pem".into()), Trust::Injected] {
                assert_eq!(lint::findings(&configuration(&reach, &trust)), Vec::<String>::new());
            }
        }
    }

    #[test]
    fn every_refusal_of_a_policy_names_rule_object_and_way_out() {
        let mut seen = 0;
        for policy in policies().unwrap() {
            let Policy::Policy(policy) = policy else {
                continue;
            };
            let name = policy.metadata.name.unwrap();
            let spec = policy.spec.unwrap();
            let warns = name == "macrack-held";
            assert_eq!(spec.failure_policy.as_deref(), Some(if warns { "Ignore" } else { "Fail" }), "{name}");
            for validation in spec.validations.unwrap() {
                let message =
                    validation.message_expression.unwrap_or_else(|| panic!("{name} has no messageExpression"));
                let shaped = message.starts_with("'[") && message.contains("] ") && message.contains(';');
                assert!(shaped || warns, "{name}: {message}");
                seen += 1;
            }
        }
        assert!(seen > 20, "{seen}");
    }

    fn documents(text: &str) -> Vec<serde_json::Value> {
        serde_yaml::Deserializer::from_str(text)
            .map(|document| serde::Deserialize::deserialize(document).unwrap())
            .collect()
    }

    /// Every word of a list field in the rules of a role.
    fn words(role: &serde_json::Value, field: &str) -> Vec<String> {
        let rules = role["rules"].as_array().cloned().unwrap_or_default();
        let lists = rules.iter().filter_map(|rule| rule[field].as_array());
        lists.flatten().filter_map(|word| word.as_str().map(str::to_owned)).collect()
    }

    #[test]
    fn no_role_has_a_wildcard_or_a_way_to_more_rights() {
        for text in [
            include_str!("../../../deploy/rbac/operator.yaml"),
            include_str!("../../../deploy/rbac/agents.yaml"),
            include_str!("../../../deploy/rbac/tenants.yaml"),
        ] {
            for role in documents(text) {
                let name = &role["metadata"]["name"];
                for field in ["apiGroups", "resources", "verbs"] {
                    for word in words(&role, field) {
                        assert!(!["*", "escalate", "bind", "impersonate"].contains(&word.as_str()), "{name}: {word}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_operator_may_keep_exactly_the_policies_that_are_built_in() {
        let roles = documents(include_str!("../../../deploy/rbac/operator.yaml"));
        let role = roles.iter().find(|r| r["kind"] == "ClusterRole").unwrap();
        let mut of_policies = role.clone();
        if let Some(rules) = of_policies["rules"].as_array_mut() {
            rules.retain(|rule| rule["resources"].to_string().contains("validatingadmissionpolicies"));
        }
        let mut may = words(&of_policies, "resourceNames");
        let mut built_in: Vec<String> = policies()
            .unwrap()
            .into_iter()
            .filter_map(|policy| match policy {
                Policy::Policy(policy) => policy.metadata.name,
                Policy::Binding(_) => None,
            })
            .collect();
        may.sort();
        built_in.sort();
        assert_eq!(may, built_in);
    }

    #[test]
    fn cert_manager_injects_what_we_leave_out() {
        let ours = configuration(&Reach::Service, &Trust::Injected);
        assert_eq!(
            ours.metadata.annotations.unwrap()["cert-manager.io/inject-ca-from"],
            "macrack-system/macrack-webhook"
        );
        assert!(ours.webhooks.unwrap().iter().all(|w| w.client_config.ca_bundle.is_none()));
    }
}
