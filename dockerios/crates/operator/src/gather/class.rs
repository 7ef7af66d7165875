//! `MacOSMachineClass`.

use dockerios_core::{Id, Seen, decide::class::Facts};

use crate::world::World;

/// What its decision reads; `None` when it is not there.
pub fn gather(world: &World, id: &Id) -> Option<Facts> {
    let class = world.classes.get("", &id.name).present()?.clone();
    let pool = class.spec.identity.per_machine.as_ref().map(|own| &own.pool_name);
    Some(Facts {
        platform: world.platform(),
        image: world.images.get("", &class.spec.image_name),
        pool: pool.map_or(Seen::Absent, |name| world.identity_pools.get("", name)),
        storage: world
            .storage_classes
            .get("", &class.spec.system_disk.storage_class_name),
        class,
    })
}
