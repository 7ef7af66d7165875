//! A tenant may write the managedFields of whatever they may edit, and the API server keeps a time in them that ours
//! cannot hold. It must cost nobody anything: neither the others, nor the end of the tenant's own lease and VM.

use std::time::Duration;

use anyhow::{Context, Result};
use http::Request;
use kube::{
    Client, Config,
    api::DeleteParams,
    config::{KubeConfigOptions, Kubeconfig},
};
use macrack_acceptance::{Operator, Rack, SOON, Scene};
use macrack_testkit::{Namespace, expect};
use macrack_thin::connect;
use serde_json::{Value, json};
use tokio::sync::Mutex;

/// Past the last moment of our times, and a good one for the API server.
const NEVER: &str = "9999-12-31T23:59:59Z";

static TURN: Mutex<()> = Mutex::const_new(());

/// Both clocks that many hours off.
fn at(hours: i64) -> Operator {
    Operator { operator_hours: hours, server_hours: hours, no_webhook: true, ..Operator::default() }
}

/// Writes that time into the managedFields of an object, as its owner.
async fn poison(tenant: &Client, path: &str) -> Result<()> {
    for _ in 0..20 {
        let mut object: Value = tenant.request(Request::get(path).body(Vec::new())?).await?;
        let managed = object["metadata"]["managedFields"].as_array_mut().context("managedFields")?;
        managed.iter_mut().for_each(|entry| entry["time"] = json!(NEVER));
        object["metadata"]["annotations"]["tenant"] = json!("was here");
        let put = Request::put(format!("{path}?fieldManager=tenant")).header("content-type", "application/json");
        let answer: kube::Result<Value> = tenant.request(put.body(serde_json::to_vec(&object)?)?).await;
        match answer {
            Ok(object) if object["metadata"]["managedFields"].to_string().contains(NEVER) => return Ok(()),
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            other => anyhow::bail!("{path}: the time was not kept: {other:?}"),
        }
    }
    anyhow::bail!("{path}: always changed meanwhile")
}

#[tokio::test]
async fn a_time_that_cannot_be_read_in_managed_fields_stops_nobody() -> Result<()> {
    let _turn = TURN.lock().await;
    let rack = Rack::bare();
    rack.start(&at(-25)).await?;
    let mut scene = Scene::set(rack, "poison", 2, 96).await?;
    // this test reads what it spoils, so it needs the operator's eyes
    let kubeconfig = Kubeconfig::read_from(rack.plane.kubeconfig())?;
    scene.admin = connect(Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?)?;
    let (bad, good) = (Namespace::fresh(rack.plane, "bad").await?, Namespace::fresh(rack.plane, "good").await?);
    let tenant = rack.tenant(bad.name()).await?;
    scene.lease(bad.name(), "l").await?;
    scene.instance(bad.name(), "i", "l").await?;
    let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "kept", "labels": {
        "app.kubernetes.io/managed-by": "macrack", "macrack.io/serial": scene.serials[0].to_lowercase() } } });
    let accounts = format!("/api/v1/namespaces/{}/serviceaccounts", bad.name());
    let post = Request::post(&accounts).header("content-type", "application/json");
    tenant.request::<Value>(post.body(serde_json::to_vec(&account)?)?).await?;
    for path in [
        format!("/apis/rack.macrack.io/v1alpha1/namespaces/{}/macnodeleases/l", bad.name()),
        format!("/apis/instance.macrack.io/v1alpha1/namespaces/{}/macosinstances/i", bad.name()),
        format!("{accounts}/kept"),
    ] {
        poison(&tenant, &path).await?;
    }
    // another tenant's life goes on under the operator that runs, and under the next one, which reads everything anew
    scene.lease(good.name(), "before").await?;
    rack.start(&at(0)).await?;
    scene.leases(good.name()).delete("before", &DeleteParams::default()).await?;
    expect::until_gone(&scene.leases(good.name()), "before", SOON).await;
    // and the floor of the hostile tenant comes as any other
    scene.leases(bad.name()).delete("l", &DeleteParams::default()).await?;
    expect::until_gone(&scene.leases(bad.name()), "l", Duration::from_secs(60)).await;
    scene.until_free(&scene.serials[0]).await;
    expect::until_gone(&scene.instances(bad.name()), "i", SOON).await;
    Ok(())
}

#[tokio::test]
async fn a_mac_that_cannot_be_read_keeps_nobody_elses_lease_from_its_end() -> Result<()> {
    let _turn = TURN.lock().await;
    let rack = Rack::bare();
    rack.start(&at(-25)).await?;
    let scene = Scene::set(rack, "unread", 2, 97).await?;
    let (bad, good) = (Namespace::fresh(rack.plane, "bad").await?, Namespace::fresh(rack.plane, "good").await?);
    let spoilt = scene.lease(bad.name(), "l").await?.status.and_then(|s| s.serial).context("a serial")?.to_lowercase();
    scene.instance(bad.name(), "i", "l").await?;
    scene.lease(good.name(), "l").await?;
    scene.instance(good.name(), "i", "l").await?;
    // a looser schema once let it in: a moment that our times do not hold
    let field = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/approvedReboot/pattern";
    let loose = json!([{ "op": "remove", "path": field }]).to_string();
    let crd = ["patch", "crd", "macnodes.rack.macrack.io", "--type=json", "-p", &loose];
    let patch = json!({ "spec": { "approvedReboot": NEVER } }).to_string();
    let write = ["patch", "mn", &spoilt, "--type=merge", "-p", &patch];
    let refused = rack.plane.kubectl(&write).await?;
    assert!(refused.stderr.contains("spec.approvedReboot"), "the schema keeps such a moment out: {}", refused.stderr);
    rack.plane.kubectl(&crd).await?.success()?;
    let written = async || rack.plane.kubectl(&write).await.is_ok_and(|o| o.success().is_ok());
    expect::until_effective("the loose schema", SOON, written).await;
    rack.start(&at(0)).await?;
    scene.leases(good.name()).delete("l", &DeleteParams::default()).await?;
    expect::until_gone(&scene.leases(good.name()), "l", SOON).await;
    expect::until_gone(&scene.instances(good.name()), "i", SOON).await;
    // what hangs on the Mac that cannot be read stays: its VM still runs there
    let pods: kube::Api<k8s_openapi::api::core::v1::Pod> = kube::Api::namespaced(scene.admin.clone(), bad.name());
    assert_eq!(pods.get("macrack-vm-i").await?.metadata.deletion_timestamp, None, "a placeholder was let go");
    scene.leases(bad.name()).delete("l", &DeleteParams::default()).await?;
    rack.plane
        .kubectl(&["patch", "mn", &spoilt, "--type=merge", "-p", r#"{"spec":{"approvedReboot":null}}"#])
        .await?
        .success()?;
    expect::until_gone(&scene.leases(bad.name()), "l", SOON).await;
    Ok(())
}
