//! What a VM is made of, from what the agent wrote: golden files, and every refusal.

#![allow(clippy::unwrap_used, reason = "a test ends where its premise fails")]

use std::path::{Path, PathBuf};

use macrack_vz::configuration::{Installation, installation, instance, model_unsupported};
use macrack_vz::{Configuration, HostLimits};
use macrack_wire::{BundleDir, BundleMachine, Display, ErrorClass, VmDescription, VmDir, VmError};

const UID: &str = "0a1b2c3d-0000-4000-8000-00000000b002";

/// A Mac mini with 14 cores and 64 GiB, as the framework puts it.
const HOST: HostLimits = HostLimits { cpu_min: 1, cpu_max: 14, memory_min: 128 << 20, memory_max: 64 << 30 };

fn description() -> VmDescription {
    VmDescription {
        uid: UID.to_owned(),
        namespace: "ci".to_owned(),
        name: "builder".to_owned(),
        cpu_cores: 6,
        memory_bytes: 16 << 30,
        disk: "disk.img".to_owned(),
        aux: "aux.img".to_owned(),
        hardware_model: Some("YnBsaXN0MDA=".to_owned()),
        machine_identifier: "RUNJRA==".to_owned(),
        mac_address: "02:00:5e:10:00:01".parse().unwrap(),
        display: None,
        first_boot: true,
    }
}

fn described(description: &VmDescription) -> Result<Configuration, VmError> {
    instance(description, &VmDir::new(Path::new("/Users/macrack/state/vms").join(UID)), &HOST)
}

fn refused(change: impl FnOnce(&mut VmDescription)) -> String {
    let mut description = description();
    change(&mut description);
    let error = described(&description).unwrap_err();
    assert_eq!(error.class, ErrorClass::InvalidConfiguration, "{error}");
    assert!(error.message.starts_with("/Users/macrack/state/vms/0a1b2c3d"), "{error}");
    assert!(error.message.contains("vm.json: "), "{error}");
    error.message
}

/// The goldens lie beside this file; a changed machine is a changed file there.
fn golden(name: &str, configuration: &Configuration) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name);
    let now = serde_json::to_string_pretty(configuration).unwrap() + "\n";
    let then = std::fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(now, then, "{} must be\n{now}", file.display());
}

#[test]
fn an_instance_without_a_screen_is_this_machine() {
    golden("headless.json", &described(&description()).unwrap());
}

#[test]
fn an_instance_with_a_screen_has_a_keyboard_and_a_pointing_device_too() {
    let display = Some(Display { width: 1920, height: 1080 });
    golden("screen.json", &described(&VmDescription { display, ..description() }).unwrap());
}

#[test]
fn a_golden_is_installed_with_every_write_on_permanent_storage() {
    let dir = BundleDir::new(PathBuf::from("/Users/admin/tahoe"));
    let machine =
        BundleMachine { machine_identifier: "RUNJRA==".to_owned(), mac_address: "02:00:5e:10:00:02".parse().unwrap() };
    let of = Installation {
        dir: &dir,
        hardware_model: "YnBsaXN0MDA=",
        machine: &machine,
        cpus: 4,
        memory: 8 << 30,
        display: Some(Display { width: 1920, height: 1080 }),
    };
    golden("installation.json", &installation(&of, &HOST).unwrap());
}

#[test]
fn a_description_that_is_no_machine_is_refused_with_field_rule_and_way_out() {
    let model = |text: &str| {
        let text = text.to_owned();
        refused(move |vm| vm.hardware_model = Some(text))
    };
    assert!(refused(|vm| vm.hardware_model = None).contains("hardwareModel is absent"));
    assert!(model("").contains("hardwareModel is empty"));
    assert!(model("no base64!").contains("hardwareModel is not base64"));
    assert!(model(&"AAAA".repeat(2000)).contains("at most 4096 are taken"));
    assert!(refused(|vm| vm.machine_identifier = String::new()).contains("machineIdentifier is empty"));
    assert!(refused(|vm| vm.machine_identifier = "ECID".repeat(3) + "=").contains("machineIdentifier is not base64"));
    for (cpus, words) in [(0, "at least 4"), (3, "at least 4"), (15, "at most 14"), (u32::MAX, "at most 14")] {
        assert!(refused(|vm| vm.cpu_cores = cpus).contains(words), "{cpus}");
    }
    for bytes in [0, 1, (16 << 30) + 512, u64::MAX] {
        assert!(refused(|vm| vm.memory_bytes = bytes).contains("not a multiple of 1 MiB"), "{bytes}");
    }
    for bytes in [64 << 20, 65 << 30] {
        assert!(refused(|vm| vm.memory_bytes = bytes).contains("between 134217728 and 68719476736"), "{bytes}");
    }
    for name in ["", ".", "..", "../disk.img", "/disk.img", "a\0b"] {
        let said = refused(|vm| vm.disk = name.to_owned());
        assert!(said.contains("is not the name of a file in this directory"), "{said}");
    }
    assert!(refused(|vm| vm.aux = "disk.img".to_owned()).contains("disk and aux are the same file"));
    for (width, height) in [(0, 1080), (1920, 0), (16_385, 1080), (1920, u32::MAX)] {
        let said = refused(|vm| vm.display = Some(Display { width, height }));
        assert!(said.contains("1 to 16384 pixels"), "{said}");
    }
}

#[test]
fn four_cores_and_the_hosts_own_bounds_are_taken() {
    for cpus in [4, 14] {
        assert_eq!(described(&VmDescription { cpu_cores: cpus, ..description() }).unwrap().cpu_count, cpus);
    }
    for memory_bytes in [128 << 20, 64 << 30] {
        described(&VmDescription { memory_bytes, ..description() }).unwrap();
    }
}

#[test]
fn a_golden_that_is_newer_than_the_host_says_what_to_upgrade() {
    let error = model_unsupported(15);
    assert_eq!(error.class, ErrorClass::HostTooOld);
    assert!(error.message.contains("not supported by macOS 15"), "{error}");
}
