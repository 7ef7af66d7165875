//! Slips of an admin that the operator mends by itself.

use anyhow::Result;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt};
use macrack_acceptance::{Rack, SOON, Scene};
use macrack_api::names;
use macrack_testkit::{Namespace, expect};

#[tokio::test]
async fn a_node_that_lost_its_serials_label_gets_it_back_and_takes_vms_again() -> Result<()> {
    let scene = Scene::set(Rack::shared(), "label", 1, 98).await?;
    let ns = Namespace::fresh(scene.rack.plane, "label").await?;
    scene.lease(ns.name(), "l").await?;
    let node = names::node(&scene.serials[0].to_lowercase());
    scene.rack.plane.kubectl(&["label", "node", &node, "macrack.io/serial-"]).await?.success()?;
    let nodes: Api<Node> = Api::all(scene.admin.clone());
    expect::until_seen(&nodes, &node, "labelled again", SOON, |n| n.labels().contains_key(names::LABEL_SERIAL)).await;
    scene.instance(ns.name(), "i", "l").await?;
    Ok(())
}
