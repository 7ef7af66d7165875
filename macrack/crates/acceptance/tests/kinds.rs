//! What every kind owes a person: `kubectl wait --for=condition=Ready`, columns that say why, bounded statuses.

use std::time::Duration;

use anyhow::Result;
use kube::{Api, ResourceExt, api::PostParams};
use macrack_acceptance::{Operator, Rack, SOON, Scene, objects};
use macrack_api::{MacNodeLease, MacOSImage, RackConfig, condition};
use macrack_testkit::{Namespace, expect};
use serde_json::json;

#[tokio::test]
async fn kubectl_wait_for_ready_works_on_every_kind_and_get_says_why_something_waits() -> Result<()> {
    let scene = Scene::set(Rack::shared(), "kinds", 1, 91).await?;
    let ns = Namespace::fresh(scene.rack.plane, "kinds").await?;
    let config: RackConfig = objects::object(
        json!({ "apiVersion": "config.macrack.io/v1alpha1", "kind": "RackConfig", "metadata": { "name": "default" }, "spec": {} }),
    );
    Api::all(scene.admin.clone()).create(&PostParams::default(), &config).await?;
    scene.lease(ns.name(), "l").await?;
    scene.instance(ns.name(), "i", "l").await?;
    objects::make_in(&scene.admin, ns.name(), &objects::lease("more", "kinds")).await?;
    let mac = scene.serials[0].to_lowercase();
    for what in ["mnc/kinds", &format!("mn/{mac}"), "mnl/l", "mic/kinds", "mi/i", "macimg/kinds", "rackconfig/default"]
    {
        let args = ["wait", "--for=condition=Ready", what, "-n", ns.name(), "--timeout=20s"];
        scene.rack.plane.kubectl(&args).await?.success()?;
    }
    let waits = |l: &MacNodeLease| l.status.as_ref().is_some_and(|s| !s.conditions.is_empty());
    expect::until_seen(&scene.leases(ns.name()), "more", "judged", SOON, waits).await;
    let all = scene.rack.plane.kubectl(&["get", "macrack", "-n", ns.name()]).await?.success()?;
    let line = |start: &str| all.lines().find(|l| l.starts_with(start)).unwrap_or_default().to_owned();
    let more = line("macnodelease.rack.macrack.io/more");
    assert!(more.contains("Pending") && more.contains("NoChassisFree"), "{all}");
    let bound = line("macnodelease.rack.macrack.io/l");
    assert!(bound.contains("Bound") && bound.contains("1/2") && bound.contains(&scene.serials[0]), "{all}");
    assert!(line("macosinstance.instance.macrack.io/i").contains("Ready"), "{all}");
    let wide = scene.rack.plane.kubectl(&["get", "mnl", "more", "-n", ns.name(), "-o", "wide"]).await?.success()?;
    assert!(wide.contains("all 1 kinds are leased; the first can come free at"), "{wide}");
    Ok(())
}

#[tokio::test]
async fn a_list_of_caches_shrinks_to_the_chassis_that_exist() -> Result<()> {
    let scene = Scene::set(Rack::shared(), "cached", 2, 92).await?;
    let images: Api<MacOSImage> = Api::all(scene.admin.clone());
    let digest = images.get("cached").await?.spec.source.oci.digest().unwrap_or_default().to_owned();
    for puppet in &scene.puppets {
        puppet.behave(|m| m.goldens = vec![digest.clone()]);
    }
    let named = |n: usize| move |i: &MacOSImage| i.status.as_ref().is_some_and(|s| s.replicated_on.len() == n);
    expect::until_seen(&images, "cached", "cached on two", SOON, named(2)).await;
    // a list of two thousand serials that some earlier version left behind, of chassis that are long gone
    let stale: Vec<String> = (0..1000).map(|n| format!("ZZGONE{n:05}")).collect();
    let operator =
        scene.rack.plane.as_user("system:serviceaccount:macrack-system:macrack-operator", &["system:masters"]).await?;
    let theirs: Api<MacOSImage> = Api::all(operator);
    let patch = kube::api::Patch::Merge(json!({ "status": { "replicatedOn": stale } }));
    theirs.patch_status("cached", &Default::default(), &patch).await?;
    let shrunk = expect::until_seen(&images, "cached", "back to two", SOON, named(2)).await;
    let column = shrunk.status.and_then(|s| s.cached_on).unwrap_or_default();
    assert!(column.starts_with("2/"), "{column}");
    Ok(())
}

#[tokio::test]
async fn of_two_replicas_one_decides_and_the_other_takes_over() -> Result<()> {
    let rack = Rack::shared();
    let scene = Scene::set(rack, "twin", 2, 93).await?;
    let ns = Namespace::fresh(rack.plane, "twin").await?;
    let second = rack.another(&Operator::default()).await?;
    scene.lease(ns.name(), "first").await?;
    assert!(!second.log().contains("deciding begins"), "one leads");
    rack.kill_operator()?;
    second.until_logged("deciding begins", Duration::from_secs(40)).await?;
    scene.lease(ns.name(), "second").await?;
    drop(second);
    rack.start(&Operator::default()).await?;
    rack.admission_serves().await?;
    Ok(())
}

#[test]
fn every_list_and_text_of_every_status_is_bounded() -> Result<()> {
    fn walk(path: &str, schema: &serde_json::Value, unbounded: &mut Vec<String>) {
        match schema["type"].as_str() {
            Some("array") if schema.get("maxItems").is_none() => unbounded.push(path.into()),
            Some("string")
                if schema.get("maxLength").is_none()
                    && schema.get("enum").is_none()
                    && schema["format"] != "date-time" =>
            {
                unbounded.push(path.into());
            }
            _ => {}
        }
        if let Some(properties) = schema["properties"].as_object() {
            for (name, inner) in properties {
                walk(&format!("{path}.{name}"), inner, unbounded);
            }
        }
        if schema["items"].is_object() {
            walk(&format!("{path}[]"), &schema["items"], unbounded);
        }
    }
    let mut unbounded = Vec::new();
    for crd in macrack_api::crds()? {
        for version in &crd.spec.versions {
            let schema = serde_json::to_value(&version.schema)?;
            walk(&crd.spec.names.kind, &schema["openAPIV3Schema"]["properties"]["status"], &mut unbounded);
        }
    }
    assert!(unbounded.is_empty(), "an agent or a guest could fill these without end: {unbounded:?}");
    assert!(condition::bounded(&"x".repeat(40_000)).len() <= 1024);
    let names: Vec<String> = macrack_api::crds()?.iter().map(ResourceExt::name_any).collect();
    assert_eq!(names.len(), 7);
    Ok(())
}

#[test]
fn no_field_for_the_number_of_vms_exists() -> Result<()> {
    for crd in macrack_api::crds()? {
        let text = serde_json::to_string(&crd)?.to_lowercase();
        for word in
            ["maxvms", "vmcount", "vmsper", "instancesper", "multitenant", "shared\"", "\"slotcount", "overcommit"]
        {
            assert!(!text.contains(word), "{}: {word}", crd.name_any());
        }
    }
    Ok(())
}
