//! What no webhook configuration of ours may be, lest a webhook that is down stop more than the kinds it judges.
//!
//! Nodes have to heartbeat, pods and namespaces have to come and go, and our own objects have to be deletable while no
//! replica runs; and while none runs, nothing that has rules may slip in unjudged.

use k8s_openapi::api::admissionregistration::v1::{ValidatingWebhook, ValidatingWebhookConfiguration};

/// Seconds that a request may be made to wait.
const LONGEST: i32 = 10;

/// Every fault, a sentence each.
pub fn faults(configuration: &ValidatingWebhookConfiguration) -> Vec<String> {
    faults_outside(configuration, |group| group.ends_with(".dockerios.io"))
}

/// As [`faults`], for webhooks whose own groups are those.
pub fn faults_outside(configuration: &ValidatingWebhookConfiguration, own: impl Fn(&str) -> bool) -> Vec<String> {
    let mut all = Vec::new();
    for webhook in configuration.webhooks.iter().flatten() {
        let mut say = |fault: String| all.push(format!("{}: {fault}", webhook.name));
        manner(webhook, &mut say);
        scope(webhook, &own, &mut say);
    }
    all
}

fn manner(webhook: &ValidatingWebhook, say: &mut impl FnMut(String)) {
    // left out, it is Fail
    if webhook.failure_policy.as_deref().is_some_and(|policy| policy != "Fail") {
        say("failurePolicy is not Fail: what has rules would slip in while it is down".to_owned());
    }
    // left out, it is ten
    let seconds = webhook.timeout_seconds.unwrap_or(10);
    if seconds > LONGEST {
        say(format!(
            "timeoutSeconds is {seconds}, more than {LONGEST}: every request would hang so long"
        ));
    }
    if webhook.side_effects != "None" {
        say(format!(
            "sideEffects is {}: a dry run would be refused or do something",
            webhook.side_effects
        ));
    }
}

fn scope(webhook: &ValidatingWebhook, own: &impl Fn(&str) -> bool, say: &mut impl FnMut(String)) {
    if webhook.rules.iter().flatten().next().is_none() {
        say("it has no rules".to_owned());
    }
    for rule in webhook.rules.iter().flatten() {
        for group in rule.api_groups.iter().flatten().filter(|group| !own(group)) {
            say(format!("it judges group {group:?}, which is not ours"));
        }
        for resource in rule.resources.iter().flatten() {
            if resource.contains('*') {
                say(format!("it judges resources {resource:?}; name the kinds"));
            } else if resource.contains('/') {
                say(format!(
                    "it judges {resource}: status and finalizers would stop with it"
                ));
            }
        }
        let operations = rule.operations.iter().flatten();
        for operation in operations.filter(|operation| !["CREATE", "UPDATE"].contains(&operation.as_str())) {
            say(format!("it judges {operation}: only CREATE and UPDATE may wait for it"));
        }
    }
}
