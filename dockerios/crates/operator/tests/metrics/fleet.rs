//! The fleet in numbers.

use dockerios_operator::source::Source;
use serde_json::{Value, json};

use crate::world::{empty, full, list, machine, samples, text_of};

#[tokio::test]
async fn the_numbers_are_those_of_the_shelves() {
    let told = samples(&text_of(&full()).await);
    let gib = f64::from(1 << 30);
    for (sample, value) in [
        (r#"dockerios_machines{class="mac",phase="Ready"}"#, 1.0),
        (r#"dockerios_machines{class="mac",phase="Pending"}"#, 1.0),
        // of each phase, 0 too: an alert on a phase has a series to look at
        (r#"dockerios_machines{class="mac",phase="Failed"}"#, 0.0),
        (
            r#"dockerios_machines_not_ready{class="mac",reason="BelowThreshold"}"#,
            1.0,
        ),
        // no condition yet
        (r#"dockerios_machines_not_ready{class="",reason=""}"#, 1.0),
        (
            r#"dockerios_machine_info{namespace="team",name="macs-m-2f0c9a51-vm",machine="m",class="mac",pool=""}"#,
            1.0,
        ),
        (r#"dockerios_pool_desired_machines{namespace="team",pool="ci"}"#, 3.0),
        (r#"dockerios_pool_max_machines{namespace="team",pool="ci"}"#, 9.0),
        (r#"dockerios_pool_warm_machines{namespace="team",pool="ci"}"#, 2.0),
        (r#"dockerios_pool_claimed_machines{namespace="team",pool="ci"}"#, 1.0),
        (r#"dockerios_pool_waiting_claims{namespace="team",pool="ci"}"#, 4.0),
        (r#"dockerios_claims{namespace="team",phase="Bound"}"#, 1.0),
        (r#"dockerios_identities{pool="imac",phase="Available"}"#, 0.0),
        (r#"dockerios_identity_pool_min_available{pool="imac"}"#, 2.0),
        (r#"dockerios_identity_pool_max_size{pool="imac"}"#, 5.0),
        (r#"dockerios_images{phase="Ready"}"#, 1.0),
        (r#"dockerios_objects_unreadable{kind="Machines"}"#, 1.0),
        (
            r#"dockerios_headroom_known{storage_class="fast",source="csiCapacity"}"#,
            1.0,
        ),
        (
            r#"dockerios_headroom_known{storage_class="dark",source="prometheus"}"#,
            0.0,
        ),
        (r#"dockerios_headroom_free_bytes{storage_class="fast"}"#, 100.0 * gib),
        (
            r#"dockerios_headroom_threshold_bytes{storage_class="fast"}"#,
            20.0 * gib,
        ),
        (r#"dockerios_headroom_threshold_ratio{storage_class="dark"}"#, 0.1),
        (r#"dockerios_headroom_waiting_machines{storage_class="fast"}"#, 1.0),
        // its disk of 20 GiB: no DataVolume of it is there yet, but it has a VirtualMachine
        (r#"dockerios_headroom_reserved_bytes{storage_class="fast"}"#, 0.0),
    ] {
        assert_eq!(told.get(sample), Some(&value), "{sample} of {told:#?}");
    }
    let dark = r#"dockerios_headroom_free_bytes{storage_class="dark"}"#;
    assert_eq!(told.get(dark), None, "what is not known is not 0");
    let mode = told
        .keys()
        .find(|sample| sample.starts_with("dockerios_launcher_nvme_mode"));
    let mode = mode.expect("the launcher is told");
    assert!(mode.contains(r#"mode="Override",current="true""#), "{mode}");
}

#[tokio::test]
async fn a_machine_that_is_being_made_is_reckoned_with_at_its_disks_size() {
    let mut world = full();
    let mut made = machine("m", "mac", json!({"phase": "Starting"}));
    made["metadata"]["uid"] = json!("made");
    list(&mut world, Source::Machines, vec![made]);
    let volume = json!({"kind": "DataVolume", "metadata": {"name": "v", "namespace": "team",
        "labels": {"machine.dockerios.io/uid": "made"}}, "spec": {}});
    list(&mut world, Source::DataVolumes, vec![volume]);
    let told = samples(&text_of(&world).await);
    let reserved = r#"dockerios_headroom_reserved_bytes{storage_class="fast"}"#;
    assert_eq!(told.get(reserved), Some(&(20.0 * f64::from(1 << 30))), "{told:#?}");
}

#[tokio::test]
async fn a_tenant_cannot_make_labels_by_naming_classes_and_pools_that_are_not_there() {
    let mut world = empty();
    let machines = (0..50).map(|n| {
        let mut machine = machine(&format!("m{n}"), &format!("invented-{n}"), Value::Null);
        machine["metadata"]["uid"] = json!(format!("{n}"));
        machine["metadata"]["labels"] = json!({"machine.dockerios.io/pool": format!("invented-{n}")});
        machine
    });
    list(&mut world, Source::Machines, machines.collect());
    let text = text_of(&world).await;
    assert!(!text.contains("invented"), "{text}");
    let told = samples(&text);
    assert_eq!(told.get(r#"dockerios_machines{class="",phase="Pending"}"#), Some(&50.0));
}
