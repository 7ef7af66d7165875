//! What the leader did, counted from the start of its process. Nothing of it survives a restart: that is what
//! `rate()` and `increase()` are for.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::{Registry, Unit},
};

use super::measure::Measure;
use crate::act::Outcome;

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

/// Counters and histograms of the acts; all copies are one.
#[derive(Clone, Debug)]
pub struct Acts {
    phases: Family<InPhase, Histogram, fn() -> Histogram>,
    waits: Family<Wait, Histogram, fn() -> Histogram>,
    hooks: Family<OfClass, Counter>,
    clones: Family<Cloned, Counter>,
    bytes: Family<Cloned, Counter>,
    passes: Family<Passed, Counter>,
}

impl Default for Acts {
    fn default() -> Self {
        Self {
            phases: Family::new_with_constructor(phase_histogram),
            waits: Family::new_with_constructor(wait_histogram),
            hooks: Family::default(),
            clones: Family::default(),
            bytes: Family::default(),
            passes: Family::default(),
        }
    }
}

impl Acts {
    /// Counts what a status that was written says for the first time.
    pub fn note(&self, measure: &Measure) {
        match measure {
            Measure::PhaseLeft { class, phase, seconds } => {
                let labels = InPhase {
                    class: class.clone(),
                    phase: phase.clone(),
                };
                self.phases.get_or_create(&labels).observe(*seconds);
            }
            Measure::ClaimBound {
                namespace,
                pool,
                class,
                start,
                seconds,
            } => {
                let labels = Wait {
                    namespace: namespace.clone(),
                    pool: pool.clone(),
                    class: class.clone(),
                    start: start.word(),
                };
                self.waits.get_or_create(&labels).observe(*seconds);
            }
            Measure::HookFailed { class } => {
                self.hooks.get_or_create(&OfClass { class: class.clone() }).inc();
            }
            Measure::Cloned {
                storage_class,
                strategy,
                bytes,
            } => {
                let labels = Cloned {
                    storage_class: storage_class.clone(),
                    strategy: strategy.word(),
                };
                self.clones.get_or_create(&labels).inc();
                self.bytes.get_or_create(&labels).inc_by(*bytes);
            }
        }
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
            self.phases.clone(),
        );
        registry.register_with_unit(
            "claim_wait",
            "Seconds from a claim's creation to its machine, observed when it is Bound",
            Unit::Seconds,
            self.waits.clone(),
        );
        registry.register(
            "hook_failures",
            "Machines whose start KubeVirt stopped at the domain hook. Since this process began",
            self.hooks.clone(),
        );
        registry.register(
            "clones",
            "Disks that were cloned, by what CDI really did; copy: a pod reads and writes it all. Since this process began",
            self.clones.clone(),
        );
        registry.register_with_unit(
            "cloned",
            "Size of the disks that were cloned; with strategy copy, what was read and written. Since this process began",
            Unit::Bytes,
            self.bytes.clone(),
        );
        registry.register(
            "passes",
            "Plans that were carried out, by kind of object and outcome. Since this process began",
            self.passes.clone(),
        );
    }
}
