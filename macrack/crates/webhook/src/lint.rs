//! What a webhook configuration must not be, lest a webhook that is down stop more than its own kinds.
//!
//! Garbage collection, node heartbeats, namespaces and pods must go on without us; our own kinds must not slip in
//! unjudged while we are away.

use k8s_openapi::api::admissionregistration::v1::{
    RuleWithOperations, ValidatingWebhook, ValidatingWebhookConfiguration,
};

/// The groups that are ours to judge.
const OWN_GROUPS: [&str; 5] =
    ["rack.macrack.io", "instance.macrack.io", "image.macrack.io", "config.macrack.io", "workload.macrack.io"];

/// Longest time that the API server may be made to wait, in seconds.
const TIMEOUT: i32 = 10;

/// Every fault, a sentence each; none for a configuration that is narrow and fails closed.
pub fn findings(configuration: &ValidatingWebhookConfiguration) -> Vec<String> {
    let mut findings = Vec::new();
    for webhook in configuration.webhooks.iter().flatten() {
        for fault in faults(webhook) {
            findings.push(format!("{}: {fault}", webhook.name));
        }
    }
    findings
}

fn faults(webhook: &ValidatingWebhook) -> Vec<String> {
    let mut faults = Vec::new();
    // absent means Fail
    if webhook.failure_policy.as_deref().is_some_and(|policy| policy != "Fail") {
        faults.push("failurePolicy is not Fail: objects would slip in while the webhook is down".to_owned());
    }
    // absent means 10
    let timeout = webhook.timeout_seconds.unwrap_or(10);
    if timeout > TIMEOUT {
        faults.push(format!("timeoutSeconds is {timeout}, at most {TIMEOUT}: every request would wait so long"));
    }
    if webhook.side_effects != "None" {
        faults.push(format!(
            "sideEffects is {}, not None: dry runs would be refused or would do something",
            webhook.side_effects
        ));
    }
    for rule in webhook.rules.iter().flatten() {
        faults.extend(scope(rule));
    }
    faults
}

fn scope(rule: &RuleWithOperations) -> Vec<String> {
    let mut faults = Vec::new();
    let foreign = rule.api_groups.iter().flatten().filter(|group| !OWN_GROUPS.contains(&group.as_str()));
    faults.extend(foreign.map(|group| format!("it judges the group {group:?}, which is not MacRack's")));
    for resource in rule.resources.iter().flatten() {
        if resource.contains('/') {
            faults.push(format!("it judges the subresource {resource}: status and finalization would stop with it"));
        } else if resource == "*" {
            faults.push("it judges every resource; name the kinds".to_owned());
        }
    }
    let others = rule.operations.iter().flatten().filter(|op| !matches!(op.as_str(), "CREATE" | "UPDATE"));
    faults.extend(others.map(|op| format!("it judges {op}: only CREATE and UPDATE may wait for it")));
    faults
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn with(change: fn(&mut Value)) -> ValidatingWebhookConfiguration {
        let mut webhook = json!({
            "name": "v.example", "failurePolicy": "Fail", "sideEffects": "None", "timeoutSeconds": 5,
            "admissionReviewVersions": ["v1"], "clientConfig": {"service": {"name": "w", "namespace": "sys"}},
            "rules": [{"apiGroups": ["rack.macrack.io"], "apiVersions": ["*"], "resources": ["macnodeleases"],
                       "operations": ["CREATE", "UPDATE"]}],
        });
        change(&mut webhook);
        serde_json::from_value(json!({"metadata": {"name": "w"}, "webhooks": [webhook]})).unwrap()
    }

    #[test]
    fn a_narrow_configuration_is_good_and_each_fault_is_found() {
        type Row = (&'static str, fn(&mut Value), &'static str);
        let table: [Row; 11] = [
            ("good", |_| {}, ""),
            ("everything", |w| w["rules"][0]["apiGroups"] = json!(["*"]), "the group \"*\""),
            ("every kind", |w| w["rules"][0]["resources"] = json!(["*"]), "every resource"),
            (
                "pods",
                |w| {
                    w["rules"][0] = json!({"apiGroups": [""], "apiVersions": ["*"], "resources": ["pods"], "operations": ["CREATE"]})
                },
                "the group \"\"",
            ),
            ("deletions", |w| w["rules"][0]["operations"] = json!(["CREATE", "DELETE"]), "it judges DELETE"),
            ("every operation", |w| w["rules"][0]["operations"] = json!(["*"]), "it judges *"),
            ("slow", |w| w["timeoutSeconds"] = json!(30), "timeoutSeconds is 30"),
            ("soft", |w| w["failurePolicy"] = json!("Ignore"), "failurePolicy is not Fail"),
            (
                "heartbeats",
                |w| w["rules"][0] = json!({"apiGroups": ["coordination.k8s.io"], "apiVersions": ["*"], "resources": ["leases"], "operations": ["UPDATE"]}),
                "coordination.k8s.io",
            ),
            (
                "status",
                |w| w["rules"][0]["resources"] = json!(["macosinstances/status"]),
                "the subresource macosinstances/status",
            ),
            ("side effects", |w| w["sideEffects"] = json!("Unknown"), "sideEffects is Unknown"),
        ];
        for (case, change, expected) in table {
            let found = findings(&with(change));
            match expected {
                "" => assert!(found.is_empty(), "{case}: {found:?}"),
                _ => assert!(found.iter().any(|f| f.contains(expected)), "{case}: {found:?}"),
            }
        }
    }
}
