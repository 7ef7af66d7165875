//! How things end: by deletion in every way there is, before and after the floor. Bound "3 hours ago", deleted now, and
//! looked at again with both clocks past the floor. One operator at a time, so the tests take turns.

use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::core::v1::{Namespace as KubeNamespace, Node, Pod};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PropagationPolicy},
    runtime::watcher,
};
use macrack_acceptance::{Operator, Rack, SOON, Scene, objects, reason};
use macrack_api::{
    MacNode, MacNodeLease, instance::macos_instance::MacOSInstancePhase, rack::lease::MacNodeLeasePhase,
};
use macrack_testkit::{Namespace, expect};
use serde_json::json;
use tokio::sync::Mutex;

static TURN: Mutex<()> = Mutex::const_new(());

fn at(hours: i64) -> Operator {
    Operator { operator_hours: hours, server_hours: hours, no_webhook: true, ..Operator::default() }
}

/// A leased chassis with one VM, bound three hours ago, and the operator back at now.
async fn leased(name: &str, namespace: &str, minor: u32) -> Result<Scene> {
    let rack = Rack::bare();
    rack.start(&at(-3)).await?;
    let scene = Scene::set(rack, name, 1, minor).await?;
    scene.lease(namespace, "l").await?;
    scene.instance(namespace, "i", "l").await?;
    rack.start(&at(0)).await?;
    Ok(scene)
}

impl At for Scene {}
trait At {
    /// The floor has passed for both clocks.
    async fn past_the_floor(&self) -> Result<()> {
        Rack::bare().start(&at(22)).await
    }
}

/// A finalizer taken off by an admin who means it.
fn break_glass() -> Patch<serde_json::Value> {
    Patch::Merge(json!({ "metadata": { "finalizers": null, "annotations": { "macrack.io/break-glass": "a test" } } }))
}

#[tokio::test]
async fn a_namespace_with_a_held_lease_goes_at_the_floor() -> Result<()> {
    let _turn = TURN.lock().await;
    Rack::bare().namespace("doomed").await?;
    let scene = leased("doomed", "doomed", 41).await?;
    let namespaces: Api<KubeNamespace> = Api::all(scene.admin.clone());
    namespaces.delete("doomed", &DeleteParams::default()).await?;
    // pods go first, so the placeholder's finalizer must come off before anything else there even begins to go
    let pods: Api<Pod> = Api::namespaced(scene.admin.clone(), "doomed");
    expect::until_gone(&pods, "macrack-vm-i", SOON).await;
    expect::until_gone(&scene.instances("doomed"), "i", SOON).await;
    scene.until_lease("doomed", "l", MacNodeLeasePhase::Held).await;
    assert!(namespaces.get_opt("doomed").await?.is_some(), "held to the floor");
    scene.past_the_floor().await?;
    expect::until_gone(&namespaces, "doomed", SOON).await;
    scene.until_free(&scene.serials[0]).await;
    Ok(())
}

#[tokio::test]
async fn a_foreground_delete_stops_the_old_instances_and_none_made_after_it() -> Result<()> {
    let _turn = TURN.lock().await;
    let ns = Namespace::fresh(Rack::bare().plane, "fore").await?;
    let scene = leased("fore", ns.name(), 42).await?;
    let params = DeleteParams { propagation_policy: Some(PropagationPolicy::Foreground), ..DeleteParams::default() };
    scene.leases(ns.name()).delete("l", &params).await?;
    // the lease owns it without blocking: the garbage collector leaves its end to the lease's own order
    scene.until_instance(ns.name(), "i", MacOSInstancePhase::Stopped).await;
    let held = scene.until_lease(ns.name(), "l", MacNodeLeasePhase::Held).await;
    scene.after(held.metadata.deletion_timestamp).await;
    let new = scene.instance(ns.name(), "new", "l").await?;
    assert!(new.owner_references().is_empty(), "not owned, or the garbage collector would take it at once");
    scene.past_the_floor().await?;
    expect::until_gone(&scene.leases(ns.name()), "l", SOON).await;
    expect::until_gone(&scene.instances(ns.name()), "i", SOON).await;
    let ended = scene.until_instance(ns.name(), "new", MacOSInstancePhase::Failed).await;
    assert_eq!(reason(&ended.status.unwrap_or_default().conditions), "LeaseEnded");
    scene.instances(ns.name()).delete("new", &DeleteParams::default()).await?;
    expect::until_gone(&scene.instances(ns.name()), "new", SOON).await;
    Ok(())
}

#[tokio::test]
async fn an_orphaning_delete_loses_no_instance() -> Result<()> {
    let _turn = TURN.lock().await;
    let ns = Namespace::fresh(Rack::bare().plane, "orph").await?;
    let scene = leased("orph", ns.name(), 43).await?;
    let params = DeleteParams { propagation_policy: Some(PropagationPolicy::Orphan), ..DeleteParams::default() };
    scene.leases(ns.name()).delete("l", &params).await?;
    // owner references are stripped; it is found by the lease's uid all the same, and stopped
    scene.until_instance(ns.name(), "i", MacOSInstancePhase::Stopped).await;
    scene.past_the_floor().await?;
    expect::until_gone(&scene.leases(ns.name()), "l", SOON).await;
    scene.until_free(&scene.serials[0]).await;
    scene.until_instance(ns.name(), "i", MacOSInstancePhase::Failed).await;
    Ok(())
}

#[tokio::test]
async fn a_drain_and_a_forced_pod_delete_are_refused_and_the_vm_runs_on() -> Result<()> {
    let _turn = TURN.lock().await;
    let ns = Namespace::fresh(Rack::bare().plane, "drain").await?;
    let scene = leased("drain", ns.name(), 44).await?;
    let node = format!("macrack-{}", scene.serials[0].to_lowercase());
    let plane = scene.rack.plane;
    let drained = plane.kubectl(&["drain", &node, "--force", "--ignore-daemonsets", "--timeout=4s"]).await?;
    assert!(drained.stderr.contains("set spec.unschedulable of its MacNode"), "{}", drained.stderr);
    let forced = plane
        .kubectl(&["delete", "pod", "macrack-vm-i", "-n", ns.name(), "--force", "--grace-period=0", "--wait=false"])
        .await?;
    assert!(forced.stderr.contains("set spec.unschedulable of its MacNode"), "{}", forced.stderr);
    let pods: Api<Pod> = Api::namespaced(scene.admin.clone(), ns.name());
    assert!(pods.get("macrack-vm-i").await?.metadata.deletion_timestamp.is_none());
    scene.until_instance(ns.name(), "i", MacOSInstancePhase::Ready).await;
    plane.kubectl(&["uncordon", &node]).await?.success()?;
    Ok(())
}

#[tokio::test]
async fn an_instance_removed_by_force_is_stopped_and_wiped_before_its_slot_is_given_on() -> Result<()> {
    let _turn = TURN.lock().await;
    let ns = Namespace::fresh(Rack::bare().plane, "forced").await?;
    let scene = leased("forced", ns.name(), 45).await?;
    let instances = scene.instances(ns.name());
    let bare = instances
        .patch("i", &PatchParams::default(), &Patch::Merge(json!({ "metadata": { "finalizers": null } })))
        .await;
    expect::rejects(bare, "macrack.io");
    instances.patch("i", &PatchParams::default(), &break_glass()).await?;
    let left = instances.get("i").await?;
    // the operator would put it back: taken off and deleted while it is away
    scene.rack.kill_operator()?;
    instances.patch("i", &PatchParams::default(), &break_glass()).await?;
    instances.delete("i", &DeleteParams::default()).await?;
    expect::until_gone(&instances, "i", SOON).await;
    scene.rack.start(&at(0)).await?;
    let emptied = |n: &MacNode| n.status.as_ref().is_some_and(|s| s.slots.is_empty());
    expect::until_seen(&scene.nodes(), &scene.serials[0].to_lowercase(), "emptied", SOON, emptied).await;
    let pods: Api<Pod> = Api::namespaced(scene.admin.clone(), ns.name());
    expect::until_gone(&pods, "macrack-vm-i", SOON).await;
    let again = scene.instance(ns.name(), "i", "l").await?;
    assert_ne!(again.uid(), left.uid());
    Ok(())
}

#[tokio::test]
async fn a_lease_removed_by_force_leaves_the_chassis_to_nobody_until_its_floor() -> Result<()> {
    let _turn = TURN.lock().await;
    let ns = Namespace::fresh(Rack::bare().plane, "dangle").await?;
    let scene = leased("dangle", ns.name(), 46).await?;
    let leases = scene.leases(ns.name());
    scene.rack.kill_operator()?;
    leases.patch("l", &PatchParams::default(), &break_glass()).await?;
    leases.delete("l", &DeleteParams::default()).await?;
    expect::until_gone(&leases, "l", SOON).await;
    scene.rack.start(&at(0)).await?;
    // its VMs are wiped at once; a lease of the same name is another, and waits; so does one of another tenant
    let emptied = |n: &MacNode| n.status.as_ref().is_some_and(|s| s.slots.is_empty() && s.lease_ref.is_some());
    expect::until_seen(&scene.nodes(), &scene.serials[0].to_lowercase(), "wiped and held", SOON, emptied).await;
    let other = Namespace::fresh(scene.rack.plane, "dangle-b").await?;
    let first = objects::make_in(&scene.admin, ns.name(), &objects::lease("l", "dangle")).await?;
    scene.after(first.metadata.creation_timestamp).await; // the older is served first, and seconds decide
    objects::make_in(&scene.admin, other.name(), &objects::lease("l2", "dangle")).await?;
    for (namespace, name) in [(ns.name(), "l"), (other.name(), "l2")] {
        let waits = |l: &MacNodeLease| reason(&l.status.clone().unwrap_or_default().conditions) == "NoChassisFree";
        expect::until_seen(&scene.leases(namespace), name, "waiting", SOON, waits).await;
    }
    scene.past_the_floor().await?;
    let bound = scene.until_lease(ns.name(), "l", MacNodeLeasePhase::Bound).await;
    let bound_at = bound.status.and_then(|s| s.bound_at).map(|t| t.0);
    let later = k8s_openapi::jiff::Timestamp::now() + Duration::from_secs(20 * 3600);
    assert!(bound_at.is_some_and(|t| t > later), "a new clock: {bound_at:?}");
    Ok(())
}

#[tokio::test]
async fn a_deleted_node_comes_back_with_the_taint_of_its_lease_and_the_vm_runs_on() -> Result<()> {
    let _turn = TURN.lock().await;
    let ns = Namespace::fresh(Rack::bare().plane, "node").await?;
    let scene = leased("nodedel", ns.name(), 47).await?;
    let node = format!("macrack-{}", scene.serials[0].to_lowercase());
    let lease = scene.leases(ns.name()).get("l").await?.uid();
    let nodes: Api<Node> = Api::all(scene.admin.clone());
    let old = nodes.get(&node).await?.uid();
    let tenants_alone = |nodes: &expect::Objects<Node>| {
        for node in nodes.values() {
            let taints = node.spec.clone().unwrap_or_default().taints.unwrap_or_default();
            if !taints.iter().any(|t| t.key == "macrack.io/lease" && t.value == lease) {
                return Err(format!("open to others: {taints:?}"));
            }
        }
        Ok(())
    };
    let only = watcher::Config::default().fields(&format!("metadata.name={node}"));
    let back = async {
        nodes.delete(&node, &DeleteParams::default()).await?;
        let again = |n: &Node| {
            n.uid() != old
                && n.status
                    .as_ref()
                    .and_then(|s| s.capacity.as_ref())
                    .is_some_and(|c| c.contains_key("macrack.io/macos-vm"))
        };
        expect::until_seen(&nodes, &node, "made again and alive", SOON, again).await;
        scene.until_instance(ns.name(), "i", MacOSInstancePhase::Ready).await;
        anyhow::Ok(())
    };
    expect::always(&nodes, only, "tainted for the lease alone", tenants_alone, back).await?;
    assert!(scene.nodes().get(&scene.serials[0].to_lowercase()).await?.status.is_some_and(|s| s.slots.len() == 1));
    Ok(())
}

#[tokio::test]
async fn a_mac_node_made_again_gets_its_lease_back_with_the_same_clock() -> Result<()> {
    let _turn = TURN.lock().await;
    let ns = Namespace::fresh(Rack::bare().plane, "again").await?;
    let scene = leased("again", ns.name(), 48).await?;
    let name = scene.serials[0].to_lowercase();
    let before = scene.nodes().get(&name).await?.status.and_then(|s| s.lease_ref);
    scene.rack.kill_operator()?;
    scene.nodes().patch(&name, &PatchParams::default(), &break_glass()).await?;
    scene.nodes().delete(&name, &DeleteParams::default()).await?;
    expect::until_gone(&scene.nodes(), &name, SOON).await;
    // the VM runs on meanwhile: the puppet keeps saying so
    let uid = scene.instances(ns.name()).get("i").await?.uid().unwrap_or_default();
    scene.puppets[0].behave(|m| {
        m.remains.insert(uid, macrack_api::rack::node::VmState::Running);
    });
    objects::make(&scene.admin, &objects::mac_node(&scene.serials[0], "again")).await?;
    scene.rack.start(&at(0)).await?;
    let has = |n: &MacNode| n.status.as_ref().is_some_and(|s| s.lease_ref == before && s.slots.len() == 1);
    expect::until_seen(&scene.nodes(), &name, "with its leaseRef and its VM again", SOON, has).await;
    scene.until_instance(ns.name(), "i", MacOSInstancePhase::Ready).await;
    Ok(())
}

#[tokio::test]
async fn a_retired_chassis_breaks_its_lease_at_once_and_is_given_to_nobody_before_floor_and_wipe() -> Result<()> {
    let _turn = TURN.lock().await;
    let ns = Namespace::fresh(Rack::bare().plane, "retire").await?;
    let scene = leased("retire", ns.name(), 49).await?;
    let name = scene.serials[0].to_lowercase();
    scene.puppets[0].behave(|m| m.wipe_hangs = true);
    let retired = json!({ "spec": { "retirement": { "reason": "HardwareFailure" } } });
    objects::edit(&scene.nodes(), &name, retired).await?;
    scene.until_lease(ns.name(), "l", MacNodeLeasePhase::Broken).await;
    scene.leases(ns.name()).delete("l", &DeleteParams::default()).await?;
    expect::until_gone(&scene.leases(ns.name()), "l", SOON).await;
    expect::until_gone(&scene.instances(ns.name()), "i", SOON).await;
    let node = scene.nodes().get(&name).await?.status.unwrap_or_default();
    assert!(node.lease_ref.is_some() && node.slots.len() == 1, "the slot stays at Wipe, the leaseRef stays");
    objects::edit(&scene.nodes(), &name, json!({ "spec": { "retirement": null } })).await?;
    scene.past_the_floor().await?;
    let wiping = |n: &MacNode| n.status.as_ref().is_some_and(|s| s.lease_ref.is_some());
    expect::until_seen(&scene.nodes(), &name, "still waiting for the wipe", SOON, wiping).await;
    scene.puppets[0].behave(|m| m.wipe_hangs = false);
    scene.until_free(&scene.serials[0]).await;
    Ok(())
}

#[tokio::test]
async fn everything_deleted_in_any_order_leaves_nothing_stuck_after_the_floor() -> Result<()> {
    let _turn = TURN.lock().await;
    let orders: [[&str; 6]; 3] = [
        ["class", "size", "image", "node", "lease", "instance"],
        ["instance", "node", "mac", "lease", "namespace", "class"],
        ["namespace", "mac", "node", "image", "lease", "size"],
    ];
    for (n, order) in orders.iter().enumerate() {
        let (name, namespace) = (format!("every{n}"), format!("every-{n}"));
        Rack::bare().namespace(&namespace).await?;
        let scene = leased(&name, &namespace, 50 + n as u32).await?;
        let mac = scene.serials[0].to_lowercase();
        for what in order {
            let node = format!("macrack-{mac}");
            let args: &[&str] = match *what {
                "class" => &["mnc", &name],
                "size" => &["mic", &name],
                "image" => &["macimg", &name],
                "node" => &["node", &node],
                "mac" => &["mn", &mac],
                "lease" => &["mnl", "l", "-n", &namespace],
                "instance" => &["mi", "i", "-n", &namespace],
                _ => &["ns", &namespace],
            };
            let all: Vec<&str> = ["delete", "--wait=false", "--ignore-not-found"].iter().chain(args).copied().collect();
            scene.rack.plane.kubectl(&all).await?.success()?;
        }
        scene.past_the_floor().await?;
        expect::until_gone(&scene.leases(&namespace), "l", SOON).await;
        if order.contains(&"mac") {
            expect::until_gone(&scene.nodes(), &mac, SOON).await;
            let nodes: Api<Node> = Api::all(scene.admin.clone());
            expect::until_gone(&nodes, &format!("macrack-{mac}"), SOON).await;
        } else {
            let free = |n: &MacNode| n.status.as_ref().is_some_and(|s| s.lease_ref.is_none() && s.slots.is_empty());
            expect::until_seen(&scene.nodes(), &mac, "given back", SOON, free).await;
        }
        if order.contains(&"namespace") {
            let namespaces: Api<KubeNamespace> = Api::all(scene.admin.clone());
            expect::until_gone(&namespaces, &namespace, SOON).await;
        } else {
            let pods: Api<Pod> = Api::namespaced(scene.admin.clone(), &namespace);
            assert!(pods.list(&ListParams::default()).await?.items.is_empty());
        }
    }
    Ok(())
}
