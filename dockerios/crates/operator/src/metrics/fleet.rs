//! The fleet as the leader sees it, in numbers. Counted off the shelves at each scrape.
//!
//! Invariant: an object that cannot be read is in no number but the one of those that cannot be read; capacity that is
//! not known has no series.

use std::collections::BTreeMap;

use dockerios_api::{
    MacOSMachine,
    condition::{Verdict, of},
    config::platform_config::{Launcher, PlatformCondition},
    identity::machine_identity::IdentityPhase,
    image::macos_image::ImagePhase,
    machine::{
        claim::ClaimPhase,
        macos_machine::{MachineCondition, MachinePhase},
    },
    names::{self, POOL},
};
use dockerios_core::decide::machine::thresholds;
use kube::ResourceExt;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, gauge::Gauge},
    registry::{Registry, Unit},
};
use std::sync::atomic::AtomicU64;

use super::{measure::class_label, word};
use crate::{
    gather::machine::{Room, rooms},
    world::World,
};

/// Every phase of a machine, so that a class with no machine in one tells 0.
const MACHINE_PHASES: [MachinePhase; 9] = [
    MachinePhase::Pending,
    MachinePhase::AllocatingIdentity,
    MachinePhase::Cloning,
    MachinePhase::Starting,
    MachinePhase::Ready,
    MachinePhase::Stopping,
    MachinePhase::Stopped,
    MachinePhase::Failed,
    MachinePhase::Unknown,
];
const IDENTITY_PHASES: [IdentityPhase; 7] = [
    IdentityPhase::Generated,
    IdentityPhase::BuildingBootDisk,
    IdentityPhase::Available,
    IdentityPhase::Allocated,
    IdentityPhase::Released,
    IdentityPhase::Quarantined,
    IdentityPhase::Failed,
];
const CLAIM_PHASES: [ClaimPhase; 4] = [
    ClaimPhase::Pending,
    ClaimPhase::Bound,
    ClaimPhase::Expired,
    ClaimPhase::Lost,
];
const IMAGE_PHASES: [ImagePhase; 4] = [
    ImagePhase::Pending,
    ImagePhase::Importing,
    ImagePhase::Ready,
    ImagePhase::Failed,
];

#[derive(Clone, Debug, Hash, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
struct ClassPhase {
    class: String,
    phase: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
struct ClassReason {
    class: String,
    reason: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
struct Instance {
    namespace: String,
    name: String,
    machine: String,
    class: String,
    pool: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
struct InNamespace {
    namespace: String,
    phase: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
struct MachinePool {
    namespace: String,
    pool: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
struct PoolPhase {
    pool: String,
    phase: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
struct IdentityPool {
    pool: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
struct Phase {
    phase: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
struct Kind {
    kind: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
struct LauncherMode {
    digest: String,
    mode: String,
    current: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
struct StorageClass {
    storage_class: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
struct Source {
    storage_class: String,
    source: &'static str,
}

/// What is told of a machine pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct PoolNumbers {
    desired: i64,
    most: i64,
    warm: i64,
    claimed: i64,
    waiting: i64,
    failed: i64,
}

/// The fleet in numbers.
#[derive(Clone, Debug, Default)]
pub struct Fleet {
    machines: BTreeMap<ClassPhase, i64>,
    not_ready: BTreeMap<ClassReason, i64>,
    instances: Vec<Instance>,
    claims: BTreeMap<InNamespace, i64>,
    pools: BTreeMap<MachinePool, PoolNumbers>,
    identities: BTreeMap<PoolPhase, i64>,
    /// `minAvailable` and `maxSize`.
    bounds: BTreeMap<IdentityPool, (i64, i64)>,
    images: BTreeMap<Phase, i64>,
    unreadable: BTreeMap<Kind, i64>,
    launchers: Vec<LauncherMode>,
    rooms: Vec<Room>,
}

impl Fleet {
    /// Counts what is on the shelves.
    pub fn of(world: &World) -> Self {
        let mut fleet = Self {
            rooms: rooms(world),
            launchers: launchers(world),
            unreadable: world
                .unreadable()
                .into_iter()
                .map(|(kind, count)| (Kind { kind }, whole(count)))
                .collect(),
            ..Self::default()
        };
        fleet.count_machines(world);
        fleet.count_pools(world);
        fleet.count_claims(world);
        fleet.count_identities(world);
        fleet.count_images(world);
        fleet
    }

    fn count_machines(&mut self, world: &World) {
        for class in world.classes.readable().present().into_iter().flatten() {
            for phase in &MACHINE_PHASES {
                let labels = ClassPhase {
                    class: class.name_any(),
                    phase: word(phase),
                };
                self.machines.insert(labels, 0);
            }
        }
        for machine in world.machines.readable().present().into_iter().flatten() {
            let class = class_label(world, &machine.spec.machine_class_name);
            let status = machine.status.as_ref();
            let phase = status.and_then(|status| status.phase).unwrap_or(MachinePhase::Pending);
            let labels = ClassPhase {
                class: class.clone(),
                phase: word(&phase),
            };
            *self.machines.entry(labels).or_default() += 1;
            let ready = status.and_then(|status| of(&status.conditions, MachineCondition::Ready.word()));
            if ready.is_none_or(|ready| ready.status != Verdict::True) {
                // one that was not looked at yet has no reason, and is not Ready all the same
                let labels = ClassReason {
                    class: class.clone(),
                    reason: ready.map(|ready| ready.reason.clone()).unwrap_or_default(),
                };
                *self.not_ready.entry(labels).or_default() += 1;
            }
            self.instances.extend(instance(world, machine, class));
        }
    }

    fn count_pools(&mut self, world: &World) {
        for pool in world.pools.readable().present().into_iter().flatten() {
            let status = pool.status.clone().unwrap_or_default();
            let labels = MachinePool {
                namespace: pool.namespace().unwrap_or_default(),
                pool: pool.name_any(),
            };
            let numbers = PoolNumbers {
                desired: pool.spec.replicas.into(),
                most: pool.spec.max_machines.into(),
                warm: status.warm.into(),
                claimed: status.claimed.into(),
                waiting: status.waiting.into(),
                failed: status.failed.into(),
            };
            self.pools.insert(labels, numbers);
        }
    }

    fn count_claims(&mut self, world: &World) {
        for claim in world.claims.readable().present().into_iter().flatten() {
            let namespace = claim.namespace().unwrap_or_default();
            let labels = |phase: &ClaimPhase| InNamespace {
                namespace: namespace.clone(),
                phase: word(phase),
            };
            for phase in &CLAIM_PHASES {
                self.claims.entry(labels(phase)).or_default();
            }
            let phase = claim.status.as_ref().and_then(|status| status.phase);
            *self
                .claims
                .entry(labels(&phase.unwrap_or(ClaimPhase::Pending)))
                .or_default() += 1;
        }
    }

    fn count_identities(&mut self, world: &World) {
        for pool in world.identity_pools.readable().present().into_iter().flatten() {
            let bounds = (pool.spec.min_available.into(), pool.spec.max_size.into());
            let pool = pool.name_any();
            for phase in &IDENTITY_PHASES {
                let labels = PoolPhase {
                    pool: pool.clone(),
                    phase: word(phase),
                };
                self.identities.insert(labels, 0);
            }
            self.bounds.insert(IdentityPool { pool }, bounds);
        }
        for identity in world.identities.readable().present().into_iter().flatten() {
            let phase = identity.status.as_ref().and_then(|status| status.phase);
            let labels = PoolPhase {
                pool: identity.spec.pool_name.to_string(),
                phase: word(&phase.unwrap_or(IdentityPhase::Generated)),
            };
            *self.identities.entry(labels).or_default() += 1;
        }
    }

    fn count_images(&mut self, world: &World) {
        let labels = |phase: &ImagePhase| Phase { phase: word(phase) };
        for phase in &IMAGE_PHASES {
            self.images.insert(labels(phase), 0);
        }
        for image in world.images.readable().present().into_iter().flatten() {
            let phase = image.status.as_ref().and_then(|status| status.phase);
            *self
                .images
                .entry(labels(&phase.unwrap_or(ImagePhase::Pending)))
                .or_default() += 1;
        }
    }

    /// Adds all of it.
    pub(super) fn register(&self, registry: &mut Registry) {
        let machines = self.machines.iter();
        registry.register(
            "machines",
            "Machines by class and phase",
            counted(machines.map(|(labels, count)| (labels.clone(), *count))),
        );
        registry.register(
            "machines_not_ready",
            "Machines that are not Ready, by class and by the reason of their condition Ready",
            counted(self.not_ready.iter().map(|(labels, count)| (labels.clone(), *count))),
        );
        registry.register(
            "machine_info",
            "1 for each machine that has a VirtualMachine; name is that of the VirtualMachine and its instance",
            counted(self.instances.iter().map(|labels| (labels.clone(), 1))),
        );
        registry.register(
            "claims",
            "Claims by namespace and phase",
            counted(self.claims.iter().map(|(labels, count)| (labels.clone(), *count))),
        );
        self.register_pools(registry);
        registry.register(
            "identities",
            "Identities by pool and phase",
            counted(self.identities.iter().map(|(labels, count)| (labels.clone(), *count))),
        );
        registry.register(
            "identity_pool_min_available",
            "Identities that a pool keeps ready (spec.minAvailable)",
            counted(self.bounds.iter().map(|(labels, (min, _))| (labels.clone(), *min))),
        );
        registry.register(
            "identity_pool_max_size",
            "Identities that a pool may have in all (spec.maxSize)",
            counted(self.bounds.iter().map(|(labels, (_, max))| (labels.clone(), *max))),
        );
        registry.register(
            "images",
            "Golden images by phase",
            counted(self.images.iter().map(|(labels, count)| (labels.clone(), *count))),
        );
        registry.register(
            "objects_unreadable",
            "Objects that are there and cannot be decoded: they are in no other number",
            counted(self.unreadable.iter().map(|(labels, count)| (labels.clone(), *count))),
        );
        registry.register(
            "launcher_nvme_mode",
            "1 for each virt-launcher image that was probed: how it gives an NVMe disk",
            counted(self.launchers.iter().map(|labels| (labels.clone(), 1))),
        );
        self.register_rooms(registry);
    }

    fn register_pools(&self, registry: &mut Registry) {
        type Number = fn(&PoolNumbers) -> i64;
        let all: [(&str, &str, Number); 6] = [
            (
                "pool_desired_machines",
                "Unclaimed machines that a pool is to have (spec.replicas)",
                |n| n.desired,
            ),
            (
                "pool_max_machines",
                "Machines of a pool at most, claimed ones included (spec.maxMachines)",
                |n| n.most,
            ),
            (
                "pool_warm_machines",
                "Machines of a pool that are Ready and unclaimed",
                |n| n.warm,
            ),
            (
                "pool_claimed_machines",
                "Machines of a pool that were given to claims",
                |n| n.claimed,
            ),
            (
                "pool_waiting_claims",
                "Claims that no machine of the pool serves yet: what an autoscaler follows",
                |n| n.waiting,
            ),
            (
                "pool_failed_machines",
                "Failed machines of a pool that are kept as evidence",
                |n| n.failed,
            ),
        ];
        for (name, help, number) in all {
            let numbers = self.pools.iter();
            registry.register(
                name,
                help,
                counted(numbers.map(|(labels, numbers)| (labels.clone(), number(numbers)))),
            );
        }
    }

    fn register_rooms(&self, registry: &mut Registry) {
        let labels = |room: &Room| StorageClass {
            storage_class: room.rule.storage_class_name.to_string(),
        };
        let source = |room: &Room| Source {
            storage_class: room.rule.storage_class_name.to_string(),
            source: if room.rule.source.prometheus.is_some() {
                "prometheus"
            } else {
                "csiCapacity"
            },
        };
        let rooms = || self.rooms.iter();
        let known = || rooms().filter_map(|room| Some((labels(room), room, *room.capacity.present()?)));
        registry.register(
            "headroom_known",
            "1 while the source of a storage class tells its capacity; 0 holds back every new machine there",
            counted(rooms().map(|room| (source(room), room.capacity.present().is_some().into()))),
        );
        registry.register(
            "headroom_waiting_machines",
            "Machines that wait for room in a storage class; it is closed while there are any",
            counted(rooms().map(|room| (labels(room), whole(room.waiting)))),
        );
        registry.register_with_unit(
            "headroom_free",
            "Bytes that are free in a storage class, as its source last told",
            Unit::Bytes,
            counted(known().map(|(labels, _, capacity)| (labels, whole(capacity.free)))),
        );
        registry.register_with_unit(
            "headroom_capacity",
            "Bytes of a storage class in all, as its source last told",
            Unit::Bytes,
            counted(known().map(|(labels, _, capacity)| (labels, whole(capacity.total)))),
        );
        registry.register_with_unit(
            "headroom_reserved",
            "Bytes that machines which are being made still take",
            Unit::Bytes,
            counted(rooms().map(|room| (labels(room), whole(room.reserved)))),
        );
        registry.register_with_unit(
            "headroom_threshold",
            "Bytes that must stay free for a machine to be let in (minFreePercent of the capacity)",
            Unit::Bytes,
            counted(known().map(|(labels, room, c)| (labels, whole(thresholds(&room.rule, c.total).0.bytes)))),
        );
        let share = Family::<StorageClass, Gauge<f64, AtomicU64>>::default();
        for room in rooms() {
            share
                .get_or_create(&labels(room))
                .set(f64::from(room.rule.min_free_percent) / 100.0);
        }
        registry.register(
            "headroom_threshold_ratio",
            "Share of the capacity that must stay free",
            share,
        );
    }
}

/// A family of gauges with these numbers.
fn counted<L>(numbers: impl Iterator<Item = (L, i64)>) -> Family<L, Gauge>
where
    L: Clone + std::fmt::Debug + std::hash::Hash + Eq,
{
    let family = Family::<L, Gauge>::default();
    for (labels, number) in numbers {
        family.get_or_create(&labels).set(number);
    }
    family
}

fn whole<N: TryInto<i64>>(number: N) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

/// By the VirtualMachine's own name, which KubeVirt's metrics have too.
fn instance(world: &World, machine: &MacOSMachine, class: String) -> Option<Instance> {
    let namespace = machine.namespace()?;
    let name = names::of_machine(&machine.name_any(), &machine.uid()?, "vm");
    if world.vms.get(&namespace, &name).absent() {
        return None;
    }
    let pool = machine.labels().get(POOL).cloned().unwrap_or_default();
    // a label that anybody may write: only pools that are there
    let pool = if world.pools.get(&namespace, &pool).absent() {
        String::new()
    } else {
        pool
    };
    Some(Instance {
        name,
        machine: machine.name_any(),
        class,
        pool,
        namespace,
    })
}

/// Launchers that were probed; the first is the one that machines are started with, unless it is being probed anew.
fn launchers(world: &World) -> Vec<LauncherMode> {
    let platform = world.platform();
    let Some(status) = platform.present().and_then(|platform| platform.status.as_ref()) else {
        return Vec::new();
    };
    let probed = of(&status.conditions, PlatformCondition::LauncherCapable.word());
    let probed = probed.is_some_and(|condition| condition.status != Verdict::Unknown);
    let mode = |(at, launcher): (usize, &Launcher)| LauncherMode {
        digest: launcher.digest.clone(),
        mode: word(&launcher.nvme),
        current: if at == 0 && probed { "true" } else { "false" },
    };
    status.launchers.iter().enumerate().map(mode).collect()
}
