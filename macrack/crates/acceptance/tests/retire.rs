//! A Mac is retired with a tenant's VM on it, taken back, and enrolled again: the product's own operator, agent,
//! `macrack-hostd` and plugin, a simulated Mac. What a lease on it was worth ends at once; its floor and its wipe do not.

use std::time::Duration;

use anyhow::{Context, Result};
use kube::{Api, Client, ResourceExt, api::DeleteParams};
use macrack_acceptance::{Mac, Operator, Rack, mac, objects, reason};
use macrack_api::{
    MacNode, MacNodeLease, MacNodeStatus, MacOSInstance,
    instance::macos_instance::MacOSInstancePhase,
    rack::lease::MacNodeLeasePhase,
    rack::node::{MacNodePhase, Order},
};
use macrack_testkit::{Namespace, child::is_alive, expect};
use serde_json::json;

/// A whole way of the product, on a machine that others use too.
const SOON: Duration = Duration::from_secs(90);
const CLASS: &str = "retires";
const SERIAL: &str = "RETIRE0001";

/// An operator by whose two clocks it is so many hours later. What is asked of admission here the schema holds too.
fn at(hours: i64) -> Operator {
    Operator { operator_hours: hours, server_hours: hours, no_webhook: true, ..Operator::default() }
}

fn nodes(admin: &Client) -> Api<MacNode> {
    Api::all(admin.clone())
}

async fn until_node(admin: &Client, what: &str, is: impl Fn(&MacNodeStatus) -> bool + Sync) -> MacNodeStatus {
    let is = |node: &MacNode| node.status.as_ref().is_some_and(&is);
    expect::until_seen(&nodes(admin), &SERIAL.to_lowercase(), what, SOON, is).await.status.unwrap_or_default()
}

async fn until_lease(admin: &Client, namespace: &str, phase: MacNodeLeasePhase) -> MacNodeLease {
    let leases: Api<MacNodeLease> = Api::namespaced(admin.clone(), namespace);
    let is = |lease: &MacNodeLease| lease.status.as_ref().is_some_and(|status| status.phase == Some(phase));
    expect::until_seen(&leases, "l", &format!("{phase:?}"), SOON, is).await
}

async fn ready(admin: &Client, namespace: &str) -> Result<String> {
    objects::make_in(admin, namespace, &objects::instance("vm", "l", CLASS, CLASS)).await?;
    let instances: Api<MacOSInstance> = Api::namespaced(admin.clone(), namespace);
    let is = |i: &MacOSInstance| i.status.as_ref().is_some_and(|s| s.phase == Some(MacOSInstancePhase::Ready));
    expect::until_seen(&instances, "vm", "Ready", SOON, is).await.uid().context("no uid")
}

#[tokio::test]
async fn a_retired_mac_carries_out_nothing_until_it_is_enrolled_again_and_is_given_on_only_after_wipe_and_floor()
-> Result<()> {
    let rack = Rack::bare();
    rack.start(&at(0)).await?;
    let admin = rack.plane.admin().await?;
    objects::make(&admin, &objects::node_class(CLASS)).await?;
    objects::make(&admin, &objects::instance_class(CLASS)).await?;
    mac::golden(rack, CLASS).await?;
    let (first, next) =
        (Namespace::fresh(rack.plane, "retired").await?, Namespace::fresh(rack.plane, "retired-next").await?);
    let mac = Mac::enrol(rack, SERIAL, CLASS).await?;
    objects::make_in(&admin, first.name(), &objects::lease("l", CLASS)).await?;
    until_lease(&admin, first.name(), MacNodeLeasePhase::Bound).await;
    let uid = ready(&admin, first.name()).await?;
    let pid = i32::try_from(mac.vm(&uid).read_state()?.context("no state")?.report.pid)?;
    let held = until_node(&admin, "leased", |s| s.lease_ref.is_some()).await.lease_ref.context("no leaseRef")?;

    // retired: the lease breaks at once and its tenant is rid of it; the Mac itself does nothing any more
    let retirement = |value| json!({ "spec": { "retirement": value } });
    objects::edit(&nodes(&admin), &SERIAL.to_lowercase(), retirement(json!({ "reason": "HardwareFailure" }))).await?;
    until_lease(&admin, first.name(), MacNodeLeasePhase::Broken).await;
    mac.agent.until_logged("every VM stays as it is: this Mac is retired", SOON).await?;
    // the API server believes a token for some seconds more; from then on this Mac is nobody
    mac.agent.until_logged("takes neither this Mac's own token nor that of", SOON).await?;
    let instances: Api<MacOSInstance> = Api::namespaced(admin.clone(), first.name());
    let leases: Api<MacNodeLease> = Api::namespaced(admin.clone(), first.name());
    leases.delete("l", &DeleteParams::default()).await?;
    instances.delete("vm", &DeleteParams::default()).await?;
    expect::until_gone(&leases, "l", SOON).await;
    expect::until_gone(&instances, "vm", SOON).await;
    let ordered = |s: &MacNodeStatus| s.slots.first().is_some_and(|slot| slot.order == Order::Wipe);
    let status = until_node(&admin, "ordered to be wiped", ordered).await;
    assert_eq!(status.lease_ref.as_ref().map(|r| &r.uid), Some(&held.uid), "its floor stays");
    assert!(is_alive(pid) && mac.vm(&uid).path().exists(), "a retired Mac carried out an order");
    let refused = mac.enrol_again(rack).await?;
    assert!(!refused.status.success(), "{refused:?}");
    assert!(refused.stderr.contains("remove spec.retirement, then enroll again"), "{refused:?}");

    // taken back: every token of before is dead, so nothing happens until it is enrolled again, and then the wipe does
    objects::edit(&nodes(&admin), &SERIAL.to_lowercase(), retirement(json!(null))).await?;
    until_node(&admin, "not retired", |s| s.phase != Some(MacNodePhase::Retired)).await;
    assert!(is_alive(pid), "it was wiped by an agent that is nobody");
    mac.enrol_again(rack).await?.success().context("enrolling again")?;
    mac.agent.until_logged("the API server knows this Mac again", SOON).await?;
    mac.agent.until_logged("orders are carried out again", SOON).await?;
    let status = until_node(&admin, "wiped", |s| s.slots.is_empty()).await;
    assert!(!is_alive(pid) && !mac.vm(&uid).path().exists(), "it is told wiped, and is not");
    assert!(status.wipes.iter().any(|wipe| wipe.uid == uid), "{:?}", status.wipes);
    assert_eq!(status.lease_ref.map(|r| r.earliest_release_at), Some(held.earliest_release_at), "the floor moved");
    objects::make_in(&admin, next.name(), &objects::lease("l", CLASS)).await?;
    let others: Api<MacNodeLease> = Api::namespaced(admin.clone(), next.name());
    let waits = |l: &MacNodeLease| reason(&l.status.clone().unwrap_or_default().conditions) == "NoChassisFree";
    expect::until_seen(&others, "l", "waiting for the floor", SOON, waits).await;

    // past the floor it is the next tenant's, as any Mac
    rack.start(&at(25)).await?;
    let bound = until_lease(&admin, next.name(), MacNodeLeasePhase::Bound).await.status.unwrap_or_default();
    assert_eq!(bound.serial.as_deref(), Some(SERIAL));
    let again = ready(&admin, next.name()).await?;
    assert_eq!(mac.chassis.running()?.into_iter().map(|(_, uid)| uid).collect::<Vec<_>>(), [again]);
    Ok(())
}
