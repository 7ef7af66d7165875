//! The facts of a machine pool's pass.

use dockerios_core::{Id, Seen, decide::pool::Facts};

use crate::{index::Index, world::World};

/// What decides about the pool; `None` when there is none that can be read.
pub fn gather(world: &World, id: &Id) -> Option<Facts> {
    let Seen::Present(pool) = world.pools.get(&id.namespace, &id.name) else {
        return None;
    };
    Some(Facts {
        class: world.classes.get("", &pool.spec.machine_class_name),
        namespace: world.namespaces.get("", &id.namespace),
        pools: world.pools.by(Index::Within, &id.namespace),
        machines: world.machines.by(Index::Within, &id.namespace),
        claims: world.claims.by(Index::Within, &id.namespace),
        refusal: world.refusal(id),
        pool,
    })
}
