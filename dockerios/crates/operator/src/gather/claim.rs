//! The facts of a claim's pass.

use std::sync::Arc;

use dockerios_api::{MacOSMachineClaim, MacOSMachinePool};
use dockerios_core::{Id, Kind, Seen, decide::claim::Facts, plan::Refusal};
use kube::ResourceExt;

use crate::{index::Index, world::World};

/// What decides about the claim; `None` when there is none that can be read.
pub fn gather(world: &World, id: &Id) -> Option<Facts> {
    let claim = world.claims.get(&id.namespace, &id.name).present()?.clone();
    let named = claim.spec.pool_name.as_ref();
    let pool = named.map(|name| world.pools.get(&id.namespace, name));
    let class = class_name(&claim, pool.as_ref());
    let pool_id = named.map(|name| Id::new(Kind::MacOSMachinePool, &id.namespace, name.0.as_str()));
    // one that stands in no line any more looks at its own machines only
    let settled = claim
        .status
        .as_ref()
        .is_some_and(|s| s.end.is_some() || s.machine_ref.is_some());
    let (machines, claims, pools) = if settled {
        let uid = claim.uid().unwrap_or_default();
        let pools = pool.as_ref().and_then(|pool| pool.present().cloned());
        (
            world.machines.by(Index::Claim, &uid),
            Seen::Present(vec![claim.clone()]),
            Seen::Present(pools.into_iter().collect()),
        )
    } else {
        (
            world.machines.by(Index::Within, &id.namespace),
            world.claims.by(Index::Within, &id.namespace),
            world.pools.by(Index::Within, &id.namespace),
        )
    };
    Some(Facts {
        claims,
        machines,
        pools,
        class: class.map_or(Seen::Absent, |name| world.classes.get("", &name)),
        namespace: world.namespaces.get("", &id.namespace),
        platform: world.platform(),
        refusal: refusal(world, id, pool_id.as_ref()),
        claim,
    })
}

fn class_name(claim: &MacOSMachineClaim, pool: Option<&Seen<Arc<MacOSMachinePool>>>) -> Option<String> {
    let of_pool = || pool?.present().map(|pool| &pool.spec.machine_class_name);
    let name = claim.spec.machine_class_name.as_ref().or_else(of_pool)?;
    Some(name.0.clone())
}

/// Machines for claims on a pool are made in the pool's pass, so it is the one that is refused.
fn refusal(world: &World, claim: &Id, pool: Option<&Id>) -> Option<Refusal> {
    world
        .refusal(claim)
        .or_else(|| pool.and_then(|pool| world.refusal(pool)))
}
