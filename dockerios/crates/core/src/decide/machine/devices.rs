//! QEMU's refusal of a device that macOS needs, recognised in KubeVirt's words.
//!
//! The probe of the launcher's image (`decide::platform`) keeps machines from being started in vain. This is for what is
//! left: an image that differs from the one that was probed, on one node or under one tag.

use dockerios_kubevirt::VirtualMachineInstance;

use super::start::names_hook;

/// Devices that stock builds lack (kubevirt/kubevirt#3743), the longest names first.
const DEVICES: [&str; 3] = ["e1000-82545em", "isa-applesmc", "nvme"];
/// How QEMU, libvirt and those who pass their words on say that there is none.
const REFUSALS: [&str; 7] = [
    "not a valid",
    "unknown",
    "unsupported",
    "not supported",
    "not support",
    "n't support",
    "no such device",
];

/// What is to be said when these words are about a missing device; none when they are about something else.
pub(super) fn missing(vmi: &VirtualMachineInstance, told: &str) -> Option<String> {
    let device = named(told)?;
    let image = vmi
        .status
        .as_ref()
        .and_then(|status| status.launcher_container_image_version.as_deref())
        .filter(|image| !image.is_empty())
        .unwrap_or("its launcher");
    Some(format!(
        "the QEMU of {image} has no {device} device, though the launcher that was probed has it: see docs/launcher.md for \
         one that has, and which image the node holds. KubeVirt said: {told}"
    ))
}

fn named(told: &str) -> Option<&'static str> {
    let lower = told.to_ascii_lowercase();
    if names_hook(&lower) || !REFUSALS.iter().any(|refusal| lower.contains(refusal)) {
        return None;
    }
    let part_of_a_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let words: Vec<&str> = lower.split(|c| !part_of_a_name(c)).collect();
    DEVICES.into_iter().find(|device| words.contains(device))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_qemu_lacks_is_named_in_whatever_words_and_nothing_else_is_taken_for_one() {
        for (told, device) in [
            // QEMU
            (
                "-device nvme,id=n: 'nvme' is not a valid device model name",
                Some("nvme"),
            ),
            ("'isa-applesmc' is not a valid device model name", Some("isa-applesmc")),
            // others' words for it
            (
                "define failed: device model nvme unknown to this emulator",
                Some("nvme"),
            ),
            (
                "unsupported configuration: this QEMU doesn't support 'nvme' disks",
                Some("nvme"),
            ),
            ("e1000-82545em: no such device", Some("e1000-82545em")),
            // about the device, and not about its absence
            ("-device nvme: Could not open '/dev/system': Permission denied", None),
            ("Property 'nvme-ns.rerror' not found", None),
            ("'virtio-vga' is not a valid device model name", None),
            ("hook: the nvme disk's serial is not supported", None),
            ("", None),
        ] {
            assert_eq!(named(told), device, "{told:?}");
        }
    }
}
