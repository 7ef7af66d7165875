//! The whole product: operator, agent, VM processes and guests as processes, on a real control plane. Only the Mac is
//! simulated.

use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::{
    core::v1::{Node, Secret},
    events::v1::Event,
};
use kube::{
    Api, ResourceExt,
    api::{ListParams, PostParams},
    runtime::watcher,
};
use macrack_acceptance::{Mac, Rack, SOON, mac, objects};
use macrack_api::{
    MacNode, MacNodeLease, MacOSInstance, condition,
    instance::macos_instance::{FirstBootState, GuestStage, MacOSInstancePhase},
};
use macrack_testkit::{Namespace, expect};
use serde_json::json;

#[tokio::test]
async fn two_vms_run_outlive_their_killed_agent_and_the_node_and_are_wiped() -> Result<()> {
    let rack = Rack::shared();
    let admin = rack.plane.admin().await?;
    let ns = Namespace::fresh(rack.plane, "whole").await?;
    let tenant = rack.tenant(ns.name()).await?;
    objects::make(&admin, &objects::node_class("whole")).await?;
    objects::make(&admin, &objects::instance_class("whole")).await?;
    mac::golden(rack, "whole").await?;
    let mut mac = Mac::enrol(rack, "WHOLE00001", "whole").await?;

    objects::make_in(&tenant, ns.name(), &objects::lease("l", "whole")).await?;
    let leases: Api<MacNodeLease> = Api::namespaced(admin.clone(), ns.name());
    let lease = expect::until_seen(&leases, "l", "Ready", SOON, |l| {
        condition::is_true(&l.status.clone().unwrap_or_default().conditions, "Ready")
    })
    .await;
    let secrets: Api<Secret> = Api::namespaced(tenant.clone(), ns.name());
    let secret =
        objects::object(json!({ "metadata": { "name": "boot" }, "stringData": { "setup.sh": "#!/bin/sh\nexit 0\n" } }));
    secrets.create(&PostParams::default(), &secret).await?;
    let mut with_script = objects::instance("one", "l", "whole", "whole");
    with_script.spec.first_boot =
        Some(objects::object(json!({ "scriptFrom": { "secretKeyRef": { "name": "boot", "key": "setup.sh" } } })));
    objects::make_in(&tenant, ns.name(), &with_script).await?;
    objects::make_in(&tenant, ns.name(), &objects::instance("two", "l", "whole", "whole")).await?;
    let instances: Api<MacOSInstance> = Api::namespaced(admin.clone(), ns.name());
    for name in ["one", "two"] {
        until_ready(&instances, name).await;
        let stage = |i: &MacOSInstance| i.status.as_ref()?.guest.as_ref()?.stage;
        expect::until_seen(&instances, name, "at stage Ready", SOON, |i| stage(i) == Some(GuestStage::Ready)).await;
    }
    let first_boot = |i: &MacOSInstance| i.status.as_ref()?.guest.as_ref()?.first_boot.clone();
    let done = expect::until_seen(&instances, "one", "through its first boot", SOON, |i| first_boot(i).is_some()).await;
    assert_eq!(first_boot(&done).map(|f| (f.state, f.exit_code)), Some((FirstBootState::Done, Some(0))));
    assert!(condition::is_true(&done.status.unwrap_or_default().conditions, "FirstBootDone"));

    // the agent is killed: both VMs keep running, and the next agent adopts them
    let before = mac.chassis.running()?;
    assert_eq!(before.len(), 2);
    mac.agent.kill9()?;
    mac.agent.restart()?;
    mac.agent.until_logged("inventory: 2 VMs", Duration::from_secs(20)).await?;
    for name in ["one", "two"] {
        until_ready(&instances, name).await;
    }
    assert_eq!(mac.chassis.running()?, before, "the very same processes");

    // the Node is deleted: made again with the lease's taint alone, the VMs unharmed
    let nodes: Api<Node> = Api::all(admin.clone());
    let (node, uid) = ("macrack-whole00001", lease.uid());
    let tainted = |nodes: &expect::Objects<Node>| {
        let taints = |n: &Node| n.spec.clone().unwrap_or_default().taints.unwrap_or_default();
        let good = |n: &Node| taints(n).iter().any(|t| t.key == "macrack.io/lease" && t.value == uid);
        if nodes.values().all(good) { Ok(()) } else { Err("open to others".into()) }
    };
    let only = watcher::Config::default().fields(&format!("metadata.name={node}"));
    let back = async {
        let old = nodes.get(node).await?.uid();
        nodes.delete(node, &Default::default()).await?;
        let alive = |n: &Node| {
            let conditions = n.status.clone().unwrap_or_default().conditions.unwrap_or_default();
            n.uid() != old && conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True")
        };
        expect::until_seen(&nodes, node, "made again and Ready", SOON, alive).await;
        for name in ["one", "two"] {
            until_ready(&instances, name).await;
        }
        anyhow::Ok(())
    };
    expect::always(&nodes, only, "tainted for its lease alone", tainted, back).await?;
    assert_eq!(mac.chassis.running()?, before);

    // deleted instances are stopped and wiped: nothing of theirs runs or stands in a slot
    for name in ["one", "two"] {
        instances.delete(name, &Default::default()).await?;
        expect::until_gone(&instances, name, SOON).await;
    }
    assert_eq!(mac.chassis.live()?, 0);
    let nodes: Api<MacNode> = Api::all(admin);
    let empty = |n: &MacNode| n.status.as_ref().is_some_and(|s| s.slots.is_empty());
    let node = expect::until_seen(&nodes, "whole00001", "empty", SOON, empty).await;
    receipts_are_kept(rack, &node, &lease).await
}

/// What is known of both wipes although their slots are empty: in status, as events, and in the audit trail.
async fn receipts_are_kept(rack: &Rack, node: &MacNode, lease: &MacNodeLease) -> Result<()> {
    let wipes = node.status.clone().unwrap_or_default().wipes;
    let mut names: Vec<&str> = wipes.iter().map(|w| w.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["one", "two"]);
    assert!(wipes.iter().all(|w| w.lease_uid == lease.uid() && w.digest.starts_with("sha256:")), "{wipes:?}");

    let trail = std::fs::read_to_string(rack.audit_log())?;
    let lines = trail.lines().map(serde_json::from_str).collect::<Result<Vec<serde_json::Value>, _>>()?;
    let of_this = |what: &str| {
        let lines = lines.iter().filter(|line| line["serial"] == node.spec.serial.as_str() && line["what"] == what);
        lines.cloned().collect::<Vec<_>>()
    };
    assert_eq!(of_this("LeaseBound").len(), 1, "{trail}");
    let told = of_this("Wiped");
    assert_eq!(told.len(), 2, "each once, over every pass: {trail}");
    for line in told {
        assert!(wipes.iter().any(|w| line["digest"] == w.digest.as_str()), "{line}");
        let items = line["receipt"]["items"].as_array().cloned().unwrap_or_default();
        let disks = items.iter().find(|item| item["what"] == "disks").cloned().unwrap_or_default();
        assert_eq!((&disks["count"], &disks["verifiedBy"]), (&json!(2), &json!("listing of the VM's directory")));
    }

    let events: Api<Event> = Api::all(rack.plane.admin().await?);
    let wiped = events.list(&ListParams::default()).await?.into_iter().filter(|e| e.reason.as_deref() == Some("Wiped"));
    let notes: Vec<String> = wiped.filter_map(|event| event.note).collect();
    for wipe in &wipes {
        assert!(notes.iter().any(|note| note.contains(&wipe.digest)), "no event tells of {}: {notes:?}", wipe.name);
    }
    Ok(())
}

async fn until_ready(instances: &Api<MacOSInstance>, name: &str) -> MacOSInstance {
    let ready = |i: &MacOSInstance| {
        let status = i.status.clone().unwrap_or_default();
        status.phase == Some(MacOSInstancePhase::Ready) && condition::is_true(&status.conditions, "Ready")
    };
    expect::until_seen(instances, name, "Ready", SOON, ready).await
}

#[tokio::test]
async fn a_stuck_counter_quarantines_the_mac_and_the_waiting_instance_says_so() -> Result<()> {
    let rack = Rack::shared();
    let admin = rack.plane.admin().await?;
    let ns = Namespace::fresh(rack.plane, "stuck").await?;
    objects::make(&admin, &objects::node_class("stuck")).await?;
    objects::make(&admin, &objects::instance_class("stuck")).await?;
    mac::golden_of(rack, "stuck", 71).await?;
    let mac = Mac::enrol(rack, "STUCK00001", "stuck").await?;
    mac.chassis.set_fault(macrack_vm::sim::Fault::StickCounter(true))?;
    objects::make_in(&admin, ns.name(), &objects::lease("l", "stuck")).await?;
    let leases: Api<MacNodeLease> = Api::namespaced(admin.clone(), ns.name());
    let bound = |l: &MacNodeLease| l.status.as_ref().is_some_and(|s| s.serial.is_some());
    let uid = expect::until_seen(&leases, "l", "bound", SOON, bound).await.uid();
    let instances: Api<MacOSInstance> = Api::namespaced(admin.clone(), ns.name());
    // two VMs end, and stay counted: the kernel refuses the third start although nothing runs
    for name in ["one", "two"] {
        objects::make_in(&admin, ns.name(), &objects::instance(name, "l", "stuck", "stuck")).await?;
        until_ready(&instances, name).await;
    }
    for name in ["one", "two"] {
        instances.delete(name, &Default::default()).await?;
        expect::until_gone(&instances, name, SOON).await;
    }
    objects::make_in(&admin, ns.name(), &objects::instance("three", "l", "stuck", "stuck")).await?;
    let nodes: Api<MacNode> = Api::all(admin.clone());
    let quarantined = |n: &MacNode| {
        let status = n.status.clone().unwrap_or_default();
        status.quarantine.iter().any(|q| q.reason == "QuotaStuck") && status.lease_ref.map(|r| r.uid) == uid
    };
    expect::until_seen(&nodes, "stuck00001", "quarantined, still the tenant's", SOON, quarantined).await;
    let kube: Api<Node> = Api::all(admin);
    let cordoned = |n: &Node| n.spec.as_ref().is_some_and(|s| s.unschedulable == Some(true));
    expect::until_seen(&kube, "macrack-stuck00001", "unschedulable", SOON, cordoned).await;
    let waits = |i: &MacOSInstance| i.status.as_ref().is_some_and(|s| s.phase == Some(MacOSInstancePhase::Scheduled));
    expect::until_seen(&instances, "three", "waiting, not Failed", SOON, waits).await;
    Ok(())
}
