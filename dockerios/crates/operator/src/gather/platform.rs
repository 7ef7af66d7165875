//! `PlatformConfig`.

use dockerios_api::names::PROBE_OF;
use dockerios_core::{Id, Seen, decide::platform::Facts};
use kube::ResourceExt;

use crate::world::World;

/// What its decision reads; `None` when it is not there.
pub fn gather(world: &World, id: &Id) -> Option<Facts> {
    let platform = world.platforms.get("", &id.name).present()?.clone();
    let jobs = world.jobs.all().map(|mut jobs| {
        jobs.retain(|job| job.labels().contains_key(PROBE_OF));
        jobs
    });
    let pods = world.builders.all().map(|mut pods| {
        pods.retain(|pod| pod.labels().contains_key(PROBE_OF));
        pods
    });
    Some(Facts {
        platform,
        kubevirts: world.kubevirts.all(),
        plugins: world.plugins.all(),
        cdi_gates: cdi_gates(world),
        identity_pools: world.identity_pools.all().map(|pools| !pools.is_empty()),
        jobs,
        pods,
        platform_namespace: world.platform_namespace.clone(),
        refusal: world.refusal(id),
    })
}

/// Name of CDI's one CDIConfig.
const CDI_CONFIG: &str = "config";

/// `CDIConfig.spec.featureGates`.
fn cdi_gates(world: &World) -> Seen<Vec<String>> {
    world.cdi_configs.get("", CDI_CONFIG).map(|config| {
        let gates = config
            .data
            .pointer("/spec/featureGates")
            .and_then(serde_json::Value::as_array);
        gates
            .into_iter()
            .flatten()
            .filter_map(|gate| gate.as_str().map(str::to_owned))
            .collect()
    })
}
