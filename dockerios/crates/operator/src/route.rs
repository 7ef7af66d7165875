//! Which passes a change asks for: the object's own, and those of everybody who reads it.

use dockerios_api::names::MACHINE_UID;
use dockerios_core::{Id, Kind};
use kube::core::ObjectMeta;

use crate::{
    index::{Index, IndexKey},
    shelf::{Change, Place},
    source::Source,
    world::World,
};

/// The passes that a change of an object of that source asks for.
pub fn route(world: &World, source: Source, change: &Change) -> Vec<Id> {
    let mut passes = Passes { world, ids: Vec::new() };
    let (namespace, name) = &change.at;
    if let Some(kind) = own_pass(source) {
        passes.ids.push(Id::new(kind, namespace, name));
    }
    // where it was found before counts as much as where it is found now
    for key in change.before.iter().chain(&change.after) {
        passes.by_key(source, key, namespace);
    }
    passes.by_kind(source, namespace, name);
    passes.ids
}

/// Kinds that have a pass of their own.
pub const fn own_pass(source: Source) -> Option<Kind> {
    Some(match source {
        Source::PlatformConfigs => Kind::PlatformConfig,
        Source::Images => Kind::MacOSImage,
        Source::IdentityPools => Kind::IdentityPool,
        Source::Identities => Kind::MachineIdentity,
        Source::Classes => Kind::MacOSMachineClass,
        Source::Machines => Kind::MacOSMachine,
        Source::MachinePools => Kind::MacOSMachinePool,
        Source::Claims => Kind::MacOSMachineClaim,
        // of machines that are gone without their teardown
        Source::VirtualMachines => Kind::VirtualMachine,
        Source::DataVolumes => Kind::DataVolume,
        Source::HookConfigs => Kind::ConfigMap,
        _ => return None,
    })
}

struct Passes<'w> {
    world: &'w World,
    ids: Vec<Id>,
}

impl Passes<'_> {
    fn by_key(&mut self, source: Source, (index, value): &IndexKey, namespace: &str) {
        match index {
            Index::MachineUid => self.machine_of_uid(value, namespace),
            Index::Holder => self.machine_of_uid(value, ""),
            Index::Identity | Index::BootDiskOf => self.ids.push(Id::new(Kind::MachineIdentity, "", value)),
            Index::Image => {
                self.ids.push(Id::new(Kind::MacOSImage, "", value));
            }
            Index::IdentityPool => {
                self.ids.push(Id::new(Kind::IdentityPool, "", value));
                if source == Source::Identities {
                    self.waiting_by(Index::IdentityPool, value);
                }
            }
            Index::Pool if source == Source::Machines => self.pool_of_uid(value, namespace),
            Index::Pool => self.within(Kind::MacOSMachinePool, value),
            Index::Claim => {
                let claims = self.world.claims.places(Index::Uid, value);
                self.add(
                    Kind::MacOSMachineClaim,
                    claims.into_iter().filter(|(space, _)| space == namespace).collect(),
                );
            }
            Index::Source => {
                let images = self.world.images.every_place();
                self.add(Kind::MacOSImage, images);
            }
            // it may be gone now: an identity is held by it, and what it left behind is to be swept
            Index::Uid if source == Source::Machines => self.machine_of_uid(value, namespace),
            // a pool counts the machines that wait for its identities
            Index::Class if source == Source::Machines => {
                if let Some(class) = self.world.classes.get("", value).present()
                    && let Some(own) = &class.spec.identity.per_machine
                {
                    self.ids.push(Id::new(Kind::IdentityPool, "", own.pool_name.0.clone()));
                }
            }
            // a card may have become free
            Index::Card if source != Source::Classes => self.waiting_by(Index::Card, value),
            Index::Uid
            | Index::Card
            | Index::ClaimName
            | Index::Class
            | Index::FirmwareUuid
            | Index::Node
            | Index::Owner
            | Index::Waiting
            | Index::Within => {}
        }
    }

    fn by_kind(&mut self, source: Source, namespace: &str, name: &str) {
        let world = self.world;
        match source {
            // the platform's settings are read by all
            Source::PlatformConfigs => {
                self.add(Kind::MacOSMachineClass, world.classes.every_place());
                self.add(Kind::MachineIdentity, world.identities.every_place());
                self.add(Kind::IdentityPool, world.identity_pools.every_place());
                self.add(Kind::MacOSMachine, world.machines.every_place());
                self.add(Kind::MacOSMachineClaim, world.claims.every_place());
            }
            Source::KubeVirts | Source::CdiConfigs | Source::Plugins | Source::BuilderPods | Source::Jobs => {
                self.add(Kind::PlatformConfig, world.platforms.every_place());
            }
            // as what an image is published is read off it
            Source::StorageProfiles => self.add(Kind::MacOSImage, world.images.every_place()),
            Source::StorageClasses => {
                self.add(Kind::MacOSMachineClass, world.classes.every_place());
                self.add(Kind::MacOSImage, world.images.every_place());
            }
            Source::Images => {
                let classes = world.classes.places(Index::Image, name);
                for (_, class) in &classes {
                    self.machines_of_class(class);
                }
                self.add(Kind::MacOSMachineClass, classes);
            }
            Source::IdentityPools => {
                // it says whether a builder is missed
                self.add(Kind::PlatformConfig, world.platforms.every_place());
                let classes = world.classes.places(Index::IdentityPool, name);
                self.add(Kind::MacOSMachineClass, classes);
                self.add(
                    Kind::MachineIdentity,
                    world.identities.places(Index::IdentityPool, name),
                );
                self.waiting_by(Index::IdentityPool, name);
            }
            Source::Classes => {
                self.machines_of_class(name);
                self.add(Kind::MacOSMachinePool, world.pools.places(Index::Class, name));
                self.add(Kind::MacOSMachineClaim, world.claims.every_place());
                self.add(Kind::MacOSImage, world.images.every_place());
                self.add(Kind::IdentityPool, world.identity_pools.every_place());
            }
            Source::Machines => self.neighbours(namespace),
            Source::MachinePools => {
                self.add(
                    Kind::MacOSMachineClaim,
                    world.claims.places(Index::Pool, &format!("{namespace}/{name}")),
                );
            }
            Source::Claims => {
                self.claimed(namespace, name);
                self.neighbours(namespace);
            }
            Source::Nodes => self.on_node(name),
            // classes take namespaces by their labels
            Source::Namespaces => {
                self.add(Kind::MacOSMachine, world.machines.places(Index::Within, name));
                self.neighbours(name);
            }
            Source::Snapshots => self.add(Kind::MacOSImage, world.images.every_place()),
            _ => {}
        }
    }

    fn add(&mut self, kind: Kind, places: Vec<Place>) {
        self.ids.extend(
            places
                .into_iter()
                .map(|(namespace, name)| Id::new(kind, namespace, name)),
        );
    }

    fn within(&mut self, kind: Kind, slashed: &str) {
        if let Some((namespace, name)) = slashed.split_once('/') {
            self.ids.push(Id::new(kind, namespace, name));
        }
    }

    fn machine_of_uid(&mut self, uid: &str, namespace: &str) {
        let places = self.world.machines.places(Index::Uid, uid);
        let places: Vec<Place> = places
            .into_iter()
            .filter(|(space, _)| namespace.is_empty() || space == namespace)
            .collect();
        let gone = places.is_empty();
        self.add(Kind::MacOSMachine, places);
        if gone {
            self.left_by(uid);
        }
        // an identity may hold a machine that is gone
        self.add(Kind::MachineIdentity, self.world.identities.places(Index::Holder, uid));
    }

    /// What carries the uid of a machine that is gone.
    fn left_by(&mut self, uid: &str) {
        let world = self.world;
        self.add(Kind::VirtualMachine, world.vms.places(Index::MachineUid, uid));
        self.add(Kind::DataVolume, world.data_volumes.places(Index::MachineUid, uid));
        self.add(Kind::ConfigMap, world.hook_configs.places(Index::MachineUid, uid));
    }

    fn pool_of_uid(&mut self, uid: &str, namespace: &str) {
        let places = self.world.pools.places(Index::Uid, uid);
        self.add(
            Kind::MacOSMachinePool,
            places.into_iter().filter(|(space, _)| space == namespace).collect(),
        );
    }

    fn machines_of_class(&mut self, class: &str) {
        self.add(Kind::MacOSMachine, self.world.machines.places(Index::Class, class));
    }

    /// Machines that have no identity yet, of the classes with that key: those that take from that pool, or ask for
    /// that card.
    fn waiting_by(&mut self, index: Index, value: &str) {
        for (_, class) in self.world.classes.places(index, value) {
            self.add(Kind::MacOSMachine, self.world.machines.places(Index::Waiting, &class));
        }
    }

    /// Waiting claims and the pools of a namespace share its machines.
    fn neighbours(&mut self, namespace: &str) {
        self.add(
            Kind::MacOSMachineClaim,
            self.world.claims.places(Index::Waiting, namespace),
        );
        self.add(
            Kind::MacOSMachinePool,
            self.world.pools.places(Index::Within, namespace),
        );
    }

    /// Machines that name the claim.
    fn claimed(&mut self, namespace: &str, name: &str) {
        let at = format!("{namespace}/{name}");
        self.add(Kind::MacOSMachine, self.world.machines.places(Index::ClaimName, &at));
    }

    fn on_node(&mut self, node: &str) {
        let world = self.world;
        let label = |meta: &ObjectMeta| meta.labels.as_ref()?.get(MACHINE_UID).cloned();
        let vmis = world.vmis.by(Index::Node, node);
        let pods = world.pods.by(Index::Node, node);
        let of_vmis = vmis
            .present()
            .into_iter()
            .flatten()
            .filter_map(|vmi| label(&vmi.metadata));
        let of_pods = pods
            .present()
            .into_iter()
            .flatten()
            .filter_map(|pod| label(&pod.metadata));
        let uids: Vec<String> = of_vmis.chain(of_pods).collect();
        for uid in uids {
            self.machine_of_uid(&uid, "");
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::world::Notice;

    /// A world in which those objects are, each on its shelf.
    fn world(objects: &[(Source, Value)]) -> World {
        let mut world = World::new("dockerios-system", "https://collector:7443");
        for source in Source::ALL {
            let own = objects.iter().filter(|(of, _)| *of == source);
            let own: Vec<Value> = own.map(|(_, object)| object.clone()).collect();
            world.take(source, Notice::List(own, 1));
        }
        world
    }

    /// The passes that a notice asks for.
    fn asked(world: &mut World, source: Source, notice: Notice) -> Vec<String> {
        let changes = world.take(source, notice);
        let ids = changes.iter().flat_map(|change| route(world, source, change));
        let mut ids: Vec<String> = ids.map(|id| id.to_string()).collect();
        ids.sort();
        ids.dedup();
        ids
    }

    fn named(kind: &str, namespace: &str, name: &str) -> Value {
        json!({"kind": kind, "metadata": {"name": name, "namespace": namespace}})
    }

    #[test]
    fn a_machine_that_vanishes_has_all_that_it_left_looked_at() {
        let mut machine = named("MacOSMachine", "team", "m");
        machine["metadata"]["uid"] = json!("u");
        let left = |kind: &str| {
            let mut left = named(kind, "team", "left");
            left["metadata"]["labels"] = json!({MACHINE_UID: "u"});
            left
        };
        let identity = json!({"kind": "MachineIdentity", "metadata": {"name": "c02"},
            "status": {"claimRef": {"namespace": "team", "name": "m", "uid": "u"}}});
        let mut world = world(&[
            (Source::Machines, machine.clone()),
            (Source::VirtualMachines, left("VirtualMachine")),
            (Source::DataVolumes, left("DataVolume")),
            (Source::HookConfigs, left("ConfigMap")),
            (Source::Identities, identity),
        ]);
        let asked = asked(&mut world, Source::Machines, Notice::Gone(machine));
        for id in [
            "VirtualMachine team/left",
            "DataVolume team/left",
            "ConfigMap team/left",
            "MachineIdentity/c02",
        ] {
            assert!(asked.iter().any(|asked| asked == id), "{id}: {asked:?}");
        }
    }

    #[test]
    fn a_namespace_whose_labels_change_has_its_waiting_claims_and_its_pools_looked_at() {
        let mut world = world(&[
            (Source::Claims, named("MacOSMachineClaim", "team", "job")),
            (Source::MachinePools, named("MacOSMachinePool", "team", "ci")),
            (Source::MachinePools, named("MacOSMachinePool", "others", "ci")),
        ]);
        let namespace = json!({"kind": "Namespace", "metadata": {"name": "team", "labels": {"mac": "yes"}}});
        assert_eq!(
            asked(&mut world, Source::Namespaces, Notice::Put(namespace)),
            ["MacOSMachineClaim team/job", "MacOSMachinePool team/ci"]
        );
    }

    #[test]
    fn what_cdi_learns_of_a_storage_class_is_for_images_and_a_first_identity_pool_for_the_platform() {
        let platform = json!({"kind": "PlatformConfig", "metadata": {"name": "default"}});
        let image = json!({"kind": "MacOSImage", "metadata": {"name": "golden"}});
        let mut world = world(&[(Source::PlatformConfigs, platform), (Source::Images, image)]);
        let profile = json!({"kind": "StorageProfile", "metadata": {"name": "fast"}});
        assert_eq!(
            asked(&mut world, Source::StorageProfiles, Notice::Put(profile)),
            ["MacOSImage/golden"]
        );
        let pool = json!({"kind": "IdentityPool", "metadata": {"name": "imac"}});
        assert_eq!(
            asked(&mut world, Source::IdentityPools, Notice::Put(pool)),
            ["IdentityPool/imac", "PlatformConfig/default"]
        );
    }
}
