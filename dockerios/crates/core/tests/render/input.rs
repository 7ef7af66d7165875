//! A machine, its class, image, identity and platform, each to be changed by a variant.

use dockerios_api::{
    MacOSMachine, MacOSMachineClassSpec, MachineIdentity, PlatformConfigSpec,
    config::platform_config::Nvme,
    image::macos_image::{MacOSImageSpec, Published},
};
use dockerios_core::render::machine::Input;
use serde_json::{Value, json};

pub const DIGEST: &str = "sha256:0000000000000000000000000000000000000000000000000000000000000000";

/// Everything that an [`Input`] borrows, as JSON that a variant patches.
pub struct Scene {
    pub machine: Value,
    pub class: Value,
    pub image: Value,
    pub published: Value,
    pub identity: Option<Value>,
    pub platform: Value,
    pub nvme: Nvme,
}

impl Scene {
    /// A Shared class with an NVMe disk.
    pub fn shared() -> Self {
        Self {
            machine: json!({
                "apiVersion": "machine.dockerios.io/v1alpha1", "kind": "MacOSMachine",
                "metadata": {"name": "ci-7xk2", "namespace": "team-a", "uid": "2f0c9a51-7b1e-4f0e-9d6f-0a4b8c1d2e3f"},
                "spec": {"machineClassName": "build"}
            }),
            class: json!({
                "imageName": "sequoia-15-6",
                "identity": {"type": "Shared", "shared": {"bootDiskImage": format!("registry.example/bootdisk@{DIGEST}")}},
                "cpu": {"cores": 4, "model": "Haswell-noTSX"},
                "memory": {"size": "8Gi"},
                "systemDisk": {"bus": "nvme", "size": "200Gi", "storageClassName": "mac-csi"},
                "placement": {"nodeSelector": {"example.com/macos": "true"},
                              "tolerations": [{"key": "example.com/macos", "operator": "Exists", "effect": "NoSchedule"}]}
            }),
            image: json!({
                "source": {"pvc": {"namespace": "dockerios-system", "name": "golden"}},
                "size": "200Gi", "storageClassName": "mac-csi", "osVersion": "15.6"
            }),
            published: json!({"kind": "PersistentVolumeClaim", "namespace": "dockerios-system", "name": "img-sequoia-15-6"}),
            identity: None,
            platform: json!({
                "domainHook": {"image": format!("registry.example/domain-hook@{DIGEST}")},
                "smc": {"oskSecretRef": {"name": "smc", "key": "osk"}}
            }),
            nvme: Nvme::Native,
        }
    }

    /// A class whose machines have identities of their own.
    pub fn per_machine() -> Self {
        let mut scene = Self::shared();
        scene.class["identity"] = json!({"type": "PerMachine", "perMachine": {"poolName": "imacpro"}});
        scene.identity = Some(json!({
            "apiVersion": "identity.dockerios.io/v1alpha1", "kind": "MachineIdentity",
            "metadata": {"name": "c02zztest001"},
            "spec": {"poolName": "imacpro", "model": "iMacPro1,1", "serial": "C02ZZTEST001", "mlb": "C02ZZTEST00000001",
                     "rom": "02005E000001", "systemUUID": "6F0C1D1E-0000-4000-8000-000000000001",
                     "macAddress": "02:00:5e:00:00:01"},
            "status": {"bootDisk": {"pvc": "bootdisk-c02zztest001", "sha256": "0".repeat(64),
                       "builderImage": format!("registry.example/builder@{DIGEST}"), "templateSha256": "1".repeat(64)}}
        }));
        scene
    }

    /// Gives the input to `use_it`.
    pub fn with<T>(&self, use_it: impl FnOnce(&Input) -> T) -> T {
        let machine: MacOSMachine = serde_json::from_value(self.machine.clone()).expect("a machine");
        let class: MacOSMachineClassSpec = serde_json::from_value(self.class.clone()).expect("a class");
        let image: MacOSImageSpec = serde_json::from_value(self.image.clone()).expect("an image");
        let published: Published = serde_json::from_value(self.published.clone()).expect("a published image");
        let identity: Option<MachineIdentity> = self
            .identity
            .clone()
            .map(|identity| serde_json::from_value(identity).expect("an identity"));
        let platform: PlatformConfigSpec = serde_json::from_value(self.platform.clone()).expect("a platform");
        use_it(&Input {
            machine: &machine,
            class: &class,
            image: &image,
            published: &published,
            identity: identity.as_ref(),
            platform: &platform,
            nvme: self.nvme,
            collector_url: "https://10.60.0.5:7443",
            platform_namespace: "dockerios-system",
        })
    }
}
