//! QEMU on libvirt's command line, stopped before its first instruction: what it refuses no schema sees.

use dockerios_substrate::{Outcome, arguments::Arguments, disks, libvirt::Libvirt, machine::Machine};
use serde_json::{Value, json};

use crate::world::{DOMAIN, command_line, hooked};

/// `class` of PCI devices: NVMe, mass storage 8, and AHCI, mass storage 6 (PCI Code and ID Assignment).
const NVME: u64 = 0x0108;
const AHCI: u64 = 0x0106;

fn started<T>(
    annotations: &[(&str, &str)],
    change: impl FnOnce(Arguments) -> Arguments,
    judge: impl FnOnce(&mut Machine) -> Outcome<T>,
) -> Outcome<T> {
    let mut libvirt = Libvirt::start()?;
    let arguments = change(command_line(&mut libvirt, &hooked(DOMAIN, annotations)?)?);
    disks::blank(&libvirt.session, "bootdisk.img", 1)?;
    disks::blank(&libvirt.session, "system.img", 1)?;
    disks::blank(&libvirt.session, "settings.iso", 1)?;
    libvirt
        .session
        .demand("cp /usr/share/OVMF/OVMF_VARS_4M.fd /mnt/nvram.fd")?;
    let mut machine = Machine::start(&mut libvirt.session, &arguments)?;
    let judged = judge(&mut machine)?;
    machine.quit()?;
    Ok(judged)
}

/// What every mode has to come to in QEMU.
fn has_smc_and_no_hotplug(machine: &mut Machine) -> Outcome {
    assert_eq!(machine.devices("isa-applesmc")?.len(), 1, "SMCs");
    let chipset = machine.devices("ICH9-LPC")?;
    let switch = "acpi-pci-hotplug-with-bridge-support";
    let off = machine.ask("qom-get", json!({"path": chipset[0], "property": switch}))?;
    assert_eq!(off, false, "{switch}");
    Ok(())
}

/// What both modes of NVMe have to come to.
fn is_a_macos_machine(machine: &mut Machine) -> Outcome {
    let status = machine.ask("query-status", json!({}))?;
    assert_eq!(
        (&status["status"], &status["running"]),
        (&json!("prelaunch"), &json!(false))
    );
    assert_eq!(machine.ask("query-kvm", json!({}))?["enabled"], false);

    let buses = machine.ask("query-pci", json!({}))?;
    assert_eq!(buses[0]["bus"], 0);
    let devices = buses[0]["devices"].as_array().expect("devices of bus 0");
    let slots = |class: u64| -> Vec<u64> {
        let of_class = devices.iter().filter(|device| device["class_info"]["class"] == class);
        of_class.filter_map(|device| device["slot"].as_u64()).collect()
    };
    assert_eq!(slots(NVME), [0x10], "NVMe on bus 0");
    assert_eq!(slots(AHCI), [0x1f], "AHCI on bus 0");

    has_smc_and_no_hotplug(machine)?;

    let disks = machine.ask("query-block", json!({}))?;
    let system = disks.as_array().into_iter().flatten().find(|disk| {
        let device = disk["qdev"].as_str().unwrap_or_default();
        device == "ua-system" || device.contains("/ua-system")
    });
    let system: &Value = &system.expect("the system disk has a block device")["inserted"];
    assert_eq!(system["detect_zeroes"], "unmap");
    assert_eq!(system["file"], "/mnt/system.img");
    Ok(())
}

#[test]
fn qemu_starts_with_a_native_nvme_disk_and_has_it_on_bus_0_beside_the_smc() -> Outcome {
    started(&[], |arguments| arguments, is_a_macos_machine)
}

#[test]
fn qemu_starts_with_an_overridden_disk_and_has_it_on_bus_0_beside_the_smc() -> Outcome {
    started(&[("nvme", "override")], |arguments| arguments, is_a_macos_machine)
}

#[test]
fn qemu_starts_with_the_system_disk_left_on_sata_and_has_the_smc_all_the_same() -> Outcome {
    started(
        &[("nvme", "off")],
        |arguments| arguments,
        |machine| {
            has_smc_and_no_hotplug(machine)?;
            assert_eq!(machine.devices("nvme")?, Vec::<String>::new());
            Ok(())
        },
    )
}

#[test]
fn qemu_refuses_an_nvme_device_with_an_error_policy_which_is_why_the_hook_takes_it_off() -> Outcome {
    let with_policy = |arguments: Arguments| {
        arguments.map(|word| {
            word.replace(
                "{\"driver\":\"nvme-ns\",",
                "{\"driver\":\"nvme-ns\",\"rerror\":\"stop\",",
            )
        })
    };
    let refused = started(&[], with_policy, |_| Ok(()))
        .expect_err("a policy on nvme")
        .to_string();
    assert!(refused.contains("Property 'nvme-ns.rerror' not found"), "{refused}");
    Ok(())
}

#[test]
fn qemu_shows_the_guest_intel_s_vendor_in_place_of_the_one_that_its_processor_had() -> Outcome {
    // without KVM there is no host's vendor: a model of another maker stands for it
    let vendor = |vendor: &str| {
        let other = format!("EPYC{vendor}");
        let model = |arguments: Arguments| arguments.map(|word| word.replace("Penryn,vendor=GenuineIntel", &other));
        started(&[], model, |machine| {
            let processors = machine.devices("EPYC-x86_64-cpu")?;
            machine.ask("qom-get", json!({"path": processors[0], "property": "vendor"}))
        })
    };
    assert_eq!(vendor("")?, "AuthenticAMD");
    assert_eq!(vendor(",vendor=GenuineIntel")?, "GenuineIntel");
    Ok(())
}

#[test]
fn a_qemu_without_the_devices_refuses_by_their_names_and_no_message_holds_the_key() -> Outcome {
    // a name that no QEMU has stands for a build without the device: QEMU says the same of both
    for device in ["isa-applesmc", "\"nvme\""] {
        let renamed = device.replace("applesmc", "other").replace("nvme", "other");
        let missing = |arguments: Arguments| arguments.map(|word| word.replace(device, &renamed));
        let refused = started(&[], missing, |_| Ok(())).expect_err(device).to_string();
        let name = renamed.trim_matches('"');
        assert!(
            refused.contains(&format!("'{name}' is not a valid device model name")),
            "{refused}"
        );
        assert!(!refused.contains("TESTOSK"), "the key is in the message");
    }
    Ok(())
}

#[test]
fn the_firmware_is_told_of_the_bootdisk_first_and_of_nothing_that_it_cannot_read() -> Outcome {
    let order = |mode| started(&[("nvme", mode)], |arguments| arguments, |machine| machine.boot_order());
    let bootdisk = "/pci@i0cf8/pci8086,2922@1f,2/drive@0/disk@0";
    assert_eq!(order("native")?, [bootdisk, "HALT"]);
    let system = "/pci@i0cf8/pci1b36,0010@10/namespace@1,0";
    assert_eq!(order("override")?, [bootdisk, system, "HALT"]);
    Ok(())
}

#[test]
fn the_place_of_an_nvme_namespace_in_the_boot_order_has_a_node_without_address() -> Outcome {
    // what the hook takes off: OVMF reads no more of the order from there on, and drops what it has read
    let with_place = |arguments: Arguments| {
        arguments.map(|word| word.replace("{\"driver\":\"nvme-ns\",", "{\"driver\":\"nvme-ns\",\"bootindex\":2,"))
    };
    let order = started(&[], with_place, |machine| machine.boot_order())?;
    assert_eq!(order[1], "/nvme-ns/namespace@0,0");
    Ok(())
}
