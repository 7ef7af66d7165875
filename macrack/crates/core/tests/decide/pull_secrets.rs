//! Which pull secrets an agent may read, and until when.

use macrack_api::{names, rack::node::Order::*, rack::node::VmState::*};
use macrack_core::plan::{Kind, Step};
use macrack_core::render::access;

use super::rack::{NAME, Rack};

/// A chassis whose instances' image, and one that is pulled ahead, have pull secrets.
fn rack(rack: Rack) -> Rack {
    rack.with(|rack| {
        for (image, secret) in [("sequoia", "ghcr"), ("ahead", "harbor"), ("other", "never")] {
            rack.pull_secrets.insert(image.to_owned(), secret.to_owned());
        }
    })
}

/// The Secrets of the Role in the operator's namespace that a pass applies.
fn granted(rack: &Rack) -> Vec<String> {
    let plan = macrack_core::decide::node::decide(&rack.node_facts());
    let roles = plan.steps.iter().filter_map(|step| match step {
        Step::Apply { object, body } if object.kind == Kind::Role && object.namespace == names::SYSTEM_NAMESPACE => {
            Some(body["rules"].clone())
        }
        _ => None,
    });
    let names = |rules: serde_json::Value| {
        let rules = rules.as_array().cloned().unwrap_or_default();
        assert!(rules.iter().all(|rule| rule["verbs"] == serde_json::json!(["get"])), "more than get: {rules:?}");
        rules.into_iter().flat_map(|rule| rule["resourceNames"].as_array().cloned().unwrap_or_default())
    };
    roles.flat_map(names).map(|name| name.as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn an_agent_gets_the_pull_secrets_of_what_its_chassis_is_to_have_and_no_other() {
    let held = rack(Rack::leased().slot("one", Run).vm("one", Running).instance("one", "+1h").at("+2h"));
    assert_eq!(granted(&held), ["ghcr"]);
    let ahead = held.clone().with(|rack| rack.status().prefetch_image_names = vec!["ahead".to_owned()]);
    assert_eq!(granted(&ahead), ["ghcr", "harbor"]);
    let without = held.with(|rack| rack.pull_secrets.clear());
    assert!(granted(&without).is_empty(), "an image without a pull secret grants something");
    assert!(granted(&rack(Rack::free())).is_empty(), "a chassis that nobody leases is granted something");
}

#[test]
fn what_was_handed_on_goes_when_nothing_needs_it_any_more() {
    let free = rack(Rack::free());
    let mut facts = free.node_facts();
    let (role, binding) = access::pull_secrets(NAME, &["ghcr".to_owned()].into());
    for (object, body) in [&role, &binding] {
        facts.existing.insert(object.clone(), access::hash(body));
    }
    let deleted: Vec<_> = macrack_core::decide::node::decide(&facts)
        .steps
        .into_iter()
        .filter_map(|step| match step {
            Step::Delete { object, .. } => Some(object),
            _ => None,
        })
        .collect();
    assert_eq!(deleted, [role.0, binding.0]);
}
