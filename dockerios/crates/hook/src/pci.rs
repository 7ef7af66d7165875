//! Which slots of PCI bus 0 are taken. Invariant: a slot counts as taken when anything in the document names
//! it for the guest: an address element, a QEMU argument, or an override; a host address does not count.

use crate::{
    Reason, Refusal,
    document::{Domain, attribute, children, is},
    qemu::{DeviceOption, QemuParts},
};

/// Slots that may be given, best first. KubeVirt numbers upwards from 2; libvirt keeps 0 and 0x1f for the
/// chipset, wants 1 for video and 0x1a to 0x1e for USB, sound and bridges of q35. So from 0x10 up, and only
/// then what KubeVirt left.
const CANDIDATES: [std::ops::RangeInclusive<u8>; 2] = [0x10..=0x19, 0x02..=0x0f];

/// The taken slots of bus 0, a bit each.
#[derive(Clone, Copy)]
pub struct Slots(u32);

impl Slots {
    /// Reads every guest address. `own` is the alias whose override is not counted.
    pub fn taken(domain: Domain<'_>, qemu: &QemuParts<'_>, own: Option<&str>) -> Result<Self, Refusal> {
        let mut taken = 0;
        for address in domain.devices.descendants().filter(|node| is(*node, "address")) {
            let of_host = address.parent().is_some_and(|parent| is(parent, "source"));
            if of_host || attribute(address, "type") != Some("pci") {
                continue;
            }
            if let Some(slot) = Place::of(address)?.and_then(Place::on_root_bus) {
                taken |= 1 << slot;
            }
        }
        for device in qemu.devices()? {
            taken |= argument_slot(&device)?;
        }
        for (alias, properties) in qemu.overrides() {
            if own != Some(alias) {
                taken |= argument_slot(&DeviceOption {
                    driver: alias.to_owned(),
                    properties,
                })?;
            }
        }
        Ok(Self(taken))
    }

    /// Whether something is there.
    pub fn has(self, slot: u8) -> bool {
        slot < 32 && self.0 & (1 << slot) != 0
    }

    /// The best free slot.
    pub fn free(self) -> Result<u8, Refusal> {
        CANDIDATES
            .into_iter()
            .flatten()
            .find(|slot| !self.has(*slot))
            .ok_or_else(|| {
                Refusal::new(
                    Reason::NoFreeSlot,
                    "domain XML: no free slot is left on PCI bus 0 for the NVMe controller",
                    "give the machine fewer devices, or let some sit behind a root port",
                )
            })
    }
}

/// A PCI address of a device.
#[derive(Clone, Copy)]
pub struct Place {
    domain: u32,
    bus: u32,
    slot: u32,
}

impl Place {
    /// Reads `<address type='pci'>`; `None` when it leaves the place to libvirt.
    pub fn of(address: crate::document::El<'_>) -> Result<Option<Self>, Refusal> {
        let number = |name: &str| match attribute(address, name) {
            None => Ok(None),
            Some(text) => number(text).map(Some).ok_or_else(|| unreadable(name, text)),
        };
        let (domain, bus, slot) = (number("domain")?, number("bus")?, number("slot")?);
        if let Some(slot) = slot.filter(|slot| *slot > 31) {
            return Err(unreadable("slot", &slot.to_string()));
        }
        if bus.is_none() && slot.is_none() {
            return Ok(None);
        }
        Ok(Some(Self {
            domain: domain.unwrap_or(0),
            bus: bus.unwrap_or(0),
            slot: slot.unwrap_or(0),
        }))
    }

    /// The slot, when it is one of bus 0.
    pub fn on_root_bus(self) -> Option<u32> {
        (self.domain == 0 && self.bus == 0).then_some(self.slot)
    }
}

fn unreadable(name: &str, text: &str) -> Refusal {
    Refusal::new(
        Reason::AddressNotUnderstood,
        format_args!("domain XML: a PCI address says {name}={text:?}"),
        "write decimal, or hexadecimal with 0x; slots go to 0x1f",
    )
}

/// libvirt reads decimal, octal and hexadecimal; KubeVirt and libvirt write hexadecimal.
fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None if text.len() > 1 && text.starts_with('0') => u32::from_str_radix(text, 8).ok(),
        None => text.parse().ok(),
    }
}

/// `addr=` of a QEMU device on the root bus: hexadecimal `slot` or `slot.function`, 0x or not.
pub fn slot_of_argument(text: &str) -> Option<u8> {
    let slot = text.split('.').next().unwrap_or_default();
    let slot = slot
        .strip_prefix("0x")
        .or_else(|| slot.strip_prefix("0X"))
        .unwrap_or(slot);
    u8::from_str_radix(slot, 16).ok().filter(|slot| *slot < 32)
}

fn argument_slot(device: &DeviceOption) -> Result<u32, Refusal> {
    let Some(addr) = device.property("addr") else {
        return Ok(0);
    };
    if device
        .property("bus")
        .is_some_and(|bus| !["pcie.0", "pci.0"].contains(&bus))
    {
        return Ok(0);
    }
    slot_of_argument(addr).map(|slot| 1 << slot).ok_or_else(|| {
        Refusal::new(
            Reason::AddressNotUnderstood,
            format_args!("domain XML: a QEMU device {:?} has addr={addr:?}", device.driver),
            "write addr as hexadecimal slot or slot.function",
        )
    })
}

/// The address element of a device on the root bus.
pub fn address_element(slot: u8) -> String {
    format!("<address type=\"pci\" domain=\"0x0000\" bus=\"0x00\" slot=\"{slot:#04x}\" function=\"0x0\"/>")
}

/// The controllers of this type.
pub fn controllers<'a>(domain: Domain<'a>, kind: &str) -> impl Iterator<Item = crate::document::El<'a>> {
    children(domain.devices, "controller").filter(move |node| attribute(*node, "type") == Some(kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_libvirt_reads_them() {
        assert_eq!(
            [number("0x1F"), number("10"), number("010"), number("0")],
            [Some(31), Some(10), Some(8), Some(0)]
        );
        assert_eq!([number(""), number("0x"), number("-1"), number("1f")], [None; 4]);
    }

    #[test]
    fn an_argument_s_address_is_hexadecimal_with_or_without_a_mark() {
        assert_eq!(
            [slot_of_argument("10"), slot_of_argument("0x10.0x2")],
            [Some(16), Some(16)]
        );
        assert_eq!(
            [slot_of_argument("20"), slot_of_argument("x"), slot_of_argument("")],
            [None; 3]
        );
    }

    #[test]
    fn slots_are_given_from_sixteen_up_then_what_is_left_below_and_never_the_chipset_s() {
        let mut slots = Slots(0);
        let mut given = Vec::new();
        while let Ok(slot) = slots.free() {
            given.push(slot);
            slots.0 |= 1 << slot;
        }
        assert_eq!(given, (0x10..=0x19).chain(0x02..=0x0f).collect::<Vec<u8>>());
        assert_eq!(slots.free().unwrap_err().reason(), Reason::NoFreeSlot);
    }
}
