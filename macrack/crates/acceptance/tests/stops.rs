//! The stops for a third VM, each on its own with the others out of the way: here the schema and the scheduler. (The
//! agent's own refusal and the kernel's code 6 are shown in crates/agent/tests and crates/vm/tests.)

use anyhow::Result;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use macrack_acceptance::{Rack, SOON, Scene, objects};
use macrack_testkit::{Namespace, expect};
use serde_json::json;

#[tokio::test]
async fn the_schema_refuses_a_third_slot_even_to_the_operator() -> Result<()> {
    let scene = Scene::set(Rack::shared(), "slot", 1, 81).await?;
    let ns = Namespace::fresh(scene.rack.plane, "slot").await?;
    scene.lease(ns.name(), "l").await?;
    scene.instance(ns.name(), "one", "l").await?;
    scene.instance(ns.name(), "two", "l").await?;
    let operator =
        scene.rack.plane.as_user("system:serviceaccount:macrack-system:macrack-operator", &["system:masters"]).await?;
    let nodes: Api<macrack_api::MacNode> = Api::all(operator);
    let name = scene.serials[0].to_lowercase();
    let slot = |n: i32| json!({ "slot": n, "uid": "00000000-0000-4000-8000-000000000003", "namespace": ns.name(), "name": "three", "order": "Run" });
    let mut three = serde_json::to_value(nodes.get(&name).await?.status.unwrap_or_default().slots)?;
    if let Some(all) = three.as_array_mut() {
        all.push(slot(2));
    }
    let patch = |slots: &serde_json::Value| Patch::Merge(json!({ "status": { "slots": slots } }));
    let third = nodes.patch_status(&name, &PatchParams::default(), &patch(&three)).await;
    expect::rejects(third, ["slots", "must have at most 2 items"]);
    let replaced = json!([slot(0), three[1]]);
    let replaced = nodes.patch_status(&name, &PatchParams::default(), &patch(&replaced)).await;
    expect::rejects(replaced, "[slot-until-wiped]");
    Ok(())
}

#[tokio::test]
async fn the_scheduler_leaves_a_third_placeholder_pending() -> Result<()> {
    let scene = Scene::set(Rack::shared(), "sched", 1, 82).await?;
    let ns = Namespace::fresh(scene.rack.plane, "sched").await?;
    scene.lease(ns.name(), "l").await?;
    scene.instance(ns.name(), "one", "l").await?;
    scene.instance(ns.name(), "two", "l").await?;
    // with everything else out of the way: a copy of a placeholder, made in the operator's own name
    let operator =
        scene.rack.plane.as_user("system:serviceaccount:macrack-system:macrack-operator", &["system:masters"]).await?;
    let pods: Api<Pod> = Api::namespaced(operator, ns.name());
    let first = pods.get("macrack-vm-one").await?;
    let mut spec = first.spec.clone().unwrap_or_default();
    spec.node_name = None;
    let third: Pod = objects::object(json!({ "metadata": { "name": "macrack-vm-three" }, "spec": spec }));
    pods.create(&PostParams::default(), &third).await?;
    let refused = |p: &Pod| {
        let conditions = p.status.clone().unwrap_or_default().conditions.unwrap_or_default();
        conditions.iter().any(|c| {
            c.reason.as_deref() == Some("Unschedulable")
                && c.message.as_deref().unwrap_or("").contains("macrack.io/macos-vm")
        })
    };
    let third = expect::until_seen(&pods, "macrack-vm-three", "refused by the scheduler", SOON, refused).await;
    assert_eq!(third.spec.unwrap_or_default().node_name, None);
    assert!(first.name_any().starts_with("macrack-vm-"));
    Ok(())
}
