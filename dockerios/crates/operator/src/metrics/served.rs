//! What every replica tells of itself.

use dockerios_collector::Counts;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, info::Info},
    registry::Registry,
};

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Answer {
    answer: &'static str,
}

/// Adds them.
pub(super) fn register(registry: &mut Registry, leads: bool, counts: &Counts) {
    let version = Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
    registry.register("build", "The operator's version", version);
    let leader = Gauge::<i64>::default();
    leader.set(leads.into());
    registry.register(
        "leader",
        "1 on the replica that decides, which alone tells of the fleet; 0 on all others",
        leader,
    );
    let reports = Family::<Answer, Counter>::default();
    for (answer, count) in counts.all() {
        reports.get_or_create(&Answer { answer }).inc_by(count);
    }
    registry.register(
        "guest_reports",
        "Requests to this replica's collector since it started, by what became of them",
        reports,
    );
}
