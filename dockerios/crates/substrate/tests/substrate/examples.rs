//! Domains that KubeVirt's own converter wrote, of two VirtualMachines: one with a block volume and nothing said of PCI,
//! one with pinned CPUs, huge pages, NUMA and a graphics card on the root complex.

use dockerios_substrate::{Outcome, kubevirt, libvirt::Libvirt};
use serde_json::json;

use crate::judge;

const BLOCK_VOLUME: &str = include_str!("../data/kubevirt-block-pvc.xml");
const PINNED_GPU: &str = include_str!("../data/kubevirt-pinned-gpu.xml");

fn machine(nvme: &str) -> String {
    json!({
        "metadata": {"name": "mac", "namespace": "default", "annotations": {
            "dockerios.io/system-disk": "system",
            "dockerios.io/bootdisk": "bootdisk",
            "dockerios.io/nvme": nvme,
        }},
        "spec": {"domain": {"devices": {"disks": [
            {"name": "bootdisk", "bootOrder": 1, "disk": {"bus": "sata"}},
            {"name": "system", "serial": crate::world::SERIAL, "disk": {"bus": "sata"}},
        ]}}},
    })
    .to_string()
}

fn accepted(domain: &str, nvme: &str) -> Outcome<dockerios_substrate::arguments::Arguments> {
    let mut libvirt = Libvirt::start()?;
    let mut hook = dockerios_substrate::hook::Hook::start(&machine(nvme))?;
    let first = hook.pass(domain)?;
    let cards = |domain: &str| domain.matches("<hostdev").count();
    assert_eq!(cards(&first), cards(domain), "the hook took a card away");
    let first = kubevirt::for_libvirt(&first)?;
    let readback = libvirt.define(&first)?;
    let second = hook.pass(&kubevirt::lost_between_passes(&readback)?)?;
    let second = kubevirt::for_libvirt(&second)?;
    assert!(
        libvirt.define(&second)? == readback,
        "libvirt reads another machine back of the second pass"
    );
    libvirt.command_line(&kubevirt::without_host_parts(&second)?)
}

#[test]
fn libvirt_accepts_what_the_hook_makes_of_a_domain_with_a_block_volume() -> Outcome {
    let arguments = accepted(BLOCK_VOLUME, "native")?;
    judge::smc_and_hotplug_switch(&arguments);
    assert_eq!(arguments.device("nvme")?["addr"], "0x10");
    let drive = arguments.device("nvme-ns")?["drive"].clone();
    let node = arguments.node(drive.as_str().unwrap_or_default())?;
    assert_eq!(
        (&node["filename"], &node["detect-zeroes"]),
        (&json!("/dev/system"), &json!("unmap"))
    );
    Ok(())
}

#[test]
fn libvirt_accepts_what_the_hook_makes_of_a_domain_with_pinned_cpus_and_a_card() -> Outcome {
    let arguments = accepted(PINNED_GPU, "native")?;
    judge::smc_and_hotplug_switch(&arguments);
    let controller = arguments.device("nvme")?;
    assert_eq!(
        (&controller["bus"], &controller["addr"]),
        (&json!("pcie.0"), &json!("0x10"))
    );
    Ok(())
}

#[test]
fn libvirt_accepts_an_overridden_disk_in_both_domains() -> Outcome {
    for domain in [BLOCK_VOLUME, PINNED_GPU] {
        let arguments = accepted(domain, "override")?;
        judge::smc_and_hotplug_switch(&arguments);
        let disk = arguments.device("nvme")?;
        assert_eq!((&disk["id"], &disk["addr"]), (&json!("ua-system"), &json!("0x10")));
    }
    Ok(())
}
