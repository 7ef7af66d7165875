//! The testkit against its own control plane.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod, Secret};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use macrack_testkit::{Namespace, expect, shared};
use serde_json::json;

const SOON: Duration = Duration::from_secs(20);

fn pod(name: &str, resource: &str) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "automountServiceAccountToken": false,
            "containers": [{
                "name": "vm", "image": "example.invalid/vm",
                "resources": {"limits": {resource: "1"}, "requests": {resource: "1"}},
            }],
        },
    }))
    .expect("a pod")
}

#[tokio::test]
async fn a_service_account_without_a_role_is_refused_by_rbac() {
    let plane = shared();
    let ns = Namespace::fresh(plane, "rbac").await.unwrap();
    let nobody = plane.as_service_account(ns.name(), "default").await.unwrap();
    let secrets: Api<Secret> = Api::namespaced(nobody, ns.name());
    let account = format!("User \"system:serviceaccount:{}:default\" cannot get resource \"secrets\"", ns.name());
    let status = expect::rejects(secrets.get("token").await, ["forbidden", account.as_str()]);
    assert_eq!(status.code, 403);
}

#[tokio::test]
async fn an_impersonated_user_has_only_the_rights_bound_to_it() {
    let plane = shared();
    let ns = Namespace::fresh(plane, "tenant").await.unwrap();
    let eve = plane.as_user("eve", &["tenants"]).await.unwrap();
    let pods: Api<Pod> = Api::namespaced(eve, ns.name());
    expect::rejects(pods.list(&Default::default()).await, "User \"eve\" cannot list resource \"pods\"");
    plane
        .kubectl(&["-n", ns.name(), "create", "rolebinding", "tenants", "--clusterrole=edit", "--group=tenants"])
        .await
        .unwrap()
        .success()
        .unwrap();
    let list = async || pods.list(&Default::default()).await.is_ok();
    expect::until_effective("the RoleBinding of tenants", SOON, list).await;
    expect::accepts(pods.create(&PostParams::default(), &pod("free", "cpu")).await);
}

#[tokio::test]
async fn a_pod_that_asks_for_what_no_node_has_stays_pending_with_the_schedulers_reason() {
    let plane = shared();
    let ns = Namespace::fresh(plane, "unknown").await.unwrap();
    let admin = plane.admin().await.unwrap();
    let node: Node = serde_json::from_value(json!({
        "metadata": {"name": ns.name()},
        "status": {"allocatable": {"pods": "10", "cpu": "8"}, "capacity": {"pods": "10", "cpu": "8"}},
    }))
    .unwrap();
    let nodes: Api<Node> = Api::all(admin.clone());
    nodes.create(&PostParams::default(), &node).await.unwrap();
    nodes
        .patch_status(ns.name(), &PatchParams::default(), &Patch::Merge(json!({"status": node.status})))
        .await
        .unwrap();
    let pods: Api<Pod> = Api::namespaced(admin, ns.name());
    expect::accepts(pods.create(&PostParams::default(), &pod("third", "macrack.io/no-such-thing")).await);
    let pod = expect::until_seen(&pods, "third", "refused by the scheduler", SOON, |pod| {
        let conditions = pod.status.iter().flat_map(|s| s.conditions.iter().flatten());
        conditions.filter(|c| c.type_ == "PodScheduled").any(|c| {
            c.reason.as_deref() == Some("Unschedulable")
                && c.message.as_deref().is_some_and(|m| m.contains("Insufficient macrack.io/no-such-thing"))
        })
    })
    .await;
    assert_eq!(pod.spec.and_then(|s| s.node_name), None);
    assert_eq!(pod.status.and_then(|s| s.phase).as_deref(), Some("Pending"));
}

#[tokio::test]
async fn kubectl_knows_the_servers_version_and_the_file_of_a_token_is_enough_for_it() {
    let plane = shared();
    let version = plane.kubectl(&["version"]).await.unwrap().success().unwrap();
    assert!(version.contains("Server Version: v1."), "{version}");
    let token = plane.token("default", "default", None).await.unwrap();
    let file = plane.kubeconfig_for(&token).unwrap();
    let who = plane.kubectl_as(&file, &["auth", "whoami"]).await.unwrap().success().unwrap();
    assert!(who.contains("system:serviceaccount:default:default"), "{who}");
}

#[tokio::test]
async fn a_namespace_that_is_deleted_goes_with_what_is_in_it() {
    let plane = shared();
    let ns = Namespace::fresh(plane, "gone").await.unwrap();
    let map = format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: a, namespace: {}}}\n", ns.name());
    plane.kubectl_with(&["apply", "-f", "-"], &map).await.unwrap().success().unwrap();
    plane.kubectl(&["delete", "ns", ns.name(), "--wait=false"]).await.unwrap().success().unwrap();
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(plane.admin().await.unwrap());
    expect::until_gone(&namespaces, ns.name(), Duration::from_secs(30)).await;
}
