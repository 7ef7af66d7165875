//! The kinds that are read and written, and how an object is named.

use std::fmt;

/// A kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Kind {
    PlatformConfig,
    MacOSImage,
    IdentityPool,
    MachineIdentity,
    MacOSMachineClass,
    MacOSMachine,
    MacOSMachinePool,
    MacOSMachineClaim,
    VirtualMachine,
    VirtualMachineInstance,
    DataVolume,
    VolumeSnapshot,
    PersistentVolumeClaim,
    ConfigMap,
    Secret,
    Pod,
    Job,
}

/// How the API server addresses a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// API group; empty for the core.
    pub group: &'static str,
    /// API version.
    pub version: &'static str,
    /// In `kind`.
    pub kind: &'static str,
    /// In the path.
    pub plural: &'static str,
    /// Whether its objects stand in a namespace.
    pub namespaced: bool,
}

impl Address {
    /// As in `apiVersion`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }
}

impl Kind {
    /// How the API server addresses it.
    pub const fn address(self) -> Address {
        const fn at(
            group: &'static str,
            version: &'static str,
            kind: &'static str,
            plural: &'static str,
            namespaced: bool,
        ) -> Address {
            Address {
                group,
                version,
                kind,
                plural,
                namespaced,
            }
        }
        match self {
            Self::PlatformConfig => at(
                "config.dockerios.io",
                "v1alpha1",
                "PlatformConfig",
                "platformconfigs",
                false,
            ),
            Self::MacOSImage => at("image.dockerios.io", "v1alpha1", "MacOSImage", "macosimages", false),
            Self::IdentityPool => at(
                "identity.dockerios.io",
                "v1alpha1",
                "IdentityPool",
                "identitypools",
                false,
            ),
            Self::MachineIdentity => at(
                "identity.dockerios.io",
                "v1alpha1",
                "MachineIdentity",
                "machineidentities",
                false,
            ),
            Self::MacOSMachineClass => at(
                "machine.dockerios.io",
                "v1alpha1",
                "MacOSMachineClass",
                "macosmachineclasses",
                false,
            ),
            Self::MacOSMachine => at(
                "machine.dockerios.io",
                "v1alpha1",
                "MacOSMachine",
                "macosmachines",
                true,
            ),
            Self::MacOSMachinePool => at(
                "machine.dockerios.io",
                "v1alpha1",
                "MacOSMachinePool",
                "macosmachinepools",
                true,
            ),
            Self::MacOSMachineClaim => at(
                "machine.dockerios.io",
                "v1alpha1",
                "MacOSMachineClaim",
                "macosmachineclaims",
                true,
            ),
            Self::VirtualMachine => at("kubevirt.io", "v1", "VirtualMachine", "virtualmachines", true),
            Self::VirtualMachineInstance => at(
                "kubevirt.io",
                "v1",
                "VirtualMachineInstance",
                "virtualmachineinstances",
                true,
            ),
            Self::DataVolume => at("cdi.kubevirt.io", "v1beta1", "DataVolume", "datavolumes", true),
            Self::VolumeSnapshot => at(
                "snapshot.storage.k8s.io",
                "v1",
                "VolumeSnapshot",
                "volumesnapshots",
                true,
            ),
            Self::PersistentVolumeClaim => at("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", true),
            Self::ConfigMap => at("", "v1", "ConfigMap", "configmaps", true),
            Self::Secret => at("", "v1", "Secret", "secrets", true),
            Self::Pod => at("", "v1", "Pod", "pods", true),
            Self::Job => at("batch", "v1", "Job", "jobs", true),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.address().kind)
    }
}

/// Names one object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id {
    /// Its kind.
    pub kind: Kind,
    /// Its namespace; empty for cluster-scoped kinds.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl Id {
    /// In a namespace; an empty namespace for cluster-scoped kinds.
    pub fn new(kind: Kind, namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            kind,
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, namespace, name } = self;
        if namespace.is_empty() {
            write!(f, "{kind}/{name}")
        } else {
            write!(f, "{kind} {namespace}/{name}")
        }
    }
}
