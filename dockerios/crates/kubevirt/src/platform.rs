//! The configuration of KubeVirt and of CDI: the gates and devices that DockerIOS needs, and plugins, of which it must
//! know.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Condition;

/// The installation.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "kubevirt.io",
    version = "v1",
    kind = "KubeVirt",
    plural = "kubevirts",
    shortname = "kv",
    shortname = "kvs",
    namespaced,
    status = "KubeVirtStatus",
    derive = "Default",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct KubeVirtSpec {
    /// Settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configuration: Option<Configuration>,
}

/// Settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Configuration {
    /// Gates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub developer_configuration: Option<DeveloperConfiguration>,
    /// Devices that machines may ask for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permitted_host_devices: Option<PermittedHostDevices>,
}

/// Gates.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeveloperConfiguration {
    /// Gates that are on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub feature_gates: Vec<String>,
    /// Gates that are off.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disabled_feature_gates: Vec<String>,
}

/// Devices that machines may ask for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PermittedHostDevices {
    /// PCI devices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pci_host_devices: Vec<PciHostDevice>,
    /// Shares of a device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mediated_devices: Vec<MediatedDevice>,
}

impl PermittedHostDevices {
    /// Resources of all of them, as nodes offer them.
    pub fn resources(&self) -> impl Iterator<Item = &str> {
        let cards = self.pci_host_devices.iter().map(|device| &*device.resource_name);
        cards.chain(self.mediated_devices.iter().map(|device| &*device.resource_name))
    }
}

/// A PCI device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PciHostDevice {
    /// `1002:67df`.
    #[serde(default)]
    pub pci_vendor_selector: String,
    /// Resource of the node.
    #[serde(default)]
    pub resource_name: String,
    /// Another device plugin serves it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_resource_provider: Option<bool>,
}

/// A share of a device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MediatedDevice {
    /// Type name.
    #[serde(default)]
    pub mdev_name_selector: String,
    /// Resource of the node.
    #[serde(default)]
    pub resource_name: String,
}

/// What virt-operator says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KubeVirtStatus {
    /// `Deploying`, `Deployed`, …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// Version in place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_kube_virt_version: Option<String>,
    /// What virt-operator deployed, as JSON text: registry, prefix, version and each image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_deployment_config: Option<String>,
    /// Version wished for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_kube_virt_version: Option<String>,
    /// Conditions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// Changes every domain of the cluster; that there is one is all that matters here.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "plugin.kubevirt.io",
    version = "v1alpha1",
    kind = "Plugin",
    plural = "plugins",
    derive = "Default",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct PluginSpec {}

/// CDI's configuration as it is in force; the one object is called `config`.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "cdi.kubevirt.io",
    version = "v1beta1",
    kind = "CDIConfig",
    plural = "cdiconfigs",
    root = "CdiConfig",
    derive = "Default",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct CdiConfigSpec {
    /// Gates that are on, such as `HonorWaitForFirstConsumer`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub feature_gates: Vec<String>,
}
