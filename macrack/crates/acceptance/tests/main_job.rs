//! The main job, and the specification's tests by name, with the product's own operator and puppet agents.

use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, ResourceExt};
use macrack_acceptance::{Puppet, Rack, objects};
use macrack_api::{
    MacNode, MacNodeLease, MacOSInstance, condition, instance::macos_instance::MacOSInstancePhase,
    rack::lease::MacNodeLeasePhase,
};
use macrack_testkit::{Namespace, expect};

const SOON: Duration = Duration::from_secs(20);

fn ready(conditions: &[condition::Condition]) -> bool {
    condition::is_true(conditions, "Ready")
}

#[tokio::test]
async fn a_tenant_leases_a_mac_runs_two_vms_and_is_refused_the_third() -> Result<()> {
    let rack = Rack::shared();
    let admin = rack.plane.admin().await?;
    let ns = Namespace::fresh(rack.plane, "team-a").await?;
    let tenant = rack.tenant(ns.name()).await?;
    objects::make(&admin, &objects::node_class("main-job")).await?;
    objects::make(&admin, &objects::instance_class("main-half")).await?;
    objects::make(&admin, &objects::mac_node("MAIN000001", "main-job")).await?;
    rack.image("main-tahoe", 1).await?;
    let _puppet = Puppet::start(rack.plane, "MAIN000001").await?;
    let nodes: Api<MacNode> = Api::all(admin.clone());
    expect::until_seen(&nodes, "main000001", "Ready", SOON, |n| {
        ready(&n.status.clone().unwrap_or_default().conditions)
    })
    .await;

    objects::make_in(&tenant, ns.name(), &objects::lease("ios-ci", "main-job")).await?;
    let leases: Api<MacNodeLease> = Api::namespaced(tenant.clone(), ns.name());
    let lease = expect::until_seen(&leases, "ios-ci", "Bound", SOON, |l| {
        l.status.as_ref().is_some_and(|s| s.phase == Some(MacNodeLeasePhase::Bound) && ready(&s.conditions))
    })
    .await;
    assert_eq!(lease.status.clone().and_then(|s| s.serial).as_deref(), Some("MAIN000001"));
    let kube_nodes: Api<Node> = Api::all(admin.clone());
    let uid = lease.uid().unwrap_or_default();
    expect::until_seen(&kube_nodes, "macrack-main000001", "tainted for this lease alone", SOON, |n| {
        let taints = n.spec.clone().unwrap_or_default().taints.unwrap_or_default();
        taints.iter().any(|t| t.key == "macrack.io/lease" && t.value.as_ref() == Some(&uid))
            && !taints.iter().any(|t| t.key == "macrack.io/unleased")
    })
    .await;

    let instances: Api<MacOSInstance> = Api::namespaced(tenant.clone(), ns.name());
    for name in ["build-1", "build-2"] {
        objects::make_in(&tenant, ns.name(), &objects::instance(name, "ios-ci", "main-half", "main-tahoe")).await?;
    }
    for name in ["build-1", "build-2"] {
        let made = expect::until_seen(&instances, name, "Ready", SOON, |i| {
            i.status.as_ref().is_some_and(|s| s.phase == Some(MacOSInstancePhase::Ready) && ready(&s.conditions))
        })
        .await;
        assert_eq!(made.owner_references().first().map(|o| o.uid.clone()), Some(uid.clone()), "the lease owns it");
    }
    let pods: Api<Pod> = Api::namespaced(tenant.clone(), ns.name());
    let placed = pods.get("macrack-vm-build-1").await?;
    assert_eq!(
        placed.spec.and_then(|s| s.node_name).as_deref(),
        Some("macrack-main000001"),
        "the native scheduler placed it"
    );

    let third =
        objects::make_in(&tenant, ns.name(), &objects::instance("build-3", "ios-ci", "main-half", "main-tahoe")).await;
    expect::rejects(third, ["[two-per-lease]", "build-1", "build-2", "two macOS VMs, never more"]);

    // one goes: slot, placeholder and object are gone, and another may come
    instances.delete("build-1", &Default::default()).await?;
    expect::until_gone(&instances, "build-1", SOON).await;
    expect::until_gone(&pods, "macrack-vm-build-1", SOON).await;
    objects::make_in(&tenant, ns.name(), &objects::instance("build-3", "ios-ci", "main-half", "main-tahoe")).await?;
    expect::until_seen(&instances, "build-3", "Ready", SOON, |i| {
        i.status.as_ref().is_some_and(|s| s.phase == Some(MacOSInstancePhase::Ready))
    })
    .await;
    Ok(())
}
