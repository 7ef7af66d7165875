//! The hand-over's tables, read where they are at hand; the same rows stand in our own tables.

use dockerios_api::machine::class::NicModel;
use dockerios_core::{
    Seen,
    admit::class::{Facts, judge},
};
use serde::Deserialize as _;
use serde_json::Value;

use crate::things::class;

/// NIC models: what the hand-over accepts, what only a renderer that delivers it may accept, what it rejects.
#[test]
fn a_nic_model_without_a_driver_is_refused_by_schema_or_rule_and_never_replaced() {
    let verdict = |model: &str| {
        let Ok(model) = serde_json::from_value::<NicModel>(Value::from(model)) else {
            return Err("schema");
        };
        let mut class = class();
        class.spec.network.model = model;
        let facts = Facts {
            class,
            platform: Seen::Absent,
            image: Seen::Absent,
            pool: Seen::Absent,
            storage: Seen::Absent,
        };
        let judged = judge(&facts);
        if judged.admits() {
            Ok(())
        } else {
            Err(judged.refusals[0].rule)
        }
    };
    assert_eq!(verdict("e1000"), Ok(()));
    assert_eq!(verdict("e1000-82545em"), Ok(()), "the hook delivers it");
    assert_eq!(verdict("virtio"), Err("nic-without-driver"));
    for other in ["E1000", "e1000 ", "", "rtl8139,mac=02:00:5e:10:00:09", "vmxnet3"] {
        assert_eq!(verdict(other), Err("schema"), "{other:?}");
    }

    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../../../shared/cases/12-nic-model/classes.yaml"
    );
    let Ok(text) = std::fs::read_to_string(path) else {
        println!("{path} is not here: our own rows were judged alone");
        return;
    };
    for document in serde_yaml::Deserializer::from_str(&text) {
        let given = Value::deserialize(document).expect("a document");
        let (name, model) = (
            &given["metadata"]["name"],
            given["spec"]["network"]["model"].as_str().unwrap_or_default(),
        );
        let admitted = verdict(model).is_ok();
        match name.as_str() {
            Some("nic-0" | "nic-1") => assert!(admitted, "{name}"),
            // only if it can really be delivered: nobody has tried it with macOS, so it is refused
            Some("nic-2") => assert!(!admitted, "{name}"),
            _ => assert!(!admitted, "{name}"),
        }
    }
}
