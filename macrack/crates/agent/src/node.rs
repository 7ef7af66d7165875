//! The Kubernetes Node of this Mac: brought to life, kept alive.
//!
//! Invariants: capacity and allocatable say two macOS VMs, always: a constant, not a setting. Labels and
//! taints are never written. A Node that is missing is waited for; the operator makes it.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use macrack_api::Quantity;
use macrack_api::names::{MACOS_VM, VMS_PER_MAC};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::backoff::Backoff;
use crate::gather::{Seen, words};
use crate::host::HostFacts;
use crate::status::tell_node;

/// Between renewals of the Lease: a quarter of its duration, as kubelets do.
const RENEW: Duration = Duration::from_secs(10);
/// How long the Lease lasts without one (`--node-lease-duration-seconds` of kubelets).
const LEASE_SECONDS: i32 = 40;
/// The longest that one request may take: less than `RENEW`, so that a silent server costs one renewal.
const PATIENCE: Duration = Duration::from_secs(8);
/// Pods that fit: enough for DaemonSets and placeholders; VMs are limited by their own resource.
const PODS: u32 = 110;

/// Why a Node is not Ready while its Mac goes down.
const SHUTDOWN: &str = "NodeShutdown";

/// What the Node's status is made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFacts {
    /// The Mac.
    pub host: HostFacts,
    /// Less is free than must stay free.
    pub disk_pressure: bool,
    /// The port of `kubectl exec` and `logs`.
    pub kubelet_port: u16,
    /// The Mac is being shut down.
    pub going_down: bool,
}

/// The patch that brings the status of `node` to what it should be; `None` when it is.
pub fn patch(node: &Node, facts: &NodeFacts, now: Timestamp) -> Option<Value> {
    let status = json!(node.status);
    let desired = desired(node, facts, now);
    let current = desired.as_object()?.iter().all(|(key, value)| match key.as_str() {
        "conditions" => same_conditions(&status[key], value),
        _ => contains(&status[key], value),
    });
    (!current).then(|| {
        json!({
            "apiVersion": "v1", "kind": "Node",
            // the transition times are this Node's own
            "metadata": { "name": node.metadata.name, "uid": node.metadata.uid },
            "status": desired,
        })
    })
}

fn desired(node: &Node, facts: &NodeFacts, now: Timestamp) -> Value {
    let host = &facts.host;
    let resources = json!({
        MACOS_VM: VMS_PER_MAC.to_string(),
        "cpu": host.cpu_cores.to_string(),
        "memory": Quantity::bytes(host.memory_bytes).0,
        "pods": PODS.to_string(),
    });
    let mut addresses = vec![json!({ "type": "Hostname", "address": node.metadata.name })];
    // the list is keyed by type: one of each
    addresses.extend(host.addresses.first().map(|a| json!({ "type": "InternalIP", "address": a.to_string() })));
    json!({
        "capacity": resources,
        "allocatable": resources,
        "addresses": addresses,
        "conditions": conditions(node, facts, now),
        "daemonEndpoints": { "kubeletEndpoint": { "Port": facts.kubelet_port } },
        // exec then arrives as plain WebSocket, from Kubernetes 1.36 on
        "declaredFeatures": ["ExtendWebSocketsToKubelet"],
        "nodeInfo": {
            "operatingSystem": "darwin",
            "architecture": "arm64",
            "osImage": format!("macOS {}", host.host_version),
            "kernelVersion": "",
            "kubeletVersion": format!("v{}-macrack", env!("CARGO_PKG_VERSION")),
            "kubeProxyVersion": "",
            "containerRuntimeVersion": format!("macrack://{}", env!("CARGO_PKG_VERSION")),
            "machineID": host.serial,
            "systemUUID": host.serial,
            "bootID": host.boot_id,
        },
    })
}

fn conditions(node: &Node, facts: &NodeFacts, now: Timestamp) -> Vec<Value> {
    let yes_no = |yes: bool| if yes { "True" } else { "False" };
    let disk = match facts.disk_pressure {
        true => ("AgentHasDiskPressure", "less is free than the instances' disks may still grow by"),
        false => ("AgentHasNoDiskPressure", "enough is free for the instances' disks to grow"),
    };
    let ready = match facts.going_down {
        true => ("Ready", "False", SHUTDOWN, "the Mac is being shut down or restarted; its VMs stop"),
        false => ("Ready", "True", "AgentReady", "macrack-agent is ready"),
    };
    [
        ready,
        ("MemoryPressure", "False", "AgentHasSufficientMemory", "guests' memory is fixed by their class"),
        ("DiskPressure", yes_no(facts.disk_pressure), disk.0, disk.1),
        ("PIDPressure", "False", "AgentHasSufficientPID", "a Mac runs two VMs at most"),
    ]
    .into_iter()
    .map(|(type_, status, reason, message)| {
        let since = condition(node, type_)
            .filter(|old| old.status == status)
            .and_then(|old| old.last_transition_time.clone())
            .unwrap_or(Time(now));
        json!({
            "type": type_, "status": status, "reason": reason, "message": message,
            "lastHeartbeatTime": Time(now), "lastTransitionTime": since,
        })
    })
    .collect()
}

fn condition<'a>(node: &'a Node, type_: &str) -> Option<&'a NodeCondition> {
    node.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == type_)
}

fn same_conditions(current: &Value, desired: &Value) -> bool {
    let none = Vec::new();
    let current = current.as_array().unwrap_or(&none);
    desired
        .as_array()
        .unwrap_or(&none)
        .iter()
        .all(|want| current.iter().any(|have| ["type", "status", "reason"].iter().all(|key| have[key] == want[key])))
}

/// Whether everything in `part` stands in `whole`.
fn contains(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => {
            part.iter().all(|(key, value)| whole.get(key).is_some_and(|have| contains(have, value)))
        }
        _ => whole == part,
    }
}

/// Whether the Node says that its Mac goes down.
pub fn says_shutdown(node: &Node) -> bool {
    condition(node, "Ready").is_some_and(|ready| ready.status == "False" && ready.reason.as_deref() == Some(SHUTDOWN))
}

/// Keeps the Node's status as it should be, for ever: also after the node controller called it Unknown,
/// and after it was made again.
pub async fn keep_status(
    client: Client,
    name: String,
    mut seen: watch::Receiver<Seen<Node>>,
    mut facts: watch::Receiver<NodeFacts>,
) {
    let nodes: Api<Node> = Api::all(client);
    let mut backoff = Backoff::for_api();
    loop {
        let node = seen.borrow_and_update().present().cloned();
        let wanted = facts.borrow_and_update().clone();
        let patch = node.and_then(|node| patch(&node, &wanted, Timestamp::now()));
        if let Some(patch) = patch {
            let written = tell_node(&nodes, &name, &patch);
            match tokio::time::timeout(PATIENCE, written).await {
                Ok(Ok(_)) => backoff.reset(),
                Ok(Err(error)) => {
                    tracing::warn!(node = name, error = words(&error), "the Node's status is not written");
                    tokio::time::sleep(backoff.next_delay()).await;
                    continue;
                }
                Err(_) => continue,
            }
        }
        tokio::select! {
            changed = seen.changed() => if changed.is_err() { return },
            changed = facts.changed() => if changed.is_err() { return },
        }
    }
}

/// The renewal of a Lease, which belongs to its Node and goes with it, once that one is seen.
fn renewal(node: &str, uid: Option<&str>, now: Timestamp) -> Value {
    let mut renewal = json!({ "spec": {
        "holderIdentity": node,
        "leaseDurationSeconds": LEASE_SECONDS,
        "renewTime": MicroTime(now),
    }});
    if let Some(uid) = uid {
        let owner = json!({ "apiVersion": "v1", "kind": "Node", "name": node, "uid": uid });
        renewal["metadata"] = json!({ "ownerReferences": [owner] });
    }
    renewal
}

/// Renews the Node's Lease, for ever, through outages and while it is missing.
pub async fn keep_lease(client: Client, name: String, mut seen: watch::Receiver<Seen<Node>>) {
    let leases: Api<Lease> = Api::namespaced(client, "kube-node-lease");
    let params = PatchParams::default();
    let mut backoff = Backoff::new(Duration::from_millis(200), RENEW);
    loop {
        let uid = seen.borrow().present().and_then(|node| node.metadata.uid.clone());
        let renewal = Patch::Merge(renewal(&name, uid.as_deref(), Timestamp::now()));
        let renewed = leases.patch(&name, &params, &renewal);
        let pause = match tokio::time::timeout(PATIENCE, renewed).await {
            Ok(Ok(_)) => {
                backoff.reset();
                RENEW
            }
            Ok(Err(error)) => {
                tracing::debug!(lease = name, error = words(&error), "not renewed");
                backoff.next_delay()
            }
            Err(_) => backoff.next_delay(),
        };
        let node = seen.borrow_and_update().present().and_then(|node| node.metadata.uid.clone());
        let made_again = seen.wait_for(|now| now.present().is_some_and(|now| now.metadata.uid != node));
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            // a new Node's Lease has never been renewed
            Ok(_) = made_again => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> NodeFacts {
        NodeFacts {
            host: HostFacts {
                serial: "ZZSERIAL01".to_owned(),
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
                addresses: vec!["10.0.0.7".parse().unwrap()],
                hostd_problem: None,
                unread: Vec::new(),
            },
            disk_pressure: false,
            kubelet_port: 10_250,
            going_down: false,
        }
    }

    /// The Node after `patch` was applied to it.
    fn applied(mut node: Node, patch: &Value) -> Node {
        node.status = serde_json::from_value(patch["status"].clone()).unwrap();
        node
    }

    fn bare() -> Node {
        serde_json::from_value(json!({ "metadata": { "name": "macrack-zzserial01", "uid": "u-1" } })).unwrap()
    }

    #[test]
    fn a_bare_node_is_brought_to_life_with_two_vms_and_no_label_or_taint() {
        let patch = patch(&bare(), &facts(), Timestamp::UNIX_EPOCH).unwrap();
        for list in ["capacity", "allocatable"] {
            assert_eq!(patch["status"][list][MACOS_VM], "2", "{list}");
            assert_eq!(patch["status"][list]["memory"], "64Gi");
        }
        assert_eq!(patch["metadata"], json!({ "name": "macrack-zzserial01", "uid": "u-1" }));
        assert!(patch.get("spec").is_none());
    }

    #[test]
    fn a_status_that_is_right_is_not_written_again() {
        let first = patch(&bare(), &facts(), Timestamp::UNIX_EPOCH).unwrap();
        let mut node = applied(bare(), &first);
        assert_eq!(patch(&node, &facts(), Timestamp::now()), None);
        // what others add is theirs
        let others = json!({ "type": "NetworkUnavailable", "status": "False" });
        let conditions = node.status.as_mut().unwrap().conditions.as_mut().unwrap();
        conditions.push(serde_json::from_value(others).unwrap());
        assert_eq!(patch(&node, &facts(), Timestamp::now()), None);
    }

    #[test]
    fn what_the_node_controller_wrote_during_an_outage_is_put_right() {
        let first = patch(&bare(), &facts(), Timestamp::UNIX_EPOCH).unwrap();
        let mut node = applied(bare(), &first);
        let conditions = node.status.as_mut().unwrap().conditions.as_mut().unwrap();
        for condition in conditions.iter_mut() {
            condition.status = "Unknown".to_owned();
        }
        let now = Timestamp::from_second(1000).unwrap();
        let again = patch(&node, &facts(), now).unwrap();
        assert_eq!(again["status"]["conditions"][0]["status"], "True");
        assert_eq!(again["status"]["conditions"][0]["lastTransitionTime"], json!(Time(now)));
    }

    #[test]
    fn a_lease_is_its_nodes_as_soon_as_that_one_is_seen() {
        let lease = renewal("macrack-x", Some("u-1"), Timestamp::UNIX_EPOCH);
        assert_eq!(lease["metadata"]["ownerReferences"][0]["uid"], "u-1");
        assert_eq!(lease["spec"]["leaseDurationSeconds"], 40);
        let unseen = renewal("macrack-x", None, Timestamp::UNIX_EPOCH);
        assert_eq!(unseen.get("metadata"), None, "what others wrote there is left");
    }

    #[test]
    fn the_api_server_is_told_where_exec_and_logs_are_answered() {
        let status = &patch(&bare(), &facts(), Timestamp::UNIX_EPOCH).unwrap()["status"];
        assert_eq!(status["daemonEndpoints"]["kubeletEndpoint"]["Port"], 10_250);
        assert_eq!(status["declaredFeatures"], json!(["ExtendWebSocketsToKubelet"]));
        let ready = &status["conditions"];
        assert_eq!(ready.as_array().unwrap().len(), 4, "Ready and three pressures");
    }

    #[test]
    fn a_shutdown_of_the_mac_is_said_and_the_next_boots_agent_takes_it_back() {
        let node = applied(bare(), &patch(&bare(), &facts(), Timestamp::UNIX_EPOCH).unwrap());
        assert!(!says_shutdown(&node));
        let down = patch(&node, &NodeFacts { going_down: true, ..facts() }, Timestamp::now()).unwrap();
        let node = applied(node, &down);
        assert!(says_shutdown(&node), "{down}");
        let up = patch(&node, &facts(), Timestamp::now()).unwrap();
        assert_eq!(up["status"]["conditions"][0]["status"], "True");
    }

    #[test]
    fn disk_pressure_is_said_when_it_begins() {
        let node = applied(bare(), &patch(&bare(), &facts(), Timestamp::UNIX_EPOCH).unwrap());
        let pressed = NodeFacts { disk_pressure: true, ..facts() };
        let patch = patch(&node, &pressed, Timestamp::now()).unwrap();
        assert_eq!(patch["status"]["conditions"][2]["status"], "True");
    }
}
