//! The system disk as NVMe for a libvirt that has no such bus: the SATA disk stays in the XML, and
//! `qemu:override` changes the device that QEMU gets. Invariant: the disk's statistics and alias stay; every
//! property of the override is there once, with our value.

use crate::{
    Reason, Refusal, Vmi,
    disk::{Disk, alias, unexpected_bus},
    document::{Domain, El, attribute},
    pci::{Slots, slot_of_argument},
    qemu::{QemuParts, children, prefix_of},
    splice::{Splices, escaped},
};

/// Name, type and value of each property but `addr`.
const PROPERTIES: [(&str, &str, Option<&str>); 4] = [
    ("driver", "string", Some("nvme")),
    ("bus", "string", Some("pcie.0")),
    // nvme has neither
    ("werror", "remove", None),
    ("rerror", "remove", None),
];

/// Adds the override, or completes what an earlier pass left of it.
pub fn rewrite(domain: Domain<'_>, qemu: &QemuParts<'_>, vmi: &Vmi, splices: &mut Splices) -> Result<(), Refusal> {
    let disk = Disk::of(domain, &vmi.system_disk)?;
    if disk.bus != "sata" {
        return Err(unexpected_bus(&disk, vmi, "sata, from which the mode override starts"));
    }
    disk.prepare(vmi, splices)?;
    let alias = alias(&vmi.system_disk);
    let slots = Slots::taken(domain, qemu, Some(&alias))?;

    let Some(block) = qemu.overriding else {
        let slot = slots.free()?;
        qemu.add_block("override", |prefix| device(prefix, &alias, slot), splices);
        return Ok(());
    };
    let prefix = prefix_of(block, splices);
    let mut own = children(block, "device").filter(|node| attribute(*node, "alias") == Some(&alias));
    let Some(found) = own.next() else {
        splices.append(block, &[device(prefix, &alias, slots.free()?)]);
        return Ok(());
    };
    if own.next().is_some() {
        return Err(conflict(&alias, "is there twice"));
    }
    let prefix = prefix_of(found, splices);
    let mut frontends = children(found, "frontend");
    let Some(frontend) = frontends.next() else {
        splices.append(found, &[frontend_element(prefix, slots.free()?)]);
        return Ok(());
    };
    if frontends.next().is_some() {
        return Err(conflict(&alias, "has two frontends"));
    }
    complete(frontend, &alias, slots, splices)
}

fn complete(frontend: El<'_>, alias: &str, slots: Slots, splices: &mut Splices) -> Result<(), Refusal> {
    let prefix = prefix_of(frontend, splices);
    let mut missing = Vec::new();
    for (name, kind, value) in PROPERTIES {
        match only(frontend, name, alias)? {
            None => missing.push(property(prefix, name, kind, value)),
            Some(node) if (attribute(node, "type"), attribute(node, "value")) == (Some(kind), value) => {}
            Some(_) => return Err(conflict(alias, &format!("sets {name:?} to something else"))),
        }
    }
    match only(frontend, "addr", alias)? {
        None => missing.push(addr(prefix, slots.free()?)),
        Some(node) => match attribute(node, "value").and_then(slot_of_argument) {
            None => return Err(conflict(alias, "has an addr that cannot be read")),
            Some(slot) if slots.has(slot) => {
                return Err(Refusal::new(
                    Reason::Misplaced,
                    format_args!("domain XML: the override of {alias:?} is on slot {slot:#04x}, which is taken"),
                    "remove the override: the hook adds it on a free slot",
                ));
            }
            Some(_) => {}
        },
    }
    if !missing.is_empty() {
        splices.append(frontend, &missing);
    }
    Ok(())
}

fn only<'a>(frontend: El<'a>, name: &str, alias: &str) -> Result<Option<El<'a>>, Refusal> {
    let mut found = children(frontend, "property").filter(|node| attribute(*node, "name") == Some(name));
    let first = found.next();
    match found.next() {
        None => Ok(first),
        Some(_) => Err(conflict(alias, &format!("sets {name:?} twice"))),
    }
}

fn conflict(alias: &str, what: &str) -> Refusal {
    Refusal::new(
        Reason::OverrideConflict,
        format_args!("domain XML: the override of {alias:?} {what}"),
        "remove it, or whatever other hook adds it: this device is this hook's to change",
    )
}

fn property(prefix: &str, name: &str, kind: &str, value: Option<&str>) -> String {
    let value = value.map(|value| format!(" value=\"{value}\"")).unwrap_or_default();
    format!("<{prefix}property name=\"{name}\" type=\"{kind}\"{value}/>")
}

fn addr(prefix: &str, slot: u8) -> String {
    property(prefix, "addr", "string", Some(&format!("{slot:#04x}")))
}

fn frontend_element(prefix: &str, slot: u8) -> String {
    let fixed: String = PROPERTIES
        .iter()
        .map(|(name, kind, value)| property(prefix, name, kind, *value))
        .collect();
    format!("<{prefix}frontend>{fixed}{}</{prefix}frontend>", addr(prefix, slot))
}

fn device(prefix: &str, alias: &str, slot: u8) -> String {
    format!(
        "<{prefix}device alias=\"{}\">{}</{prefix}device>",
        escaped(alias),
        frontend_element(prefix, slot)
    )
}
