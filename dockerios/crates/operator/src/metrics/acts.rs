//! What the leader did, counted from the start of its process. Nothing of it survives a restart: that is what
//! `rate()` and `increase()` are for.
//!
//! Invariants: what an alert looks at has its series, with 0, before the first event, since `increase()` does not see one
//! that begins with 1; the series of what was deleted go, so that they are as many as there are pools and classes.

use std::{
    collections::HashSet,
    fmt::Debug,
    hash::Hash,
    sync::{Arc, Mutex, PoisonError},
};

use dockerios_core::Seen;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::{Registry, Unit},
};

use super::measure::{Measure, Strategy};
use crate::{act::Outcome, world::World};

/// Bounds in seconds: from a clone that takes moments to a machine that is kept for days.
const PHASE_BOUNDS: [f64; 13] = [
    1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 14_400.0, 86_400.0,
];
/// Bounds in seconds: a warm machine is there at once, a cold one after some minutes.
const WAIT_BOUNDS: [f64; 11] = [1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0];

fn phase_histogram() -> Histogram {
    Histogram::new(PHASE_BOUNDS)
}

fn wait_histogram() -> Histogram {
    Histogram::new(WAIT_BOUNDS)
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct InPhase {
    class: String,
    phase: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Wait {
    namespace: String,
    pool: String,
    class: String,
    start: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfClass {
    class: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Cloned {
    storage_class: String,
    strategy: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Passed {
    kind: &'static str,
    outcome: &'static str,
}

/// A family that knows its series: prometheus-client takes away only what is named.
#[derive(Clone, Debug)]
struct Series<L, M, C = fn() -> M> {
    family: Family<L, M, C>,
    known: Arc<Mutex<HashSet<L>>>,
}

impl<L: Clone + Eq + Hash, M, C: prometheus_client::metrics::family::MetricConstructor<M>> Series<L, M, C> {
    fn over(family: Family<L, M, C>) -> Self {
        Self {
            family,
            known: Arc::default(),
        }
    }

    /// Does that with the series of those labels, which is made when there is none.
    fn with(&self, labels: L, act: impl FnOnce(&M)) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        act(&self.family.get_or_create(&labels));
        known.insert(labels);
    }

    /// Takes away the series of which that is not so.
    fn retain(&self, stands: impl Fn(&L) -> bool) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|labels| {
            let stands = stands(labels);
            if !stands {
                self.family.remove(labels);
            }
            stands
        });
    }
}

/// Counters and histograms of the acts; all copies are one.
#[derive(Clone, Debug)]
pub struct Acts {
    phases: Series<InPhase, Histogram>,
    waits: Series<Wait, Histogram>,
    hooks: Series<OfClass, Counter>,
    clones: Series<Cloned, Counter>,
    bytes: Series<Cloned, Counter>,
    passes: Family<Passed, Counter>,
}

impl Default for Acts {
    fn default() -> Self {
        Self {
            phases: Series::over(Family::new_with_constructor(phase_histogram)),
            waits: Series::over(Family::new_with_constructor(wait_histogram)),
            hooks: Series::over(Family::new_with_constructor(Counter::default)),
            clones: Series::over(Family::new_with_constructor(Counter::default)),
            bytes: Series::over(Family::new_with_constructor(Counter::default)),
            passes: Family::default(),
        }
    }
}

impl Acts {
    /// Counts what a status that was written says for the first time.
    pub fn note(&self, measure: &Measure) {
        match measure.clone() {
            Measure::PhaseLeft { class, phase, seconds } => {
                self.phases
                    .with(InPhase { class, phase }, |histogram| histogram.observe(seconds));
            }
            Measure::ClaimBound {
                namespace,
                pool,
                class,
                start,
                seconds,
            } => {
                let labels = Wait {
                    namespace,
                    pool,
                    class,
                    start: start.word(),
                };
                self.waits.with(labels, |histogram| histogram.observe(seconds));
            }
            Measure::HookFailed { class } => self.hooks.with(OfClass { class }, |count| {
                count.inc();
            }),
            Measure::Cloned {
                storage_class,
                strategy,
                bytes,
            } => self.cloned(&storage_class, strategy, 1, bytes),
        }
    }

    fn cloned(&self, storage_class: &str, strategy: Strategy, disks: u64, bytes: u64) {
        let labels = Cloned {
            storage_class: storage_class.to_owned(),
            strategy: strategy.word(),
        };
        let add = |number: u64| {
            move |count: &Counter| {
                count.inc_by(number);
            }
        };
        self.clones.with(labels.clone(), add(disks));
        self.bytes.with(labels, add(bytes));
    }

    /// Makes the series that alerts look at, with 0 where nothing was counted: hooks of every class, clones of every
    /// storage class that is cloned to.
    pub fn begin(&self, world: &World) {
        for (_, class) in world.classes.every_place() {
            self.hooks.with(OfClass { class }, |_| {});
        }
        let (classes, images, pools) = (
            world.classes.readable(),
            world.images.readable(),
            world.identity_pools.readable(),
        );
        let systems = each(&classes).map(|class| &class.spec.system_disk.storage_class_name);
        let goldens = each(&images).map(|image| &image.spec.storage_class_name);
        let boots = each(&pools).map(|pool| &pool.spec.boot_disk.storage_class_name);
        let used: HashSet<_> = systems.chain(goldens).chain(boots).collect();
        for storage_class in used {
            for strategy in Strategy::ALL {
                self.cloned(storage_class, strategy, 0, 0);
            }
        }
    }

    /// Takes away the series of pools, classes, namespaces and storage classes that are gone. What cannot be read is not
    /// gone.
    pub fn keep(&self, world: &World) {
        // no name: of what was not there when it was counted
        let class = |name: &str| name.is_empty() || !world.classes.get("", name).absent();
        let storage = |name: &str| name.is_empty() || !world.storage_classes.get("", name).absent();
        self.phases.retain(|labels| class(&labels.class));
        self.hooks.retain(|labels| class(&labels.class));
        self.clones.retain(|labels| storage(&labels.storage_class));
        self.bytes.retain(|labels| storage(&labels.storage_class));
        self.waits.retain(|labels| {
            let space = &labels.namespace;
            let pool = labels.pool.is_empty() || !world.pools.get(space, &labels.pool).absent();
            pool && class(&labels.class) && !world.namespaces.get("", space).absent()
        });
    }

    /// Counts a plan that was carried out, or was not.
    pub fn passed(&self, kind: &'static str, outcome: &Outcome) {
        let outcome = outcome.word();
        self.passes.get_or_create(&Passed { kind, outcome }).inc();
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register_with_unit(
            "machine_phase",
            "Seconds that a machine was in a phase, observed when it leaves it",
            Unit::Seconds,
            self.phases.family.clone(),
        );
        registry.register_with_unit(
            "claim_wait",
            "Seconds from a claim's creation to its machine, observed when it is Bound",
            Unit::Seconds,
            self.waits.family.clone(),
        );
        registry.register(
            "hook_failures",
            "Machines whose start KubeVirt stopped at the domain hook. Since this process began",
            self.hooks.family.clone(),
        );
        registry.register(
            "clones",
            "Disks that were cloned, by what CDI really did; copy: a pod reads and writes it all. Since this process began",
            self.clones.family.clone(),
        );
        registry.register_with_unit(
            "cloned",
            "Size of the disks that were cloned; with strategy copy, what was read and written. Since this process began",
            Unit::Bytes,
            self.bytes.family.clone(),
        );
        registry.register(
            "passes",
            "Plans that were carried out, by kind of object and outcome. Since this process began",
            self.passes.clone(),
        );
    }
}

fn each<K>(seen: &Seen<Vec<Arc<K>>>) -> impl Iterator<Item = &Arc<K>> {
    seen.present().into_iter().flatten()
}

#[cfg(test)]
impl Acts {
    /// All of it as text.
    pub(crate) fn text(&self) -> String {
        let (mut registry, mut text) = (Registry::default(), String::new());
        self.register(&mut registry);
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("text is written into memory");
        text
    }
}
