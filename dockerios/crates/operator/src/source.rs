//! What is watched, and where.

use dockerios_core::Kind;

/// One list that is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Source {
    PlatformConfigs,
    Images,
    IdentityPools,
    Identities,
    Classes,
    Machines,
    MachinePools,
    Claims,
    VirtualMachines,
    Instances,
    DataVolumes,
    Volumes,
    Snapshots,
    LauncherPods,
    BuilderPods,
    HookConfigs,
    Jobs,
    Nodes,
    Namespaces,
    StorageClasses,
    StorageProfiles,
    StorageCapacities,
    KubeVirts,
    CdiConfigs,
    Plugins,
}

impl Source {
    /// All of them.
    pub const ALL: [Self; 25] = [
        Self::PlatformConfigs,
        Self::Images,
        Self::IdentityPools,
        Self::Identities,
        Self::Classes,
        Self::Machines,
        Self::MachinePools,
        Self::Claims,
        Self::VirtualMachines,
        Self::Instances,
        Self::DataVolumes,
        Self::Volumes,
        Self::Snapshots,
        Self::LauncherPods,
        Self::BuilderPods,
        Self::HookConfigs,
        Self::Jobs,
        Self::Nodes,
        Self::Namespaces,
        Self::StorageClasses,
        Self::StorageProfiles,
        Self::StorageCapacities,
        Self::KubeVirts,
        Self::CdiConfigs,
        Self::Plugins,
    ];

    /// The kind of its objects and its path, with the platform namespace where it is limited to that.
    pub fn path(self, platform_namespace: &str) -> (&'static str, String) {
        let cluster = |kind: Kind| {
            let at = kind.address();
            let root = if at.group.is_empty() {
                "/api".to_owned()
            } else {
                format!("/apis/{}", at.group)
            };
            (at.kind, format!("{root}/{}/{}", at.version, at.plural))
        };
        let within = |kind: Kind| {
            let (name, path) = cluster(kind);
            let (root, plural) = path.rsplit_once('/').unwrap_or_default();
            (name, format!("{root}/namespaces/{platform_namespace}/{plural}"))
        };
        match self {
            Self::PlatformConfigs => cluster(Kind::PlatformConfig),
            Self::Images => cluster(Kind::MacOSImage),
            Self::IdentityPools => cluster(Kind::IdentityPool),
            Self::Identities => cluster(Kind::MachineIdentity),
            Self::Classes => cluster(Kind::MacOSMachineClass),
            Self::Machines => cluster(Kind::MacOSMachine),
            Self::MachinePools => cluster(Kind::MacOSMachinePool),
            Self::Claims => cluster(Kind::MacOSMachineClaim),
            Self::VirtualMachines => cluster(Kind::VirtualMachine),
            Self::Instances => cluster(Kind::VirtualMachineInstance),
            Self::DataVolumes => cluster(Kind::DataVolume),
            Self::Volumes => cluster(Kind::PersistentVolumeClaim),
            Self::Snapshots => within(Kind::VolumeSnapshot),
            Self::LauncherPods => cluster(Kind::Pod),
            Self::BuilderPods => within(Kind::Pod),
            Self::HookConfigs => cluster(Kind::ConfigMap),
            Self::Jobs => within(Kind::Job),
            Self::Nodes => ("Node", "/api/v1/nodes".into()),
            Self::Namespaces => ("Namespace", "/api/v1/namespaces".into()),
            Self::StorageClasses => ("StorageClass", "/apis/storage.k8s.io/v1/storageclasses".into()),
            Self::StorageProfiles => ("StorageProfile", "/apis/cdi.kubevirt.io/v1beta1/storageprofiles".into()),
            Self::StorageCapacities => (
                "CSIStorageCapacity",
                "/apis/storage.k8s.io/v1/csistoragecapacities".into(),
            ),
            Self::KubeVirts => ("KubeVirt", "/apis/kubevirt.io/v1/kubevirts".into()),
            Self::CdiConfigs => ("CDIConfig", "/apis/cdi.kubevirt.io/v1beta1/cdiconfigs".into()),
            Self::Plugins => ("Plugin", "/apis/plugin.kubevirt.io/v1alpha1/plugins".into()),
        }
    }

    /// Only those with that label.
    pub fn labels(self) -> Option<String> {
        match self {
            Self::LauncherPods => Some(format!(
                "{}={}",
                dockerios_kubevirt::names::APP_LABEL,
                dockerios_kubevirt::names::LAUNCHER
            )),
            Self::HookConfigs => Some(dockerios_api::names::MACHINE_UID.to_owned()),
            Self::BuilderPods | Self::Jobs => Some(format!("{MANAGED_BY}={MANAGER}")),
            _ => None,
        }
    }

    /// Only metadata is asked for: what is in them (the SMC's key) is nobody's business.
    pub fn metadata_only(self) -> bool {
        matches!(self, Self::HookConfigs)
    }

    /// Kinds that a cluster may well lack: their absence is an empty list, not a riddle. KubeVirt's own object is among
    /// them for the words of PlatformConfig alone; what tells whether a guest runs or a disk is there never is: a CRD
    /// that was removed would free identities in use.
    pub fn optional(self) -> bool {
        matches!(
            self,
            Self::Snapshots | Self::Plugins | Self::CdiConfigs | Self::KubeVirts
        )
    }

    /// The source in which a written object of that kind will be seen, if it is watched at all.
    pub fn of(kind: Kind) -> Option<Self> {
        Some(match kind {
            Kind::PlatformConfig => Self::PlatformConfigs,
            Kind::MacOSImage => Self::Images,
            Kind::IdentityPool => Self::IdentityPools,
            Kind::MachineIdentity => Self::Identities,
            Kind::MacOSMachineClass => Self::Classes,
            Kind::MacOSMachine => Self::Machines,
            Kind::MacOSMachinePool => Self::MachinePools,
            Kind::MacOSMachineClaim => Self::Claims,
            Kind::VirtualMachine => Self::VirtualMachines,
            Kind::VirtualMachineInstance => Self::Instances,
            Kind::DataVolume => Self::DataVolumes,
            Kind::PersistentVolumeClaim => Self::Volumes,
            Kind::VolumeSnapshot => Self::Snapshots,
            Kind::Job => Self::Jobs,
            Kind::ConfigMap | Kind::Secret | Kind::Pod => return None,
        })
    }
}

/// Label of Jobs and pods that the operator makes in the platform namespace.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Value of [`MANAGED_BY`].
pub const MANAGER: &str = "dockerios-operator";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_that_is_not_served_says_nothing_of_what_runs_or_is_stored() {
        let lacking: Vec<_> = Source::ALL.into_iter().filter(|source| source.optional()).collect();
        assert_eq!(
            lacking,
            [
                Source::Snapshots,
                Source::KubeVirts,
                Source::CdiConfigs,
                Source::Plugins
            ]
        );
    }
}
