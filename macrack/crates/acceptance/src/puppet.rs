//! A puppet agent: speaks for a chassis as the real agent does (same user, same node claim, same policies), obeys
//! orders at once, and misbehaves when told. For tests about the operator; what agents do is tested with the real one.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result};
use futures::StreamExt;
use k8s_openapi::{
    api::{
        coordination::v1::Lease,
        core::v1::{Node, Pod},
    },
    jiff::Timestamp,
};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
    runtime::{WatchStreamExt, watcher},
};
use macrack_agent::status::write_own;
use macrack_api::{
    MacNode, names,
    rack::node::{Order, VmState},
};
use macrack_testkit::ControlPlane;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// How a puppet behaves.
#[derive(Clone, Debug)]
pub struct Manners {
    /// Never reports a VM stopped.
    pub stop_hangs: bool,
    /// Never reports a VM wiped.
    pub wipe_hangs: bool,
    /// VMs that are on the disk, by uid, whatever the slots say.
    pub remains: BTreeMap<String, VmState>,
    /// The kernel's counter is stuck.
    pub stuck: bool,
    /// The boot.
    pub boot: String,
    /// The serial that the hardware says.
    pub serial: Option<String>,
    /// Goldens in the cache.
    pub goldens: Vec<String>,
}

impl Default for Manners {
    fn default() -> Self {
        Self {
            stop_hangs: false,
            wipe_hangs: false,
            remains: BTreeMap::new(),
            stuck: false,
            boot: "boot-1".into(),
            serial: None,
            goldens: Vec::new(),
        }
    }
}

/// One puppet. It falls silent when dropped.
pub struct Puppet {
    shared: Arc<Shared>,
    tasks: Vec<JoinHandle<()>>,
}

struct Shared {
    serial: String,
    client: Client,
    /// Pods are read as the admin: the puppet has no per-slot watches of the agent's kind.
    admin: Client,
    manners: Mutex<Manners>,
    changed: tokio::sync::Notify,
}

impl Puppet {
    /// Waits until the chassis is enrolled (its Node exists), then speaks for it.
    pub async fn start(plane: &ControlPlane, serial: &str) -> Result<Puppet> {
        let name = names::mac_node(serial);
        let node = names::node(&name);
        let admin = plane.admin().await?;
        let nodes: Api<Node> = Api::all(admin.clone());
        macrack_testkit::expect::until_seen(&nodes, &node, "made by the operator", Duration::from_secs(20), |_| true)
            .await;
        let user = format!("system:serviceaccount:{}:{}", names::AGENT_NAMESPACE, names::agent_account(&name));
        let groups = ["system:serviceaccounts", "system:serviceaccounts:macrack-agents"];
        let claim = HashMap::from([("authentication.kubernetes.io/node-name".to_owned(), vec![node])]);
        let client = plane.as_user_with(&user, &groups, claim).await?;
        let shared = Arc::new(Shared {
            serial: serial.into(),
            client,
            admin,
            manners: Mutex::default(),
            changed: tokio::sync::Notify::new(),
        });
        let tasks = vec![tokio::spawn(heartbeat(shared.clone())), tokio::spawn(obey(shared.clone()))];
        Ok(Puppet { shared, tasks })
    }

    /// Changes its manners.
    pub fn behave(&self, change: impl FnOnce(&mut Manners)) {
        change(&mut self.shared.manners.lock().unwrap_or_else(PoisonError::into_inner));
        self.shared.changed.notify_one();
    }
}

impl Drop for Puppet {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Shared {
    fn name(&self) -> String {
        names::mac_node(&self.serial)
    }
    fn manners(&self) -> Manners {
        self.manners.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Renews the Node's lease and status, again after a deletion.
async fn heartbeat(shared: Arc<Shared>) {
    let node = names::node(&shared.name());
    let nodes: Api<Node> = Api::all(shared.client.clone());
    let leases: Api<Lease> = Api::namespaced(shared.client.clone(), "kube-node-lease");
    loop {
        let now = Timestamp::now();
        let ready = json!({ "type": "Ready", "status": "True", "reason": "AgentReady", "message": "",
            "lastHeartbeatTime": now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            "lastTransitionTime": now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string() });
        let room = json!({ "cpu": "14", "memory": "64Gi", "pods": "110", names::MACOS_VM: "2" });
        let status = json!({ "status": { "capacity": room, "allocatable": room, "conditions": [ready] } });
        let known = matches!(nodes.get_status(&node).await, Ok(n) if n.status.as_ref().and_then(|s| s.capacity.as_ref()).is_some_and(|c| c.contains_key(names::MACOS_VM)));
        let mut well =
            known || nodes.patch_status(&node, &PatchParams::default(), &Patch::Strategic(status)).await.is_ok();
        let renewal = json!({ "spec": { "holderIdentity": node, "leaseDurationSeconds": 40,
            "renewTime": now.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string() } });
        well &= leases.patch(&node, &PatchParams::default(), &Patch::Merge(renewal)).await.is_ok();
        tokio::time::sleep(if well { Duration::from_secs(5) } else { Duration::from_millis(200) }).await;
    }
}

/// Watches its MacNode and reports what was ordered as done.
async fn obey(shared: Arc<Shared>) {
    let nodes: Api<MacNode> = Api::all(shared.client.clone());
    let only = watcher::Config::default().fields(&format!("metadata.name={}", shared.name()));
    let mut seen: Option<MacNode> = None;
    let events = watcher(nodes, only).default_backoff().applied_objects();
    futures::pin_mut!(events);
    loop {
        tokio::select! {
            event = events.next() => match event {
                Some(Ok(node)) => seen = Some(node),
                Some(Err(_)) => continue,
                None => return,
            },
            () = shared.changed.notified() => {}
        }
        if let Some(node) = &seen
            && let Err(error) = report(&shared, node).await
        {
            eprintln!("puppet {}: {error:?}", shared.serial);
            shared.changed.notify_one();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

async fn report(shared: &Shared, node: &MacNode) -> Result<()> {
    let manners = shared.manners();
    let status = node.status.clone().unwrap_or_default();
    let before: BTreeMap<String, VmState> =
        status.agent.iter().flat_map(|a| a.vms.iter().map(|vm| (vm.uid.clone(), vm.state))).collect();
    let mut vms: BTreeMap<String, VmState> = manners.remains.clone();
    for slot in &status.slots {
        let was = before.get(&slot.uid).copied();
        let lives = matches!(was, Some(VmState::Running | VmState::Stopping | VmState::Unknown));
        let state = match slot.order {
            Order::Run if lives || placed(shared, &slot.namespace, &slot.name).await? => VmState::Running,
            Order::Run => VmState::Waiting,
            Order::Stop | Order::Wipe if lives && manners.stop_hangs => VmState::Stopping,
            Order::Wipe if manners.wipe_hangs => VmState::Wiping,
            Order::Stop if was.is_none() => VmState::Wiped,
            Order::Stop => VmState::Stopped,
            Order::Wipe => VmState::Wiped,
        };
        vms.insert(
            slot.uid.clone(),
            manners.remains.get(&slot.uid).copied().filter(|_| slot.order == Order::Run).unwrap_or(state),
        );
        if state == VmState::Wiped {
            shared.manners.lock().unwrap_or_else(PoisonError::into_inner).remains.remove(&slot.uid);
        }
    }
    let running = vms.values().filter(|s| **s == VmState::Running).count();
    let agent = json!({
        "version": "puppet", "bootID": manners.boot, "hostVersion": "26.1",
        "hardware": {
            "serial": manners.serial.as_deref().unwrap_or(&shared.serial), "model": "Mac16,11", "chip": "M4 Pro", "cpuCores": 14,
            "memory": "64Gi", "storage": "1T", "linkSpeed": "10G",
        },
        "host": { "entitled": true, "keychainUnlocked": true, "autoLogin": true },
        "quota": { "running": running, "foreign": 0, "stuck": manners.stuck, "checkedBootID": manners.boot },
        "vms": vms.iter().map(|(uid, state)| json!({ "uid": uid, "state": state, "guestReady": *state == VmState::Running })).collect::<Vec<Value>>(),
        "goldens": manners.goldens.iter().map(|d| json!({ "digest": d, "size": "1Gi", "clones": 0, "lastUsed": "2026-01-01T00:00:00Z" })).collect::<Vec<Value>>(),
    });
    let same = status
        .agent
        .as_ref()
        .and_then(|a| serde_json::to_value(a).ok())
        .is_some_and(|old| old == agent || equal(&old, &agent));
    if same {
        return Ok(());
    }
    let nodes: Api<MacNode> = Api::all(shared.client.clone());
    let part = [("agent".to_owned(), agent)].into_iter().collect();
    let uid = node.uid().unwrap_or_default();
    write_own(&nodes, &shared.name(), &uid, &part).await.context("reporting")
}

/// Equal but for keys that one of them leaves out because they are empty.
fn equal(a: &Value, b: &Value) -> bool {
    fn thin(v: &Value) -> Value {
        match v {
            Value::Object(m) => Value::Object(
                m.iter()
                    .filter(|(_, v)| !matches!(v, Value::Array(x) if x.is_empty()))
                    .map(|(k, v)| (k.clone(), thin(v)))
                    .collect(),
            ),
            Value::Array(x) => Value::Array(x.iter().map(thin).collect()),
            other => other.clone(),
        }
    }
    thin(a) == thin(b)
}

/// Whether the placeholder is bound to this chassis; then it is also reported Running, as the real agent does.
async fn placed(shared: &Shared, namespace: &str, instance: &str) -> Result<bool> {
    let pods: Api<Pod> = Api::namespaced(shared.admin.clone(), namespace);
    let name = names::placeholder(instance);
    let Some(pod) = pods.get_opt(&name).await? else {
        again(shared);
        return Ok(false);
    };
    let here = pod.spec.as_ref().and_then(|s| s.node_name.as_deref()) == Some(&names::node(&shared.name()));
    if !here {
        again(shared);
        return Ok(false);
    }
    if pod.status.as_ref().and_then(|s| s.phase.as_deref()) != Some("Running") {
        let mine: Api<Pod> = Api::namespaced(shared.client.clone(), namespace);
        let status = json!({ "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] } });
        // the Role of this very slot may be a moment behind
        if mine.patch_status(&name, &PatchParams::default(), &Patch::Strategic(status)).await.is_err() {
            again(shared);
        }
    }
    Ok(true)
}

/// Looks again shortly: the puppet has no watch on pods.
fn again(shared: &Shared) {
    shared.changed.notify_one();
}
