//! KubeVirt calls the hook one to three times per boot, on its own answer, with parts of it lost in between.

use crate::{
    judge::Judge,
    world::{FRESH, KEY, READBACK, changed, machine_with, osk, vmi_of, with},
};
use dockerios_domain_hook::{Osk, Reason, transform};

const HD: &str = "ua-macintosh-hd";

#[track_caller]
fn is_a_macos_machine(xml: &str) {
    let judge = Judge::of(xml);
    let smc = format!("isa-applesmc,osk={}", KEY.replace(',', ",,"));
    let switch = "ICH9-LPC.acpi-pci-hotplug-with-bridge-support=off";
    assert_eq!(judge.arguments(), ["-device", &smc, "-global", switch]);
    assert_eq!(judge.target(HD), ("nvme".to_owned(), "nvme0n1".to_owned()));
    assert_eq!(judge.target("ua-boot-image"), ("sata".to_owned(), "sda".to_owned()));
    assert_eq!(judge.serial(HD), "HD-0007-A");
    for (name, value) in [
        ("discard", Some("unmap")),
        ("detect_zeroes", Some("unmap")),
        ("error_policy", None),
    ] {
        assert_eq!(judge.attribute(HD, "driver", name).as_deref(), value, "{name}");
    }
    assert_eq!(judge.attribute(HD, "driver", "rerror_policy"), None);
    assert!(
        !judge.has(HD, "boot"),
        "OVMF cannot read a place of NVMe in the boot order"
    );
    assert_eq!(judge.attribute("ua-boot-image", "boot", "order").as_deref(), Some("1"));
    assert_eq!(
        judge.attribute("ua-boot-image", "driver", "error_policy").as_deref(),
        Some("stop")
    );
    assert_eq!(judge.nvme_controllers(), [("0".to_owned(), "0x10".to_owned())]);
    assert_eq!(judge.controller_serials(), ["HD-0007-A"]);
    judge.nothing_is_there_twice();
}

#[test]
fn the_first_pass_makes_a_macos_machine_and_the_next_ones_change_nothing() {
    let first = changed(FRESH, &[]).unwrap();
    is_a_macos_machine(&first);
    assert!(
        !Judge::of(&first).has(HD, "address"),
        "the sata drive address is still there"
    );
    assert_eq!(changed(&first, &[]).unwrap(), first);
}

#[test]
fn what_a_pass_lost_is_added_again_and_only_that() {
    let first = changed(FRESH, &[]).unwrap();
    let declaration = " xmlns:qemu=\"http://libvirt.org/schemas/domain/qemu/1.0\"";
    let block = &first[first.find("<qemu:commandline>").unwrap()..first.find("</qemu:commandline>").unwrap()];
    let block = format!("\n\t{block}</qemu:commandline>");
    let controller = "\n\t\t<controller type=\"nvme\" index=\"0\"><serial>HD-0007-A</serial><address type=\"pci\" domain=\"0x0000\" bus=\"0x00\" \
                      slot=\"0x10\" function=\"0x0\"/></controller>";
    let zeroes = " detect_zeroes=\"unmap\"";
    let serial = "\n\t\t\t<serial>HD-0007-A</serial>";
    let of_controller = "index=\"0\"><serial>HD-0007-A</serial>";

    let without_qemu = with(&with(&first, &block, ""), declaration, "");
    let mut everything = without_qemu.clone();
    for lost in [zeroes, serial, controller] {
        everything = with(&everything, lost, "");
    }
    for lost in [
        without_qemu,
        with(&first, zeroes, ""),
        with(&first, serial, ""),
        with(&first, serial, "<serial/>"),
        with(&first, of_controller, "index=\"0\">"),
        with(&first, controller, ""),
        everything,
    ] {
        assert_ne!(lost, first);
        let second = changed(&lost, &[]).unwrap();
        is_a_macos_machine(&second);
        assert_eq!(changed(&second, &[]).unwrap(), second);
    }
}

#[test]
fn what_libvirt_read_back_keeps_its_controller_and_its_drive_address() {
    let second = changed(READBACK, &[]).unwrap();
    is_a_macos_machine(&second);
    assert_eq!(
        Judge::of(&second).attribute(HD, "address", "type").as_deref(),
        Some("drive")
    );
}

#[test]
fn a_controller_whose_place_was_lost_gets_one_on_bus_0() {
    let address = "\n      <address type='pci' domain='0x0000' bus='0x00' slot='0x10' function='0x0'/>";
    for left in ["", "\n      <address type='pci'/>"] {
        is_a_macos_machine(&changed(&with(READBACK, address, left), &[]).unwrap());
    }
}

#[test]
fn the_serial_comes_from_the_machine_when_a_pass_lost_it_and_is_never_invented() {
    let mut machine = machine_with(&[]);
    machine["spec"]["domain"]["devices"]["disks"][1]["serial"] = serde_json::Value::Null;
    let refusal = transform(READBACK, &vmi_of(&machine), &osk()).unwrap_err();
    assert_eq!(refusal.reason(), Reason::SerialMissing);
    assert!(
        refusal
            .to_string()
            .contains("spec.domain.devices.disks[name=macintosh-hd].serial"),
        "{refusal}"
    );
}

#[test]
fn an_override_survives_its_passes_too_whole_lost_or_in_part() {
    let mode = [("nvme", "override")];
    let first = changed(FRESH, &mode).unwrap();
    let werror = "<qemu:property name=\"werror\" type=\"remove\"/>";
    let addr = "<qemu:property name=\"addr\" type=\"string\" value=\"0x10\"/>";
    for lost in [
        first.clone(),
        FRESH.to_owned(),
        with(&first, werror, ""),
        with(&first, addr, ""),
    ] {
        let second = changed(&lost, &mode).unwrap();
        let judge = Judge::of(&second);
        assert_eq!(judge.target(HD), ("sata".to_owned(), "sdb".to_owned()));
        assert_eq!(judge.nvme_controllers(), []);
        let mut overridden = judge.overridden(HD);
        overridden.sort();
        let property = |name: &str, value: Option<&str>| (name.to_owned(), value.map(str::to_owned));
        let wanted = [
            property("addr", Some("0x10")),
            property("bus", Some("pcie.0")),
            property("driver", Some("nvme")),
            property("rerror", None),
            property("werror", None),
        ];
        assert_eq!(overridden, wanted);
        assert_eq!(changed(&second, &mode).unwrap(), second);
    }
}

#[test]
fn the_disk_is_found_by_its_alias_among_others_and_theirs_stay() {
    // the system disk last, a scratch disk of the same name pattern first, its own alias inside a comment
    let scratch = "<disk device=\"disk\" type=\"block\"><!-- ua-macintosh-hd --><source dev=\"/dev/s\"/>\
                   <target bus=\"sata\" dev=\"sdd\"/><serial>OTHER</serial><driver name=\"qemu\" type=\"raw\"/>\
                   <alias name=\"ua-macintosh-hd2\"/></disk>";
    let five = with(FRESH, "<devices>", &format!("<devices>{scratch}"));
    let out = changed(&five, &[]).unwrap();
    assert!(out.contains(scratch), "the scratch disk was touched");
    is_a_macos_machine(&out);
    assert_eq!(
        Judge::of(&out).target("ua-settings"),
        ("sata".to_owned(), "sdc".to_owned())
    );
}

#[test]
fn off_leaves_the_system_disk_as_it_is() {
    let out = changed(FRESH, &[("nvme", "off")]).unwrap();
    let disk =
        |xml: &str| xml[xml.find("/dev/macintosh-hd").unwrap()..xml.find("<boot order=\"2\">").unwrap()].to_owned();
    assert_eq!(disk(&out), disk(FRESH));
    assert_eq!(Judge::of(&out).arguments().len(), 4);
}

#[test]
fn only_an_e1000_becomes_the_model_that_is_asked_for() {
    for (asked, got) in [
        (None, "e1000"),
        (Some("e1000"), "e1000"),
        (Some("e1000-82545em"), "e1000-82545em"),
        (Some("e1000e"), "e1000e"),
        (Some("vmxnet3"), "vmxnet3"),
    ] {
        let annotations: Vec<_> = asked.map(|model| ("nic-model", model)).into_iter().collect();
        let out = changed(FRESH, &annotations).unwrap();
        assert_eq!(Judge::of(&out).models(), [got, "virtio-non-transitional"]);
    }
    let chosen = with(FRESH, "<model type=\"e1000\">", "<model type=\"e1000e\">");
    let out = changed(&chosen, &[("nic-model", "vmxnet3")]).unwrap();
    assert_eq!(Judge::of(&out).models(), ["e1000e", "virtio-non-transitional"]);
}

#[test]
fn a_named_cpu_gets_the_vendor_that_is_asked_for_again_in_each_pass_that_lost_it_and_nothing_else_of_it_changes() {
    let annotations = [("cpu-vendor", "GenuineIntel")];
    let (before, after) = (
        "<model>Skylake-Client</model>",
        "<model vendor_id=\"GenuineIntel\">Skylake-Client</model>",
    );
    let first = changed(FRESH, &annotations).unwrap();
    assert_eq!(first, with(&changed(FRESH, &[]).unwrap(), before, after));
    assert_eq!(changed(&first, &annotations).unwrap(), first);
    assert_eq!(changed(&with(&first, after, before), &annotations).unwrap(), first);
    // libvirt's own form, with an attribute of its own
    let readback = with(
        FRESH,
        "<cpu mode=\"custom\"><model>",
        "<cpu match='exact'><model fallback='forbid'>",
    );
    let second = changed(&readback, &annotations).unwrap();
    assert!(
        second.contains("<model vendor_id=\"GenuineIntel\" fallback='forbid'>Skylake-Client</model>"),
        "{second}"
    );
}

#[test]
fn a_key_of_characters_that_xml_and_qemu_treat_specially_arrives_as_it_is() {
    let key = "<&>\"',=;".repeat(8);
    let osk = Osk::parse(key.as_bytes()).unwrap();
    let once = transform(FRESH, &vmi_of(&machine_with(&[])), &osk).unwrap();
    assert_eq!(
        Judge::of(&once).arguments()[1],
        format!("isa-applesmc,osk={}", key.replace(',', ",,"))
    );
    assert_eq!(transform(&once, &vmi_of(&machine_with(&[])), &osk).unwrap(), once);
}

#[test]
fn what_go_s_encoder_makes_of_a_declaration_is_no_declaration_and_no_fault() {
    let made =
        "<domain xmlns:_xmlns=\"xmlns\" _xmlns:qemu=\"http://libvirt.org/schemas/domain/qemu/1.0\" type=\"kvm\">";
    is_a_macos_machine(&changed(&with(FRESH, "<domain type=\"kvm\">", made), &[]).unwrap());
}

#[test]
fn a_byte_order_mark_and_dos_line_ends_stay() {
    let dos = format!("\u{feff}<?xml version='1.0' encoding='utf-8'?>\n{FRESH}").replace('\n', "\r\n");
    let out = changed(&dos, &[]).unwrap();
    is_a_macos_machine(out.trim_start_matches('\u{feff}'));
    assert_eq!(changed(&out, &[]).unwrap(), out);
    assert!(
        out.starts_with("\u{feff}<?xml version='1.0' encoding='utf-8'?>\r\n<domain "),
        "{}",
        &out[..80]
    );
    assert_eq!(
        out.matches("\r\n").count(),
        dos.matches("\r\n").count(),
        "two lines gone, two new ones"
    );
}
