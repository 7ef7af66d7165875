//! What virt-api refuses. Invariant: a pure function; what the real one lets through, such as a GPU that is not
//! permitted or a ConfigMap that does not exist, is let through here.

use dockerios_kubevirt::{
    domain::{Disk, Domain},
    names,
    vmi::VirtualMachineInstanceSpec,
};
use serde_json::Value;

const BUSES: [&str; 4] = ["virtio", "sata", "scsi", "usb"];
const NIC_MODELS: [&str; 7] = ["e1000", "e1000e", "igb", "ne2k_pci", "pcnet", "rtl8139", "virtio"];

/// Refusals for a VirtualMachine or VirtualMachineInstance, each with its field.
pub(crate) fn refusals(object: &Value, gates: &[String]) -> Vec<String> {
    let (template, at) = match object["kind"].as_str() {
        Some("VirtualMachine") => (&object["spec"]["template"], "spec.template.spec"),
        _ => (object, "spec"),
    };
    let spec: VirtualMachineInstanceSpec = match serde_json::from_value(template["spec"].clone()) {
        Ok(spec) => spec,
        Err(error) => return vec![format!("{at}: {error}")],
    };
    let mut out = Vec::new();
    let on = |gate: &str| gates.iter().any(|known| known == gate);
    if template["metadata"]["annotations"].get(names::HOOK_SIDECARS).is_some() && !on("Sidecar") {
        out.push(format!(
            "{at}: invalid entry metadata.annotations.{}: sidecar feature gate is not enabled",
            names::HOOK_SIDECARS
        ));
    }
    if !spec.domain.devices.host_devices.is_empty() && !on("HostDevices") {
        out.push(format!(
            "{at}.domain.devices.hostDevices: HostDevices feature gate is not enabled in kubevirt-config"
        ));
    }
    disks(&spec, at, &mut out);
    interfaces(&spec, at, &mut out);
    processors(&spec.domain, at, &mut out);
    memory(&spec.domain, at, &mut out);
    let secure = spec
        .domain
        .firmware
        .and_then(|f| f.bootloader?.efi)
        .map(|efi| efi.secure_boot.unwrap_or(true));
    let smm = spec
        .domain
        .features
        .and_then(|f| f.smm)
        .is_some_and(|smm| smm.enabled.unwrap_or(true));
    if secure == Some(true) && !smm {
        out.push(format!(
            "{at}.domain.firmware.bootloader.efi.secureBoot: SecureBoot requires SMM to be enabled."
        ));
    }
    out
}

fn bus(disk: &Disk) -> Option<&str> {
    disk.disk
        .as_ref()
        .or(disk.cdrom.as_ref())
        .and_then(|target| target.bus.as_deref())
}

fn disks(spec: &VirtualMachineInstanceSpec, at: &str, out: &mut Vec<String>) {
    for (index, disk) in spec.domain.devices.disks.iter().enumerate() {
        let field = format!("{at}.domain.devices.disks[{index}]");
        if let Some(bus) = bus(disk)
            && !BUSES.contains(&bus)
        {
            out.push(format!(
                "{field}.disk.bus is set with an unrecognized bus {bus}, must be one of: {BUSES:?}"
            ));
        }
        if disk.dedicated_io_thread == Some(true) && bus(disk) == Some("sata") {
            out.push(format!("{field}: IOThreads are not supported for disks on a sata bus"));
        }
        if disk.boot_order == Some(0) {
            out.push(format!("{field}.bootOrder must have a boot order > 0, if supplied"));
        }
        if !spec.volumes.iter().any(|volume| volume.name == disk.name) {
            out.push(format!("{field}.name '{}' not found.", disk.name));
        }
    }
    for (index, volume) in spec.volumes.iter().enumerate() {
        if !spec.domain.devices.disks.iter().any(|disk| disk.name == volume.name) {
            out.push(format!("{at}.volumes[{index}].name '{}' not found.", volume.name));
        }
    }
}

fn interfaces(spec: &VirtualMachineInstanceSpec, at: &str, out: &mut Vec<String>) {
    for (index, interface) in spec.domain.devices.interfaces.iter().enumerate() {
        let field = format!("{at}.domain.devices.interfaces[{index}]");
        if let Some(model) = interface.model.as_deref()
            && !NIC_MODELS.contains(&model)
        {
            out.push(format!(
                "{field}.name {} uses model {model} that is not supported.",
                interface.name
            ));
        }
        if !spec.networks.iter().any(|network| network.name == interface.name) {
            out.push(format!("{field}.name '{}' not found.", interface.name));
        }
    }
}

fn processors(domain: &Domain, at: &str, out: &mut Vec<String>) {
    let Some(cpu) = &domain.cpu else { return };
    let dedicated = cpu.dedicated_cpu_placement == Some(true);
    if cpu.isolate_emulator_thread == Some(true) && !dedicated {
        out.push(format!("{at}.domain.cpu.isolateEmulatorThread should be only set in combination with {at}.domain.cpu.dedicatedCPUPlacement"));
    }
    if cpu
        .numa
        .as_ref()
        .is_some_and(|numa| numa.guest_mapping_passthrough.is_some())
    {
        if !dedicated {
            out.push(format!("{at}.domain.cpu.dedicatedCpuPlacement must be set to true when NUMA topology strategy is set in {at}.domain.cpu.numa.guestMappingPassthrough"));
        }
        if domain.memory.as_ref().is_none_or(|memory| memory.hugepages.is_none()) {
            out.push(format!("{at}.domain.memory.hugepages must be requested when NUMA topology strategy is set in {at}.domain.cpu.numa.guestMappingPassthrough"));
        }
        if domain.memory.as_ref().is_some_and(|memory| memory.max_guest.is_some()) {
            out.push(format!(
                "{at}.domain.memory.maxGuest: memory hotplug is not compatible with guest mapping passthrough"
            ));
        }
    }
}

/// Bytes of a quantity with a binary suffix, or none.
fn bytes(quantity: &str) -> Option<u64> {
    let digits = quantity.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match &quantity[digits.len()..] {
        "" => 1,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1_u64 << 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

fn memory(domain: &Domain, at: &str, out: &mut Vec<String>) {
    let Some(memory) = &domain.memory else { return };
    let size =
        |quantity: Option<&k8s_openapi::apimachinery::pkg::api::resource::Quantity>| quantity.and_then(|q| bytes(&q.0));
    let page = memory
        .hugepages
        .as_ref()
        .and_then(|pages| size(pages.page_size.as_ref()));
    if let (Some(guest), Some(page)) = (size(memory.guest.as_ref()), page)
        && (page == 0 || guest % page != 0)
    {
        out.push(format!(
            "{at}.domain.memory.guest '{guest}' is not a multiple of the page size {at}.domain.hugepages.size '{page}'"
        ));
    }
    if let (Some(guest), Some(most)) = (size(memory.guest.as_ref()), size(memory.max_guest.as_ref()))
        && most < guest
    {
        out.push(format!(
            "{at}.domain.memory.maxGuest: Guest memory is greater than the configured maxGuest memory"
        ));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn machine() -> Value {
        let text = include_str!("../../../kubevirt/tests/data/machine.yaml");
        use serde::Deserialize;
        serde_yaml::Deserializer::from_str(text)
            .map(|document| Value::deserialize(document).expect("YAML"))
            .find(|document| document["kind"] == "VirtualMachine")
            .expect("the manifest has a machine")
    }

    fn gates() -> Vec<String> {
        ["Sidecar", "HostDevices"].map(str::to_owned).to_vec()
    }

    #[test]
    fn the_rendered_machine_passes_and_each_known_mistake_is_refused_with_its_field() {
        assert_eq!(refusals(&machine(), &gates()), Vec::<String>::new());
        let mistakes: &[(&str, Value, &str)] = &[
            (
                "/domain/devices/disks/1/disk/bus",
                json!("nvme"),
                "disks[1].disk.bus is set with an unrecognized bus nvme",
            ),
            (
                "/domain/devices/disks/1/dedicatedIOThread",
                json!(true),
                "IOThreads are not supported for disks on a sata bus",
            ),
            (
                "/domain/devices/interfaces/0/model",
                json!("vmxnet3"),
                "uses model vmxnet3 that is not supported",
            ),
            (
                "/domain/cpu/dedicatedCpuPlacement",
                json!(false),
                "isolateEmulatorThread should be only set in combination",
            ),
            (
                "/domain/memory/hugepages",
                Value::Null,
                "hugepages must be requested when NUMA",
            ),
            (
                "/domain/memory/maxGuest",
                json!("16Gi"),
                "not compatible with guest mapping passthrough",
            ),
            (
                "/domain/memory/guest",
                json!("1500Mi"),
                "is not a multiple of the page size",
            ),
            (
                "/domain/firmware/bootloader/efi/secureBoot",
                Value::Null,
                "SecureBoot requires SMM",
            ),
            ("/volumes/0/name", json!("other"), "disks[0].name 'bootdisk' not found."),
            (
                "/networks/0/name",
                json!("other"),
                "interfaces[0].name 'default' not found.",
            ),
        ];
        for (pointer, value, reason) in mistakes {
            let mut wrong = machine();
            let (parent, field) = pointer.rsplit_once('/').expect("a path");
            wrong["spec"]["template"]["spec"].pointer_mut(parent).expect(pointer)[field] = value.clone();
            let found = refusals(&wrong, &gates());
            assert!(
                found.iter().any(|refusal| refusal.contains(reason)),
                "{pointer}: {found:?}"
            );
        }
    }

    #[test]
    fn gates_that_are_off_refuse_what_needs_them() {
        let mut hooked = machine();
        hooked["spec"]["template"]["metadata"]["annotations"][names::HOOK_SIDECARS] = json!("[");
        let found = refusals(&hooked, &[]);
        assert!(
            found
                .iter()
                .any(|refusal| refusal.contains("sidecar feature gate is not enabled")),
            "{found:?}"
        );
        assert!(
            found.iter().any(|refusal| refusal.contains("HostDevices feature gate")),
            "{found:?}"
        );
    }
}
