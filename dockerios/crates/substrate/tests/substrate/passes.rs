//! Every pass of the hook, before libvirt's schema and its conversion.

use dockerios_substrate::{Outcome, hook::Hook, kubevirt, libvirt::Libvirt};

use crate::{
    judge,
    world::{DOMAIN, SERIAL, command_line, hooked, machine_with, with},
};

/// The command lines of three passes over a machine: fresh, with what KubeVirt loses lost, with libvirt's readback as
/// it is. They are the same one.
fn three_passes(annotations: &[(&str, &str)]) -> Outcome<dockerios_substrate::arguments::Arguments> {
    let mut libvirt = Libvirt::start()?;
    let mut hook = Hook::start(&machine_with(annotations))?;
    let first = hook.pass(DOMAIN)?;
    let arguments = command_line(&mut libvirt, &first)?;

    let readback = libvirt.define(&kubevirt::for_libvirt(&first)?)?;
    let lost = kubevirt::lost_between_passes(&readback)?;
    assert!(
        !["isa-applesmc", "detect_zeroes", "vendor_id"]
            .iter()
            .any(|part| lost.contains(part)),
        "nothing was lost"
    );
    let second = hook.pass(&lost)?;
    assert!(
        command_line(&mut libvirt, &second)? == arguments,
        "the second pass makes another machine"
    );

    let readback = libvirt.define(&kubevirt::for_libvirt(&second)?)?;
    let third = hook.pass(&readback)?;
    assert!(third == readback, "the hook changes what libvirt read back whole");
    assert!(
        command_line(&mut libvirt, &third)? == arguments,
        "the third pass makes another machine"
    );
    Ok(arguments)
}

#[test]
fn libvirt_makes_the_same_macos_machine_of_every_pass_with_a_native_nvme_disk() -> Outcome {
    let arguments = three_passes(&[])?;
    judge::smc_and_hotplug_switch(&arguments);
    judge::bootdisk_on_sata(&arguments)?;
    judge::native(&arguments, "0x10")?;
    judge::board(&arguments, "Penryn")?;
    judge::nics(&arguments, "e1000-82545em");
    Ok(())
}

#[test]
fn libvirt_makes_the_same_macos_machine_of_every_pass_with_an_overridden_disk() -> Outcome {
    let arguments = three_passes(&[("nvme", "override")])?;
    judge::smc_and_hotplug_switch(&arguments);
    judge::overridden(&arguments, "0x10")?;
    judge::board(&arguments, "Penryn")?;
    judge::bootdisk_on_sata(&arguments)?;
    judge::nics(&arguments, "e1000-82545em");
    Ok(())
}

#[test]
fn libvirt_puts_the_controller_on_the_slot_that_the_hook_found_free() -> Outcome {
    let mut libvirt = Libvirt::start()?;
    let taken = with(
        DOMAIN,
        "slot=\"0x03\" function=\"0x0\"",
        "slot=\"0x10\" function=\"0x0\"",
    );
    let native = command_line(&mut libvirt, &hooked(&taken, &[])?)?;
    judge::native(&native, "0x11")?;
    let overridden = command_line(&mut libvirt, &hooked(&taken, &[("nvme", "override")])?)?;
    judge::overridden(&overridden, "0x11")
}

#[test]
fn left_to_itself_libvirt_puts_the_controller_behind_a_root_port_so_the_hook_writes_it_out() -> Outcome {
    let mut libvirt = Libvirt::start()?;
    let hooked = hooked(DOMAIN, &[])?;
    let from = hooked
        .find("<controller type=\"nvme\"")
        .expect("the controller is there");
    let to = from + hooked[from..].find("</controller>").expect("its end") + "</controller>".len();
    let left_out = format!("{}{}", &hooked[..from], &hooked[to..]);
    let controller = command_line(&mut libvirt, &left_out)?.device("nvme")?;
    assert_ne!(controller["bus"], "pcie.0");
    Ok(())
}

#[test]
fn libvirt_takes_every_network_model_that_the_hook_gives() -> Outcome {
    let mut libvirt = Libvirt::start()?;
    for model in dockerios_domain_hook::vmi::NIC_MODELS {
        let hooked = hooked(DOMAIN, &[("nic-model", model)])?;
        judge::nics(&command_line(&mut libvirt, &hooked)?, model);
    }
    Ok(())
}

#[test]
fn without_the_hook_libvirt_says_no_vendor_so_that_kvm_shows_the_host_s() -> Outcome {
    let mut libvirt = Libvirt::start()?;
    let without = with(&hooked(DOMAIN, &[])?, "<model vendor_id=\"GenuineIntel\">", "<model>");
    let cpu = command_line(&mut libvirt, &without)?.values("-cpu").join(" ");
    assert!(cpu.starts_with("Penryn") && !cpu.contains("vendor="), "{cpu}");
    Ok(())
}

#[test]
fn libvirt_demands_a_serial_and_that_controller_and_disk_have_the_same_one() -> Outcome {
    let mut libvirt = Libvirt::start()?;
    let domain = kubevirt::for_libvirt(&hooked(DOMAIN, &[])?)?;
    let serial = format!("<serial>{SERIAL}</serial>");
    assert_eq!(domain.matches(&serial).count(), 2, "of the disk, and of its controller");
    for (changed, says) in [
        (
            domain.replace(&serial, ""),
            "Missing mandatory serial for NVMe controller",
        ),
        (
            domain.replacen(&serial, "<serial>OTHER</serial>", 1),
            "must have the same serial number",
        ),
    ] {
        let refused = libvirt.define(&changed).map(drop).expect_err(says).to_string();
        assert!(refused.contains(says), "{refused}");
    }
    Ok(())
}
