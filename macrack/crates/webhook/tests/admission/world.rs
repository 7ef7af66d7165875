//! One control plane with MacRack's CRDs, roles, policies and webhook, but without its operator: the tests play it,
//! as its real ServiceAccount, so that every status is theirs to write and its ClusterRole is put to use.

use std::{
    path::PathBuf,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::{
    Api, Client, Resource,
    api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams},
};
use macrack_api::{InstanceClass, MacNode, MacNodeClass, MacNodeLease, MacOSImage, MacOSInstance, RackConfig};
use macrack_testkit::{ControlPlane, Namespace, expect, shared};
use macrack_webhook::{ApiFacts, Reach, WebhookOptions, bind, install};
use serde_json::{Value, json};

pub(crate) const SOON: Duration = Duration::from_secs(30);
pub(crate) const OPERATOR: (&str, &str) = ("macrack-system", "macrack-operator");

pub(crate) fn deploy(part: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(part);
    path.display().to_string()
}

/// What is there for all tests of a binary: the CRDs, the roles, the policies and the webhook, all in effect.
pub(crate) struct World {
    pub(crate) plane: &'static ControlPlane,
    pub(crate) admin: Client,
    pub(crate) operator: Client,
}

/// Clients belong to the runtime of a test, what they speak to is shared.
pub(crate) async fn world() -> World {
    let plane = shared();
    // a start that failed fails every test at once, not each after its own time
    static READY: OnceLock<bool> = OnceLock::new();
    let ready = tokio::task::spawn_blocking(move || *READY.get_or_init(|| start(plane))).await;
    assert!(ready.is_ok_and(|ready| ready), "the world did not start; why is said by the thread that tried");
    let (namespace, account) = OPERATOR;
    World {
        plane,
        admin: plane.admin().await.unwrap(),
        operator: plane.as_service_account(namespace, account).await.unwrap(),
    }
}

/// The webhook's runtime outlives the test that happened to start it.
fn start(plane: &'static ControlPlane) -> bool {
    let (ready, is_ready) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            install_all(plane).await;
            let operator = plane.as_service_account(OPERATOR.0, OPERATOR.1).await.unwrap();
            let webhook = webhook(operator).await;
            ready.send(()).unwrap();
            webhook.run(std::future::pending()).await.unwrap();
        });
    });
    is_ready.recv().is_ok()
}

pub(crate) async fn webhook(operator: Client) -> macrack_webhook::Webhook {
    let options = WebhookOptions {
        listen: ([127, 0, 0, 1], 0).into(),
        reach: Reach::Url("https://127.0.0.1:{port}".into()),
        ..WebhookOptions::in_cluster()
    };
    bind(operator.clone(), Arc::new(ApiFacts::new(operator)), options).await.unwrap()
}

pub(crate) async fn install_all(plane: &ControlPlane) {
    let apply = async |part: &str| {
        plane.kubectl(&["apply", "--server-side", "-f", &deploy(part)]).await.unwrap().success().unwrap();
    };
    apply("crds").await;
    apply("rbac/namespaces.yaml").await;
    apply("rbac").await;
    let established = ["wait", "--for=condition=Established", "--timeout=60s", "crd", "--all"];
    plane.kubectl(&established).await.unwrap().success().unwrap();
    // as the operator does it, with the operator's rights
    let operator = plane.as_service_account(OPERATOR.0, OPERATOR.1).await.unwrap();
    expect::until_effective("the operator's roles", SOON, async || install::install_policies(&operator).await.is_ok())
        .await;
    policies_in_effect(plane).await;
}

/// Policies take effect within a second or so, one by one: each is asked for something that it alone refuses.
async fn policies_in_effect(plane: &ControlPlane) {
    let admin = plane.admin().await.unwrap();
    let agent = plane
        .as_user_with(
            "system:serviceaccount:macrack-agents:macrack-agent-probe",
            &["system:masters"],
            Default::default(),
        )
        .await
        .unwrap();
    let dry = PostParams { dry_run: true, ..Default::default() };
    let probes: [(&Client, &str, Value); 9] = [
        (
            &admin,
            "[finalizer-owned]",
            json!({"apiVersion": "rack.macrack.io/v1alpha1", "kind": "MacNode",
            "metadata": {"name": "probe000000", "finalizers": ["rack.macrack.io/probe"]},
            "spec": {"serial": "PROBE000000", "nodeClassName": "probe"}}),
        ),
        (&admin, "[placeholder-name]", pod("macrack-vm-probe", "default")),
        (
            &agent,
            "[agent-token-bound]",
            json!({"apiVersion": "rack.macrack.io/v1alpha1", "kind": "MacNode",
            "metadata": {"name": "probe000000"}, "spec": {"serial": "PROBE000000", "nodeClassName": "probe"}}),
        ),
        (&agent, "[agent-token-bound]", json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "probe"}})),
        (&agent, "[agent-token-bound]", pod("probe", "default")),
        (
            &agent,
            "[agent-token-bound]",
            json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "probe", "namespace": "default"},
            "involvedObject": {"kind": "Node", "name": "probe"}}),
        ),
        (
            &agent,
            "[agent-token-bound]",
            json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": "probe"},
            "spec": {"signerName": "example.com/x", "usages": ["server auth"], "request": include_str!("forbidden/request.csr")}}),
        ),
        (
            &agent,
            "[agent-nothing-else]",
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "probe", "namespace": "default"}}),
        ),
        (
            &agent,
            "[agent-token-bound]",
            json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": "probe", "namespace": "default"}}),
        ),
    ];
    for (client, rule, object) in &probes {
        let refused = async || match api_of(client, object).create(&dry, &read(object)).await {
            Err(kube::Error::Api(status)) => status.message.contains(*rule),
            _ => false,
        };
        expect::until_effective(rule, SOON, refused).await;
    }
    let token = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}});
    let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> = Api::namespaced(agent.clone(), "default");
    let refused = async || {
        let asked: kube::Result<Value> = accounts.create_subresource("token", "default", &dry, &token).await;
        matches!(asked, Err(kube::Error::Api(status)) if status.message.contains("[agent-token-bound]"))
    };
    expect::until_effective("macrack-agent-tokens", SOON, refused).await;
    lease_policies_in_effect(plane, &admin).await;
}

/// These two judge leases that exist.
async fn lease_policies_in_effect(plane: &ControlPlane, admin: &Client) {
    let operator = plane.as_service_account(OPERATOR.0, OPERATOR.1).await.unwrap();
    let lease = json!({"apiVersion": "rack.macrack.io/v1alpha1", "kind": "MacNodeLease",
        "metadata": {"name": "probe", "namespace": "default"}, "spec": {"nodeClassName": "probe"}});
    // the webhook is not registered yet, or a class that does not exist would stop this
    create(admin, &lease).await.unwrap();
    let leases: Api<DynamicObject> = api_of(admin, &lease);
    let finalizer = json!({"metadata": {"finalizers": ["rack.macrack.io/release"]}});
    let as_operator: Api<DynamicObject> = api_of(&operator, &lease);
    as_operator.patch("probe", &PatchParams::default(), &Patch::Merge(&finalizer)).await.unwrap();
    let bound = json!({"status": {"serial": "PROBE000000", "boundAt": moment(0), "earliestReleaseAt": moment(24)}});
    as_operator.patch_status("probe", &PatchParams::default(), &Patch::Merge(&bound)).await.unwrap();
    let warned = async || {
        let said = plane.kubectl(&["-n", "default", "delete", "mnl", "probe", "--dry-run=server"]).await.unwrap();
        said.stderr.contains("is Held until")
    };
    expect::until_effective("macrack-held", SOON, warned).await;
    leases.delete("probe", &Default::default()).await.unwrap();
    let frozen = async || {
        let raise = json!({"spec": {"minimumDuration": "48h"}});
        let dry = PatchParams { dry_run: true, ..Default::default() };
        matches!(leases.patch("probe", &dry, &Patch::Merge(&raise)).await,
            Err(kube::Error::Api(status)) if status.message.contains("[lease-frozen]"))
    };
    expect::until_effective("macrack-lease-frozen", SOON, frozen).await;
    let free = json!({"metadata": {"finalizers": null}});
    as_operator.patch("probe", &PatchParams::default(), &Patch::Merge(&free)).await.unwrap();
}

/// The API for an object by its own kind and namespace.
pub(crate) fn api_of(client: &Client, object: &Value) -> Api<DynamicObject> {
    let kind = object["kind"].as_str().expect("a kind");
    let resource = resource(kind, object["apiVersion"].as_str().expect("an apiVersion"));
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

fn resource(kind: &str, api_version: &str) -> ApiResource {
    fn of<K: Resource<DynamicType = ()>>() -> ApiResource {
        ApiResource::erase::<K>(&())
    }
    match kind {
        "MacNodeClass" => of::<MacNodeClass>(),
        "MacNode" => of::<MacNode>(),
        "MacNodeLease" => of::<MacNodeLease>(),
        "InstanceClass" => of::<InstanceClass>(),
        "MacOSInstance" => of::<MacOSInstance>(),
        "MacOSImage" => of::<MacOSImage>(),
        "RackConfig" => of::<RackConfig>(),
        other => {
            let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
            let gvk = kube::api::GroupVersionKind::gvk(group, version, other);
            ApiResource::from_gvk(&gvk)
        }
    }
}

pub(crate) fn read(object: &Value) -> DynamicObject {
    serde_json::from_value(object.clone()).expect("an object")
}

pub(crate) async fn create(client: &Client, object: &Value) -> kube::Result<DynamicObject> {
    api_of(client, object).create(&PostParams::default(), &read(object)).await
}

/// A merge patch of the main resource.
pub(crate) async fn patch(client: &Client, object: &Value, change: Value) -> kube::Result<DynamicObject> {
    api_of(client, object).patch(name(object), &PatchParams::default(), &Patch::Merge(change)).await
}

/// A merge patch of the status.
pub(crate) async fn patch_status(client: &Client, object: &Value, change: Value) -> kube::Result<DynamicObject> {
    let change = json!({ "status": change });
    api_of(client, object).patch_status(name(object), &PatchParams::default(), &Patch::Merge(change)).await
}

/// A PUT of the main resource: what `change` makes of the stored object.
pub(crate) async fn replace(
    client: &Client,
    object: &Value,
    change: impl Fn(&mut Value),
) -> kube::Result<DynamicObject> {
    let api = api_of(client, object);
    let stored = api.get(name(object)).await?;
    let mut changed = serde_json::to_value(stored).expect("an object");
    change(&mut changed);
    api.replace(name(object), &PostParams::default(), &read(&changed)).await
}

pub(crate) fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().expect("a name")
}

/// Hours from now, as Kubernetes writes times.
pub(crate) fn moment(hours: i64) -> String {
    let then = Timestamp::now() + SignedDuration::from_hours(hours);
    then.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// A number that no other test of this binary has.
pub(crate) fn unique() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

pub(crate) fn pod(name: &str, namespace: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace},
        "spec": {"automountServiceAccountToken": false, "containers": [{"name": "c", "image": "example.invalid/c"}]}})
}

pub(crate) fn instance_class(cores: u32, memory: &str, disk: &str) -> Value {
    json!({"apiVersion": "instance.macrack.io/v1alpha1", "kind": "InstanceClass",
        "metadata": {"name": format!("size-{}", unique())}, "spec": {"cpuCores": cores, "memory": memory, "disk": disk}})
}

pub(crate) fn node_class() -> Value {
    json!({"apiVersion": "rack.macrack.io/v1alpha1", "kind": "MacNodeClass",
        "metadata": {"name": format!("mini-{}", unique())}, "spec": {
            "chassis": "MacMini", "model": "Mac16,11", "chip": "M4 Pro", "cpuCores": 14,
            "memory": "64Gi", "storage": "1T", "linkSpeed": "10G"}})
}

/// A Mac of that class; its name is its serial.
pub(crate) fn mac(class: &Value) -> Value {
    let serial = format!("H4XK{:06}", unique());
    json!({"apiVersion": "rack.macrack.io/v1alpha1", "kind": "MacNode",
        "metadata": {"name": serial.to_lowercase()}, "spec": {"serial": serial, "nodeClassName": name(class)}})
}

/// A golden of a pair that no other test has.
pub(crate) fn image() -> Value {
    let n = unique();
    json!({"apiVersion": "image.macrack.io/v1alpha1", "kind": "MacOSImage", "metadata": {"name": format!("golden{n}")},
    "spec": {
        "source": {"oci": {"image": format!("registry.example.com/golden/g{n}@sha256:{}", "d".repeat(64))}},
        "contents": [
            {"kind": "macOS", "version": format!("90.{n}")}, {"kind": "Xcode", "version": "26.1"},
            {"kind": "GuestAgent", "version": "0.1.0"}],
    }})
}

/// A tenant: a namespace with an account that has the role `edit` there, and nothing else anywhere.
pub(crate) struct Tenant {
    namespace: Namespace,
    pub(crate) client: Client,
}

impl World {
    pub(crate) async fn tenant(&self, prefix: &str) -> Tenant {
        let namespace = Namespace::fresh(self.plane, prefix).await.unwrap();
        let ns = namespace.name();
        let account =
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "tenant", "namespace": ns}});
        let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": {"name": "tenant", "namespace": ns},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
            "subjects": [{"kind": "ServiceAccount", "name": "tenant", "namespace": ns}]});
        for object in [&account, &binding] {
            create(&self.admin, object).await.unwrap();
        }
        let client = self.plane.as_service_account(ns, "tenant").await.unwrap();
        let leases: Api<MacNodeLease> = Api::namespaced(client.clone(), ns);
        expect::until_effective("the tenant's role", SOON, async || {
            // the role `edit` is aggregated by a controller, and read by the authorizer from a cache
            let probe = json!({"apiVersion": "rack.macrack.io/v1alpha1", "kind": "MacNodeLease",
                "metadata": {"name": "probe", "namespace": ns}, "spec": {"nodeClassName": "no-such-class"}});
            let dry = PostParams { dry_run: true, ..Default::default() };
            let asked = api_of(&client, &probe).create(&dry, &read(&probe)).await;
            let judged = matches!(&asked, Err(kube::Error::Api(s)) if s.message.contains("[class-exists]"));
            judged && leases.list(&Default::default()).await.is_ok()
        })
        .await;
        Tenant { namespace, client }
    }

    /// The operator binds a Mac to the lease, `hours` ago.
    pub(crate) async fn bind(&self, lease: &Value, serial: &str, hours: i64) {
        let bound = json!({"phase": "Bound", "serial": serial, "boundAt": moment(-hours), "earliestReleaseAt": moment(24 - hours)});
        patch_status(&self.operator, lease, bound).await.unwrap();
    }

    /// A lease on a Mac, two sizes and a golden: all that an instance needs.
    pub(crate) async fn rack(&self, tenant: &Tenant) -> Rack {
        let (node_class, half, large, image) =
            (node_class(), instance_class(6, "28Gi", "250G"), instance_class(6, "40Gi", "250G"), image());
        for object in [&node_class, &half, &large, &image] {
            create(&self.admin, object).await.unwrap();
        }
        patch_status(&self.operator, &image, json!({"phase": "Ready"})).await.unwrap();
        let lease = tenant.lease("ios-ci", &node_class);
        create(&tenant.client, &lease).await.unwrap();
        self.bind(&lease, &format!("H4XK{:06}", unique()), 0).await;
        Rack { node_class, half, large, image, lease }
    }
}

pub(crate) struct Rack {
    pub(crate) node_class: Value,
    pub(crate) half: Value,
    pub(crate) large: Value,
    pub(crate) image: Value,
    pub(crate) lease: Value,
}

impl Tenant {
    pub(crate) fn ns(&self) -> &str {
        self.namespace.name()
    }

    pub(crate) fn lease(&self, lease: &str, class: &Value) -> Value {
        json!({"apiVersion": "rack.macrack.io/v1alpha1", "kind": "MacNodeLease",
            "metadata": {"name": lease, "namespace": self.ns()}, "spec": {"nodeClassName": name(class)}})
    }

    /// A half of the rack's Mac.
    pub(crate) fn instance(&self, instance: &str, rack: &Rack) -> Value {
        json!({"apiVersion": "instance.macrack.io/v1alpha1", "kind": "MacOSInstance",
            "metadata": {"name": instance, "namespace": self.ns()},
            "spec": {"leaseName": name(&rack.lease), "instanceClassName": name(&rack.half), "imageName": name(&rack.image)}})
    }
}
