//! What a command line of a macOS machine has to hold. Asserts say no value of an option that holds the key.

use dockerios_substrate::{Outcome, arguments::Arguments, hook::KEY};
use serde_json::{Map, Value, json};

use crate::world::SERIAL;

/// What no NVMe device of QEMU has: with one of them QEMU does not start.
const NOT_OF_NVME: [&str; 2] = ["werror", "rerror"];

#[track_caller]
pub fn smc_and_hotplug_switch(arguments: &Arguments) {
    let smc = arguments
        .values("-device")
        .into_iter()
        .filter(|device| device.starts_with("isa-applesmc"));
    let smc: Vec<&str> = smc.collect();
    assert_eq!(smc.len(), 1, "SMCs");
    assert!(smc[0] == format!("isa-applesmc,osk={KEY}"), "the SMC has another key");
    let switch = "ICH9-LPC.acpi-pci-hotplug-with-bridge-support=off";
    let switches = arguments
        .values("-global")
        .into_iter()
        .filter(|global| *global == switch);
    assert_eq!(switches.count(), 1, "{switch}");
}

#[track_caller]
fn is(device: &Map<String, Value>, wanted: &[(&str, &str)]) {
    for (name, value) in wanted {
        assert_eq!(device.get(*name).and_then(Value::as_str), Some(*value), "{name}");
    }
    for name in NOT_OF_NVME {
        assert_eq!(device.get(name), None, "{name} on an NVMe device");
    }
}

/// The bootdisk on AHCI, first; and no other disk there.
pub fn bootdisk_on_sata(arguments: &Arguments) -> Outcome {
    let bootdisk = arguments.device("ide-hd")?;
    assert_eq!(bootdisk.get("id"), Some(&json!("ua-bootdisk")), "id");
    assert_eq!(bootdisk.get("bus"), Some(&json!("ide.0")), "bus");
    assert_eq!(bootdisk.get("bootindex"), Some(&json!(1)), "bootindex");
    Ok(())
}

fn discards(arguments: &Arguments, disk: &Map<String, Value>) -> Outcome {
    let node = arguments.node(disk.get("drive").and_then(Value::as_str).unwrap_or_default())?;
    assert_eq!(node.get("discard"), Some(&json!("unmap")), "discard");
    assert_eq!(node.get("detect-zeroes"), Some(&json!("unmap")), "detect-zeroes");
    Ok(())
}

/// The system disk as libvirt makes it of `bus='nvme'`.
pub fn native(arguments: &Arguments, slot: &str) -> Outcome {
    let controller = arguments.device("nvme")?;
    is(&controller, &[("serial", SERIAL), ("bus", "pcie.0"), ("addr", slot)]);
    let disk = arguments.device("nvme-ns")?;
    is(&disk, &[("id", "ua-system")]);
    assert_eq!(disk.get("bus"), controller.get("id"), "bus");
    assert_eq!(
        disk.get("bootindex"),
        None,
        "a place in the boot order that OVMF cannot read"
    );
    discards(arguments, &disk)
}

/// The system disk as the override makes it of a SATA disk.
pub fn overridden(arguments: &Arguments, slot: &str) -> Outcome {
    let disk = arguments.device("nvme")?;
    is(
        &disk,
        &[
            ("serial", SERIAL),
            ("bus", "pcie.0"),
            ("addr", slot),
            ("id", "ua-system"),
        ],
    );
    assert_eq!(disk.get("bootindex"), Some(&json!(2)), "bootindex");
    discards(arguments, &disk)
}

/// What KubeVirt's fields come to: one socket, Intel's vendor, xHCI on bus 0 with the tablet behind it, no balloon.
pub fn board(arguments: &Arguments, cpu: &str) -> Outcome {
    let said = arguments.values("-cpu");
    assert_eq!(said.len(), 1, "processors: {said:?}");
    let mut words = said[0].split(',');
    assert_eq!(words.next(), Some(cpu));
    assert!(words.any(|word| word == "vendor=GenuineIntel"), "{said:?}");
    let smp = arguments.values("-smp").join(" ");
    assert!(smp.contains("sockets=1") && smp.contains("cores=4"), "{smp}");
    let xhci = arguments.device("qemu-xhci")?;
    assert_eq!(xhci.get("bus"), Some(&json!("pcie.0")), "xHCI behind a root port");
    let tablet = arguments.device("usb-tablet")?;
    let bus = tablet.get("bus").and_then(Value::as_str).unwrap_or_default();
    let controller = xhci.get("id").and_then(Value::as_str).unwrap_or_default();
    assert_eq!(bus.split('.').next(), Some(controller), "the tablet's bus");
    let balloons = arguments.words().iter().filter(|word| word.contains("balloon"));
    assert_eq!(balloons.count(), 0, "balloons");
    Ok(())
}

/// Both network interfaces have this model.
#[track_caller]
pub fn nics(arguments: &Arguments, model: &str) {
    let devices = arguments.objects("-device");
    let nics = devices.iter().filter(|device| device.contains_key("netdev"));
    let models: Vec<&Value> = nics.filter_map(|nic| nic.get("driver")).collect();
    assert_eq!(models, [model, model]);
}
