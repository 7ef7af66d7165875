//! The system disk as `bus='nvme'`. Invariant: the disk keeps its source and alias; its controller stands on bus 0,
//! since behind a root port macOS does not look; and it has no place in the boot order. QEMU writes that place down as
//! `/nvme-ns/namespace@…`, a path whose first node has no address: OVMF takes it for a parse error and then leaves the
//! whole order aside, the bootdisk's place too (edk2, QemuBootOrderLib). OpenCore finds the disk without it.

use crate::{
    Reason, Refusal, Vmi,
    disk::{Disk, Prepared, alias, not_understood, unexpected_bus},
    document::{Domain, at_most_one, attribute, children},
    pci::{Place, Slots, address_element, controllers},
    qemu::QemuParts,
    splice::{Splices, escaped},
};

/// Moves the disk there, or completes what an earlier pass did.
pub fn rewrite(domain: Domain<'_>, qemu: &QemuParts<'_>, vmi: &Vmi, splices: &mut Splices) -> Result<(), Refusal> {
    let disk = Disk::of(domain, &vmi.system_disk)?;
    let own_alias = alias(&vmi.system_disk);
    if qemu.overrides().any(|(alias, _)| alias == own_alias) {
        return Err(Refusal::new(
            Reason::OverrideConflict,
            format_args!("domain XML: an override changes the system disk {own_alias:?}, whose mode is native"),
            "remove it, or set the annotation dockerios.io/nvme: override",
        ));
    }
    let number = match disk.bus {
        "sata" => {
            let number = free_number(domain)?;
            splices.set(disk.target, "bus", "nvme");
            splices.set(disk.target, "dev", &format!("nvme{number}n1"));
            children(disk.node, "address").for_each(|address| splices.remove(address));
            number
        }
        "nvme" => controller_number(&disk, &own_alias)?,
        _ => return Err(unexpected_bus(&disk, vmi, "sata or nvme")),
    };
    let Prepared { driver, serial } = disk.prepare(vmi, splices)?;
    // nvme has no werror and rerror: libvirt would pass them on and QEMU refuse to start
    splices.unset(driver, "error_policy");
    splices.unset(driver, "rerror_policy");
    children(disk.node, "boot").for_each(|boot| splices.remove(boot));
    place_controller(domain, qemu, number, serial, splices)
}

/// `nvme<controller>n<namespace>`.
fn number_in(dev: &str) -> Option<u32> {
    let (controller, namespace) = dev.strip_prefix("nvme")?.split_once('n')?;
    namespace.parse::<u32>().ok()?;
    controller.parse().ok()
}

/// The controller that an NVMe disk is on already: by its address, which libvirt's readback has, else its name.
fn controller_number(disk: &Disk<'_>, alias: &str) -> Result<u32, Refusal> {
    let address = at_most_one(disk.node, "address")
        .map_err(|count| not_understood(alias, format_args!("has {count} <address>")))?;
    match address.map(|address| (attribute(address, "type"), attribute(address, "controller"))) {
        Some((Some("drive"), Some(text))) => text.parse().ok(),
        Some((Some("drive"), None)) | None => number_in(disk.dev),
        Some(_) => None,
    }
    .ok_or_else(|| {
        not_understood(
            alias,
            format_args!("is on nvme as {:?} and names no NVMe controller", disk.dev),
        )
    })
}

fn free_number(domain: Domain<'_>) -> Result<u32, Refusal> {
    let disks = children(domain.devices, "disk").flat_map(|disk| children(disk, "target"));
    let by_name = disks.filter_map(|target| number_in(attribute(target, "dev")?));
    let mut used: Vec<u32> = by_name.collect();
    for controller in controllers(domain, "nvme") {
        let index = attribute(controller, "index").and_then(|index| index.parse().ok());
        used.push(index.ok_or_else(|| {
            Refusal::new(
                Reason::DomainNotUnderstood,
                "domain XML: an NVMe controller has no index, so libvirt may give it the system disk's",
                "give it an index",
            )
        })?);
    }
    // used is finite, so a number up to its length is free
    Ok((0..).find(|number| !used.contains(number)).unwrap_or_default())
}

fn place_controller(
    domain: Domain<'_>,
    qemu: &QemuParts<'_>,
    number: u32,
    serial: &str,
    splices: &mut Splices,
) -> Result<(), Refusal> {
    let is_ours = |index: Option<&str>| index.and_then(|index| index.parse().ok()) == Some(number);
    let mut found = controllers(domain, "nvme").filter(|node| is_ours(attribute(*node, "index")));
    let slots = Slots::taken(domain, qemu, None)?;
    // libvirt refuses a controller without serial, or with another than its disk's. 12.9 also takes it from the disk;
    // written in both places it does not matter which releases do
    let serial_element = format!("<serial>{}</serial>", escaped(serial));
    let Some(controller) = found.next() else {
        let address = address_element(slots.free()?);
        let element = format!("<controller type=\"nvme\" index=\"{number}\">{serial_element}{address}</controller>");
        splices.append(domain.devices, &[element]);
        return Ok(());
    };
    let misplaced = |what: &str| {
        Refusal::new(
            Reason::Misplaced,
            format_args!("domain XML: NVMe controller {number} {what}"),
            "remove the controller element: the hook adds it, with the disk's serial, on a free slot of bus 0",
        )
    };
    if found.next().is_some() {
        return Err(misplaced("is there twice"));
    }
    let mut missing = Vec::new();
    match at_most_one(controller, "serial").map_err(|_| misplaced("has two serials"))? {
        None => missing.push(serial_element),
        Some(written) if written.text().unwrap_or_default() == serial => {}
        Some(_) => return Err(misplaced("has another serial than its disk")),
    }
    let address = at_most_one(controller, "address").map_err(|_| misplaced("has two addresses"))?;
    let place = match address {
        Some(node) if attribute(node, "type") == Some("pci") => Place::of(node)?,
        Some(_) => return Err(misplaced("has an address that is not of PCI")),
        None => None,
    };
    match (place, address) {
        (Some(place), _) if place.on_root_bus().is_some() => {}
        (Some(_), _) => return Err(misplaced("is not on bus 0, where macOS looks for it")),
        (None, Some(incomplete)) => {
            splices.set(incomplete, "domain", "0x0000");
            splices.set(incomplete, "bus", "0x00");
            splices.set(incomplete, "slot", &format!("{:#04x}", slots.free()?));
            splices.set(incomplete, "function", "0x0");
        }
        (None, None) => missing.push(address_element(slots.free()?)),
    }
    if !missing.is_empty() {
        splices.append(controller, &missing);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_controller_s_number_is_in_the_name_of_the_disk() {
        assert_eq!([number_in("nvme0n1"), number_in("nvme12n3")], [Some(0), Some(12)]);
        assert_eq!(
            [
                number_in("sda"),
                number_in("nvme"),
                number_in("nvmen1"),
                number_in("nvme0n")
            ],
            [None; 4]
        );
    }
}
