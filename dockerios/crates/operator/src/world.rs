//! All that was seen of the cluster, owned by the one task that decides. Nothing here waits or writes.

use std::collections::{BTreeSet, HashMap};

use dockerios_api::{
    IdentityPool, MacOSImage, MacOSMachine, MacOSMachineClaim, MacOSMachineClass, MacOSMachinePool, MachineIdentity,
    PlatformConfig,
};
use dockerios_core::{Id, Seen, plan::Refusal};
use dockerios_kubevirt::{DataVolume, KubeVirt, Plugin, StorageProfile, VirtualMachine, VirtualMachineInstance};
use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{Namespace, Node, PersistentVolumeClaim, Pod},
    storage::v1::{CSIStorageCapacity, StorageClass},
};
use kube::core::{DynamicObject, PartialObjectMeta};
use serde_json::Value;

use crate::{
    headroom::Capacities,
    promise::Promises,
    rights::{CloneSource, Rights},
    shelf::{Change, Place, Shelf},
    source::Source,
};

/// What came in about one kind.
#[derive(Debug)]
pub enum Notice {
    /// A whole consistent list, and the resourceVersion it was made at.
    List(Vec<Value>, u64),
    /// An object as it is now.
    Put(Value),
    /// An object that is gone, as it was last.
    Gone(Value),
    /// Nothing changed up to this resourceVersion.
    Bookmark(u64),
    /// The list failed. What was seen before stays.
    Unreadable(String),
}

macro_rules! shelves {
    ($($(#[$about:meta])* $field:ident: $kind:ty = $source:ident,)+) => {
        /// All that was seen of the cluster.
        #[derive(Debug)]
        pub struct World {
            $($(#[$about])* pub $field: Shelf<$kind>,)+
            /// Where images, bootdisks and keys are.
            pub platform_namespace: String,
            /// URL at which guests reach the collector when PlatformConfig names none.
            pub collector_url: String,
            /// Free space per storage class, as its source last told.
            pub capacity: Capacities,
            /// From where the operator may clone, as the API server last said.
            pub rights: Rights,
            /// Machines on their way to claims.
            pub promises: Promises,
            refusals: HashMap<Id, Refusal>,
        }

        impl World {
            /// Nothing seen yet.
            pub fn new(platform_namespace: &str, collector_url: &str) -> Self {
                Self {
                    $($field: Shelf::new(stringify!($source)),)+
                    platform_namespace: platform_namespace.to_owned(),
                    collector_url: collector_url.to_owned(),
                    capacity: Capacities::default(),
                    rights: Rights::default(),
                    promises: Promises::default(),
                    refusals: HashMap::new(),
                }
            }

            /// Takes in a notice; gives what became of which objects.
            pub fn take(&mut self, source: Source, notice: Notice) -> Vec<Change> {
                match source { $(Source::$source => take(&mut self.$field, notice),)+ }
            }

            /// How many objects of each kind are there and cannot be read.
            pub fn unreadable(&self) -> Vec<(&'static str, usize)> {
                vec![$((self.$field.kind(), self.$field.unreadable())),+]
            }

            /// Whether everything of that kind up to that version was seen.
            pub fn caught_up(&self, source: Source, version: u64) -> bool {
                match source { $(Source::$source => self.$field.caught_up(version),)+ }
            }
        }
    };
}

shelves! {
    /// The PlatformConfig.
    platforms: PlatformConfig = PlatformConfigs,
    /// Images.
    images: MacOSImage = Images,
    /// Identity pools.
    identity_pools: IdentityPool = IdentityPools,
    /// Identities.
    identities: MachineIdentity = Identities,
    /// Classes.
    classes: MacOSMachineClass = Classes,
    /// Machines.
    machines: MacOSMachine = Machines,
    /// Machine pools.
    pools: MacOSMachinePool = MachinePools,
    /// Claims.
    claims: MacOSMachineClaim = Claims,
    /// All VirtualMachines.
    vms: VirtualMachine = VirtualMachines,
    /// All VMIs.
    vmis: VirtualMachineInstance = Instances,
    /// All DataVolumes.
    data_volumes: DataVolume = DataVolumes,
    /// All PVCs.
    volumes: PersistentVolumeClaim = Volumes,
    /// VolumeSnapshots of the platform namespace.
    snapshots: DynamicObject = Snapshots,
    /// Launcher pods.
    pods: Pod = LauncherPods,
    /// Pods of bootdisk builders and launcher probes, in the platform namespace.
    builders: Pod = BuilderPods,
    /// ConfigMaps of machines, without what is in them.
    hook_configs: PartialObjectMeta = HookConfigs,
    /// Jobs of the platform namespace.
    jobs: Job = Jobs,
    /// Nodes.
    nodes: Node = Nodes,
    /// Namespaces.
    namespaces: Namespace = Namespaces,
    /// Storage classes.
    storage_classes: StorageClass = StorageClasses,
    /// CDI's view of them.
    storage_profiles: StorageProfile = StorageProfiles,
    /// What drivers say of their room.
    capacities: CSIStorageCapacity = StorageCapacities,
    /// KubeVirt's own objects.
    kubevirts: KubeVirt = KubeVirts,
    /// CDI's configuration.
    cdi_configs: DynamicObject = CdiConfigs,
    /// KubeVirt plugins.
    plugins: Plugin = Plugins,
}

impl World {
    /// The PlatformConfig.
    pub fn platform(&self) -> Seen<std::sync::Arc<PlatformConfig>> {
        self.platforms.get("", dockerios_api::names::PLATFORM)
    }

    /// From what is cloned: from the platform namespace for machines, and from where images come that are not published
    /// yet.
    pub fn clone_sources(&self) -> BTreeSet<CloneSource> {
        let home = &self.platform_namespace;
        let mut sources = BTreeSet::from([CloneSource::all_of(home)]);
        let images = self.images.readable();
        let unpublished = images.present().into_iter().flatten().filter(|image| {
            let published = image.status.as_ref().and_then(|status| status.published.as_ref());
            published.is_none()
        });
        let origins = unpublished.filter_map(|image| image.spec.source.within().cloned());
        let foreign = origins.filter(|origin| origin.namespace.0 != *home);
        sources.extend(foreign.map(|origin| CloneSource::one(&origin.namespace, &origin.name)));
        sources
    }

    /// All objects of the kinds that have a pass.
    pub fn places_with_a_pass(&self) -> Vec<(Source, Vec<Place>)> {
        vec![
            (Source::PlatformConfigs, self.platforms.every_place()),
            (Source::Images, self.images.every_place()),
            (Source::IdentityPools, self.identity_pools.every_place()),
            (Source::Identities, self.identities.every_place()),
            (Source::Classes, self.classes.every_place()),
            (Source::Machines, self.machines.every_place()),
            (Source::MachinePools, self.pools.every_place()),
            (Source::VirtualMachines, self.vms.every_place()),
            (Source::DataVolumes, self.data_volumes.every_place()),
            (Source::HookConfigs, self.hook_configs.every_place()),
            (Source::Claims, self.claims.every_place()),
        ]
    }

    /// The last refusal of a step about that object, if its last pass had one.
    pub fn refusal(&self, id: &Id) -> Option<Refusal> {
        self.refusals.get(id).cloned()
    }

    /// Keeps, or forgets, the refusal of an object's last pass.
    pub fn remember(&mut self, id: &Id, refusal: Option<Refusal>) {
        match refusal {
            Some(refusal) => self.refusals.insert(id.clone(), refusal),
            None => self.refusals.remove(id),
        };
    }
}

/// Takes in a notice about one shelf; gives what became of which objects.
pub fn take<K: serde::de::DeserializeOwned>(shelf: &mut Shelf<K>, notice: Notice) -> Vec<Change> {
    match notice {
        Notice::List(objects, version) => shelf.replace(objects, version),
        Notice::Put(object) => shelf.put(object).into_iter().collect(),
        Notice::Gone(object) => shelf.delete(&object).into_iter().collect(),
        Notice::Bookmark(version) => {
            shelf.bookmark(version);
            Vec::new()
        }
        Notice::Unreadable(why) => {
            shelf.cannot_list(&why);
            Vec::new()
        }
    }
}
