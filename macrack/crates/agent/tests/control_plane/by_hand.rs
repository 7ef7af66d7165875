//! What the operator would do for one chassis, in the least words.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use macrack_agent::images::Reference;
use macrack_agent::images::store::{Spec, publish};
use macrack_api::names;
use macrack_api::rack::node::{AgentStatus, Order, QuotaFacts, Vm, VmState};
use macrack_api::{MacNode, MacOSInstance};
use macrack_testkit::child::{Child, Program, bin};
use macrack_testkit::{ControlPlane, Namespace, expect, shared};
use macrack_vm::sim::{Chassis, ChassisSpec, HostPrepared};
use macrack_wire::VmDir;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

pub(crate) const SOON: Duration = Duration::from_secs(60);
const LEASE: &str = "11111111-2222-4333-8444-555555555555";

/// One enrolled and leased chassis with its agent.
pub(crate) struct Rack {
    pub(crate) operator: Client,
    pub(crate) ns: Namespace,
    pub(crate) name: String,
    pub(crate) agent: Child,
    pub(crate) chassis: Chassis,
    pub(crate) dir: tempfile::TempDir,
    plane: &'static ControlPlane,
}

/// Kinds, policies and the namespaces, once per control plane.
async fn installed(plane: &ControlPlane) {
    static INSTALLED: OnceCell<()> = OnceCell::const_new();
    let install = async || {
        let deploy = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy");
        for part in ["crds", "policies", "rbac"] {
            let folder = format!("{deploy}/{part}");
            plane.kubectl(&["apply", "--server-side", "-f", &folder]).await.unwrap().success().unwrap();
        }
        let crds = ["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"];
        plane.kubectl(&crds).await.unwrap().success().unwrap();
    };
    INSTALLED.get_or_init(install).await;
}

impl Rack {
    /// A chassis of its own, in a namespace of its own, with its agent running and its Node Ready.
    pub(crate) async fn leased(test: &str) -> Rack {
        static SERIALS: AtomicU32 = AtomicU32::new(1);
        let plane = shared();
        installed(plane).await;
        let ns = Namespace::fresh(plane, test).await.unwrap();
        let serial = format!("ZZAGENT{:03}", SERIALS.fetch_add(1, Ordering::Relaxed));
        let name = names::mac_node(&serial);
        let operator = format!("system:serviceaccount:{}:{}", names::SYSTEM_NAMESPACE, names::OPERATOR_ACCOUNT);
        let operator = plane.as_user(&operator, &["system:masters"]).await.unwrap();

        let dir = tempfile::tempdir().unwrap();
        let (state, store) = (dir.path().join("s"), dir.path().join("store"));
        let chassis = Chassis::create(&state, spec(&serial)).unwrap();
        let golden = publish(&store, "registry.example/macos/tahoe", &Spec { disk_bytes: 4 << 20, ..Spec::default() });
        let golden = golden.unwrap();

        plane
            .kubectl_with(&["apply", "-f", "-"], &objects(&name, &serial, ns.name(), &golden))
            .await
            .unwrap()
            .success()
            .unwrap();
        let program = |token: String| {
            let bootstrap = json!({
                "server": plane.server(), "caData": BASE64_STANDARD.encode(plane.ca_pem()),
                "serial": serial, "token": token,
            });
            let file = dir.path().join("bootstrap.json");
            std::fs::write(&file, bootstrap.to_string()).unwrap();
            bin("macrack-vm").unwrap();
            bin("macrack-guest").unwrap();
            Program::new(bin("macrack-agent").unwrap())
                .args(["run", "--bootstrap"])
                .arg(&file)
                .arg("--state-dir")
                .arg(&state)
                .arg("--image-store")
                .arg(format!("dir:{}", store.display()))
        };
        let token = plane.token(names::AGENT_NAMESPACE, &names::enroll_account(&name), None).await.unwrap();
        let agent = program(token).start("macrack-agent").unwrap();
        let rack = Rack { operator, ns, name, agent, chassis, dir, plane };
        rack.make_node().await;
        rack.lease().await;
        rack
    }

    pub(crate) fn nodes(&self) -> Api<Node> {
        Api::all(self.operator.clone())
    }

    pub(crate) fn mac_nodes(&self) -> Api<MacNode> {
        Api::all(self.operator.clone())
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.operator.clone(), self.ns.name())
    }

    pub(crate) fn instances(&self) -> Api<MacOSInstance> {
        Api::namespaced(self.operator.clone(), self.ns.name())
    }

    pub(crate) fn node(&self) -> String {
        names::node(&self.name)
    }

    pub(crate) fn state_dir(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    pub(crate) fn vm_dir(&self, uid: &str) -> VmDir {
        VmDir::new(self.state_dir().canonicalize().unwrap().join("vms").join(uid))
    }

    /// The Node with its taint, as the operator makes it.
    pub(crate) async fn make_node(&self) {
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": self.node(), "labels": { names::LABEL_SERIAL: self.name } },
            "spec": { "taints": [{ "key": names::TAINT_LEASE, "value": LEASE, "effect": "NoSchedule" }] },
        });
        let node = serde_json::from_value(node).unwrap();
        expect::accepts(self.nodes().create(&PostParams::default(), &node).await);
    }

    /// Binds the lease of these tests.
    pub(crate) async fn lease(&self) {
        let status = json!({ "leaseRef": {
            "namespace": self.ns.name(), "name": "lease", "uid": LEASE,
            "boundAt": "2026-01-01T00:00:00Z", "earliestReleaseAt": "2026-01-02T00:00:00Z",
        }});
        self.patch_status(status).await;
    }

    async fn patch_status(&self, status: Value) {
        let patch = Patch::Merge(json!({ "status": status }));
        expect::accepts(self.mac_nodes().patch_status(&self.name, &PatchParams::default(), &patch).await);
    }

    /// Makes an instance; returns its uid.
    pub(crate) async fn instance(&self, name: &str, first_boot: Option<&str>) -> String {
        if let Some(script) = first_boot {
            let secret = json!({
                "apiVersion": "v1", "kind": "Secret",
                "metadata": { "name": "boot", "namespace": self.ns.name() }, "stringData": { "script": script },
            });
            self.plane.kubectl_with(&["apply", "-f", "-"], &secret.to_string()).await.unwrap().success().unwrap();
        }
        let key = first_boot.map(|_| json!({ "scriptFrom": { "secretKeyRef": { "name": "boot", "key": "script" } } }));
        let mut spec = json!({ "leaseName": "lease", "instanceClassName": self.name, "imageName": self.name });
        if let Some(key) = key {
            spec["firstBoot"] = key;
        }
        let instance = json!({
            "apiVersion": "instance.macrack.io/v1alpha1", "kind": "MacOSInstance",
            "metadata": { "name": name }, "spec": spec,
        });
        let made = self.instances().create(&PostParams::default(), &serde_json::from_value(instance).unwrap()).await;
        let uid = expect::accepts(made).uid().unwrap();
        let patch = Patch::Merge(json!({ "status": { "nodeName": self.node() } }));
        expect::accepts(self.instances().patch_status(name, &PatchParams::default(), &patch).await);
        uid
    }

    /// Writes both slots.
    pub(crate) async fn order(&self, slots: &[(&str, &str, Order)]) {
        let slots: Vec<Value> = (0..)
            .zip(slots)
            .map(|(slot, (name, uid, order))| {
                json!({ "slot": slot, "uid": uid, "namespace": self.ns.name(), "name": name, "order": order })
            })
            .collect();
        self.patch_status(json!({ "slots": slots })).await;
    }

    /// Makes the placeholder, which the scheduler binds.
    pub(crate) async fn placeholder(&self, name: &str, uid: &str) {
        let resources = json!({ "cpu": "0", "memory": "0", names::MACOS_VM: "1" });
        let tolerate = |key: &str| json!({ "key": key, "operator": "Exists" });
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": names::placeholder(name), "labels": { names::LABEL_INSTANCE: uid },
                "finalizers": [names::FINALIZER_POD],
            },
            "spec": {
                "nodeSelector": { names::LABEL_SERIAL: self.name },
                "automountServiceAccountToken": false,
                "containers": [{
                    "name": "vm", "image": "macrack.io/placeholder",
                    "resources": { "requests": resources, "limits": resources },
                }],
                "tolerations": [
                    { "key": names::TAINT_LEASE, "value": LEASE, "effect": "NoSchedule" },
                    tolerate("node.kubernetes.io/not-ready"), tolerate("node.kubernetes.io/unreachable"),
                ],
            },
        });
        expect::accepts(self.pods().create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await);
    }

    /// Waits until the agent reports this of a VM.
    pub(crate) async fn until_vm(&self, uid: &str, what: &str, holds: impl Fn(&Vm) -> bool) -> Vm {
        let vm = |node: &MacNode| {
            let vms = &node.status.as_ref()?.agent.as_ref()?.vms;
            vms.iter().find(|vm| vm.uid == uid).cloned()
        };
        let mac_nodes = self.mac_nodes();
        let seen = expect::until_seen(&mac_nodes, &self.name, what, SOON, |node| vm(node).is_some_and(|vm| holds(&vm)));
        vm(&seen.await).unwrap()
    }

    pub(crate) async fn until_ready(&self, uid: &str) -> Vm {
        self.until_vm(uid, "ready", |vm| vm.state == VmState::Running && vm.guest_ready).await
    }

    pub(crate) async fn until_node_ready(&self) -> Node {
        expect::until_seen(&self.nodes(), &self.node(), "Ready", SOON, |node| {
            let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
            conditions.is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
        })
        .await
    }

    /// Deletes the Node, as a cloud's node controller would.
    pub(crate) async fn delete_node(&self) {
        expect::accepts(self.nodes().delete(&self.node(), &DeleteParams::default()).await);
        expect::until_gone(&self.nodes(), &self.node(), SOON).await;
    }

    /// Ends an account of the chassis, and with it every token of it.
    pub(crate) async fn end_account(&self, account: &str) {
        let what = format!("serviceaccount/{account}");
        self.plane.kubectl(&["-n", names::AGENT_NAMESPACE, "delete", &what]).await.unwrap().success().unwrap();
    }

    /// Makes it again: no token of before is one of it.
    pub(crate) async fn make_account(&self, account: &str) {
        let make = ["-n", names::AGENT_NAMESPACE, "create", "serviceaccount", account];
        self.plane.kubectl(&make).await.unwrap().success().unwrap();
    }

    /// Puts a new bootstrap file in the place of the old, as `kubectl macrack enroll` prints it.
    pub(crate) async fn enrol_again(&self) {
        let account = names::enroll_account(&self.name);
        let token = self.plane.token(names::AGENT_NAMESPACE, &account, None).await.unwrap();
        self.rewrite_bootstrap(|text| {
            let mut file: Value = serde_json::from_str(&text).unwrap();
            file["token"] = json!(token);
            file.to_string()
        });
    }

    /// Has the agent look for its cluster where there is none, from its next start on.
    pub(crate) fn cut_off(&self) {
        self.rewrite_bootstrap(|text| text.replace(self.plane.server(), "https://127.0.0.1:1"));
    }

    /// Undoes [`Rack::cut_off`].
    pub(crate) fn reconnect(&self) {
        self.rewrite_bootstrap(|text| text.replace("https://127.0.0.1:1\"", &format!("{}\"", self.plane.server())));
    }

    fn rewrite_bootstrap(&self, change: impl FnOnce(String) -> String) {
        let file = self.dir.path().join("bootstrap.json");
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, change(text)).unwrap();
    }

    /// Takes the agent's rights in the tenant's namespace, as the deletion of that namespace does.
    pub(crate) async fn revoke(&self) {
        let what = format!("rolebinding/{}", names::agent_account(&self.name));
        self.plane.kubectl(&["-n", self.ns.name(), "delete", &what]).await.unwrap().success().unwrap();
    }

    /// The agent's report as it is now.
    pub(crate) async fn report(&self) -> AgentStatus {
        self.mac_nodes().get(&self.name).await.unwrap().status.unwrap().agent.unwrap()
    }

    /// Waits until a VM is in the report no more.
    pub(crate) async fn until_unreported(&self, uid: &str) {
        expect::until_seen(&self.mac_nodes(), &self.name, "without that VM", SOON, |node| {
            let agent = node.status.as_ref().and_then(|status| status.agent.as_ref());
            agent.is_some_and(|agent| agent.vms.iter().all(|vm| vm.uid != uid))
        })
        .await;
    }

    /// Waits until the agent reports this of the kernel's counter.
    pub(crate) async fn until_quota(&self, what: &str, holds: impl Fn(&QuotaFacts) -> bool) -> QuotaFacts {
        let quota = |node: &MacNode| Some(node.status.as_ref()?.agent.as_ref()?.quota.clone());
        let mac_nodes = self.mac_nodes();
        let seen = expect::until_seen(&mac_nodes, &self.name, what, SOON, |node| {
            quota(node).is_some_and(|quota| holds(&quota))
        });
        quota(&seen.await).unwrap()
    }

    /// How often the VM of an instance was started.
    pub(crate) fn starts(&self, uid: &str) -> u64 {
        let record = std::fs::read(self.vm_dir(uid).path().join("agent.json")).unwrap();
        serde_json::from_slice::<Value>(&record).unwrap()["starts"].as_u64().unwrap()
    }

    /// Takes a placeholder away as if it never was.
    pub(crate) async fn unplace(&self, name: &str) {
        let pod = names::placeholder(name);
        let finalizers = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
        expect::accepts(self.pods().patch(&pod, &PatchParams::default(), &finalizers).await);
        expect::accepts(self.pods().delete(&pod, &DeleteParams::default().grace_period(0)).await);
        expect::until_gone(&self.pods(), &pod, SOON).await;
    }

    /// The MacNode made again without its slots, as from a backup older than they are.
    pub(crate) async fn restore(&self, slots: &[(&str, &str, Order)]) {
        self.make_mac_node_again().await;
        self.lease().await;
        self.order(slots).await;
    }

    /// The MacNode made again without anything that was known of it.
    pub(crate) async fn make_mac_node_again(&self) {
        let old = self.mac_nodes().get(&self.name).await.unwrap();
        expect::accepts(self.mac_nodes().delete(&self.name, &DeleteParams::default()).await);
        expect::until_gone(&self.mac_nodes(), &self.name, SOON).await;
        let fresh = MacNode::new(&self.name, old.spec);
        expect::accepts(self.mac_nodes().create(&PostParams::default(), &fresh).await);
    }

    /// Kills the agent; the first report of the next one. The Mac has another macOS by then, by which that report is told
    /// from all that the earlier agent wrote.
    pub(crate) async fn next_life(&mut self) -> AgentStatus {
        static UPDATES: AtomicU32 = AtomicU32::new(1);
        let version = format!("26.1.{}", UPDATES.fetch_add(1, Ordering::Relaxed));
        self.agent.kill9().unwrap();
        self.chassis.modify(|file| file.spec.host_version.clone_from(&version)).unwrap();
        self.agent.restart().unwrap();
        self.until_report("from the next agent", |report| report.host_version.as_ref() == Some(&version)).await
    }

    /// Makes the settings of the cluster, which is shared by the tests of this binary.
    pub(crate) async fn configure(&self, spec: &Value) {
        let config = json!({
            "apiVersion": "config.macrack.io/v1alpha1", "kind": "RackConfig", "metadata": { "name": "default" },
            "spec": spec,
        });
        self.plane.kubectl_with(&["apply", "-f", "-"], &config.to_string()).await.unwrap().success().unwrap();
    }

    /// Waits until the agent's report is so.
    pub(crate) async fn until_report(&self, what: &str, holds: impl Fn(&AgentStatus) -> bool) -> AgentStatus {
        let report = |node: &MacNode| node.status.as_ref()?.agent.clone();
        let mac_nodes = self.mac_nodes();
        let seen = expect::until_seen(&mac_nodes, &self.name, what, SOON, |node| {
            report(node).is_some_and(|report| holds(&report))
        });
        report(&seen.await).unwrap()
    }
}

fn spec(serial: &str) -> ChassisSpec {
    ChassisSpec {
        serial: serial.to_owned(),
        chip: "M4 Pro".to_owned(),
        model: "Mac16,11".to_owned(),
        cpu_cores: 14,
        memory_bytes: 64 << 30,
        disk_bytes: 1_000_000_000_000,
        link_bits_per_second: 10_000_000_000,
        host_version: "26.1".to_owned(),
        host_prepared: HostPrepared::default(),
    }
}

/// Everything else that the operator and an admin make for a chassis.
fn objects(name: &str, serial: &str, ns: &str, golden: &Reference) -> String {
    let (node, agent, enroll) = (names::node(name), names::agent_account(name), names::enroll_account(name));
    let account = |name: &str| json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": name, "namespace": names::AGENT_NAMESPACE } });
    let grant = |account: &str, namespace: Option<&str>, rules: Value| {
        let (role, binding) =
            if namespace.is_some() { ("Role", "RoleBinding") } else { ("ClusterRole", "ClusterRoleBinding") };
        let metadata = json!({ "name": account, "namespace": namespace });
        [
            json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": role, "metadata": metadata, "rules": rules }),
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": binding, "metadata": metadata,
                "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": role, "name": account },
                "subjects": [{ "kind": "ServiceAccount", "name": account, "namespace": names::AGENT_NAMESPACE }],
            }),
        ]
    };
    let rule = |group: &str, resource: &str, names: &[&str], verbs: &[&str]| {
        let mut rule = json!({ "apiGroups": [group], "resources": [resource], "verbs": verbs });
        if !names.is_empty() {
            rule["resourceNames"] = json!(names);
        }
        rule
    };
    let token = json!([rule("", "serviceaccounts/token", &[&agent], &["create"])]);
    let read = ["get", "list", "watch"];
    let mut items = vec![
        account(&agent),
        account(&enroll),
        json!({
            "apiVersion": "rack.macrack.io/v1alpha1", "kind": "MacNode", "metadata": { "name": name },
            "spec": { "serial": serial, "nodeClassName": "mini" },
        }),
        json!({
            "apiVersion": "instance.macrack.io/v1alpha1", "kind": "InstanceClass", "metadata": { "name": name },
            "spec": { "cpuCores": 4, "memory": "8Gi", "disk": "20G" },
        }),
        json!({
            "apiVersion": "image.macrack.io/v1alpha1", "kind": "MacOSImage", "metadata": { "name": name },
            "spec": {
                "source": { "oci": { "image": golden.to_string() } },
                "contents": [
                    { "kind": "macOS", "version": "26.1" }, { "kind": "Xcode", "version": "26.1" },
                    { "kind": "GuestAgent", "version": "0.1.0" },
                ],
            },
        }),
        json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": { "name": node, "namespace": "kube-node-lease" },
        }),
    ];
    items.extend(grant(
        &agent,
        None,
        json!([
            rule("rack.macrack.io", "macnodes", &[name], &read),
            rule("rack.macrack.io", "macnodes/status", &[name], &["get", "patch"]),
            rule("", "nodes", &[&node], &read),
            rule("", "nodes/status", &[&node], &["get", "patch"]),
            rule(
                "certificates.k8s.io",
                "certificatesigningrequests",
                &[&names::serving_request(name)],
                &["get", "list", "watch", "delete"]
            ),
        ]),
    ));
    items.extend(grant(&enroll, None, json!([rule("", "nodes", &[&node], &["get"])])));
    items.extend(grant(&agent, Some(names::AGENT_NAMESPACE), token.clone()));
    items.extend(grant(&enroll, Some(names::AGENT_NAMESPACE), token));
    items.extend(grant(
        &agent,
        Some("kube-node-lease"),
        json!([rule("coordination.k8s.io", "leases", &[&node], &["get", "patch"]),]),
    ));
    // the operator names the instances; these tests make one namespace per chassis
    items.extend(grant(
        &agent,
        Some(ns),
        json!([
            rule("instance.macrack.io", "macosinstances", &[], &read),
            rule("instance.macrack.io", "macosinstances/status", &[], &["get", "patch"]),
            rule("", "pods", &[], &["get", "list", "watch", "delete"]),
            rule("", "pods/status", &[], &["get", "patch"]),
            rule("", "secrets", &["boot"], &["get"]),
        ]),
    ));
    json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string()
}
