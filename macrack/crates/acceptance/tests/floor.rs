//! The twenty-four hours, lived through by moving both clocks: binding happens "25 hours ago", then the operator comes
//! back to now. One operator at a time, so the tests take turns.

use std::time::Duration;

use anyhow::Result;
use kube::{ResourceExt, api::DeleteParams, runtime::watcher};
use macrack_acceptance::{Operator, Rack, SOON, Scene, reason};
use macrack_api::{
    MacNode, condition,
    instance::macos_instance::MacOSInstancePhase,
    rack::{lease::MacNodeLeasePhase, node::Order},
};
use macrack_testkit::{Namespace, expect};
use tokio::sync::Mutex;

static TURN: Mutex<()> = Mutex::const_new(());

/// Both clocks that many hours off.
fn at(hours: i64) -> Operator {
    Operator { operator_hours: hours, server_hours: hours, no_webhook: true, ..Operator::default() }
}

#[tokio::test]
async fn a_delete_at_plus_3h_becomes_held() -> Result<()> {
    let _turn = TURN.lock().await;
    let rack = Rack::bare();
    rack.start(&at(-3)).await?;
    let scene = Scene::set(rack, "held", 1, 21).await?;
    let ns = Namespace::fresh(rack.plane, "held").await?;
    let bound = scene.lease(ns.name(), "l").await?.status.unwrap_or_default();
    scene.instance(ns.name(), "old", "l").await?;
    rack.start(&at(0)).await?;

    let said = rack.plane.kubectl(&["delete", "mnl", "l", "-n", ns.name(), "--wait=false"]).await?;
    assert!(said.stderr.contains("Held until") && said.stderr.contains("the Mac stays yours"), "{}", said.stderr);
    let held = scene.until_lease(ns.name(), "l", MacNodeLeasePhase::Held).await.status.unwrap_or_default();
    assert_eq!(held.earliest_release_at, bound.earliest_release_at, "the floor is where it was");
    assert_eq!(reason(&held.conditions), "HeldUntilFloor");
    // what is older than the deletion is stopped, and keeps its disk and slot
    scene.until_instance(ns.name(), "old", MacOSInstancePhase::Stopped).await;
    let slot = scene.nodes().get(&scene.serials[0].to_lowercase()).await?.status.unwrap_or_default().slots;
    assert_eq!(slot.iter().map(|s| s.order).collect::<Vec<_>>(), [Order::Stop]);
    // a new one is accepted and lives, beside the old one
    scene.after(scene.leases(ns.name()).get("l").await?.metadata.deletion_timestamp).await;
    scene.instance(ns.name(), "new", "l").await?;
    Ok(())
}

#[tokio::test]
async fn a_delete_at_plus_25h_releases() -> Result<()> {
    let _turn = TURN.lock().await;
    let rack = Rack::bare();
    rack.start(&at(-25)).await?;
    let scene = Scene::set(rack, "past", 1, 22).await?;
    let ns = Namespace::fresh(rack.plane, "past").await?;
    scene.lease(ns.name(), "l").await?;
    scene.instance(ns.name(), "i", "l").await?;
    rack.start(&at(0)).await?;
    let elapsed = |l: &macrack_api::MacNodeLease| {
        condition::is_true(&l.status.clone().unwrap_or_default().conditions, "FloorElapsed")
    };
    expect::until_seen(&scene.leases(ns.name()), "l", "past its floor", SOON, elapsed).await;
    let slots_first = |nodes: &expect::Objects<MacNode>| {
        let status = nodes.values().next().and_then(|n| n.status.clone()).unwrap_or_default();
        if status.lease_ref.is_none() && !status.slots.is_empty() {
            Err("released with a slot in use".into())
        } else {
            Ok(())
        }
    };
    let only = watcher::Config::default().fields(&format!("metadata.name={}", scene.serials[0].to_lowercase()));
    let released = async {
        scene.leases(ns.name()).delete("l", &DeleteParams::default()).await?;
        expect::until_gone(&scene.leases(ns.name()), "l", SOON).await;
        scene.until_free(&scene.serials[0]).await;
        anyhow::Ok(())
    };
    expect::always(&scene.nodes(), only, "slots go before the lease", slots_first, released).await?;
    // the lease owned the instance: it is collected, nothing is stuck
    expect::until_gone(&scene.instances(ns.name()), "i", SOON).await;
    Ok(())
}

#[tokio::test]
async fn a_held_lease_is_released_alone_at_the_floor_even_if_nobody_was_looking() -> Result<()> {
    let _turn = TURN.lock().await;
    let rack = Rack::bare();
    rack.start(&at(-25)).await?;
    let scene = Scene::set(rack, "alone", 1, 23).await?;
    let ns = Namespace::fresh(rack.plane, "alone").await?;
    scene.lease(ns.name(), "l").await?;
    scene.leases(ns.name()).delete("l", &DeleteParams::default()).await?;
    scene.until_lease(ns.name(), "l", MacNodeLeasePhase::Held).await;
    rack.kill_operator()?; // down over the boundary
    rack.start(&at(0)).await?;
    expect::until_gone(&scene.leases(ns.name()), "l", SOON).await;
    scene.until_free(&scene.serials[0]).await;
    Ok(())
}

#[tokio::test]
async fn an_operator_a_day_ahead_does_not_release() -> Result<()> {
    let _turn = TURN.lock().await;
    let rack = Rack::bare();
    rack.start(&at(0)).await?;
    let scene = Scene::set(rack, "ahead", 1, 24).await?;
    let ns = Namespace::fresh(rack.plane, "ahead").await?;
    let uid = scene.lease(ns.name(), "l").await?.uid();
    rack.start(&Operator { operator_hours: 25, server_hours: 0, no_webhook: true, ..Operator::default() }).await?;
    let still = |nodes: &expect::Objects<MacNode>| {
        let holder = nodes.values().next().and_then(|n| n.status.as_ref()?.lease_ref.clone());
        if holder.map(|r| r.uid) == uid { Ok(()) } else { Err("released by one clock".into()) }
    };
    let only = watcher::Config::default().fields(&format!("metadata.name={}", scene.serials[0].to_lowercase()));
    let tried = async {
        scene.leases(ns.name()).delete("l", &DeleteParams::default()).await?;
        scene.until_lease(ns.name(), "l", MacNodeLeasePhase::Held).await;
        // it asks the API server's clock again and again meanwhile; several seconds of that
        let never = |l: Option<&macrack_api::MacNodeLease>| l.is_none();
        let leases = scene.leases(ns.name());
        let wait = expect::until(&leases, "l", "gone", Duration::from_secs(600), never);
        assert!(tokio::time::timeout(Duration::from_secs(6), wait).await.is_err(), "the lease went");
        anyhow::Ok(())
    };
    expect::always(&scene.nodes(), only, "held by its lease", still, tried).await
}

#[tokio::test]
async fn a_lease_with_a_maximum_expires_by_itself_and_is_immutable_from_then_on() -> Result<()> {
    let _turn = TURN.lock().await;
    let rack = Rack::bare();
    rack.start(&at(-25)).await?;
    let scene = Scene::set(rack, "expire", 1, 25).await?;
    let ns = Namespace::fresh(rack.plane, "expire").await?;
    let mut lease = macrack_acceptance::objects::lease("l", "expire");
    lease.spec.maximum_duration = Some("24h".into());
    macrack_acceptance::objects::make_in(&scene.admin, ns.name(), &lease).await?;
    scene.until_lease(ns.name(), "l", MacNodeLeasePhase::Bound).await;
    scene.instance(ns.name(), "i", "l").await?;
    rack.start(&at(0)).await?;
    scene.until_lease(ns.name(), "l", MacNodeLeasePhase::Expired).await;
    scene.until_free(&scene.serials[0]).await;
    let failed = scene.until_instance(ns.name(), "i", MacOSInstancePhase::Failed).await;
    assert_eq!(reason(&failed.status.unwrap_or_default().conditions), "LeaseEnded");
    let edited = scene
        .leases(ns.name())
        .patch(
            "l",
            &Default::default(),
            &kube::api::Patch::Merge(serde_json::json!({ "spec": { "maximumDuration": "48h" } })),
        )
        .await;
    expect::rejects(edited, ["[ended-is-final]", "make a new lease"]);
    scene.leases(ns.name()).delete("l", &DeleteParams::default()).await?;
    expect::until_gone(&scene.leases(ns.name()), "l", SOON).await;
    Ok(())
}
