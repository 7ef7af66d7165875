//! `IdentityPool`.

use std::sync::Arc;

use dockerios_api::MacOSMachine;
use dockerios_core::{Id, Seen, decide::identity_pool::Facts};
use kube::ResourceExt;

use crate::{index::Index, world::World};

/// What its decision reads; `None` when it is not there, or when the system gives no randomness.
pub fn gather(world: &World, id: &Id) -> Option<Facts> {
    let pool = world.identity_pools.get("", &id.name).present()?.clone();
    let seed = match seed() {
        Ok(seed) => seed,
        Err(error) => {
            tracing::error!(%id, %error, "the system gives no randomness: nothing is decided about the pool");
            return None;
        }
    };
    Some(Facts {
        pool,
        fleet: world.identities.all(),
        platform: world.platform(),
        machines: machines(world, &id.name),
        seed,
    })
}

/// Machines of the classes that take identities of that pool.
fn machines(world: &World, pool: &str) -> Seen<Vec<Arc<MacOSMachine>>> {
    let classes = match world.classes.by(Index::IdentityPool, pool) {
        Seen::Unknown(why) => return Seen::Unknown(why),
        seen => seen.present().cloned().unwrap_or_default(),
    };
    let mut machines = Vec::new();
    for class in classes {
        match world.machines.by(Index::Class, &class.name_any()) {
            Seen::Unknown(why) => return Seen::Unknown(why),
            seen => machines.extend(seen.present().cloned().unwrap_or_default()),
        }
    }
    Seen::Present(machines)
}

/// 32 bytes of the system's randomness.
fn seed() -> std::io::Result<[u8; 32]> {
    use std::io::Read;
    let mut seed = [0; 32];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut seed)?;
    Ok(seed)
}
