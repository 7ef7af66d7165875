//! `MacOSImage`.

use std::sync::Arc;

use dockerios_api::MacOSImage;
use dockerios_core::{
    Id, Seen,
    decide::image::{Facts, Snapshot},
    render::import,
};
use kube::ResourceExt;

use crate::{index::Index, rights::CloneSource, world::World};

/// What its decision reads; `None` when it is not there.
pub fn gather(world: &World, id: &Id) -> Option<Facts> {
    let image = world.images.get("", &id.name).present()?.clone();
    let (home, name) = (&world.platform_namespace, import::name(&id.name));
    let storage_class = &image.spec.storage_class_name;
    Some(Facts {
        data_volume: world.data_volumes.get(home, &name),
        volume: world.volumes.get(home, &name),
        snapshot: world
            .snapshots
            .get(home, &name)
            .map(|snapshot| Snapshot::from(&*snapshot)),
        profile: world.storage_profiles.get("", storage_class),
        storage_class: world.storage_classes.get("", storage_class),
        source: source(world, &image),
        clone_right: match image.spec.source.within() {
            Some(origin) => world.rights.of(&CloneSource::one(&origin.namespace, &origin.name)),
            None => Seen::Absent,
        },
        classes: world
            .classes
            .by(Index::Image, &id.name)
            .map(|all| all.iter().map(|class| class.name_any()).collect()),
        clones: world.data_volumes.by(Index::Source, &format!("{home}/{name}")),
        platform_namespace: home.clone(),
        refusal: world.refusal(id),
        image,
    })
}

/// The volume or snapshot that it is cloned from, as far as such things are watched.
fn source(world: &World, image: &Arc<MacOSImage>) -> Seen<()> {
    let source = &image.spec.source;
    if let Some(volume) = &source.pvc {
        return world.volumes.get(&volume.namespace, &volume.name).map(|_| ());
    }
    match &source.snapshot {
        Some(snapshot) if snapshot.namespace.0 == world.platform_namespace => {
            world.snapshots.get(&snapshot.namespace, &snapshot.name).map(|_| ())
        }
        Some(snapshot) => Seen::Unknown(format!("snapshots of namespace {} are not watched", snapshot.namespace)),
        None => Seen::Unknown("the source is not in this cluster".to_owned()),
    }
}
