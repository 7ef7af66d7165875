//! What the lint says of configurations whose verdicts are known, and of every one that is shipped.

use dockerios_webhook::lint::{faults, faults_outside};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use serde::Deserialize as _;

fn read(text: &str) -> Vec<ValidatingWebhookConfiguration> {
    serde_yaml::Deserializer::from_str(text)
        .map(|document| ValidatingWebhookConfiguration::deserialize(document).expect("a configuration"))
        .collect()
}

fn verdict(configuration: &ValidatingWebhookConfiguration) -> &str {
    let annotations = configuration.metadata.annotations.as_ref().expect("annotations");
    annotations.get("test/verdict").expect("a verdict")
}

#[test]
fn each_wide_or_soft_configuration_is_found_and_the_narrow_one_is_not() {
    let table = read(include_str!("data/configurations.yaml"));
    assert_eq!(table.len(), 12);
    for configuration in &table {
        let found = faults(configuration);
        let name = configuration.metadata.name.as_deref().unwrap_or_default();
        assert_eq!(found.is_empty(), verdict(configuration) == "ok", "{name}: {found:?}");
        assert!(
            found.len() <= 2,
            "one fault, one finding (everything has two): {name}: {found:?}"
        );
    }
}

#[test]
fn every_configuration_that_is_shipped_is_narrow() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy");
    let mut seen = 0;
    let mut folders = vec![std::path::PathBuf::from(folder)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            if !text.contains("kind: ValidatingWebhookConfiguration") || text.contains("{{") {
                continue;
            }
            for configuration in read(&text) {
                assert_eq!(faults(&configuration), Vec::<String>::new(), "{}", path.display());
                seen += 1;
            }
        }
    }
    assert!(seen > 0, "no configuration found under {folder}");
}

/// The table that was handed over is about another group; it is read when it is there.
#[test]
fn the_handed_over_table_gets_its_verdicts() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../../../shared/cases/33-webhook-scope-lint/webhooks.yaml"
    );
    let Ok(text) = std::fs::read_to_string(path) else {
        println!("{path} is not here: the table of our own was judged alone");
        return;
    };
    let own = |group: &str| group.contains('.') && group != "coordination.k8s.io";
    for configuration in read(&text) {
        let found = faults_outside(&configuration, own);
        let name = configuration.metadata.name.as_deref().unwrap_or_default();
        assert_eq!(found.is_empty(), verdict(&configuration) == "ok", "{name}: {found:?}");
    }
}
