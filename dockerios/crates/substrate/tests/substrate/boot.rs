//! OVMF, on the machine that the hook made, with the bootdisk that the builder made. A UEFI shell stands in for
//! OpenCore; the system disk on NVMe has an EFI system partition too, which must not be booted.

use dockerios_identity::Fields;
use dockerios_substrate::{Outcome, disks, libvirt::Libvirt, machine::Machine};

use crate::world::{DOMAIN, command_line, hooked, with};

/// Boots a machine of that domain until one of the stand-ins has spoken; gives what the console said.
fn booted(domain: &str, annotations: &[(&str, &str)]) -> Outcome<(Fields, String)> {
    let mut libvirt = Libvirt::start()?;
    let arguments = command_line(&mut libvirt, &hooked(domain, annotations)?)?;
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

#[track_caller]
fn bootdisk_was_booted(identity: &Fields, said: &str) {
    assert!(said.contains(disks::ON_BOOTDISK), "{said}");
    assert!(!said.contains(disks::ON_SYSTEM_DISK), "{said}");
    // the firmware's own word for the disk: on AHCI, the chipset's controller
    assert!(
        said.contains("BdsDxe: starting Boot") && said.contains("Pci(0x1F,0x2)/Sata("),
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
}

#[test]
fn ovmf_boots_the_bootdisk_beside_a_bootable_native_nvme_disk() -> Outcome {
    let (identity, said) = booted(DOMAIN, &[])?;
    bootdisk_was_booted(&identity, &said);
    Ok(())
}

#[test]
fn ovmf_boots_the_bootdisk_beside_a_bootable_overridden_disk() -> Outcome {
    let (identity, said) = booted(DOMAIN, &[("nvme", "override")])?;
    bootdisk_was_booted(&identity, &said);
    Ok(())
}

#[test]
fn with_the_boot_orders_swapped_the_nvme_disk_is_booted_so_the_order_is_what_keeps_it_off() -> Outcome {
    let swapped = with(DOMAIN, "<boot order=\"1\">", "<boot order=\"3\">");
    let (_, said) = booted(&swapped, &[])?;
    assert!(said.contains(disks::ON_SYSTEM_DISK), "{said}");
    assert!(!said.contains(disks::ON_BOOTDISK), "{said}");
    assert!(said.contains("Pci(0x10,0x0)/NVMe("), "{said}");
    Ok(())
}
