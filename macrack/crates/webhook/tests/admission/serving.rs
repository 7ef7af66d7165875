//! The webhook itself: its certificate is renewed under load, and no body hurts it.

use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingWebhookConfiguration},
    core::v1::Secret,
};
use kube::Api;
use macrack_testkit::expect::{self, accepts, rejects};
use macrack_webhook::{
    authority::SECRET,
    install::{self, CONFIGURATION},
    lint,
};
use serde_json::json;

use crate::world::{SOON, create, node_class, world};

#[tokio::test]
async fn the_installed_configuration_has_no_finding() {
    let world = world().await;
    let configurations: Api<ValidatingWebhookConfiguration> = Api::all(world.admin.clone());
    for configuration in configurations.list(&Default::default()).await.unwrap() {
        assert_eq!(lint::findings(&configuration), Vec::<String>::new());
    }
}

#[tokio::test]
async fn a_lost_certificate_is_replaced_while_it_serves() {
    let world = world().await;
    let tenant = world.tenant("rotation").await;
    let configurations: Api<ValidatingWebhookConfiguration> = Api::all(world.admin.clone());
    let bundle = |c: &ValidatingWebhookConfiguration| {
        c.webhooks.as_ref().unwrap().iter().map(|w| w.client_config.ca_bundle.clone().unwrap().0).collect::<Vec<_>>()
    };
    let before = bundle(&configurations.get(CONFIGURATION).await.unwrap());
    let secrets: Api<Secret> = Api::namespaced(world.admin.clone(), "macrack-system");
    secrets.delete(SECRET, &Default::default()).await.unwrap();
    let replaced = |c: &ValidatingWebhookConfiguration| bundle(c) != before;
    let after = expect::until_seen(&configurations, CONFIGURATION, "given another CA", SOON, replaced).await;
    // the earlier CA is trusted on: another replica may still show its leaf
    let (old, new) =
        (String::from_utf8(before[0].clone()).unwrap(), String::from_utf8(bundle(&after)[0].clone()).unwrap());
    assert!(new.contains(&old) && new.len() > old.len(), "{new}");
    assert!(secrets.get(SECRET).await.is_ok());
    // nobody notices
    let missing = tenant.lease("l", &json!({"metadata": {"name": "no-such-class"}}));
    for _ in 0..20 {
        rejects(create(&tenant.client, &missing).await, "[class-exists]");
    }
    let class = node_class();
    create(&world.admin, &class).await.unwrap();
    accepts(create(&tenant.client, &tenant.lease("l", &class)).await);
}

#[tokio::test]
async fn the_policies_type_check_without_a_warning() {
    let world = world().await;
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(world.admin.clone());
    let ours = install::policies().unwrap().into_iter().filter_map(|policy| match policy {
        install::Policy::Policy(policy) => policy.metadata.name,
        install::Policy::Binding(_) => None,
    });
    for name in ours {
        let checked = |p: &ValidatingAdmissionPolicy| {
            p.status.as_ref().is_some_and(|s| s.observed_generation == p.metadata.generation)
        };
        let policy = expect::until_seen(&policies, &name, "type-checked", SOON, checked).await;
        let warnings = policy.status.and_then(|s| s.type_checking).and_then(|t| t.expression_warnings);
        assert_eq!(warnings.unwrap_or_default(), vec![], "{name}");
    }
}
