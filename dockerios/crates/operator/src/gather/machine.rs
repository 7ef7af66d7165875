//! Facts about a machine: its references, its objects by uid label, and, while it has nothing yet, the line it is in.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use dockerios_api::{
    IdentityPool, MacOSMachine, MacOSMachineClass, MachineIdentity,
    config::platform_config::{Headroom, HeadroomSource, PermittedGpu},
    names::{MACHINE, MACHINE_UID},
};
use dockerios_core::{
    Id, Seen,
    decide::machine::{Capacity, Cards, Facts, Holder, Line, Waiter, gates, node_of, reserved},
    render::machine::vm_name,
};
use dockerios_kubevirt::VirtualMachine;
use k8s_openapi::api::{core::v1::PersistentVolumeClaim, storage::v1::CSIStorageCapacity};
use kube::ResourceExt;

use crate::{headroom, index::Index, rights::CloneSource, world::World};

/// What the decision about that machine reads; none when it is not there.
pub fn gather(world: &World, id: &Id) -> Option<Facts> {
    let machine = world.machines.get(&id.namespace, &id.name).present()?.clone();
    let uid = machine.uid()?;
    let class = world.classes.get("", &machine.spec.machine_class_name);
    let image = follow(&class, |class| world.images.get("", &class.spec.image_name));
    let pool = pool_of(world, &class);
    let held = world.identities.by(Index::Holder, &uid);
    let home = match held.as_ref().map(|held| held.first()) {
        Seen::Present(Some(identity)) => world.identity_pools.get("", &identity.spec.pool_name),
        Seen::Present(None) | Seen::Absent => Seen::Absent,
        Seen::Unknown(why) => Seen::Unknown(why),
    };
    let claim = match &machine.spec.claim_ref {
        Some(claim) => world.claims.get(&id.namespace, &claim.name),
        None => Seen::Absent,
    };
    let vmis = world.vmis.by(Index::MachineUid, &uid);
    let pods = world.pods.by(Index::MachineUid, &uid);
    let node = match (&vmis, &pods) {
        (Seen::Present(vmis), Seen::Present(pods)) => {
            node_of(vmis, pods).map_or(Seen::Absent, |name| world.nodes.get("", &name))
        }
        (Seen::Unknown(why), _) | (_, Seen::Unknown(why)) => Seen::Unknown(why.clone()),
        _ => Seen::Absent,
    };
    Some(Facts {
        namespace: world.namespaces.get("", &id.namespace),
        platform: world.platform(),
        clone_right: clone_right(world, &id.namespace),
        line: line(world, &machine, &uid),
        vms: own(world.vms.by(Index::MachineUid, &uid), &id.namespace),
        vmis: own(vmis, &id.namespace),
        pods: own(pods, &id.namespace),
        data_volumes: own(world.data_volumes.by(Index::MachineUid, &uid), &id.namespace),
        volumes: own(world.volumes.by(Index::MachineUid, &uid), &id.namespace),
        node,
        collector_url: world.collector_url.clone(),
        platform_namespace: world.platform_namespace.clone(),
        refusal: world.refusal(id),
        machine,
        class,
        image,
        pool,
        claim,
        held,
        home,
    })
}

/// Whether the operator may clone from the platform namespace into that one; within it nobody needs to ask.
fn clone_right(world: &World, namespace: &str) -> Seen<bool> {
    if namespace == world.platform_namespace {
        return Seen::Present(true);
    }
    world.rights.of(&CloneSource::all_of(&world.platform_namespace))
}

/// Only those in the machine's own namespace: a label elsewhere is nobody's proof.
fn own<K: ResourceExt>(seen: Seen<Vec<Arc<K>>>, namespace: &str) -> Seen<Vec<Arc<K>>> {
    seen.map(|objects| {
        objects
            .into_iter()
            .filter(|o| o.namespace().as_deref() == Some(namespace))
            .collect()
    })
}

fn follow<T, U>(seen: &Seen<Arc<T>>, next: impl FnOnce(&T) -> Seen<U>) -> Seen<U> {
    match seen {
        Seen::Present(object) => next(object),
        Seen::Absent => Seen::Absent,
        Seen::Unknown(why) => Seen::Unknown(why.clone()),
    }
}

fn pool_of(world: &World, class: &Seen<Arc<MacOSMachineClass>>) -> Seen<Arc<IdentityPool>> {
    follow(class, |class| match &class.spec.identity.per_machine {
        Some(identity) => world.identity_pools.get("", &identity.pool_name),
        None => Seen::Absent,
    })
}

/// Whether something was made for that machine, or an identity taken.
fn begun(world: &World, uid: &str) -> bool {
    !world.vms.places(Index::MachineUid, uid).is_empty()
        || !world.data_volumes.places(Index::MachineUid, uid).is_empty()
        || !world.volumes.places(Index::MachineUid, uid).is_empty()
        || !world.identities.places(Index::Holder, uid).is_empty()
}

/// The line that the machine is in. It is walked by machines that wait in it alone; for the others it is not made.
fn line(world: &World, machine: &MacOSMachine, uid: &str) -> Line {
    // one that has an identity or disks has passed it; one with a VirtualMachine needs neither
    if begun(world, uid) || machine.metadata.deletion_timestamp.is_some() {
        return Line::unknown("the machine is past the line");
    }
    let rules = rules(world);
    // one that cannot be read has no pass, so it takes no turn; what room it still needs is not known, however
    let machines = if rules.is_empty() {
        world.machines.readable()
    } else {
        world.machines.all()
    };
    line_of(world, machines, &rules)
}

/// The line of those machines.
fn line_of(world: &World, machines: Seen<Vec<Arc<MacOSMachine>>>, rules: &[Headroom]) -> Line {
    let waiters = machines.map(|all| all.iter().filter_map(|other| waiter(world, other)).collect::<Vec<_>>());
    let known = waiters.present().map(Vec::as_slice).unwrap_or_default();
    let (identities, cards) = (identities(world, known), cards(world, known));
    Line {
        cards,
        waiters,
        identities,
        capacity: rules
            .iter()
            .map(|rule| (rule.storage_class_name.to_string(), capacity(world, rule)))
            .collect(),
        strategy: strategies(world, rules),
    }
}

fn rules(world: &World) -> Vec<Headroom> {
    let platform = world.platform();
    let storage = platform.present().and_then(|platform| platform.spec.storage.as_ref());
    storage.map(|storage| storage.headroom.clone()).unwrap_or_default()
}

/// A storage class that has a rule, as the next machine would be judged.
#[derive(Clone, Debug)]
pub struct Room {
    /// The rule.
    pub rule: Headroom,
    /// What its source tells.
    pub capacity: Seen<Capacity>,
    /// Bytes that machines which are being made still take.
    pub reserved: u64,
    /// Machines that wait for room in it.
    pub waiting: usize,
}

/// All storage classes that have a rule.
pub fn rooms(world: &World) -> Vec<Room> {
    let rules = rules(world);
    if rules.is_empty() {
        return Vec::new();
    }
    let machines = world.machines.readable();
    let awaits = |rule: &Headroom| {
        let all = machines.present().into_iter().flatten();
        let awaited = all.filter_map(|machine| machine.status.as_ref()?.awaits_room_in.as_ref());
        awaited.filter(|class| **class == rule.storage_class_name).count()
    };
    let waiting: Vec<usize> = rules.iter().map(awaits).collect();
    let line = line_of(world, machines, &rules);
    let reserved = reserved(&line);
    let rooms = rules.into_iter().zip(waiting);
    rooms
        .map(|(rule, waiting)| {
            let class = &*rule.storage_class_name;
            Room {
                capacity: line.capacity.get(class).cloned().unwrap_or(Seen::Absent),
                reserved: reserved.get(class).copied().unwrap_or_default(),
                waiting,
                rule,
            }
        })
        .collect()
}

/// How another machine stands in the line. One that could not be made now whatever is left takes nothing from others.
fn waiter(world: &World, machine: &MacOSMachine) -> Option<Waiter> {
    let class = world.classes.get("", &machine.spec.machine_class_name);
    let begun = begun(world, &machine.uid()?);
    if !begun {
        let namespace = world.namespaces.get("", &machine.namespace()?);
        let image = follow(&class, |class| world.images.get("", &class.spec.image_name));
        let (platform, right) = (world.platform(), clone_right(world, &machine.namespace()?));
        gates(
            &machine.spec.machine_class_name,
            &class,
            &namespace,
            &image,
            &platform,
            &right,
        )
        .ok()?;
    }
    let mut waiter = Waiter::of(machine, class.present().map(AsRef::as_ref), begun)?;
    if !world.vms.places(Index::MachineUid, &waiter.uid).is_empty() {
        // its card is reckoned with as its VirtualMachine's
        waiter.gpu = None;
    }
    Some(waiter)
}

/// Cards of the devices that somebody in the line asks for.
fn cards(world: &World, waiters: &[Waiter]) -> BTreeMap<String, Seen<Cards>> {
    let devices: BTreeSet<&String> = waiters.iter().filter_map(|waiter| waiter.gpu.as_ref()).collect();
    // A VirtualMachine of others holds a card once its instance has a node: what it might have some day keeps nobody
    // waiting. Where instances cannot be read, it counts as one that could be anywhere.
    let holder = |vm: &Arc<VirtualMachine>| -> Option<Holder> {
        let vmi = world.vmis.get(&vm.namespace().unwrap_or_default(), &vm.name_any());
        let node = vmi.present().and_then(|vmi| vmi.status.as_ref()?.node_name.clone());
        let holds = node.is_some() || vmi.unreadable().is_some() || ours(world, vm);
        holds.then(|| (vm.clone(), node))
    };
    let count = |device: &String| match (world.nodes.by(Index::Card, device), world.vms.by(Index::Card, device)) {
        (Seen::Unknown(why), _) | (_, Seen::Unknown(why)) => Seen::Unknown(why),
        (nodes, vms) => {
            let vms = vms.present().map(Vec::as_slice).unwrap_or_default();
            let holders: Vec<Holder> = vms.iter().filter_map(holder).collect();
            let nodes = nodes.present().map(Vec::as_slice).unwrap_or_default();
            let audio = permitted(world, device).and_then(|card| card.audio_device_name);
            Cards::count(device, audio.as_deref(), nodes, &holders).map_or_else(Seen::Unknown, Seen::Present)
        }
    };
    devices
        .into_iter()
        .map(|device| (device.clone(), count(device)))
        .collect()
}

/// Whether that is the VirtualMachine of a machine: its labels alone are what anybody may write.
fn ours(world: &World, vm: &VirtualMachine) -> bool {
    let label = |key| vm.labels().get(key).map(String::as_str).unwrap_or_default();
    match world.machines.get(&vm.namespace().unwrap_or_default(), label(MACHINE)) {
        Seen::Present(machine) => {
            machine.uid().is_some_and(|uid| uid == label(MACHINE_UID)) && vm.name_any() == vm_name(&machine)
        }
        // whose machine went without it: it holds a card as anybody's does, while it runs
        Seen::Absent => false,
        Seen::Unknown(_) => true,
    }
}

/// What PlatformConfig says of that card.
fn permitted(world: &World, device: &str) -> Option<PermittedGpu> {
    let platform = world.platform();
    let mut cards = platform.present()?.spec.permitted_gpus.iter();
    cards.find(|card| card.device_name == device).cloned()
}

fn identities(world: &World, waiters: &[Waiter]) -> Seen<Vec<Arc<MachineIdentity>>> {
    let mut pools: Vec<&String> = waiters
        .iter()
        .filter(|w| !w.begun)
        .filter_map(|w| w.pool.as_ref())
        .collect();
    pools.sort();
    pools.dedup();
    let mut all = Vec::new();
    for pool in pools {
        match world.identities.by(Index::IdentityPool, pool) {
            Seen::Present(some) => all.extend(some),
            Seen::Absent => {}
            Seen::Unknown(why) => return Seen::Unknown(why),
        }
    }
    Seen::Present(all)
}

fn capacity(world: &World, rule: &Headroom) -> Seen<Capacity> {
    match &rule.source {
        HeadroomSource {
            prometheus: Some(asked),
            ..
        } => world.capacity.of(&rule.storage_class_name, asked),
        HeadroomSource {
            csi_capacity: Some(_), ..
        } => match world.capacities.all() {
            Seen::Present(told) => {
                let of_class: Vec<&CSIStorageCapacity> = told
                    .iter()
                    .map(AsRef::as_ref)
                    .filter(|c| c.storage_class_name == *rule.storage_class_name)
                    .collect();
                provisioned(world, &rule.storage_class_name, &of_class)
            }
            Seen::Absent => Seen::Absent,
            Seen::Unknown(why) => Seen::Unknown(why),
        },
        HeadroomSource { .. } => Seen::Unknown("PlatformConfig names no source for it".into()),
    }
}

/// What the drivers tell, with the claims of the storage class.
fn provisioned(world: &World, class: &str, told: &[&CSIStorageCapacity]) -> Seen<Capacity> {
    match world.volumes.all() {
        Seen::Unknown(why) => Seen::Unknown(why),
        claims => {
            let claims = claims
                .present()
                .map(Vec::as_slice)
                .unwrap_or_default()
                .iter()
                .map(AsRef::as_ref);
            let of_class = |claim: &&PersistentVolumeClaim| {
                claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref()) == Some(class)
            };
            headroom::of_driver(told, &claims.filter(of_class).collect::<Vec<_>>())
        }
    }
}

/// How the storage classes of the rules clone, as far as CDI says; one that cannot be read counts as copying.
fn strategies(world: &World, rules: &[Headroom]) -> BTreeMap<String, String> {
    let one = |class: &str| {
        let profile = world.storage_profiles.get("", class);
        let told = profile
            .present()
            .and_then(|profile| profile.status.as_ref()?.clone_strategy.clone());
        told.map(|strategy| (class.to_owned(), strategy))
    };
    rules.iter().filter_map(|rule| one(&rule.storage_class_name)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{source::Source, world::Notice};

    const DEVICE: &str = "amd.com/polaris";

    /// A node with two cards and a VirtualMachine of somebody's with one; `instances`: what is told of those.
    fn used(instances: Notice) -> u64 {
        let mut world = World::new("dockerios-system", "https://collector:7443");
        let node = json!({"kind": "Node", "metadata": {"name": "kvm-1"}, "status": {
            "allocatable": {DEVICE: "2"}, "conditions": [{"type": "Ready", "status": "True"}]}});
        let vm = json!({"kind": "VirtualMachine", "metadata": {"name": "theirs", "namespace": "others"},
            "spec": {"template": {"spec": {"domain": {"devices": {
                "gpus": [{"name": "card", "deviceName": DEVICE}]}}}}}});
        for (source, objects) in [
            (Source::PlatformConfigs, vec![]),
            (Source::Machines, vec![]),
            (Source::Nodes, vec![node]),
            (Source::VirtualMachines, vec![vm]),
        ] {
            world.take(source, Notice::List(objects, 1));
        }
        world.take(Source::Instances, instances);
        let waiter = Waiter {
            uid: "u".into(),
            since: jiff::Timestamp::UNIX_EPOCH,
            begun: false,
            held: None,
            disks: Vec::new(),
            pool: None,
            gpu: Some(DEVICE.into()),
        };
        let counted = cards(&world, &[waiter]);
        let counted = counted.get(DEVICE).and_then(Seen::present).expect("they are counted");
        assert_eq!(counted.total, 2);
        counted.used
    }

    fn instance(status: Value) -> Value {
        json!({"kind": "VirtualMachineInstance", "metadata": {"name": "theirs", "namespace": "others"},
            "spec": {"domain": {"devices": {}}}, "status": status})
    }

    #[test]
    fn instances_that_cannot_be_read_are_not_taken_for_absent_when_cards_are_counted() {
        assert_eq!(used(Notice::List(vec![], 1)), 0, "it does not run");
        let runs = instance(json!({"phase": "Running", "nodeName": "kvm-1"}));
        assert_eq!(used(Notice::List(vec![runs], 1)), 1);
        assert_eq!(
            used(Notice::Unreadable("forbidden".into())),
            1,
            "nobody knows whether it runs"
        );
        let unreadable = instance(json!({"nodeName": 7}));
        assert_eq!(used(Notice::List(vec![unreadable], 1)), 1, "nor of this one");
    }
}
