//! `MachineIdentity`.

use std::sync::Arc;

use dockerios_api::{
    Name,
    identity::machine_identity::IdentityClaimRef,
    names::{BOOTDISK_OF, MACHINE, MACHINE_UID},
};
use dockerios_core::{
    Id, Kind, Seen,
    decide::identity::{Carrier, Facts},
    render::bootdisk::volume_name,
};
use k8s_openapi::api::batch::v1::Job;
use kube::{ResourceExt, core::ObjectMeta};
use serde::de::DeserializeOwned;

use crate::{index::Index, shelf::Shelf, world::World};

/// What its decision reads; `None` when it is not there.
pub fn gather(world: &World, id: &Id) -> Option<Facts> {
    let identity = world.identities.get("", &id.name).present()?.clone();
    let claim = identity.status.as_ref().and_then(|status| status.claim_ref.clone());
    let home = &world.platform_namespace;
    Some(Facts {
        pool: world.identity_pools.get("", &identity.spec.pool_name),
        platform: world.platform(),
        fleet: world.identities.all(),
        machine: claim.map_or(Seen::Absent, |claim| world.machines.get(&claim.namespace, &claim.name)),
        carriers: carriers(world, &id.name, &identity.spec.system_uuid.to_ascii_lowercase()),
        volume: world.volumes.get(home, &volume_name(&id.name)),
        jobs: world.jobs.by(Index::BootDiskOf, &id.name),
        pods: world.builders.by(Index::BootDiskOf, &id.name),
        builds: world
            .jobs
            .all()
            .map(|jobs| jobs.iter().filter(|job| builds(job)).count()),
        platform_namespace: home.clone(),
        refusal: world.refusal(id),
        identity,
    })
}

/// Whether the Job builds a bootdisk and has not ended.
fn builds(job: &Arc<Job>) -> bool {
    let conditions = job.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ended = |kind: &str| kind == "Complete" || kind == "Failed";
    let over = conditions
        .into_iter()
        .flatten()
        .any(|c| ended(&c.type_) && c.status == "True");
    job.labels().contains_key(BOOTDISK_OF) && !over
}

/// All that carries the identity, by label or by firmware UUID.
fn carriers(world: &World, identity: &str, uuid: &str) -> Seen<Vec<Carrier>> {
    let mut found: Vec<(String, Option<IdentityClaimRef>)> = Vec::new();
    let unread = [
        add(&mut found, &world.vms, Index::Identity, identity, Kind::VirtualMachine),
        add(&mut found, &world.vms, Index::FirmwareUuid, uuid, Kind::VirtualMachine),
        add(
            &mut found,
            &world.vmis,
            Index::Identity,
            identity,
            Kind::VirtualMachineInstance,
        ),
        add(
            &mut found,
            &world.vmis,
            Index::FirmwareUuid,
            uuid,
            Kind::VirtualMachineInstance,
        ),
        add(&mut found, &world.pods, Index::Identity, identity, Kind::Pod),
    ];
    if let Some(why) = unread.into_iter().find_map(Result::err) {
        return Seen::Unknown(why);
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found.dedup();
    let mut carriers = Vec::new();
    for (object, machine) in found {
        let stored = match &machine {
            None => false,
            Some(by) => match world.machines.get(&by.namespace, &by.name) {
                Seen::Unknown(why) => return Seen::Unknown(why),
                seen => seen
                    .present()
                    .is_some_and(|machine| machine.metadata.uid.as_ref() == Some(&by.uid)),
            },
        };
        carriers.push(Carrier {
            object,
            machine,
            stored,
        });
    }
    Seen::Present(carriers)
}

fn add<K: DeserializeOwned + kube::Resource>(
    found: &mut Vec<(String, Option<IdentityClaimRef>)>,
    shelf: &Shelf<K>,
    index: Index,
    value: &str,
    kind: Kind,
) -> Result<(), String> {
    match shelf.by(index, value) {
        Seen::Unknown(why) => Err(why),
        Seen::Absent => Ok(()),
        Seen::Present(objects) => {
            let text = |text: &Option<String>| text.clone().unwrap_or_default();
            found.extend(objects.iter().map(|object| {
                let meta = object.meta();
                let id = Id::new(kind, text(&meta.namespace), text(&meta.name));
                (id.to_string(), machine_of(meta))
            }));
            Ok(())
        }
    }
}

/// The machine that the labels name.
fn machine_of(meta: &ObjectMeta) -> Option<IdentityClaimRef> {
    let label = |key: &str| {
        meta.labels
            .as_ref()?
            .get(key)
            .filter(|value| !value.is_empty())
            .cloned()
    };
    Some(IdentityClaimRef {
        namespace: Name(meta.namespace.clone()?),
        name: Name(label(MACHINE)?),
        uid: label(MACHINE_UID)?,
    })
}
