//! What a virt-launcher image can do is asked of the image itself: a short pod of it lists QEMU's devices and libvirt's
//! version, and leaves both as its last words.
//!
//! ```text
//! libvirt virtqemud (libvirt) 12.9.0
//! qemu QEMU emulator version 11.1.0
//! device nvme
//! device isa-applesmc
//! ```
//!
//! Invariant: no KVM, no token and no rights are needed; the script uses the shell's own words only, since launcher
//! images carry little else.

use dockerios_api::{
    config::platform_config::Nvme,
    names::{MANAGED_BY, OPERATOR, PROBE_OF},
};
use k8s_openapi::api::{
    batch::v1::{Job, JobSpec},
    core::v1::{Container, PodSpec, PodTemplateSpec},
};
use kube::core::ObjectMeta;

use super::bootdisk::{fingerprint, modest, powerless, unprivileged_pod};

/// libvirt releases from this one on know `bus='nvme'` (libvirt's news of 11.5.0).
const NATIVE_FROM: (u32, u32) = (11, 5);
/// Devices that are asked for, and the NIC model of ours that each stands for.
const DEVICES: [(&str, Option<&str>); 5] = [
    ("nvme", None),
    ("isa-applesmc", None),
    ("e1000", Some("e1000")),
    ("e1000-82545em", Some("e1000-82545em")),
    ("virtio-net-pci", Some("virtio")),
];
/// Where kubelet reads a container's last words.
const LAST_WORDS: &str = "/dev/termination-log";
const DEADLINE_SECONDS: i64 = 900;

/// What an image can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// How it can give an NVMe disk.
    pub nvme: Nvme,
    /// Whether its QEMU has `isa-applesmc`.
    pub smc: bool,
    /// NIC models that its QEMU has.
    pub nic_models: Vec<String>,
}

/// What tells the probe of one image from that of another: the value of its label.
pub fn key(image: &str) -> String {
    fingerprint(&[image])
}

/// Name of the Job that probes that image.
pub fn job_name(image: &str) -> String {
    format!("probe-launcher-{}", key(image))
}

/// The Job that probes that image.
pub fn job(image: &str, namespace: &str) -> Job {
    let labels = [(PROBE_OF, key(image)), (MANAGED_BY, OPERATOR.to_owned())];
    let labels = labels.map(|(label, value)| (label.to_owned(), value));
    let pod = ObjectMeta {
        labels: Some(labels.clone().into()),
        ..ObjectMeta::default()
    };
    let container = Container {
        name: "probe".to_owned(),
        image: Some(image.to_owned()),
        command: Some(vec!["/bin/sh".to_owned(), "-c".to_owned(), script()]),
        termination_message_path: Some(LAST_WORDS.to_owned()),
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        security_context: Some(powerless()),
        resources: Some(modest("128Mi", "512Mi")),
        ..Container::default()
    };
    Job {
        metadata: ObjectMeta {
            name: Some(job_name(image)),
            namespace: Some(namespace.to_owned()),
            labels: Some(labels.into()),
            ..ObjectMeta::default()
        },
        spec: Some(JobSpec {
            backoff_limit: Some(2),
            active_deadline_seconds: Some(DEADLINE_SECONDS),
            template: PodTemplateSpec {
                metadata: Some(pod),
                spec: Some(PodSpec {
                    containers: vec![container],
                    ..unprivileged_pod()
                }),
            },
            ..JobSpec::default()
        }),
        status: None,
    }
}

/// Lists what is asked for into the last words.
fn script() -> String {
    let wanted: Vec<_> = DEVICES.iter().map(|(device, _)| *device).collect();
    format!(
        r#"set -u
first() {{ for f in "$@"; do if [ -x "$f" ]; then echo "$f"; return; fi; done; echo "none of $*" >&2; exit 1; }}
qemu=$(first /usr/libexec/qemu-kvm /usr/bin/qemu-system-x86_64 /usr/bin/qemu-kvm) || exit 1
libvirt=$(first /usr/sbin/virtqemud /usr/sbin/libvirtd /usr/bin/virtqemud) || exit 1
devices=$("$qemu" -device help 2>&1) || {{ echo "$qemu -device help: $devices" >&2; exit 1; }}
version=$("$libvirt" --version) || exit 1
release=$("$qemu" --version) || exit 1
{{
echo "libvirt $version"
echo "qemu ${{release%%,*}}"
for d in {}; do case "$devices" in *"name \"$d\""*) echo "device $d";; esac; done
}} > {LAST_WORDS}
"#,
        wanted.join(" ")
    )
}

/// Reads the last words of a probe.
///
/// # Errors
/// They are not those of a probe; the text says what is missing.
pub fn parse(said: &str) -> Result<Found, String> {
    let field = |key: &str| {
        said.lines()
            .find_map(|line| line.trim().strip_prefix(key)?.strip_prefix(' '))
    };
    let shown: String = said.chars().take(200).collect();
    let libvirt = field("libvirt").ok_or_else(|| format!("the probe told no libvirt version: {shown:?}"))?;
    let version =
        version(libvirt).ok_or_else(|| format!("the probe told a libvirt version without numbers: {libvirt:?}"))?;
    field("qemu").ok_or_else(|| format!("the probe told no QEMU version: {shown:?}"))?;
    let devices: Vec<&str> = said
        .lines()
        .filter_map(|line| line.trim().strip_prefix("device "))
        .collect();
    let has = |device: &str| devices.contains(&device);
    let nics = DEVICES
        .iter()
        .filter_map(|(device, model)| model.filter(|_| has(device)));
    Ok(Found {
        nvme: match has("nvme") {
            false => Nvme::Missing,
            true if version >= NATIVE_FROM => Nvme::Native,
            true => Nvme::Override,
        },
        smc: has("isa-applesmc"),
        nic_models: nics.map(str::to_owned).collect(),
    })
}

/// Major and minor out of `virtqemud (libvirt) 10.10.0`.
fn version(text: &str) -> Option<(u32, u32)> {
    let word = text
        .split_whitespace()
        .find(|word| word.starts_with(|c: char| c.is_ascii_digit()))?;
    let mut numbers = word.split('.').map(|part| part.parse::<u32>().ok());
    Some((numbers.next()??, numbers.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STOCK: &str = "libvirt virtqemud (libvirt) 11.9.0\nqemu QEMU emulator version 10.1.0 (qemu-kvm-10.1.0)\n\
                         device e1000\ndevice virtio-net-pci\n";

    #[test]
    fn a_stock_launcher_has_neither_device_and_the_nics_of_its_qemu() {
        let found = parse(STOCK).expect("a probe's words");
        assert_eq!((found.nvme, found.smc), (Nvme::Missing, false));
        assert_eq!(found.nic_models, ["e1000", "virtio"]);
    }

    #[test]
    fn the_libvirt_release_decides_how_nvme_is_given() {
        for (libvirt, nvme) in [
            ("10.10.0", Nvme::Override),
            ("11.4.0", Nvme::Override),
            ("11.5.0", Nvme::Native),
            ("12.0.0", Nvme::Native),
        ] {
            let said = format!(
                "libvirt libvirtd (libvirt) {libvirt}\nqemu QEMU emulator version 11\ndevice nvme\ndevice isa-applesmc"
            );
            let found = parse(&said).expect("a probe's words");
            assert_eq!((found.nvme, found.smc), (nvme, true), "{libvirt}");
        }
    }

    #[test]
    fn a_device_whose_name_only_begins_alike_is_not_that_device() {
        let found = parse("libvirt v 12.0.0\nqemu q\ndevice nvme-ns\n").expect("a probe's words");
        assert_eq!(found.nvme, Nvme::Missing);
    }

    #[test]
    fn words_that_are_not_a_probe_s_say_what_is_missing() {
        for (said, missing) in [
            ("", "no libvirt version"),
            ("libvirt unknown\nqemu q", "without numbers"),
            ("libvirt v 12.0.0\ndevice nvme", "no QEMU version"),
            ("exec format error", "no libvirt version"),
        ] {
            assert!(parse(said).expect_err(said).contains(missing), "{said}");
        }
    }

    #[test]
    fn the_probe_script_reads_the_devices_that_qemu_lists() {
        // the shell itself, with a QEMU and a libvirt of two lines in place of the real ones
        let folder = std::env::temp_dir().join(format!("probe-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let program = |name: &str, body: &str| {
            use std::os::unix::fs::PermissionsExt;
            let path = folder.join(name);
            std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).expect("written");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("executable");
            path.display().to_string()
        };
        let qemu = program(
            "qemu",
            r#"if [ "$1" = --version ]; then echo 'QEMU emulator version 11.1.0'; else
printf 'name "nvme", bus PCI\nname "isa-applesmc", bus ISA\nname "e1000-82545em", bus PCI\n'; fi"#,
        );
        let libvirt = program("virtqemud", "echo 'virtqemud (libvirt) 12.9.0'");
        let words = folder.join("words");
        let script = script()
            .replace("/usr/libexec/qemu-kvm", &qemu)
            .replace("/usr/sbin/virtqemud", &libvirt)
            .replace(LAST_WORDS, &words.display().to_string());
        let status = std::process::Command::new("/bin/sh")
            .arg("-c")
            .arg(script)
            .status()
            .expect("a shell");
        let said = std::fs::read_to_string(&words).expect("last words");
        std::fs::remove_dir_all(&folder).expect("removed");
        assert!(status.success());
        let found = parse(&said).expect("a probe's words");
        assert_eq!((found.nvme, found.smc), (Nvme::Native, true), "{said}");
        assert_eq!(found.nic_models, ["e1000-82545em"]);
    }
}
