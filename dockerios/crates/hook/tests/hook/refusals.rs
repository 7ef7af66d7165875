//! What is refused, each for its own reason.

use crate::world::{FRESH, KEY, QEMU, READBACK, changed, machine_with, osk, with};
use dockerios_domain_hook::{Osk, Reason, Refusal, Vmi, transform};
use serde_json::{Value, json};

#[track_caller]
fn refused(domain: &str, annotations: &[(&str, &str)], reason: Reason, says: &str) {
    let refusal = changed(domain, annotations).unwrap_err();
    assert_eq!(refusal.reason(), reason, "{refusal}");
    assert!(refusal.to_string().contains(says), "{refusal} does not say {says}");
}

fn machine(change: impl FnOnce(&mut Value)) -> Result<Vmi, Refusal> {
    let mut machine = machine_with(&[]);
    change(&mut machine);
    Vmi::from_json(machine.to_string().as_bytes())
}

#[test]
fn annotations_that_are_absent_empty_equal_or_outside_their_list() {
    for key in ["dockerios.io/system-disk", "dockerios.io/bootdisk"] {
        let absent =
            machine(|it| drop(it["metadata"]["annotations"].as_object_mut().unwrap().remove(key))).unwrap_err();
        let empty = machine(|it| it["metadata"]["annotations"][key] = json!("")).unwrap_err();
        for refusal in [absent, empty] {
            assert_eq!(refusal.reason(), Reason::AnnotationAbsent);
            assert!(
                refusal
                    .to_string()
                    .contains(&format!("\"studio/mac-07\": annotation {key} is absent")),
                "{refusal}"
            );
        }
    }
    let none = machine(|it| it["metadata"]["annotations"] = Value::Null).unwrap_err();
    assert_eq!(none.reason(), Reason::AnnotationAbsent);
    let equal =
        machine(|it| it["metadata"]["annotations"]["dockerios.io/bootdisk"] = json!("macintosh-hd")).unwrap_err();
    assert_eq!(equal.reason(), Reason::SameVolume);
    for (key, value) in [
        ("nvme", "Native"),
        ("nvme", ""),
        ("nic-model", "virtio"),
        ("nic-model", "E1000"),
        ("nic-model", "e1000 "),
        ("nic-model", ""),
        ("nic-model", "rtl8139,mac=02:00:5e:00:53:09"),
        ("cpu-vendor", "AuthenticAMD"),
        ("cpu-vendor", "genuineintel"),
        ("cpu-vendor", ""),
        ("cpu-vendor", "GenuineIntel,model=1"),
    ] {
        let refusal =
            machine(|it| it["metadata"]["annotations"][format!("dockerios.io/{key}")] = json!(value)).unwrap_err();
        assert_eq!(refusal.reason(), Reason::AnnotationInvalid, "{key}={value}");
        assert!(refusal.to_string().contains("accepted: "), "{refusal}");
    }
}

#[test]
fn a_machine_that_is_no_such_object() {
    for json in [
        "",
        "null",
        "[]",
        "{",
        "{\"metadata\":{\"annotations\":{\"a\":1}}}",
        "{\"spec\":{\"domain\":7}}",
    ] {
        let refusal = Vmi::from_json(json.as_bytes()).unwrap_err();
        assert_eq!(refusal.reason(), Reason::VmiNotUnderstood, "{json}");
    }
    let twice = machine(|it| {
        let disks = it["spec"]["domain"]["devices"]["disks"].as_array_mut().unwrap();
        disks.push(disks[1].clone());
    });
    assert_eq!(twice.unwrap_err().reason(), Reason::DiskAmbiguous);
}

#[test]
fn disks_that_are_not_there_or_there_twice_or_no_disks() {
    refused(
        FRESH,
        &[("system-disk", "elsewhere")],
        Reason::DiskNotFound,
        "\"ua-elsewhere\"",
    );
    refused(
        FRESH,
        &[("bootdisk", "elsewhere")],
        Reason::DiskNotFound,
        "\"ua-elsewhere\"",
    );
    refused(
        FRESH,
        &[("nvme", "off"), ("system-disk", "elsewhere")],
        Reason::DiskNotFound,
        "\"ua-elsewhere\"",
    );
    refused(
        FRESH,
        &[("system-disk", "settings")],
        Reason::DiskNotUnderstood,
        "is a cdrom",
    );
    let ambiguous = with(
        FRESH,
        "<alias name=\"ua-settings\"/>",
        "<alias name=\"ua-macintosh-hd\"/>",
    );
    refused(
        &ambiguous,
        &[],
        Reason::DiskAmbiguous,
        "2 disks have the alias \"ua-macintosh-hd\"",
    );
    let nameless = with(FRESH, "<alias name=\"ua-macintosh-hd\"></alias>", "");
    refused(&nameless, &[], Reason::DiskNotFound, "never picked by its order");
    let twice = with(
        FRESH,
        "<serial>HD-0007-A</serial>",
        "<serial>HD-0007-A</serial><serial>B</serial>",
    );
    refused(&twice, &[], Reason::DiskNotUnderstood, "has 2 <serial>");
    let driverless = with(
        FRESH,
        "<driver cache=\"none\" error_policy=\"stop\" rerror_policy='report' io=\"native\" name=\"qemu\" type=\"raw\" \
         discard=\"unmap\"></driver>",
        "",
    );
    refused(&driverless, &[], Reason::DiskNotUnderstood, "has no <driver>");
}

#[test]
fn disks_on_a_bus_that_is_not_expected() {
    let boot = with(
        FRESH,
        "<target bus=\"sata\" dev=\"sda\">",
        "<target bus=\"usb\" dev=\"sda\">",
    );
    refused(&boot, &[], Reason::BootDiskNotOnSata, "on bus \"usb\"");
    refused(
        &boot,
        &[("nvme", "off")],
        Reason::BootDiskNotOnSata,
        "disks[name=boot-image].disk.bus: sata",
    );
    for bus in ["virtio", "scsi", "usb", ""] {
        let system = with(
            FRESH,
            "<target bus=\"sata\" dev=\"sdb\">",
            &format!("<target bus=\"{bus}\" dev=\"sdb\">"),
        );
        refused(&system, &[], Reason::SystemDiskBus, &format!("is on bus {bus:?}"));
    }
    refused(
        READBACK,
        &[("nvme", "override")],
        Reason::SystemDiskBus,
        "is on bus \"nvme\"",
    );
}

#[test]
fn a_vendor_for_a_cpu_that_is_no_named_model_or_says_another_one() {
    let model = "<cpu mode=\"custom\"><model>Skylake-Client</model>";
    for (cpu, reason, says) in [
        (
            "<cpu mode=\"host-passthrough\">",
            Reason::CpuNotNamed,
            "has mode \"host-passthrough\"",
        ),
        (
            "<cpu mode=\"host-model\">",
            Reason::CpuNotNamed,
            "has mode \"host-model\"",
        ),
        ("<cpu mode=\"custom\">", Reason::CpuNotNamed, "not exactly one <model>"),
        (
            "<cpu><model vendor_id='AuthenticAMD'>Skylake-Client</model>",
            Reason::OtherVendor,
            "says vendor \"AuthenticAMD\", and \"GenuineIntel\" is wanted",
        ),
    ] {
        let other = with(FRESH, model, cpu);
        refused(&other, &[("cpu-vendor", "GenuineIntel")], reason, says);
        assert!(
            changed(&other, &[]).is_ok(),
            "{cpu} is nobody's business without the annotation"
        );
    }
    let cpuless = with(&with(FRESH, "<cpu mode", "<pu mode"), "</cpu>", "</pu>");
    refused(
        &cpuless,
        &[("cpu-vendor", "GenuineIntel")],
        Reason::CpuNotNamed,
        "is not there",
    );
}

#[test]
fn serials_that_nvme_cannot_hold() {
    let twenty = with(FRESH, "HD-0007-A", "12345678901234567890");
    assert!(changed(&twenty, &[]).is_ok());
    for serial in ["123456789012345678901", "Festplatte-ä", "tab&#9;"] {
        let xml = with(FRESH, "HD-0007-A", serial);
        refused(&xml, &[], Reason::SerialUnusable, "20 printable ASCII characters");
        refused(
            &xml,
            &[("nvme", "override")],
            Reason::SerialUnusable,
            "20 printable ASCII characters",
        );
    }
}

fn with_block(block: &str) -> String {
    let declared = with(FRESH, "<domain type", &format!("<domain xmlns:q='{QEMU}' type"));
    with(&declared, "</metadata>", &format!("</metadata>{block}"))
}

fn with_arguments(arguments: &[&str]) -> String {
    let written: String = arguments
        .iter()
        .map(|value| format!("<q:arg value='{value}'/>"))
        .collect();
    with_block(&format!("<q:commandline>{written}</q:commandline>"))
}

#[test]
fn an_smc_with_another_key_a_second_one_and_the_opposite_switch() {
    let other = "another-key-another-key-another-key-another-key-another-key-anot";
    let foreign = format!("isa-applesmc,osk={other}");
    let refusal = changed(&with_arguments(&["-device", &foreign]), &[]).unwrap_err();
    assert_eq!(refusal.reason(), Reason::OtherSmc);
    assert!(!refusal.to_string().contains("another-key-"), "{refusal}");
    refused(
        &with_arguments(&["-device", "isa-applesmc"]),
        &[],
        Reason::OtherSmc,
        "another key",
    );

    let ours = format!("isa-applesmc,osk={}", KEY.replace(',', ",,"));
    let json = format!("{{\"driver\":\"isa-applesmc\",\"osk\":\"{KEY}\"}}");
    for one in [&ours, &json] {
        let out = changed(&with_arguments(&["--device", one]), &[]).unwrap();
        assert_eq!(out.matches("isa-applesmc").count(), 1, "{one}");
    }
    refused(
        &with_arguments(&["-device", &ours, "-device", &json]),
        &[],
        Reason::OtherSmc,
        "more than one",
    );

    for on in [
        "ICH9-LPC.acpi-pci-hotplug-with-bridge-support=on",
        "driver=ICH9-LPC,property=acpi-pci-hotplug-with-bridge-support,value=on",
    ] {
        refused(
            &with_arguments(&["-global", on]),
            &[],
            Reason::HotplugConflict,
            "to \"on\"",
        );
    }
    let off = with_arguments(&[
        "-global",
        "driver=ICH9-LPC,property=acpi-pci-hotplug-with-bridge-support,value=off",
    ]);
    assert_eq!(changed(&off, &[]).unwrap().matches("acpi-pci-hotplug").count(), 1);
}

#[test]
fn arguments_that_cannot_be_read() {
    for arguments in [&["-device"][..], &["-global"], &["-no-hpet", "--device"]] {
        refused(
            &with_arguments(arguments),
            &[],
            Reason::ArgumentsNotUnderstood,
            "has no value after it",
        );
    }
    for arguments in [["-device", "{"], ["-device", "a=b"], ["-global", "nonsense"]] {
        refused(
            &with_arguments(&arguments),
            &[],
            Reason::ArgumentsNotUnderstood,
            "cannot be read",
        );
    }
    refused(
        &with_block("<q:commandline><q:arg/></q:commandline>"),
        &[],
        Reason::ArgumentsNotUnderstood,
        "has no value",
    );
    refused(
        &with_block("<q:commandline/><q:commandline/>"),
        &[],
        Reason::ArgumentsNotUnderstood,
        "more than one",
    );
}

#[test]
fn overrides_of_the_system_disk_that_say_something_else() {
    let device = |frontend: &str| {
        with_block(&format!(
            "<q:override><q:device alias='ua-macintosh-hd'>{frontend}</q:device></q:override>"
        ))
    };
    refused(&device(""), &[], Reason::OverrideConflict, "whose mode is native");
    let mode = [("nvme", "override")];
    assert!(changed(&device(""), &mode).is_ok());
    let property = |text: &str| device(&format!("<q:frontend><q:property {text}/></q:frontend>"));
    refused(
        &property("name='driver' type='string' value='ide-hd'"),
        &mode,
        Reason::OverrideConflict,
        "sets \"driver\"",
    );
    refused(
        &property("name='addr' type='string' value='zz'"),
        &mode,
        Reason::OverrideConflict,
        "cannot be read",
    );
    refused(
        &property("name='addr' type='string' value='0x2'"),
        &mode,
        Reason::Misplaced,
        "slot 0x02, which is taken",
    );
    refused(
        &with_block("<q:override/><q:override/>"),
        &[],
        Reason::OverrideConflict,
        "more than one override",
    );
}

#[test]
fn an_nvme_controller_where_macos_does_not_look() {
    let behind = with(READBACK, "bus='0x00' slot='0x10'", "bus='0x03' slot='0x00'");
    refused(&behind, &[], Reason::Misplaced, "is not on bus 0");
    let controller = "<controller type='nvme' index='0'/>";
    let twice = with(READBACK, "<emulator>", &format!("{controller}<emulator>"));
    refused(&twice, &[], Reason::Misplaced, "is there twice");
    let other = with(READBACK, "<serial>HD-0007-A</serial>", "<serial>OTHER</serial>");
    refused(&other, &[], Reason::Misplaced, "another serial than its disk");
    let unknown = with(FRESH, "<devices>", "<devices><controller type='nvme'/>");
    refused(&unknown, &[], Reason::DomainNotUnderstood, "has no index");
}

#[test]
fn documents_that_are_no_domain_or_no_safe_document() {
    for (xml, reason, says) in [
        ("", Reason::DomainMalformed, "not well-formed"),
        ("<domain>", Reason::DomainMalformed, "not well-formed"),
        ("<domainsnapshot/>", Reason::DomainNotUnderstood, "not libvirt's domain"),
        (
            "<domain xmlns='urn:x'><devices/></domain>",
            Reason::DomainNotUnderstood,
            "not libvirt's domain",
        ),
        ("<domain/>", Reason::DomainNotUnderstood, "exactly one <devices>"),
        (
            "<domain><devices/><devices/></domain>",
            Reason::DomainNotUnderstood,
            "exactly one <devices>",
        ),
        (
            "<!DOCTYPE domain><domain><devices/></domain>",
            Reason::DocumentType,
            "document type",
        ),
        (
            "<!DOCTYPE d SYSTEM 'file:///etc/hostname'><domain><devices/></domain>",
            Reason::DocumentType,
            "document type",
        ),
        (
            "<!DOCTYPE d [<!ENTITY a 'b'><!ENTITY c '&a;&a;&a;'>]><domain>&c;</domain>",
            Reason::DocumentType,
            "document type",
        ),
        (
            "<domain>&undefined;</domain>",
            Reason::DomainMalformed,
            "not well-formed",
        ),
        (
            "<?xml version='1.0' encoding='ISO-8859-1'?><domain/>",
            Reason::DomainUnreadable,
            "\"ISO-8859-1\"",
        ),
    ] {
        refused(xml, &[], reason, says);
    }
    refused(
        &with(FRESH, "machine=\"q35\"", "machine=\"pc\""),
        &[],
        Reason::DomainNotUnderstood,
        "machine type is \"pc\"",
    );
    // libvirt's own choice would be another
    refused(
        &with(FRESH, "machine=\"q35\"", ""),
        &[],
        Reason::DomainNotUnderstood,
        "no machine type is said, and macOS machines are q35",
    );
    let huge = FRESH.to_owned() + &" ".repeat(9 << 20);
    refused(&huge, &[], Reason::DomainUnreadable, "bytes, more than");
    let deep = with(
        FRESH,
        "<devices>",
        &format!("{}{}<devices>", "<a>".repeat(90_000), "</a>".repeat(90_000)),
    );
    assert!(changed(&deep, &[]).is_ok(), "depth alone is no fault");
    let many = with(FRESH, "<devices>", &format!("{}<devices>", "<a/>".repeat(300_000)));
    refused(&many, &[], Reason::DomainMalformed, "nodes limit");
    // the word in a comment is no declaration
    assert!(changed(&format!("<!-- <!DOCTYPE x> -->{FRESH}"), &[]).is_ok());
}

#[test]
fn no_refusal_holds_the_key_wherever_the_domain_repeats_it() {
    let key = "key-in-the-wrong-place-key-in-the-wrong-place-key-in-the-wrong-p";
    let osk = Osk::parse(key.as_bytes()).unwrap();
    let vmi = Vmi::from_json(machine_with(&[]).to_string().as_bytes()).unwrap();
    for xml in [
        with(FRESH, "<devices>", &format!("<{key}><devices>")),
        with(FRESH, "<devices>", &format!("<{key}:a/><devices>")),
        with(FRESH, "<devices>", &format!("&{key};<devices>")),
        with(FRESH, "HD-0007-A", key),
        with(FRESH, "bus=\"sata\" dev=\"sda\"", &format!("bus=\"{key}\" dev=\"sda\"")),
    ] {
        let refusal = transform(&xml, &vmi, &osk).unwrap_err();
        assert!(!refusal.to_string().contains(key), "{:?}", refusal.reason());
        assert!(refusal.to_string().contains("(the key)"), "{refusal}");
    }
    // one that a sentence writes otherwise than it stands
    let key = "a\"b\\".repeat(16);
    let osk = Osk::parse(key.as_bytes()).unwrap();
    let refusal = transform(&with(FRESH, "HD-0007-A", &key), &vmi, &osk).unwrap_err();
    assert_eq!(refusal.reason(), Reason::SerialUnusable);
    let said = refusal.to_string();
    assert!(said.contains("(the key)") && !said.contains("b\\"), "{said}");
    assert!(!format!("{:?}", self::osk()).contains(KEY));
}
