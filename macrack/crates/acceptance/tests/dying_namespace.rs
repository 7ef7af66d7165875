//! A lease that waits in a namespace which is being deleted is out of the line.

use anyhow::Result;
use k8s_openapi::api::core::v1::{Namespace as KubeNamespace, Pod};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use macrack_acceptance::{Operator, Rack, SOON, Scene, objects};
use macrack_api::rack::lease::MacNodeLeasePhase;
use macrack_testkit::{Namespace, expect};
use serde_json::json;

#[tokio::test]
async fn a_lease_that_waits_in_a_dying_namespace_gets_no_mac_and_stands_in_nobodys_way() -> Result<()> {
    let rack = Rack::bare();
    let at = |hours| Operator { operator_hours: hours, server_hours: hours, no_webhook: true, ..Operator::default() };
    rack.start(&at(-25)).await?;
    let scene = Scene::set(rack, "dying", 1, 99).await?;
    let ns = Namespace::fresh(rack.plane, "live").await?;
    scene.lease(ns.name(), "first").await?;
    // the namespace ends only once this pod has, and until then nothing else in it is deleted
    rack.namespace("dying").await?;
    let pods: Api<Pod> = Api::namespaced(scene.admin.clone(), "dying");
    let pod: Pod = objects::object(json!({ "metadata": { "name": "p", "finalizers": ["tenant.example.com/stuck"] },
        "spec": { "automountServiceAccountToken": false, "containers": [{ "name": "c", "image": "c" }] } }));
    let made = async || pods.create(&Default::default(), &pod).await.is_ok();
    expect::until_effective("the namespace's account", SOON, made).await;
    objects::make_in(&scene.admin, "dying", &objects::lease("older", "dying")).await?;
    scene.until_lease("dying", "older", MacNodeLeasePhase::Pending).await;
    scene.after(scene.leases("dying").get("older").await?.metadata.creation_timestamp).await;
    objects::make_in(&scene.admin, ns.name(), &objects::lease("younger", "dying")).await?;
    scene.until_lease(ns.name(), "younger", MacNodeLeasePhase::Pending).await;
    let namespaces: Api<KubeNamespace> = Api::all(scene.admin.clone());
    namespaces.delete("dying", &DeleteParams::default()).await?;
    expect::until_seen(&pods, "p", "being deleted", SOON, |p| p.metadata.deletion_timestamp.is_some()).await;
    rack.start(&at(0)).await?;
    scene.leases(ns.name()).delete("first", &DeleteParams::default()).await?;
    scene.until_lease(ns.name(), "younger", MacNodeLeasePhase::Bound).await;
    let older = scene.leases("dying").get("older").await?;
    assert!(older.metadata.deletion_timestamp.is_none(), "it was still in the line: {}", older.name_any());
    let free = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    pods.patch("p", &PatchParams::default(), &free).await?;
    expect::until_gone(&scene.leases("dying"), "older", SOON).await;
    Ok(())
}
