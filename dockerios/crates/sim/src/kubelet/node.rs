//! Nodes with KVM, and their heartbeats. Invariant: a node that is lost renews nothing; the real node controller draws
//! its conclusions by itself.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use dockerios_kubevirt::{VirtualMachineInstance, names};
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Node};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
    runtime::reflector::ObjectRef,
};
use serde_json::json;

use crate::{
    options::NodeShape,
    queue::{Again, Key},
    world::{NODE_LABEL, World, now, unless},
};

/// Features that the nodes' processors are said to have.
const FEATURES: [&str; 12] = [
    "avx", "avx2", "bmi1", "bmi2", "fma", "invtsc", "movbe", "pcid", "smep", "sse4.1", "sse4.2", "xsave",
];

fn object(shape: &NodeShape) -> Result<Node> {
    let mut labels = json!({
        NODE_LABEL: "true",
        "kubernetes.io/hostname": shape.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "kubevirt.io/schedulable": "true",
        "kubevirt.io/cpumanager": "true",
        "machine-type.node.kubevirt.io/q35": "true",
        names::CPU_VENDOR_INTEL: "true",
    });
    for feature in FEATURES {
        labels[format!("cpu-feature.node.kubevirt.io/{feature}")] = json!("true");
    }
    Ok(serde_json::from_value(json!({
        "metadata": {"name": shape.name, "labels": labels},
    }))?)
}

async fn register(world: &World, shape: &NodeShape) -> Result<()> {
    let nodes: Api<Node> = Api::all(world.client.clone());
    unless(nodes.create(&PostParams::default(), &object(shape)?).await, 409)?;
    beat(world, &shape.name, true).await
}

/// One heartbeat: the lease, and the status when it is not what it should be.
async fn beat(world: &World, name: &str, whole: bool) -> Result<()> {
    let leases: Api<Lease> = Api::namespaced(world.client.clone(), "kube-node-lease");
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": name},
        "spec": {
            "holderIdentity": name, "leaseDurationSeconds": 40,
            "renewTime": jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string(),
        },
    });
    leases
        .patch(name, &PatchParams::apply("dockerios-sim").force(), &Patch::Apply(lease))
        .await?;
    let node = world.stores.nodes.get(&ObjectRef::new(name));
    let ready = node.as_ref().is_some_and(|node| {
        let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
        conditions.is_some_and(|all| all.iter().any(|one| one.type_ == "Ready" && one.status == "True"))
    });
    let Some(shape) = world.options.nodes.iter().find(|shape| shape.name == name) else {
        return Ok(());
    };
    if whole || !ready {
        let condition = |type_: &str, status: &str, reason: &str| {
            json!({"type": type_, "status": status, "reason": reason, "message": "simulated",
                   "lastHeartbeatTime": now(), "lastTransitionTime": now()})
        };
        let status = json!({"status": {
            "capacity": shape.resources,
            "allocatable": shape.resources,
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Hostname", "address": name}],
            "nodeInfo": {
                "architecture": "amd64", "operatingSystem": "linux", "kubeletVersion": "v1.36.3", "bootID": "sim",
                "containerRuntimeVersion": "sim://1", "kernelVersion": "sim", "machineID": "sim", "osImage": "simulated",
                "kubeProxyVersion": "", "systemUUID": "sim",
            },
            "conditions": [
                condition("Ready", "True", "KubeletReady"),
                condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
                condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
                condition("PIDPressure", "False", "KubeletHasSufficientPID"),
            ],
        }});
        let nodes: Api<Node> = Api::all(world.client.clone());
        let patch = Patch::Strategic(status);
        unless(nodes.patch_status(name, &PatchParams::default(), &patch).await, 404)?;
    }
    Ok(())
}

/// Registers the nodes and keeps them alive, but those that are lost.
pub(crate) async fn heartbeats(world: Arc<World>) {
    let mut registered = vec![false; world.options.nodes.len()];
    loop {
        let mut wait = world.options.timings.heartbeat;
        for (at, shape) in world.options.nodes.iter().enumerate() {
            if world.node_is_lost(&shape.name) {
                continue;
            }
            let done = match registered[at] {
                true => beat(&world, &shape.name, false).await,
                false => register(&world, shape).await,
            };
            match done {
                Ok(()) => registered[at] = true,
                Err(error) => {
                    tracing::warn!("node {}: {error:#}", shape.name);
                    wait = Duration::from_millis(500);
                }
            }
        }
        tokio::time::sleep(wait).await;
    }
}

/// Something about a node has changed, such as whether it is lost: whatever is on it is looked at.
pub(crate) async fn node(world: Arc<World>, key: Key) -> Result<Again> {
    for pod in world.stores.pods.state() {
        if pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(&key.name) {
            world.queues.pods.add(Key::of(&*pod));
        }
    }
    let on_it = |vmi: &VirtualMachineInstance| {
        vmi.status.as_ref().and_then(|status| status.node_name.as_deref()) == Some(&key.name)
    };
    for vmi in world.stores.instances.state_filter(on_it) {
        world.queues.instances.add(Key::of(&*vmi));
    }
    let stale = world.stores.nodes.get(&ObjectRef::new(&key.name)).is_some_and(|node| {
        let conditions = node
            .status
            .as_ref()
            .and_then(|status| status.conditions.clone())
            .unwrap_or_default();
        !conditions
            .iter()
            .any(|one| one.type_ == "Ready" && one.status == "True")
    });
    let ours = world.options.nodes.iter().any(|shape| shape.name == key.name);
    if stale && ours && !world.node_is_lost(&key.name) {
        // back again: it need not wait for the next heartbeat
        beat(&world, &key.name, true).await?;
    }
    Ok(None)
}
