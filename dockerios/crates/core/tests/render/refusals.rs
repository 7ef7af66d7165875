//! What cannot be rendered names the field and the way out.

use dockerios_api::config::platform_config::Nvme;
use dockerios_core::render::machine::{Unrenderable, data_volumes, guest_config, hook_config, virtual_machine};
use serde_json::json;

use crate::input::Scene;

fn refused(scene: &Scene) -> String {
    scene.with(|input| {
        let all = [
            hook_config(input).err(),
            guest_config(input).err(),
            data_volumes(input).err(),
            virtual_machine(input).err(),
        ];
        let first: Option<Unrenderable> = all.into_iter().flatten().next();
        first.expect("it cannot be rendered").to_string()
    })
}

#[test]
fn each_hindrance_is_named_with_its_way_out() {
    type Change = fn(&mut Scene);
    let table: [(Change, &str, &str); 9] = [
        (
            |s| s.platform["smc"] = json!(null),
            "spec.smc.oskSecretRef",
            "name the Secret",
        ),
        (|s| s.platform = json!({}), "spec.systemDisk.bus", "use sata"),
        (|s| s.nvme = Nvme::Missing, "spec.systemDisk.bus", "docs/launcher.md"),
        (
            |s| s.class["systemDisk"]["size"] = json!("100Gi"),
            "spec.systemDisk.size",
            "use 200Gi",
        ),
        (
            |s| s.class["systemDisk"]["size"] = json!("much"),
            "spec.systemDisk.size",
            "correct it",
        ),
        (
            |s| s.class["terminationGracePeriod"] = json!("1d"),
            "spec.terminationGracePeriod",
            "correct it",
        ),
        (
            |s| s.class["gpu"] = json!({"deviceName": "x/y"}),
            "spec.gpu.deviceName",
            "add it there",
        ),
        (
            |s| s.class["identity"] = json!({"type": "Shared"}),
            "spec.identity.shared",
            "bootDiskImage",
        ),
        (
            |s| s.machine["metadata"]["uid"] = json!(null),
            "metadata.uid",
            "stored first",
        ),
    ];
    for (change, field, way_out) in table {
        let mut scene = Scene::shared();
        change(&mut scene);
        let why = refused(&scene);
        assert!(
            why.contains(field) && why.contains(way_out),
            "{field}, {way_out}: {why}"
        );
    }
}

#[test]
fn a_machine_without_its_identity_or_bootdisk_waits() {
    let mut scene = Scene::per_machine();
    scene.identity.as_mut().expect("an identity")["status"] = json!({});
    assert!(
        refused(&scene).contains("c02zztest001 status.bootDisk"),
        "{}",
        refused(&scene)
    );
    scene.identity = None;
    assert!(refused(&scene).contains("status.identityRef"), "{}", refused(&scene));
}

#[test]
fn a_grace_period_below_what_macos_needs_is_never_passed_on() {
    let mut scene = Scene::shared();
    scene.class["terminationGracePeriod"] = json!("10s");
    let vm = scene.with(|input| virtual_machine(input).expect("rendered")).body;
    let template = &vm["spec"]["template"];
    assert_eq!(template["spec"]["terminationGracePeriodSeconds"], 180);
    let sidecar = template["metadata"]["annotations"]["hooks.kubevirt.io/hookSidecars"].as_str();
    assert!(
        sidecar.is_some_and(|text| text.contains("--grace-seconds=195")),
        "{sidecar:?}"
    );
}
