//! The domain's XML: written as KubeVirt's converter writes it, damaged as libvirt and KubeVirt damage it between two
//! calls of a hook, and judged.
//!
//! Invariant: disks carry alias `ua-<volume>`; PCI devices sit on bus 0 when the annotation asks for it; whatever the
//! hook is asked to add is not there before.

use std::fmt::Write;

use dockerios_kubevirt::{
    VirtualMachineInstance,
    domain::{Disk, Domain, Interface, Volume},
    names,
};
use kube::ResourceExt;
use roxmltree::{Document, Node};

/// Namespace of QEMU's own arguments in a domain (libvirt, formatdomain).
const QEMU: &str = "http://libvirt.org/schemas/domain/qemu/1.0";

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

struct Slots {
    next: Option<u8>,
}

impl Slots {
    /// The next address on bus 0, if devices are to be placed there.
    fn take(&mut self) -> String {
        let Some(slot) = self.next else { return String::new() };
        self.next = Some(slot + 1);
        format!("<address type=\"pci\" domain=\"0x0000\" bus=\"0x00\" slot=\"{slot:#04x}\" function=\"0x0\"></address>")
    }
}

/// Writes the domain of an instance.
pub(crate) fn write(vmi: &VirtualMachineInstance) -> String {
    let domain = &vmi.spec.domain;
    let on_root = vmi
        .annotations()
        .get(names::PLACE_PCI_ON_ROOT)
        .is_some_and(|value| value == "true");
    let mut slots = Slots {
        next: on_root.then_some(2),
    };
    let mut xml = String::from("<domain type=\"kvm\" xmlns:qemu=\"http://libvirt.org/schemas/domain/qemu/1.0\">\n");
    let (namespace, name) = (vmi.namespace().unwrap_or_default(), vmi.name_any());
    let _ = writeln!(xml, "\t<name>{}_{}</name>", escaped(&namespace), escaped(&name));
    head(&mut xml, domain, &name);
    xml.push_str("\t<devices>\n");
    for interface in &domain.devices.interfaces {
        write_interface(&mut xml, interface, &mut slots);
    }
    for gpu in domain.devices.gpus.iter().chain(&domain.devices.host_devices) {
        let _ = writeln!(
            xml,
            "\t\t<hostdev type=\"pci\" managed=\"no\"><source><address type=\"pci\" domain=\"0x0000\" bus=\"0x65\" slot=\"0x00\" function=\"0x0\"></address></source>{}<alias name=\"ua-gpu-{}\"></alias></hostdev>",
            slots.take(),
            escaped(&gpu.name)
        );
    }
    let _ = writeln!(
        xml,
        "\t\t<controller type=\"usb\" index=\"0\" model=\"qemu-xhci\">{}</controller>",
        slots.take()
    );
    let video = domain
        .devices
        .video
        .as_ref()
        .and_then(|video| video.type_.as_deref())
        .unwrap_or("bochs");
    let _ = writeln!(
        xml,
        "\t\t<video><model type=\"{}\" heads=\"1\" vram=\"16384\"></model></video>",
        escaped(video)
    );
    let uid = vmi.uid().unwrap_or_default();
    let _ = writeln!(
        xml,
        "\t\t<graphics type=\"vnc\"><listen type=\"socket\" socket=\"/var/run/kubevirt-private/{uid}/virt-vnc\"></listen></graphics>"
    );
    xml.push_str("\t\t<memballoon model=\"none\"></memballoon>\n");
    for (at, disk) in domain.devices.disks.iter().enumerate() {
        let volume = vmi.spec.volumes.iter().find(|volume| volume.name == disk.name);
        write_disk(&mut xml, disk, volume, at);
    }
    for input in &domain.devices.inputs {
        let bus = input.bus.as_deref().unwrap_or("usb");
        let _ = writeln!(
            xml,
            "\t\t<input type=\"{}\" bus=\"{}\"><alias name=\"ua-{}\"></alias></input>",
            escaped(&input.type_),
            escaped(bus),
            escaped(&input.name)
        );
    }
    xml.push_str("\t</devices>\n");
    tail(&mut xml, domain);
    xml.push_str("</domain>\n");
    xml
}

fn head(xml: &mut String, domain: &Domain, name: &str) {
    let memory = domain
        .memory
        .as_ref()
        .and_then(|memory| memory.guest.as_ref())
        .map_or("", |quantity| &quantity.0);
    let _ = writeln!(xml, "\t<memory unit=\"{}\">{}</memory>", unit(memory), digits(memory));
    let machine = domain
        .machine
        .as_ref()
        .and_then(|machine| machine.type_.as_deref())
        .unwrap_or("q35");
    let _ = writeln!(
        xml,
        "\t<os>\n\t\t<type arch=\"x86_64\" machine=\"{}\">hvm</type>\n\t\t<smbios mode=\"sysinfo\"></smbios>\n\t\t<loader readonly=\"yes\" secure=\"no\" type=\"pflash\">/usr/share/OVMF/OVMF_CODE.fd</loader>\n\t\t<nvram template=\"/usr/share/OVMF/OVMF_VARS.fd\">/var/run/kubevirt-private/libvirt/qemu/nvram/{}_VARS.fd</nvram>\n\t</os>",
        escaped(machine),
        escaped(name)
    );
    let firmware = domain.firmware.clone().unwrap_or_default();
    let _ = writeln!(
        xml,
        "\t<sysinfo type=\"smbios\">\n\t\t<system>\n\t\t\t<entry name=\"uuid\">{}</entry>\n\t\t\t<entry name=\"serial\">{}</entry>\n\t\t\t<entry name=\"manufacturer\">KubeVirt</entry>\n\t\t\t<entry name=\"family\">KubeVirt</entry>\n\t\t\t<entry name=\"product\">None</entry>\n\t\t\t<entry name=\"sku\"></entry>\n\t\t</system>\n\t\t<bios></bios>\n\t\t<baseBoard></baseBoard>\n\t\t<chassis></chassis>\n\t</sysinfo>",
        escaped(&firmware.uuid.unwrap_or_default()),
        escaped(&firmware.serial.unwrap_or_default())
    );
}

fn digits(quantity: &str) -> &str {
    quantity.trim_end_matches(|c: char| !c.is_ascii_digit())
}

fn unit(quantity: &str) -> &'static str {
    match &quantity[digits(quantity).len()..] {
        "Ki" => "KiB",
        "Mi" => "MiB",
        "Gi" => "GiB",
        "Ti" => "TiB",
        _ => "b",
    }
}

fn write_interface(xml: &mut String, interface: &Interface, slots: &mut Slots) {
    let mac = interface
        .mac_address
        .as_ref()
        .map(|mac| format!("<mac address=\"{}\"></mac>", escaped(mac)));
    let _ = writeln!(
        xml,
        "\t\t<interface type=\"ethernet\">{}{}<source></source><model type=\"{}\"></model><alias name=\"ua-{}\"></alias><rom enabled=\"no\"></rom></interface>",
        slots.take(),
        mac.unwrap_or_default(),
        escaped(interface.model.as_deref().unwrap_or("virtio")),
        escaped(&interface.name)
    );
}

fn write_disk(xml: &mut String, disk: &Disk, volume: Option<&Volume>, at: usize) {
    let (device, target) = match (&disk.disk, &disk.cdrom) {
        (_, Some(target)) => ("cdrom", target),
        (Some(target), None) => ("disk", target),
        (None, None) => return,
    };
    let name = escaped(&disk.name);
    let letter = char::from(b'a' + u8::try_from(at % 26).unwrap_or(0));
    let block = volume.is_some_and(|volume| volume.data_volume.is_some() || volume.persistent_volume_claim.is_some());
    let (kind, source, format) = match (block, device) {
        (true, _) => ("block", format!("dev=\"/dev/{name}\" name=\"{name}\""), "raw"),
        (false, "cdrom") => (
            "file",
            format!("file=\"/var/run/kubevirt-private/secret-disks/{name}.iso\""),
            "raw",
        ),
        (false, _) => (
            "file",
            format!("file=\"/var/run/kubevirt-ephemeral-disks/disk-data/{name}/disk.qcow2\""),
            "qcow2",
        ),
    };
    let mut driver = format!("cache=\"{}\"", escaped(disk.cache.as_deref().unwrap_or("none")));
    let _ = write!(
        driver,
        " error_policy=\"{}\"",
        escaped(disk.error_policy.as_deref().unwrap_or("stop"))
    );
    if let Some(io) = &disk.io {
        let _ = write!(driver, " io=\"{}\"", escaped(io));
    }
    let _ = write!(driver, " name=\"qemu\" type=\"{format}\" discard=\"unmap\"");
    let bus = escaped(target.bus.as_deref().unwrap_or("sata"));
    let _ = writeln!(xml, "\t\t<disk device=\"{device}\" type=\"{kind}\">");
    let _ = writeln!(xml, "\t\t\t<source {source}></source>");
    let _ = writeln!(xml, "\t\t\t<target bus=\"{bus}\" dev=\"sd{letter}\"></target>");
    let _ = writeln!(xml, "\t\t\t<driver {driver}></driver>");
    let _ = writeln!(xml, "\t\t\t<alias name=\"ua-{name}\"></alias>");
    if target.readonly == Some(true) {
        xml.push_str("\t\t\t<readonly></readonly>\n");
    }
    if let Some(serial) = &disk.serial {
        let _ = writeln!(xml, "\t\t\t<serial>{}</serial>", escaped(serial));
    }
    if let Some(order) = disk.boot_order {
        let _ = writeln!(xml, "\t\t\t<boot order=\"{order}\"></boot>");
    }
    xml.push_str("\t\t</disk>\n");
}

fn tail(xml: &mut String, domain: &Domain) {
    let cpu = domain.cpu.clone().unwrap_or_default();
    let (sockets, cores, threads) = (
        cpu.sockets.unwrap_or(1),
        cpu.cores.unwrap_or(1),
        cpu.threads.unwrap_or(1),
    );
    xml.push_str("\t<clock offset=\"utc\" adjustment=\"reset\"></clock>\n\t<features>\n\t\t<acpi></acpi>\n\t\t<vmport state=\"off\"></vmport>\n\t</features>\n");
    match cpu.model.as_deref() {
        Some(mode @ ("host-passthrough" | "host-model")) => {
            let _ = writeln!(xml, "\t<cpu mode=\"{mode}\">");
        }
        model => {
            let model = escaped(model.unwrap_or("qemu64"));
            let _ = writeln!(xml, "\t<cpu mode=\"custom\">\n\t\t<model>{model}</model>");
        }
    }
    for feature in &cpu.features {
        let policy = feature.policy.as_deref().unwrap_or("require");
        let _ = writeln!(
            xml,
            "\t\t<feature name=\"{}\" policy=\"{}\"></feature>",
            escaped(&feature.name),
            escaped(policy)
        );
    }
    let _ = writeln!(
        xml,
        "\t\t<topology sockets=\"{sockets}\" cores=\"{cores}\" threads=\"{threads}\"></topology>\n\t</cpu>"
    );
    let _ = writeln!(xml, "\t<vcpu placement=\"static\">{}</vcpu>", sockets * cores * threads);
}

/// What is lost between two calls of a hook: QEMU's own arguments with their namespace, and attributes that
/// KubeVirt's structs have no field for.
pub(crate) fn lose(xml: &str) -> Result<String, String> {
    let document = Document::parse(xml).map_err(|error| format!("the hook's answer is no XML: {error}"))?;
    let mut cuts = Vec::new();
    for node in document.descendants().filter(Node::is_element) {
        if node.tag_name().namespace() == Some(QEMU) && node.parent() == Some(document.root_element()) {
            cuts.push(node.range());
        }
        let lost = ["detect_zeroes", "vendor_id"].map(|name| node.attribute_node(name));
        cuts.extend(lost.into_iter().flatten().map(|attribute| attribute.range()));
    }
    cuts.sort_by_key(|range| std::cmp::Reverse(range.start));
    let mut left = xml.to_owned();
    for range in cuts {
        left.replace_range(range, "");
    }
    for quote in ['"', '\''] {
        left = left.replace(&format!(" xmlns:qemu={quote}{QEMU}{quote}"), "");
    }
    Ok(left)
}

/// Devices that the domain asks QEMU for beyond what every build has.
pub(crate) fn needs(xml: &str) -> Result<Vec<String>, String> {
    let document = Document::parse(xml).map_err(|error| format!("the domain is no XML: {error}"))?;
    let mut devices = Vec::new();
    for node in document.descendants().filter(Node::is_element) {
        let name = node.tag_name().name();
        if name == "target" && node.attribute("bus") == Some("nvme") {
            devices.push("nvme".to_owned());
        }
        if name == "model" && node.parent().is_some_and(|parent| parent.has_tag_name("interface")) {
            devices.extend(
                node.attribute("type")
                    .filter(|model| *model != "virtio")
                    .map(str::to_owned),
            );
        }
        if node.tag_name().namespace() == Some(QEMU) && name == "arg" {
            let value = node.attribute("value").unwrap_or_default();
            devices.extend(
                ["isa-applesmc", "nvme"]
                    .into_iter()
                    .find(|known| value.split(',').next() == Some(known))
                    .map(str::to_owned),
            );
        }
        if node.tag_name().namespace() == Some(QEMU) && name == "property" && node.attribute("name") == Some("driver") {
            devices.extend(node.attribute("value").map(str::to_owned));
        }
    }
    Ok(devices)
}

/// Whether the hook did what the instance's annotations ask for.
pub(crate) fn judge(xml: &str, vmi: &VirtualMachineInstance) -> Result<(), String> {
    let document = Document::parse(xml).map_err(|error| format!("the hook's answer is no XML: {error}"))?;
    let annotation = |key: &str| vmi.annotations().get(key).map(String::as_str);
    let (Some(system), Some(bootdisk)) = (
        annotation("dockerios.io/system-disk"),
        annotation("dockerios.io/bootdisk"),
    ) else {
        return Err(
            "the hook accepted an instance without dockerios.io/system-disk or dockerios.io/bootdisk".to_owned(),
        );
    };
    let controllers = document
        .descendants()
        .filter(|node| node.tag_name().namespace() == Some(QEMU) && node.has_tag_name((QEMU, "arg")))
        .filter(|node| {
            node.attribute("value")
                .is_some_and(|value| value.starts_with("isa-applesmc,"))
        })
        .count();
    if controllers != 1 {
        return Err(format!("the hook's answer has {controllers} SMCs"));
    }
    let bus = |volume: &str| {
        let alias = format!("ua-{volume}");
        let disk = document.descendants().find(|node| {
            node.has_tag_name("disk")
                && node
                    .children()
                    .any(|child| child.has_tag_name("alias") && child.attribute("name") == Some(&alias))
        });
        disk.and_then(|disk| {
            disk.children()
                .find(|child| child.has_tag_name("target"))?
                .attribute("bus")
        })
    };
    let wished = match annotation("dockerios.io/nvme") {
        None | Some("native") => "nvme",
        _ => "sata",
    };
    if bus(system) != Some(wished) {
        return Err(format!(
            "system disk {system:?} is on {:?} instead of {wished}",
            bus(system)
        ));
    }
    if bus(bootdisk) != Some("sata") {
        return Err(format!(
            "bootdisk {bootdisk:?} is on {:?} instead of sata",
            bus(bootdisk)
        ));
    }
    if annotation("dockerios.io/nvme") == Some("override") && !needs(xml)?.iter().any(|device| device == "nvme") {
        return Err("the hook's answer overrides no driver with nvme".to_owned());
    }
    Ok(())
}
