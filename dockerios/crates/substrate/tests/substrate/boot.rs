//! OVMF, on the machine that the hook made, with the bootdisk that the builder made. A UEFI shell stands in for
//! OpenCore; the system disk on NVMe has an EFI system partition too, which must not be booted.

use dockerios_identity::Fields;
use dockerios_substrate::{Outcome, disks, libvirt::Libvirt, machine::Machine};

use crate::world::{DOMAIN, command_line, hooked, with};

/// Boots a machine of that domain until one of the stand-ins has spoken; gives what the console said.
fn booted(domain: &str, annotations: &[(&str, &str)], change: impl Fn(&String) -> String) -> Outcome<(Fields, String)> {
    let mut libvirt = Libvirt::start()?;
    let arguments = command_line(&mut libvirt, &hooked(domain, annotations)?)?.map(change);
    let identity = disks::bootdisk(&libvirt.session)?;
    disks::bootable_system_disk(&mut libvirt.session)?;
    disks::blank(&libvirt.session, "settings.iso", 1)?;
    libvirt
        .session
        .demand("cp /usr/share/OVMF/OVMF_VARS_4M.fd /mnt/nvram.fd")?;
    let mut machine = Machine::start(&mut libvirt.session, &arguments)?;
    machine.go()?;
    let said = machine.until_said("serial.log", &[disks::ON_BOOTDISK, disks::ON_SYSTEM_DISK])?;
    machine.quit()?;
    Ok((identity, said))
}

/// The disk that the firmware tried first, by its device path; in its own words, past the console's control codes.
fn tried_first(said: &str) -> &str {
    let first = said.split("BdsDxe: ").nth(1).unwrap_or_default();
    first.split(" from ").nth(1).unwrap_or_default()
}

#[track_caller]
fn bootdisk_was_booted(identity: &Fields, said: &str) {
    assert!(said.contains(disks::ON_BOOTDISK), "{said}");
    assert!(!said.contains(disks::ON_SYSTEM_DISK), "{said}");
    // on AHCI, the chipset's controller, port 0
    assert!(
        tried_first(said).starts_with("PciRoot(0x0)/Pci(0x1F,0x2)/Sata(0x0,"),
        "{said}"
    );
    // the firmware's FAT driver found the file in its folder and started it
    assert!(said.contains(disks::OPENCORE), "{said}");
    // and read the configuration with the identity in it
    for value in [&identity.serial, &identity.mlb, &identity.system_uuid] {
        assert!(
            said.contains(&format!("<string>{value}</string>")),
            "{value} is not in: {said}"
        );
    }
    // from there the NVMe disk is in reach
    assert!(said.contains("PciRoot(0x0)/Pci(0x10,0x0)/NVMe(0x1,"), "{said}");
}

#[test]
fn ovmf_boots_the_bootdisk_beside_a_bootable_native_nvme_disk() -> Outcome {
    let (identity, said) = booted(DOMAIN, &[], String::clone)?;
    bootdisk_was_booted(&identity, &said);
    Ok(())
}

#[test]
fn ovmf_boots_the_bootdisk_beside_a_bootable_overridden_disk() -> Outcome {
    let (identity, said) = booted(DOMAIN, &[("nvme", "override")], String::clone)?;
    bootdisk_was_booted(&identity, &said);
    Ok(())
}

#[track_caller]
fn system_disk_was_booted(said: &str) {
    assert!(said.contains(disks::ON_SYSTEM_DISK), "{said}");
    assert!(!said.contains(disks::ON_BOOTDISK), "{said}");
    assert!(
        said.contains("BdsDxe: starting Boot") && said.contains("Pci(0x10,0x0)/NVMe("),
        "{said}"
    );
}

#[test]
fn with_the_boot_orders_swapped_the_nvme_disk_is_booted_so_the_order_is_what_keeps_it_off() -> Outcome {
    let swapped = with(DOMAIN, "<boot order=\"1\">", "<boot order=\"3\">");
    let (_, said) = booted(&swapped, &[("nvme", "override")], String::clone)?;
    system_disk_was_booted(&said);
    Ok(())
}

#[test]
fn without_any_boot_order_the_native_nvme_disk_is_booted() -> Outcome {
    let (_, said) = booted(DOMAIN, &[], |word| word.replace("\"bootindex\":1,", ""))?;
    system_disk_was_booted(&said);
    Ok(())
}
