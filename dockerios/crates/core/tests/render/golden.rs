//! One file per variant, with every object of the machine.

use std::{env, fs, path::PathBuf};

use dockerios_api::{
    config::platform_config::Nvme,
    names::{IDENTITY, MACHINE, MACHINE_UID},
};
use dockerios_core::{
    Object, Plan, Step,
    check::check,
    render::machine::{data_volumes, guest_config, hook_config, virtual_machine},
};
use serde_json::{Value, json};

use crate::{input::Scene, schema};

fn objects(scene: &Scene) -> Vec<Object> {
    scene.with(|input| {
        let mut all: Vec<Object> = hook_config(input).expect("a hook config").into_iter().collect();
        all.push(guest_config(input).expect("a guest config"));
        all.extend(data_volumes(input).expect("volumes"));
        all.push(virtual_machine(input).expect("a machine"));
        all
    })
}

fn variants() -> Vec<(&'static str, Scene)> {
    let mut all = vec![
        ("shared-nvme", Scene::shared()),
        ("permachine-nvme", Scene::per_machine()),
    ];
    let mut add = |name, mut scene: Scene, change: fn(&mut Scene)| {
        change(&mut scene);
        all.push((name, scene));
    };
    add("sata-without-hook", Scene::shared(), |s| {
        s.class["systemDisk"]["bus"] = json!("sata");
        s.platform = json!({});
    });
    add("sata-with-hook", Scene::shared(), |s| {
        s.class["systemDisk"]["bus"] = json!("sata")
    });
    add("gpu-pinned-numa-hugepages", Scene::per_machine(), |s| {
        s.class["gpu"] = json!({"deviceName": "devices.example/rx580"});
        s.class["cpu"] = json!({"cores": 4, "threads": 2, "model": "host-passthrough", "dedicated": true,
                                "isolateEmulation": true, "numa": "Passthrough"});
        s.class["memory"] = json!({"size": "16Gi", "hugepages": "1Gi"});
        s.platform["permittedGPUs"] = json!([{"deviceName": "devices.example/rx580",
            "audioDeviceName": "devices.example/rx580-audio", "vendorReset": "Installed"}]);
    });
    add("multus", Scene::per_machine(), |s| {
        s.platform["management"] =
            json!({"networkAttachmentRef": {"namespace": "dockerios-system", "name": "management"}});
    });
    add("override", Scene::shared(), |s| s.nvme = Nvme::Override);
    add("nic-82545em", Scene::shared(), |s| {
        s.class["network"] = json!({"model": "e1000-82545em"})
    });
    add("retain-growth-snapshot", Scene::per_machine(), |s| {
        s.class["systemDisk"]["reclaimPolicy"] = json!("Retain");
        s.class["systemDisk"]["size"] = json!("220Gi");
        s.published["kind"] = json!("VolumeSnapshot");
        s.class["terminationGracePeriod"] = json!("4m");
    });
    add("stopped-penryn-monterey", Scene::shared(), |s| {
        s.machine["spec"]["powerState"] = json!("Stopped");
        s.class["cpu"] = json!({"cores": 2, "model": "Penryn", "features": [{"name": "invtsc", "policy": "disable"}]});
        s.image["osVersion"] = json!("12.7.1");
    });
    all
}

#[test]
fn each_variant_renders_to_its_golden_file() {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let update = env::var_os("UPDATE_GOLDEN").is_some();
    for (name, scene) in variants() {
        let text: String = objects(&scene)
            .iter()
            .map(|object| format!("---\n{}", serde_yaml::to_string(&object.body).expect("YAML")))
            .collect();
        let path = directory.join(format!("machine-{name}.yaml"));
        if update {
            fs::write(&path, &text).expect("written");
        }
        let golden = fs::read_to_string(&path).expect("the golden file is there; UPDATE_GOLDEN=1 writes it");
        assert!(golden == text, "{name} differs from {}:\n{text}", path.display());
    }
}

/// macOS knows Intel's processors alone: either the hook says that it is one, or the host is.
#[test]
fn every_variant_has_intels_vendor_from_the_hook_or_an_intel_host() {
    for (name, scene) in variants() {
        let vm = objects(&scene).pop().expect("the machine is last").body;
        let template = &vm["spec"]["template"];
        let hooked = template["metadata"]["annotations"]["dockerios.io/cpu-vendor"] == "GenuineIntel";
        let host = template["spec"]["nodeSelector"]["cpu-vendor.node.kubevirt.io/Intel"] == "true";
        assert_ne!(hooked, host, "{name}: one of the two, and not both");
        let hosts_own = template["spec"]["domain"]["cpu"]["model"] == "host-passthrough";
        assert_eq!(host, hosts_own || name == "sata-without-hook", "{name}");
    }
}

#[test]
fn the_real_definitions_take_every_variant() {
    let Some(definitions) = schema::definitions() else {
        return;
    };
    for (name, scene) in variants() {
        for object in objects(&scene) {
            let found = schema::faults_of(&definitions, &object.body);
            assert!(found.is_empty(), "{name}: {}: {found:#?}", object.id());
        }
    }
}

#[test]
fn the_walk_of_the_definitions_finds_what_is_wrong() {
    let Some(definitions) = schema::definitions() else {
        return;
    };
    let scene = Scene::shared();
    let mut vm = objects(&scene).pop().expect("the machine is last").body;
    vm["spec"]["template"]["spec"]["domain"]["cpu"]["socket"] = json!(1);
    vm["spec"]["runStrategy"] = json!(3);
    let found = schema::faults_of(&definitions, &vm).join("\n");
    assert!(found.contains("socket: there is no such field"), "{found}");
    assert!(found.contains("runStrategy: 3 is not of type"), "{found}");
}

#[test]
fn every_object_is_found_by_its_labels_and_owned_by_nobody() {
    for (name, scene) in variants() {
        for object in objects(&scene) {
            assert_eq!(object.label(MACHINE), Some("ci-7xk2"), "{name}");
            assert_eq!(
                object.label(MACHINE_UID),
                scene.machine["metadata"]["uid"].as_str(),
                "{name}"
            );
            assert!(
                object.body["metadata"]["ownerReferences"].is_null(),
                "{name}: {}",
                object.id()
            );
            assert!(
                object.id().name.starts_with("macs-ci-7xk2-2f0c9a51-"),
                "{name}: {}",
                object.id()
            );
            let steps = vec![Step::Create(object)];
            assert_eq!(
                check(&Plan {
                    steps,
                    ..Plan::default()
                }),
                Ok(()),
                "{name}"
            );
        }
    }
    let vm = objects(&Scene::per_machine()).pop().expect("the machine is last");
    assert_eq!(vm.label(IDENTITY), Some("c02zztest001"));
    assert_eq!(
        vm.body["spec"]["template"]["metadata"]["labels"][IDENTITY],
        "c02zztest001"
    );
}

#[test]
fn nothing_secret_stands_in_a_rendered_object() {
    for (name, scene) in variants() {
        for object in objects(&scene) {
            let keys = ["binaryData", "data", "token", "ca.crt"];
            let none = |body: &Value| keys.iter().all(|key| body.get(key).is_none());
            assert!(
                none(&object.body) && none(&object.body["stringData"]),
                "{name}: {}",
                object.id()
            );
        }
    }
}

#[test]
fn two_machines_of_a_shared_class_have_firmware_of_their_own_and_always_the_same() {
    let of = |uid: &str| {
        let mut scene = Scene::shared();
        scene.machine["metadata"]["uid"] = json!(uid);
        let vm = objects(&scene).pop().expect("the machine is last").body;
        let domain = &vm["spec"]["template"]["spec"]["domain"];
        (
            domain["firmware"].clone(),
            domain["devices"]["disks"][1]["serial"].clone(),
        )
    };
    let (one, other) = (
        "2f0c9a51-7b1e-4f0e-9d6f-0a4b8c1d2e3f",
        "2f0c9a51-7b1e-4f0e-9d6f-0a4b8c1d2e40",
    );
    assert_eq!(of(one), of(one));
    assert_ne!(of(one).0["uuid"], of(other).0["uuid"]);
    assert_ne!(of(one).0["serial"], of(other).0["serial"]);
    assert!(
        of(one)
            .1
            .as_str()
            .is_some_and(|serial| !serial.is_empty() && serial.len() <= 20)
    );
}
