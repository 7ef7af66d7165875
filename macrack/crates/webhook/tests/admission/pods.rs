//! Nobody but MacRack puts, binds, edits, evicts or deletes a pod on a Mac.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, Pod};
use kube::{
    Api, Client,
    api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams},
};
use macrack_testkit::expect::{self, accepts, rejects};
use serde_json::{Value, json};

use crate::world::{SOON, Tenant, World, api_of, create, patch, pod, unique, world};

/// A Mac's Node with its taint, as the operator makes it, and capacity, as an agent reports it.
pub(crate) async fn node(world: &World) -> String {
    let name = format!("macrack-h4xk{:06}", unique());
    let node = json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {"macrack.io/serial": name, "kubernetes.io/os": "darwin"}},
        "spec": {"taints": [{"key": "macrack.io/unleased", "value": "true", "effect": "NoSchedule"}]}});
    accepts(create(&world.operator, &node).await);
    let capacity = json!({"cpu": "14", "memory": "64Gi", "pods": "110", "macrack.io/macos-vm": "2"});
    let ready = json!({"capacity": capacity, "allocatable": capacity, "conditions": [{"type": "Ready", "status": "True",
        "reason": "Test", "message": "", "lastHeartbeatTime": crate::world::moment(0), "lastTransitionTime": crate::world::moment(0)}]});
    crate::world::patch_status(&world.admin, &node, ready).await.unwrap();
    name
}

/// A placeholder on that Node, as the operator makes it; the test plays the scheduler.
pub(crate) async fn placeholder(world: &World, tenant: &Tenant, node: &str) -> Value {
    let mut placeholder = pod(&format!("macrack-vm-{}", unique()), tenant.ns());
    placeholder["metadata"]["finalizers"] = json!(["macrack.io/slot"]);
    placeholder["metadata"]["labels"] = json!({"macrack.io/instance-uid": "u"});
    placeholder["spec"]["tolerations"] = json!([{"key": "macrack.io/unleased", "operator": "Exists"}]);
    placeholder["spec"]["nodeSelector"] = json!({"macrack.io/serial": node});
    placeholder["spec"]["containers"][0]["resources"] =
        json!({"requests": {"macrack.io/macos-vm": 1}, "limits": {"macrack.io/macos-vm": 1}});
    accepts(create(&world.operator, &placeholder).await);
    let pods: Api<Pod> = Api::namespaced(world.admin.clone(), tenant.ns());
    let bound = |pod: &Pod| pod.spec.as_ref().and_then(|s| s.node_name.as_deref()) == Some(node);
    expect::until_seen(&pods, crate::world::name(&placeholder), "bound by the scheduler", SOON, bound).await;
    placeholder
}

#[tokio::test]
async fn pods_that_could_sit_on_a_mac_are_made_by_macrack_alone() {
    let world = world().await;
    let tenant = world.tenant("strange").await;
    let node = node(&world).await;
    let vm = json!({"macrack.io/macos-vm": "1"});
    let rows: [(Value, [&str; 2]); 6] = [
        (pod("macrack-vm-mine", tenant.ns()), ["[placeholder-name]", "create a MacOSInstance, or choose another name"]),
        (
            json!({"spec": {"containers": [{"name": "c", "image": "i", "resources": {"limits": vm, "requests": vm}}]}}),
            ["[macos-vm-reserved]", "requested by MacRack alone"],
        ),
        (
            json!({"spec": {"initContainers": [{"name": "i", "image": "i", "resources": {"limits": vm, "requests": vm}}]}}),
            ["[macos-vm-reserved]", "requested by MacRack alone"],
        ),
        (
            json!({"spec": {"tolerations": [{"key": "macrack.io/lease", "operator": "Exists"}]}}),
            ["[taint-reserved]", "remove the toleration"],
        ),
        (
            json!({"spec": {"tolerations": [{"key": "macrack.io/unleased", "operator": "Equal", "value": "true", "effect": "NoSchedule"}]}}),
            ["[taint-reserved]", "remove the toleration"],
        ),
        (json!({"spec": {"nodeName": node}}), ["[mac-reserved]", "spec.nodeName names a Mac"]),
    ];
    for (change, fragments) in rows {
        let mut object = pod(&format!("p{}", unique()), tenant.ns());
        merge(&mut object, change);
        for client in [&tenant.client, &world.admin] {
            rejects(create(client, &object).await, fragments);
        }
    }
    // generated names too
    let mut generated = pod("x", tenant.ns());
    generated["metadata"] = json!({"generateName": "macrack-vm-", "namespace": tenant.ns()});
    rejects(create(&tenant.client, &generated).await, "[placeholder-name]");
    // an ordinary pod is nobody's business; tolerations may be added to it later, but not these
    let ordinary = pod("ordinary", tenant.ns());
    accepts(create(&tenant.client, &ordinary).await);
    let tolerate = json!({"spec": {"tolerations": [{"key": "macrack.io/lease", "operator": "Exists"}]}});
    rejects(patch(&tenant.client, &ordinary, tolerate).await, "[taint-reserved]");
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

#[tokio::test]
async fn a_pod_that_tolerates_everything_stays_pending_with_our_message() {
    let world = world().await;
    let tenant = world.tenant("wildcard").await;
    let node = node(&world).await;
    let mut wildcard = pod("everywhere", tenant.ns());
    merge(
        &mut wildcard,
        json!({"spec": {"tolerations": [{"operator": "Exists"}], "nodeSelector": {"macrack.io/serial": node}}}),
    );
    accepts(create(&tenant.client, &wildcard).await);
    let events: Api<Event> = Api::namespaced(world.admin.clone(), tenant.ns());
    let told = async || {
        let of_it = ListParams::default().fields("involvedObject.name=everywhere,reason=FailedScheduling");
        let events = events.list(&of_it).await.unwrap();
        events
            .items
            .iter()
            .filter_map(|e| e.message.as_deref())
            .any(|m| m.contains("[mac-reserved]") && m.contains("is a Mac"))
    };
    expect::until_effective("the scheduler's event with our message", SOON, told).await;
    let pods: Api<Pod> = Api::namespaced(world.admin.clone(), tenant.ns());
    let pod = pods.get("everywhere").await.unwrap();
    assert_eq!(pod.spec.unwrap().node_name, None);
    assert_eq!(pod.status.unwrap().phase.as_deref(), Some("Pending"));
}

#[tokio::test]
async fn a_daemon_set_that_tolerates_everything_stays_pending_with_our_message_until_it_leaves_macs_out() {
    let world = world().await;
    let tenant = world.tenant("daemons").await;
    let node = node(&world).await;
    let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "kubernetes.io/os", "operator": "NotIn", "values": ["darwin"]}]}]}}});
    let set = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "logs", "namespace": tenant.ns()},
        "spec": {"selector": {"matchLabels": {"app": "logs"}}, "template": {"metadata": {"labels": {"app": "logs"}}, "spec": {
            "nodeSelector": {"macrack.io/serial": node}, "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "c", "image": "none"}]}}}});
    accepts(create(&world.admin, &set).await);
    let events: Api<Event> = Api::namespaced(world.admin.clone(), tenant.ns());
    let told = async || {
        let of_them = ListParams::default().fields("involvedObject.kind=Pod,reason=FailedScheduling");
        let events = events.list(&of_them).await.unwrap();
        let said = |event: &Event| {
            let of_the_set = event.involved_object.name.as_deref().is_some_and(|name| name.starts_with("logs-"));
            let message = event.message.as_deref().unwrap_or_default();
            of_the_set && message.contains("[mac-reserved]") && message.contains("kubernetes.io/os NotIn darwin")
        };
        events.items.iter().any(said)
    };
    expect::until_effective("the scheduler's event with our message", SOON, told).await;
    let pods: Api<Pod> = Api::namespaced(world.admin.clone(), tenant.ns());
    let of_the_set = ListParams::default().labels("app=logs");
    for pod in pods.list(&of_the_set).await.unwrap() {
        assert_eq!(pod.spec.unwrap().node_name, None);
    }
    // the way out of the message
    accepts(patch(&world.admin, &set, json!({"spec": {"template": {"spec": {"affinity": affinity}}}})).await);
    let none = async || pods.list(&of_the_set).await.unwrap().items.is_empty();
    expect::until_effective("the DaemonSet leaves Macs out", SOON, none).await;
}

async fn bind(client: &Client, namespace: &str, pod: &str, node: &str, old_form: bool) -> kube::Result<Value> {
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod, "namespace": namespace},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node}});
    let path = match old_form {
        true => format!("/api/v1/namespaces/{namespace}/bindings"),
        false => format!("/api/v1/namespaces/{namespace}/pods/{pod}/binding"),
    };
    let request = axum::http::Request::post(path)
        .header("content-type", "application/json")
        .body(binding.to_string().into_bytes());
    client.request(request.unwrap()).await
}

#[tokio::test]
async fn only_placeholders_are_bound_to_a_mac() {
    let world = world().await;
    let tenant = world.tenant("binding").await;
    let node = node(&world).await;
    let mut object = pod("lonely", tenant.ns());
    object["spec"]["schedulerName"] = json!("nobody");
    accepts(create(&tenant.client, &object).await);
    for old_form in [false, true] {
        rejects(
            bind(&world.admin, tenant.ns(), "lonely", &node, old_form).await,
            ["[mac-reserved]", "is a Mac, which carries macOS VMs alone"],
        );
    }
    accepts(bind(&world.admin, tenant.ns(), "lonely", "some-other-node", false).await);
}

#[tokio::test]
async fn a_placeholder_is_edited_evicted_and_deleted_by_macrack_alone() {
    let world = world().await;
    let tenant = world.tenant("placeholder").await;
    let node = node(&world).await;
    let placeholder = placeholder(&world, &tenant, &node).await;
    let name = crate::world::name(&placeholder);
    let pods = |client: &Client| Api::<Pod>::namespaced(client.clone(), tenant.ns());
    let maintenance = "to empty this Mac set spec.unschedulable of its MacNode";
    for client in [&tenant.client, &world.admin] {
        for change in [
            json!({"metadata": {"labels": {"macrack.io/instance-uid": "another"}}}),
            json!({"metadata": {"annotations": {"a": "b"}}}),
            json!({"metadata": {"finalizers": null}}),
            json!({"spec": {"activeDeadlineSeconds": 1}}),
            json!({"spec": {"containers": [{"name": "c", "image": "other"}]}}),
        ] {
            let changed = pods(client).patch(name, &PatchParams::default(), &Patch::Strategic(&change)).await;
            rejects(changed, ["[placeholder-edit]", "edit its MacOSInstance"]);
        }
        let debug = json!({"spec": {"ephemeralContainers": [{"name": "d", "image": "i"}]}});
        let debugged = pods(client)
            .patch_subresource("ephemeralcontainers", name, &PatchParams::default(), &Patch::Strategic(&debug))
            .await;
        // the aggregated role `edit` does not hold this subresource
        rejects(debugged, if std::ptr::eq(client, &world.admin) { "[placeholder-edit]" } else { "forbidden" });
        for force in [DeleteParams::default(), DeleteParams::default().grace_period(0)] {
            rejects(
                pods(client).delete(name, &force).await,
                ["[placeholder-delete]", "delete its MacOSInstance", maintenance],
            );
        }
        rejects(
            pods(client).delete_collection(&DeleteParams::default(), &ListParams::default()).await,
            ["[placeholder-delete]", name],
        );
    }
    // RBAC keeps tenants from status and, in its usual roles, from evicting; an admin meets the policy
    rejects(pods(&world.admin).evict(name, &EvictParams::default()).await, ["[placeholder-evict]", maintenance]);
    let ended = json!({"status": {"phase": "Failed"}});
    rejects(
        pods(&world.admin).patch_status(name, &PatchParams::default(), &Patch::Merge(&ended)).await,
        "[placeholder-status]",
    );

    let drained =
        world.plane.kubectl(&["drain", &node, "--force", "--ignore-daemonsets", "--timeout=10s"]).await.unwrap();
    assert!(!drained.status.success());
    assert!(
        drained.stderr.contains("[placeholder-evict]") && drained.stderr.contains(maintenance),
        "{}",
        drained.stderr
    );

    // the operator may do all of it
    accepts(patch(&world.operator, &placeholder, json!({"metadata": {"annotations": {"a": "b"}}})).await);
    accepts(pods(&world.operator).delete(name, &DeleteParams::default().grace_period(0)).await);
    accepts(patch(&world.operator, &placeholder, json!({"metadata": {"finalizers": null}})).await);
}

#[tokio::test]
async fn the_deletion_of_a_namespace_is_not_held_up_by_our_policies() {
    let world = world().await;
    let tenant = world.tenant("namespace").await;
    let node = node(&world).await;
    let placeholder = placeholder(&world, &tenant, &node).await;
    let pods: Api<Pod> = Api::namespaced(world.admin.clone(), tenant.ns());
    world.plane.kubectl(&["delete", "namespace", tenant.ns(), "--wait=false"]).await.unwrap().success().unwrap();
    // the namespace controller may delete it; the finalizer holds it until the operator says so
    let going = |pod: &Pod| pod.metadata.deletion_timestamp.is_some();
    expect::until_seen(&pods, crate::world::name(&placeholder), "being deleted", SOON, going).await;
    accepts(patch(&world.operator, &placeholder, json!({"metadata": {"finalizers": null}})).await);
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(world.admin.clone());
    // nobody plays the kubelet here
    let force = DeleteParams::default().grace_period(0);
    let _ = Api::<Pod>::namespaced(world.operator.clone(), tenant.ns())
        .delete(crate::world::name(&placeholder), &force)
        .await;
    expect::until_gone(&namespaces, tenant.ns(), Duration::from_secs(60)).await;
}

#[tokio::test]
async fn garbage_collection_reaches_a_placeholder() {
    let world = world().await;
    let tenant = world.tenant("garbage").await;
    let node = node(&world).await;
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owner", "namespace": tenant.ns()}});
    let owner = accepts(create(&tenant.client, &map).await);
    let placeholder = placeholder(&world, &tenant, &node).await;
    let owners = json!({"metadata": {"ownerReferences": [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.metadata.uid, "blockOwnerDeletion": true}]}});
    accepts(patch(&world.operator, &placeholder, owners).await);
    api_of(&tenant.client, &map).delete("owner", &DeleteParams::foreground()).await.unwrap();
    let pods: Api<Pod> = Api::namespaced(world.admin.clone(), tenant.ns());
    let going = |pod: &Pod| pod.metadata.deletion_timestamp.is_some();
    expect::until_seen(&pods, crate::world::name(&placeholder), "being deleted", SOON, going).await;
}
