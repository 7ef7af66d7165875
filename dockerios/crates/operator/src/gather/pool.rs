//! The facts of a machine pool's pass.

use std::sync::Arc;

use dockerios_core::{Id, Seen, decide::pool::Facts};
use serde::de::DeserializeOwned;

use crate::{shelf::Shelf, world::World};

/// What decides about the pool; `None` when there is none that can be read.
pub fn gather(world: &World, id: &Id) -> Option<Facts> {
    let Seen::Present(pool) = world.pools.get(&id.namespace, &id.name) else {
        return None;
    };
    Some(Facts {
        class: world.classes.get("", &pool.spec.machine_class_name),
        namespace: world.namespaces.get("", &id.namespace),
        pools: of_namespace(&world.pools, &id.namespace),
        machines: of_namespace(&world.machines, &id.namespace),
        claims: of_namespace(&world.claims, &id.namespace),
        refusal: world.refusal(id),
        pool,
    })
}

/// All objects of one namespace. An object of another that cannot be read is nothing to it: one tenant's bad object
/// stops nobody else.
pub(super) fn of_namespace<K: DeserializeOwned>(shelf: &Shelf<K>, namespace: &str) -> Seen<Vec<Arc<K>>> {
    if !shelf.listed() {
        // says why
        return shelf.all();
    }
    let mut places = shelf.every_place();
    places.retain(|(space, _)| space == namespace);
    places.sort_unstable();
    let mut all = Vec::with_capacity(places.len());
    for (space, name) in &places {
        match shelf.get(space, name) {
            Seen::Present(object) => all.push(object),
            Seen::Unknown(why) => return Seen::Unknown(why),
            Seen::Absent => {}
        }
    }
    Seen::Present(all)
}
