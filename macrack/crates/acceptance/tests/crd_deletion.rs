//! The CRD of leases is deleted while one holds a Mac: the lease is Held, nothing is given away before the floor, and
//! nothing is stuck after it. On a control plane of its own, since it takes a kind away from everybody.

use anyhow::Result;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, api::DeleteParams};
use macrack_acceptance::{Operator, Rack, SOON, Scene};
use macrack_api::{MacNode, instance::macos_instance::MacOSInstancePhase, rack::lease::MacNodeLeasePhase};
use macrack_testkit::{Namespace, expect};

#[tokio::test]
async fn the_deleted_kind_of_leases_goes_at_the_floor_of_the_last_lease() -> Result<()> {
    let at = |hours| Operator { operator_hours: hours, server_hours: hours, no_webhook: true, ..Operator::default() };
    let rack = Rack::bare();
    rack.start(&at(-3)).await?;
    let scene = Scene::set(rack, "crd", 1, 61).await?;
    let ns = Namespace::fresh(rack.plane, "crd").await?;
    scene.lease(ns.name(), "l").await?;
    scene.instance(ns.name(), "i", "l").await?;
    rack.start(&at(0)).await?;
    let crds: Api<CustomResourceDefinition> = Api::all(scene.admin.clone());
    let name = "macnodeleases.rack.macrack.io";
    crds.delete(name, &DeleteParams::default()).await?;
    scene.until_lease(ns.name(), "l", MacNodeLeasePhase::Held).await;
    scene.until_instance(ns.name(), "i", MacOSInstancePhase::Stopped).await;
    assert!(crds.get_opt(name).await?.is_some(), "held to the floor");
    rack.start(&at(22)).await?;
    expect::until_gone(&crds, name, SOON).await;
    let free = |n: &MacNode| n.status.as_ref().is_some_and(|s| s.lease_ref.is_none() && s.slots.is_empty());
    expect::until_seen(&scene.nodes(), &scene.serials[0].to_lowercase(), "given back", SOON, free).await;
    Ok(())
}
