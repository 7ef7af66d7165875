//! What one run is made of: pure. Objects of KubeVirt and CDI are untyped here: the subset of their types that machines
//! are made with lacks what only a Linux guest is given.

use anyhow::Result;
use dockerios_api::config::platform_config::Nvme;
use dockerios_api::names::{BOOTDISK, NVME, SYSTEM_DISK};
use dockerios_kubevirt::names::{HOOK_SIDECARS, PLACE_PCI_ON_ROOT};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::core::DynamicObject;
use serde_json::{Value, json};

use super::fio;

/// Label of all that a run makes; its value is the run's name.
pub(super) const LABEL: &str = "bench.dockerios.io/run";
/// KubeVirt's container that prints a guest's serial console (`logSerialConsole`).
pub(super) const CONSOLE_CONTAINER: &str = "guest-console-log";
/// By which the guest finds the disk that is measured.
const SERIAL: &str = "DOCKERIOSBENCH";
/// The hook wants a key of 64 printable bytes without blanks; a Linux guest has no use for it.
const KEY: &str = "no-key-at-all.For-a-Linux-guest-that-only-measures-a-disk.......";

/// What the guest sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bus {
    Sata,
    /// Made by the hook, in the mode that the launcher needs.
    Nvme(Nvme),
}

impl Bus {
    pub(super) fn word(self) -> &'static str {
        match self {
            Bus::Sata => "sata",
            Bus::Nvme(_) => "nvme",
        }
    }

    fn mode(self) -> &'static str {
        match self {
            Bus::Nvme(Nvme::Override) => "override",
            Bus::Nvme(_) => "native",
            Bus::Sata => "off",
        }
    }
}

/// One of the two runs.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) bus: Bus,
    /// Tells this run from any other.
    pub(super) id: String,
    pub(super) namespace: String,
    pub(super) storage_class: String,
    pub(super) image: String,
    pub(super) size: String,
    pub(super) seconds: u32,
    pub(super) hook: String,
}

impl Run {
    pub(super) fn name(&self) -> String {
        format!("dockerios-bench-{}-{}", self.bus.word(), self.id)
    }

    fn metadata(&self) -> Value {
        json!({"name": self.name(), "namespace": self.namespace, "labels": {LABEL: self.name()}})
    }

    pub(super) fn key(&self) -> Result<ConfigMap> {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": self.metadata(), "data": {"osk": KEY}});
        Ok(serde_json::from_value(map)?)
    }

    pub(super) fn disk(&self) -> Result<DynamicObject> {
        let volume = json!({
            "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "metadata": self.metadata(),
            "spec": {
                "source": {"blank": {}},
                "storage": {
                    "accessModes": ["ReadWriteOnce"], "volumeMode": "Block", "storageClassName": self.storage_class,
                    "resources": {"requests": {"storage": self.size}},
                },
            },
        });
        Ok(serde_json::from_value(volume)?)
    }

    pub(super) fn machine(&self) -> Result<DynamicObject> {
        let sidecar = json!([{
            "image": self.hook, "imagePullPolicy": "IfNotPresent",
            "args": ["serve", "--osk-file=/osk/key", "--grace-seconds=30"],
            "configMap": {"name": self.name(), "key": "osk", "hookPath": "/osk/key"},
        }]);
        let on = |name: &str, order: u32| json!({"name": name, "bootOrder": order, "disk": {"bus": "sata"}});
        let mut measured = on("scratch", 2);
        measured["serial"] = json!(SERIAL);
        measured["cache"] = json!("none");
        let machine = json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": self.metadata(),
            "spec": {
                "runStrategy": "Once",
                "template": {
                    "metadata": {
                        "labels": {LABEL: self.name()},
                        "annotations": {
                            PLACE_PCI_ON_ROOT: "true", SYSTEM_DISK: "scratch", BOOTDISK: "root",
                            NVME: self.bus.mode(), HOOK_SIDECARS: sidecar.to_string(),
                        },
                    },
                    "spec": {
                        "architecture": "amd64", "terminationGracePeriodSeconds": 30,
                        "domain": {
                            "machine": {"type": "q35"},
                            "firmware": {"bootloader": {"efi": {"secureBoot": false}}},
                            "cpu": {"cores": 2, "sockets": 1, "maxSockets": 1},
                            "memory": {"guest": "2Gi", "maxGuest": "2Gi"},
                            "devices": {
                                "autoattachSerialConsole": true, "logSerialConsole": true, "disableHotplug": true,
                                "autoattachMemBalloon": false,
                                "disks": [on("root", 1), measured, on("seed", 3)],
                                "interfaces": [{"name": "default", "model": "e1000", "masquerade": {}}],
                            },
                        },
                        "networks": [{"name": "default", "pod": {}}],
                        "volumes": [
                            {"name": "root", "containerDisk": {"image": self.image}},
                            {"name": "scratch", "persistentVolumeClaim": {"claimName": self.name()}},
                            {"name": "seed", "cloudInitNoCloud": {"userData": fio::user_data(SERIAL, self.seconds)}},
                        ],
                    },
                },
            },
        });
        Ok(serde_json::from_value(machine)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(bus: Bus) -> Run {
        Run {
            bus,
            id: "a1b2c3".to_owned(),
            namespace: "default".to_owned(),
            storage_class: "rbd".to_owned(),
            image: "registry.example/linux:1".to_owned(),
            size: "20Gi".to_owned(),
            seconds: 20,
            hook: "registry.example/hook@sha256:00".to_owned(),
        }
    }

    fn vm(bus: Bus) -> Value {
        serde_json::to_value(run(bus).machine().unwrap()).unwrap()
    }

    #[test]
    fn the_two_machines_differ_in_name_and_mode_alone() {
        let (sata, nvme) = (vm(Bus::Sata), vm(Bus::Nvme(Nvme::Native)));
        let annotation = |vm: &Value| vm["spec"]["template"]["metadata"]["annotations"][NVME].clone();
        assert_eq!((annotation(&sata), annotation(&nvme)), (json!("off"), json!("native")));
        assert_eq!(annotation(&vm(Bus::Nvme(Nvme::Override))), "override");
        let made_same = nvme
            .to_string()
            .replace("dockerios-bench-nvme", "dockerios-bench-sata")
            .replace(r#""dockerios.io/nvme":"native""#, r#""dockerios.io/nvme":"off""#);
        assert_eq!(made_same, sata.to_string());
    }

    #[test]
    fn the_guest_has_a_console_that_is_logged_a_seed_and_the_disk_that_is_measured() {
        let vm = vm(Bus::Nvme(Nvme::Native));
        let spec = &vm["spec"]["template"]["spec"];
        let devices = &spec["domain"]["devices"];
        assert_eq!(devices["logSerialConsole"], true);
        assert_eq!(devices["disks"][1]["serial"], SERIAL);
        assert_eq!(devices["disks"][0]["bootOrder"], 1);
        assert_eq!(
            spec["volumes"][1]["persistentVolumeClaim"]["claimName"],
            "dockerios-bench-nvme-a1b2c3"
        );
        assert!(
            spec["volumes"][2]["cloudInitNoCloud"]["userData"]
                .as_str()
                .unwrap()
                .starts_with("#cloud-config\n")
        );
        let disk = serde_json::to_value(run(Bus::Sata).disk().unwrap()).unwrap();
        assert!(disk["spec"]["source"]["blank"].is_object(), "{disk}");
        assert_eq!(disk["spec"]["storage"]["storageClassName"], "rbd");
    }

    #[test]
    fn the_key_that_is_none_has_the_form_of_one() {
        assert_eq!(KEY.len(), 64);
        assert!(
            KEY.bytes().all(|byte| byte.is_ascii_graphic()),
            "the hook refuses blanks"
        );
        assert!(SERIAL.len() <= 20, "QEMU's NVMe takes 20 characters");
    }
}
