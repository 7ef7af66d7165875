//! Disks by their volume. Invariant: a disk is known by its alias `ua-<volume>` alone, never by its order or
//! target name, which KubeVirt is free to change.

use crate::{
    Reason, Refusal, Vmi,
    document::{Domain, El, at_most_one, attribute, children},
    splice::{Splices, escaped},
};

/// NVMe's serial field, in bytes (NVM Express base specification, Identify Controller, SN).
const SERIAL_LENGTH: usize = 20;

/// A plain disk with what every change of it needs.
#[derive(Clone, Copy)]
pub struct Disk<'a> {
    /// `<disk>`
    pub node: El<'a>,
    /// `<target>`
    pub target: El<'a>,
    /// `target/@bus`; empty when libvirt is to derive it.
    pub bus: &'a str,
    /// `target/@dev`; empty when absent.
    pub dev: &'a str,
}

/// What [`Disk::prepare`] leaves: the driver element, and the serial that the disk has from now on.
pub struct Prepared<'a> {
    /// `<driver>`
    pub driver: El<'a>,
    /// At most 20 printable ASCII characters.
    pub serial: &'a str,
}

/// The alias that KubeVirt gives the device of a volume.
pub fn alias(volume: &str) -> String {
    format!("ua-{volume}")
}

fn has_alias(device: El<'_>, alias: &str) -> bool {
    children(device, "alias").any(|node| attribute(node, "name") == Some(alias))
}

impl<'a> Disk<'a> {
    /// The one disk of this volume.
    pub fn of(domain: Domain<'a>, volume: &str) -> Result<Self, Refusal> {
        let alias = alias(volume);
        let mut found = children(domain.devices, "disk").filter(|disk| has_alias(*disk, &alias));
        let Some(node) = found.next() else {
            return Err(Refusal::new(
                Reason::DiskNotFound,
                format_args!("domain XML: no disk has the alias {alias:?}"),
                "name a volume of this machine that is a disk; a disk is never picked by its order",
            ));
        };
        let more = found.count();
        if more > 0 {
            return Err(Refusal::new(
                Reason::DiskAmbiguous,
                format_args!("domain XML: {} disks have the alias {alias:?}", more + 1),
                "give every volume a name of its own",
            ));
        }
        if let Some(kind) = attribute(node, "device").filter(|kind| *kind != "disk") {
            return Err(not_understood(&alias, format_args!("is a {kind}, not a plain disk")));
        }
        let target = part(node, "target", &alias)?;
        let bus = attribute(target, "bus").unwrap_or_default();
        Ok(Self {
            node,
            target,
            bus,
            dev: attribute(target, "dev").unwrap_or_default(),
        })
    }

    /// What QEMU's NVMe device and the discard chain need of the disk in either mode: a serial, and both
    /// discards handed down.
    pub fn prepare<'s>(&self, vmi: &'s Vmi, splices: &mut Splices) -> Result<Prepared<'s>, Refusal>
    where
        'a: 's,
    {
        let alias = alias(&vmi.system_disk);
        let driver = part(self.node, "driver", &alias)?;
        splices.set(driver, "discard", "unmap");
        splices.set(driver, "detect_zeroes", "unmap");

        let written = at_most_one(self.node, "serial").map_err(|count| twice(&alias, "serial", count))?;
        let present = written
            .and_then(|node| node.text())
            .filter(|text| !text.trim().is_empty());
        let Some(serial) = present.or(vmi.serial.as_deref()) else {
            return Err(Refusal::new(
                Reason::SerialMissing,
                format_args!("disk {alias:?} has no serial, which NVMe demands, in the domain or in the machine"),
                format_args!("set spec.domain.devices.disks[name={}].serial", vmi.system_disk),
            ));
        };
        if serial.len() > SERIAL_LENGTH || !serial.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ') {
            return Err(Refusal::new(
                Reason::SerialUnusable,
                format_args!(
                    "disk {alias:?} has the serial {serial:?}; NVMe holds {SERIAL_LENGTH} printable ASCII characters"
                ),
                format_args!("shorten spec.domain.devices.disks[name={}].serial", vmi.system_disk),
            ));
        }
        match (present, written) {
            (Some(_), _) => {}
            (None, Some(empty)) => splices.text(empty, serial),
            (None, None) => splices.after(self.target, &[format!("<serial>{}</serial>", escaped(serial))]),
        }
        Ok(Prepared { driver, serial })
    }
}

/// The bootdisk stays on SATA: the firmware finds it there whatever else changes.
pub fn demand_bootdisk_on_sata(domain: Domain<'_>, vmi: &Vmi) -> Result<(), Refusal> {
    let disk = Disk::of(domain, &vmi.bootdisk)?;
    if disk.bus == "sata" {
        return Ok(());
    }
    Err(Refusal::new(
        Reason::BootDiskNotOnSata,
        format_args!(
            "bootdisk {:?} is on bus {:?}, and the bootdisk stays on sata",
            alias(&vmi.bootdisk),
            disk.bus
        ),
        format_args!("set spec.domain.devices.disks[name={}].disk.bus: sata", vmi.bootdisk),
    ))
}

/// The refusal of a system disk whose bus the mode does not start from.
pub fn unexpected_bus(disk: &Disk<'_>, vmi: &Vmi, wanted: &str) -> Refusal {
    Refusal::new(
        Reason::SystemDiskBus,
        format_args!(
            "system disk {:?} is on bus {:?}, not on {wanted}",
            alias(&vmi.system_disk),
            disk.bus
        ),
        format_args!("set spec.domain.devices.disks[name={}].disk.bus: sata", vmi.system_disk),
    )
}

fn part<'a>(disk: El<'a>, name: &'static str, alias: &str) -> Result<El<'a>, Refusal> {
    match at_most_one(disk, name) {
        Ok(Some(part)) => Ok(part),
        Ok(None) => Err(not_understood(alias, format_args!("has no <{name}>"))),
        Err(count) => Err(twice(alias, name, count)),
    }
}

fn twice(alias: &str, name: &str, count: usize) -> Refusal {
    not_understood(alias, format_args!("has {count} <{name}>"))
}

pub fn not_understood(alias: &str, what: std::fmt::Arguments) -> Refusal {
    Refusal::new(
        Reason::DiskNotUnderstood,
        format_args!("disk {alias:?} {what}"),
        "hand over the disk as KubeVirt writes it: one <target>, one <driver>, device='disk'",
    )
}
