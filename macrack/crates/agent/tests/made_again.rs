//! What an agent knows of an object is not written onto one that was made again under its name.

#![allow(clippy::unwrap_used, reason = "a test ends where its premise fails")]

use std::fmt::Debug;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use macrack_agent::host::HostFacts;
use macrack_agent::life::{Facts, Life};
use macrack_agent::node::{self, NodeFacts};
use macrack_agent::report::agent::AgentReport;
use macrack_agent::report::{instance, pod};
use macrack_agent::status::{tell_instance, tell_mac_node, tell_node, tell_pod};
use macrack_api::rack::node::AgentStatus;
use macrack_api::{MacNode, MacOSInstance};
use macrack_testkit::{ControlPlane, Namespace, expect, shared};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

const SOON: Duration = Duration::from_secs(60);

/// A control plane with the kinds, and no policies: what holds here is the write alone.
async fn plane() -> (&'static ControlPlane, Client) {
    static INSTALLED: OnceCell<()> = OnceCell::const_new();
    let plane = shared();
    INSTALLED
        .get_or_init(async || {
            let crds = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/crds");
            plane.kubectl(&["apply", "--server-side", "-f", crds]).await.unwrap().success().unwrap();
            let established = ["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"];
            plane.kubectl(&established).await.unwrap().success().unwrap();
        })
        .await;
    (plane, plane.admin().await.unwrap())
}

/// Makes an object twice under its name: as the agent saw it first, and as it is now.
async fn twice<K>(api: &Api<K>, object: Value) -> (K, K)
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Serialize + Debug + Send + 'static,
{
    let object: K = serde_json::from_value(object).unwrap();
    let name = object.name_any();
    let old = expect::accepts(api.create(&PostParams::default(), &object).await);
    expect::accepts(api.delete(&name, &DeleteParams::default().grace_period(0)).await);
    expect::until_gone(api, &name, SOON).await;
    let new = expect::accepts(api.create(&PostParams::default(), &object).await);
    assert_ne!(old.uid(), new.uid());
    (old, new)
}

fn running() -> Facts {
    Facts::new(Life::Running, Timestamp::UNIX_EPOCH)
}

async fn in_tenant<K>(client: &Client, plane: &ControlPlane, test: &str) -> (Namespace, Api<K>)
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    let ns = Namespace::fresh(plane, test).await.unwrap();
    let api = Api::namespaced(client.clone(), ns.name());
    (ns, api)
}

#[tokio::test]
async fn the_report_of_a_mac_reaches_only_the_mac_node_that_it_is_for() {
    let (_, client) = plane().await;
    let api: Api<MacNode> = Api::all(client);
    let name = "zzagain101";
    let (old, new) = twice(
        &api,
        json!({
            "apiVersion": "rack.macrack.io/v1alpha1", "kind": "MacNode", "metadata": { "name": name },
            "spec": { "serial": "ZZAGAIN101", "nodeClassName": "mini" },
        }),
    )
    .await;
    let report = |of: &MacNode, boot: &str| {
        let status = AgentStatus { version: "1".to_owned(), boot_id: boot.to_owned(), ..AgentStatus::default() };
        AgentReport { mac_node: of.uid().unwrap(), losses: 0, status }
    };
    let boot = async || Some(api.get(name).await.unwrap().status?.agent?.boot_id);
    // into a successor that has no status yet, one that has the operator's, and one that has both
    expect::rejects(tell_mac_node(&api, name, &report(&old, "old")).await, "the server rejected our request");
    assert_eq!(boot().await, None);
    let operators = Patch::Merge(json!({ "status": { "phase": "Pending" } }));
    expect::accepts(api.patch_status(name, &PatchParams::default(), &operators).await);
    expect::rejects(tell_mac_node(&api, name, &report(&old, "old")).await, "the server rejected our request");
    assert_eq!(boot().await, None);
    expect::accepts(tell_mac_node(&api, name, &report(&new, "new")).await);
    expect::rejects(tell_mac_node(&api, name, &report(&old, "old")).await, "the server rejected our request");
    assert_eq!(boot().await.as_deref(), Some("new"));
    assert!(api.get(name).await.unwrap().status.unwrap().phase.is_some(), "the operator's part went");
}

#[tokio::test]
async fn the_first_status_of_a_mac_node_may_be_the_agents() {
    let (_, client) = plane().await;
    let api: Api<MacNode> = Api::all(client);
    let mac_node = json!({
        "apiVersion": "rack.macrack.io/v1alpha1", "kind": "MacNode", "metadata": { "name": "zzfirst101" },
        "spec": { "serial": "ZZFIRST101", "nodeClassName": "mini" },
    });
    let made = api.create(&PostParams::default(), &serde_json::from_value(mac_node).unwrap()).await;
    let uid = expect::accepts(made).uid().unwrap();
    let status = AgentStatus { version: "1".to_owned(), boot_id: "first".to_owned(), ..AgentStatus::default() };
    expect::accepts(tell_mac_node(&api, "zzfirst101", &AgentReport { mac_node: uid, losses: 0, status }).await);
    let agent = api.get("zzfirst101").await.unwrap().status.unwrap().agent.unwrap();
    assert_eq!(agent.boot_id, "first");
}

#[tokio::test]
async fn what_is_said_of_a_vm_reaches_only_the_instance_that_has_it() {
    let (plane, client) = plane().await;
    let (_ns, api) = in_tenant::<MacOSInstance>(&client, plane, "instance-again").await;
    let (old, new) = twice(
        &api,
        json!({
            "apiVersion": "instance.macrack.io/v1alpha1", "kind": "MacOSInstance", "metadata": { "name": "build" },
            "spec": { "leaseName": "lease", "instanceClassName": "half", "imageName": "tahoe" },
        }),
    )
    .await;
    let (old, new) = (old.uid().unwrap(), new.uid().unwrap());
    let runs = instance::render(Some(&running()), None);
    assert!(runs.guest.is_some());
    expect::rejects(tell_instance(&api, "build", &old, &runs).await, "the server rejected our request");
    assert_eq!(api.get("build").await.unwrap().status, None);
    expect::accepts(tell_instance(&api, "build", &new, &runs).await);
    assert!(api.get("build").await.unwrap().status.unwrap().guest.is_some());
    // what the guest said goes with it; not at the word of another VM
    let nothing = instance::render(None, None);
    expect::rejects(tell_instance(&api, "build", &old, &nothing).await, "the server rejected our request");
    assert!(api.get("build").await.unwrap().status.unwrap().guest.is_some());
    expect::accepts(tell_instance(&api, "build", &new, &nothing).await);
    assert_eq!(api.get("build").await.unwrap().status.unwrap().guest, None);
}

#[tokio::test]
async fn what_is_said_of_a_placeholder_reaches_only_that_very_pod() {
    let (plane, client) = plane().await;
    let (_ns, api) = in_tenant::<Pod>(&client, plane, "pod-again").await;
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "build" },
        "spec": {
            "nodeName": "macrack-nowhere", "automountServiceAccountToken": false,
            "containers": [{ "name": "vm", "image": "macrack.io/placeholder" }],
        },
    });
    let (old, new) = twice(&api, pod).await;
    let told = |pod: &Pod| pod::render(pod, None, Some(&running()), None).unwrap();
    expect::rejects(tell_pod(&api, "build", told(&old)).await, "metadata.uid");
    let phase = async || api.get("build").await.unwrap().status.unwrap().phase;
    assert_eq!(phase().await.as_deref(), Some("Pending"));
    expect::accepts(tell_pod(&api, "build", told(&new)).await);
    assert_eq!(phase().await.as_deref(), Some("Running"));
}

#[tokio::test]
async fn the_status_of_a_node_reaches_only_that_very_node() {
    let (_, client) = plane().await;
    let api: Api<Node> = Api::all(client);
    let name = "macrack-zzagain102";
    let (old, new) = twice(&api, json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name } })).await;
    let host = HostFacts {
        serial: "ZZAGAIN102".to_owned(),
        model: "Mac16,11".to_owned(),
        chip: "Apple M4 Pro".to_owned(),
        cpu_cores: 14,
        memory_bytes: 64 << 30,
        disk_bytes: 1_000_000_000_000,
        link_bits_per_second: Some(10_000_000_000),
        host_version: "26.1".to_owned(),
        boot_id: "boot".to_owned(),
        entitled: true,
        keychain_unlocked: true,
        auto_login: true,
        addresses: Vec::new(),
        hostd_problem: None,
        unread: Vec::new(),
    };
    let facts = NodeFacts { host, disk_pressure: false, kubelet_port: 10_250, going_down: false };
    let told = |node: &Node| node::patch(node, &facts, Timestamp::now()).unwrap();
    let boot = async || Some(api.get(name).await.unwrap().status?.node_info?.boot_id).filter(|boot| !boot.is_empty());
    expect::rejects(tell_node(&api, name, &told(&old)).await, "metadata.uid");
    assert_eq!(boot().await, None);
    expect::accepts(tell_node(&api, name, &told(&new)).await);
    assert_eq!(boot().await.as_deref(), Some("boot"));
}
