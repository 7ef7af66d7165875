//! Objects that carry a machine's uid: whether that machine is there, and what else carries it.

use dockerios_api::names::MACHINE_UID;
use dockerios_core::{Id, Kind, Seen, decide::orphan::Facts};

use crate::{index::Index, world::World};

/// What its decision reads; `None` when the object is not there or belongs to no machine.
pub fn gather(world: &World, id: &Id) -> Option<Facts> {
    let (namespace, name) = (&id.namespace, &id.name);
    let labelled = match id.kind {
        Kind::VirtualMachine => world.vms.get(namespace, name).present()?.metadata.clone(),
        Kind::DataVolume => world.data_volumes.get(namespace, name).present()?.metadata.clone(),
        Kind::ConfigMap => world.hook_configs.get(namespace, name).present()?.metadata.clone(),
        _ => return None,
    };
    let uid = labelled.labels.as_ref()?.get(MACHINE_UID)?.clone();
    let machine = match world.machines.by(Index::Uid, &uid) {
        Seen::Present(found) if found.is_empty() => Seen::Absent,
        Seen::Present(_) => Seen::Present(()),
        Seen::Absent => Seen::Absent,
        Seen::Unknown(why) => Seen::Unknown(why),
    };
    Some(Facts {
        machine,
        vms: world.vms.by(Index::MachineUid, &uid),
        vmis: world.vmis.by(Index::MachineUid, &uid),
        pods: world.pods.by(Index::MachineUid, &uid),
        data_volumes: world.data_volumes.by(Index::MachineUid, &uid),
        volumes: world.volumes.by(Index::MachineUid, &uid),
        labelled,
    })
}
