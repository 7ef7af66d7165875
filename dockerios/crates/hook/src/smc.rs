//! The SMC, and the hotplug switch that macOS needs beside it. Invariant: afterwards there is exactly one
//! `isa-applesmc`, with our key, and the switch is off; an argument that says otherwise is refused, since the
//! hook cannot know who wanted it.

use crate::{
    Osk, Reason, Refusal,
    qemu::{DeviceOption, QemuParts, pairs, unreadable},
    splice::Splices,
};

const SMC: &str = "isa-applesmc";
/// Since QEMU 6.1 macOS mishandles devices while ACPI announces hotplug behind bridges.
const SWITCH: (&str, &str) = ("ICH9-LPC", "acpi-pci-hotplug-with-bridge-support");

/// Adds what is missing.
pub fn add(qemu: &QemuParts<'_>, osk: &Osk, splices: &mut Splices) -> Result<(), Refusal> {
    let device = format!("{SMC},osk={}", osk.as_option());
    let switch = format!("{}.{}=off", SWITCH.0, SWITCH.1);
    let mut missing: Vec<&str> = Vec::new();
    if !smc_is_there(qemu, osk)? {
        missing.extend(["-device", &device]);
    }
    if !switch_is_off(qemu)? {
        missing.extend(["-global", &switch]);
    }
    if !missing.is_empty() {
        qemu.add_arguments(&missing, splices);
    }
    Ok(())
}

fn smc_is_there(qemu: &QemuParts<'_>, osk: &Osk) -> Result<bool, Refusal> {
    let devices = qemu.devices()?;
    let mut found = devices.iter().filter(|device| device.driver == SMC);
    let refused = |what: &str| {
        Err(Refusal::new(
            Reason::OtherSmc,
            format_args!("domain XML: QEMU's arguments hold {what}"),
            "remove it, or whatever other hook adds it: the SMC is this hook's to add",
        ))
    };
    match (found.next(), found.next()) {
        (None, _) => Ok(false),
        (Some(_), Some(_)) => refused("more than one isa-applesmc"),
        (Some(one), None) if one.property("osk") == Some(osk.reveal()) => Ok(true),
        (Some(_), None) => refused("an isa-applesmc with another key"),
    }
}

fn switch_is_off(qemu: &QemuParts<'_>) -> Result<bool, Refusal> {
    let mut off = false;
    for value in qemu.values("global")? {
        let Some((driver, property, value)) = global(value) else {
            return Err(unreadable("-global"));
        };
        if (driver.as_str(), property.as_str()) != SWITCH {
            continue;
        }
        off = ["off", "no", "false", "n"].contains(&value.as_str());
        if !off {
            return Err(Refusal::new(
                Reason::HotplugConflict,
                format_args!(
                    "domain XML: QEMU's arguments set {}.{} to {value:?}",
                    SWITCH.0, SWITCH.1
                ),
                "remove that argument: with it macOS does not find its devices",
            ));
        }
    }
    Ok(off)
}

/// `driver.property=value`, or `driver=...,property=...,value=...`.
fn global(text: &str) -> Option<(String, String, String)> {
    let short = text
        .split_once('=')
        .and_then(|(name, value)| Some((name.split_once('.')?, value)));
    if let Some(((driver, property), value)) = short.filter(|((driver, _), _)| !driver.contains(',')) {
        return Some((driver.to_owned(), property.to_owned(), value.to_owned()));
    }
    let list = DeviceOption {
        driver: String::new(),
        properties: pairs(text),
    };
    let part = |name| list.property(name).map(str::to_owned);
    Some((part("driver")?, part("property")?, part("value")?))
}
