//! One control plane with everything installed, and the ways in which the tests ask it.

use std::{sync::mpsc, thread};

use anyhow::{Context as _, Result, ensure};
use dockerios_pki::Authority;
use dockerios_testkit::{ControlPlane, apply_file, apply_yaml, expect, shared};
use dockerios_webhook::{Options, Reach, bind};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ApiResource, DynamicObject, PostParams},
    core::GroupVersionKind,
};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

/// The operator's ServiceAccount.
pub(crate) const OPERATOR: (&str, &str) = ("dockerios-system", "dockerios-operator");

/// A digest, as images are pinned.
pub(crate) const DIGEST: &str = "sha256:4509beb0ab401d71fa4a5cd94a55c9a74f13332776ae4019c5bfc4c2005157ff";

const ALONE: &str = "they need a control plane of their own; unset DOCKERIOS_TEST_KUBECONFIG";

pub(crate) fn deploy(path: &str) -> String {
    format!("{}/../../deploy/{path}", env!("CARGO_MANIFEST_DIR"))
}

/// The control plane, with definitions, roles, policies, the webhook and what the rules look at.
pub(crate) async fn cluster() -> Result<&'static ControlPlane> {
    static READY: OnceCell<Result<(), String>> = OnceCell::const_new();
    let plane = shared().await?;
    let ready = READY
        .get_or_init(|| async { install(plane).await.map_err(|e| format!("{e:#}")) })
        .await;
    ready.clone().map_err(anyhow::Error::msg)?;
    Ok(plane)
}

async fn install(plane: &'static ControlPlane) -> Result<()> {
    ensure!(
        !plane.is_existing(),
        "the API server calls the webhook of these tests on loopback: {}",
        ALONE
    );
    let admin = plane.client().await?;
    for crd in dockerios_api::crds()?.into_iter().chain(dockerios_kubevirt::crds()) {
        let mut crd = serde_json::to_value(crd)?;
        crd["apiVersion"] = json!("apiextensions.k8s.io/v1");
        crd["kind"] = json!("CustomResourceDefinition");
        apply_yaml(&admin, &crd.to_string()).await?;
    }
    for file in ["namespace", "operator", "team", "aggregated", "platform-team"] {
        apply_file(&admin, deploy(&format!("rbac/{file}.yaml"))).await?;
    }
    apply_yaml(&admin, OUTSIDE).await?;
    serve(plane)?;
    // the webhook judges these as they come
    apply_yaml(&admin, &fixtures()).await?;
    for file in ["machines", "finalizers", "images", "status", "instances"] {
        apply_file(&admin, deploy(&format!("policies/{file}.yaml"))).await?;
    }
    in_force(&admin).await
}

/// An operator outside the cluster writes the whole registration, which the shipped role does not let it.
const OUTSIDE: &str = "
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: dockerios-operator-outside}
rules:
- {apiGroups: [admissionregistration.k8s.io], resources: [validatingwebhookconfigurations], verbs: [create, update]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: dockerios-operator-outside}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: dockerios-operator-outside}
subjects: [{kind: ServiceAccount, name: dockerios-operator, namespace: dockerios-system}]
";

/// The webhook, on a thread of its own: the runtime of the test that came first ends before the others.
fn serve(plane: &'static ControlPlane) -> Result<()> {
    let (ready, bound) = mpsc::channel();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        let runtime = runtime.expect("a runtime");
        runtime.block_on(async {
            let begun = async {
                let client = plane.client_of_service_account(OPERATOR.0, OPERATOR.1).await?;
                let authority = Authority::open(client.clone(), OPERATOR.0, "dockerios-authority").await?;
                let reach = Reach::Url("https://127.0.0.1:{port}".into());
                let options = Options {
                    listen: ([127, 0, 0, 1], 0).into(),
                    reach,
                    observe: None,
                };
                anyhow::Ok(bind(options, client, &authority).await?)
            };
            match begun.await {
                Ok(webhook) => {
                    let _ = ready.send(Ok(()));
                    webhook.run(std::future::pending()).await;
                }
                Err(error) => drop(ready.send(Err(error))),
            }
        });
    });
    bound.recv().context("the webhook's thread ended")?
}

/// What the rules look at: a platform, images, pools, storage, classes.
fn fixtures() -> String {
    let image = |name: &str, version: &str| {
        let mut image = image(name);
        image["spec"]["osVersion"] = json!(version);
        image
    };
    let pool = |name: &str, model: &str| {
        let mut pool = pool(name);
        pool["spec"]["model"] = json!(model);
        pool
    };
    let storage = |name: &str, provisioner: &str| {
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name},
               "provisioner": provisioner})
    };
    let mut blue = class("only-blue");
    blue["spec"]["allowedNamespaces"] = json!({"matchLabels": {"team": "blue"}});
    let mut full = pool("full", "iMacPro1,1");
    full["spec"]["maxSize"] = json!(0);
    let mut cards = pool("cards", "iMacPro1,1");
    cards["spec"]["bootDisk"]["template"] = json!("GPU");
    let objects = [
        cards,
        storage("fast", "rook-ceph.rbd.csi.ceph.com"),
        storage("slow", "rancher.io/local-path"),
        platform(),
        image("monterey", "12.7.6"),
        image("sonoma", "14.5"),
        image("tahoe", "26.0"),
        pool("imacpro", "iMacPro1,1"),
        pool("macpro", "MacPro7,1"),
        full,
        class("open"),
        blue,
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "blue", "labels": {"team": "blue"}}}),
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "red", "labels": {"team": "red"}}}),
    ];
    objects.map(|object| object.to_string()).join("\n---\n")
}

/// Policies take a moment until they hold.
async fn in_force(admin: &Client) -> Result<()> {
    let forged = with(
        machine("forged"),
        &json!({"spec": {"claimRef": {"name": "x", "uid": "x"}}}),
    );
    let labelled = pod();
    let taken = with(
        identity(1),
        &json!({"metadata": {"finalizers": ["identity.dockerios.io/allocated"]}}),
    );
    let vm = vm("forged");
    for _ in 0..300 {
        let mut refused = 0;
        for probe in [&forged, &labelled, &taken, &vm] {
            refused += usize::from(dry(admin, probe).await.is_err());
        }
        if refused == 4 {
            return Ok(());
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    anyhow::bail!("the policies do not hold after 30 s")
}

pub(crate) fn platform() -> Value {
    json!({
        "apiVersion": "config.dockerios.io/v1alpha1", "kind": "PlatformConfig", "metadata": {"name": "default"},
        "spec": {
            "domainHook": {"image": format!("ghcr.io/example/hook@{DIGEST}")},
            "smc": {"oskSecretRef": {"name": "smc", "key": "osk"}},
            "permittedGPUs": [
                {"deviceName": "amd.com/rx580", "vendorReset": "Installed"},
                {"deviceName": "amd.com/vega64"},
            ],
            "claims": {"defaultTTL": "2h", "maxTTL": "8h"},
        },
    })
}

pub(crate) fn image(name: &str) -> Value {
    json!({
        "apiVersion": "image.dockerios.io/v1alpha1", "kind": "MacOSImage", "metadata": {"name": name},
        "spec": {
            "source": {"registry": {"url": format!("docker://registry.example.com/{name}@{DIGEST}")}},
            "size": "100Gi", "storageClassName": "fast", "osVersion": "14.5",
        },
    })
}

pub(crate) fn pool(name: &str) -> Value {
    json!({
        "apiVersion": "identity.dockerios.io/v1alpha1", "kind": "IdentityPool", "metadata": {"name": name},
        "spec": {"model": "iMacPro1,1", "minAvailable": 0, "maxSize": 5, "bootDisk": {"storageClassName": "fast"}},
    })
}

/// An identity of pool `imacpro` that keeps every published rule; another for each number.
pub(crate) fn identity(number: u8) -> Value {
    let minted = dockerios_identity::Generator::seeded([number; 32])
        .mint("iMacPro1,1")
        .expect("an identity");
    let fields = serde_json::to_value(dockerios_identity::Fields::from(minted)).expect("fields");
    let mut spec = with(json!({"poolName": "imacpro"}), &fields);
    spec["rom"] = json!(spec["rom"].as_str().unwrap_or_default().to_uppercase());
    let name = spec["serial"].as_str().unwrap_or_default().to_lowercase();
    json!({
        "apiVersion": "identity.dockerios.io/v1alpha1", "kind": "MachineIdentity", "metadata": {"name": name},
        "spec": spec,
    })
}

pub(crate) fn class(name: &str) -> Value {
    json!({
        "apiVersion": "machine.dockerios.io/v1alpha1", "kind": "MacOSMachineClass", "metadata": {"name": name},
        "spec": {
            "imageName": "sonoma",
            "identity": {"type": "Shared", "shared": {"bootDiskImage": format!("ghcr.io/example/boot@{DIGEST}")}},
            "cpu": {"cores": 4, "model": "Haswell-noTSX"},
            "memory": {"size": "8Gi"},
            "systemDisk": {"bus": "nvme", "size": "100Gi", "storageClassName": "fast"},
        },
    })
}

fn namespaced(kind: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "machine.dockerios.io/v1alpha1", "kind": kind, "metadata": {"name": name, "namespace": "red"},
        "spec": spec,
    })
}

pub(crate) fn machine(name: &str) -> Value {
    namespaced("MacOSMachine", name, json!({"machineClassName": "open"}))
}

pub(crate) fn machine_pool(name: &str) -> Value {
    namespaced(
        "MacOSMachinePool",
        name,
        json!({"machineClassName": "open", "replicas": 1, "maxMachines": 2}),
    )
}

pub(crate) fn claim(name: &str) -> Value {
    namespaced("MacOSMachineClaim", name, json!({"poolName": "ci"}))
}

/// A VirtualMachine that carries an identity.
pub(crate) fn vm(name: &str) -> Value {
    let labels = json!({"identity.dockerios.io/name": "c02x"});
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": {"name": name, "namespace": "red", "labels": labels},
        "spec": {"runStrategy": "Halted", "template": {"metadata": {"labels": labels}, "spec": {"domain": {"devices": {}}}}},
    })
}

/// An instance of it, as virt-controller makes it.
pub(crate) fn vmi(owner: &str) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {
            "name": owner, "namespace": "red", "labels": {"identity.dockerios.io/name": "c02x"},
            "ownerReferences": [{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": owner,
                                 "uid": "11111111-1111-1111-1111-111111111111", "controller": true}],
        },
        "spec": {"domain": {"devices": {}}},
    })
}

/// A pod that carries an identity.
pub(crate) fn pod() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "launcher", "namespace": "red", "labels": {"identity.dockerios.io/name": "c02x"}},
        "spec": {"containers": [{"name": "c", "image": "example.com/c"}]},
    })
}

/// `base` with the fields of `change` (RFC 7386: null removes).
pub(crate) fn with(mut base: Value, change: &Value) -> Value {
    merge(&mut base, change);
    base
}

fn merge(base: &mut Value, change: &Value) {
    let Value::Object(fields) = change else {
        *base = change.clone();
        return;
    };
    if !base.is_object() {
        *base = json!({});
    }
    for (key, value) in fields {
        match value {
            Value::Null => drop(base.as_object_mut().and_then(|base| base.remove(key))),
            value => merge(&mut base[key], value),
        }
    }
}

/// The endpoint of an object's kind.
pub(crate) fn api(client: &Client, object: &Value) -> Api<DynamicObject> {
    let (version, kind) = (
        object["apiVersion"].as_str().expect("apiVersion"),
        object["kind"].as_str().expect("kind"),
    );
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    let resource = match kind {
        "MacOSMachineClass" => ApiResource {
            plural: "macosmachineclasses".into(),
            ..resource
        },
        "MachineIdentity" => ApiResource {
            plural: "machineidentities".into(),
            ..resource
        },
        _ => resource,
    };
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

pub(crate) fn object(value: &Value) -> DynamicObject {
    serde_json::from_value(value.clone()).expect("an object")
}

/// Creates it, without storing it.
pub(crate) async fn dry(client: &Client, value: &Value) -> kube::Result<DynamicObject> {
    let params = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    api(client, value).create(&params, &object(value)).await
}

/// Creates it.
pub(crate) async fn create(client: &Client, value: &Value) -> kube::Result<DynamicObject> {
    api(client, value).create(&PostParams::default(), &object(value)).await
}

/// Replaces what is stored under its name by `change` of it.
pub(crate) async fn change(client: &Client, value: &Value, change: &Value) -> kube::Result<DynamicObject> {
    let api = api(client, value);
    let name = value["metadata"]["name"].as_str().expect("a name");
    let stored = serde_json::to_value(api.get(name).await?).expect("JSON");
    api.replace(name, &PostParams::default(), &object(&with(stored, change)))
        .await
}

/// One rule: what breaks it, what is said, and the nearest thing that does not.
pub(crate) struct Row {
    pub(crate) base: Value,
    pub(crate) bad: Value,
    pub(crate) said: &'static [&'static str],
    pub(crate) good: Value,
}

/// Holds each row against the API server.
pub(crate) async fn hold(client: &Client, rows: Vec<Row>) -> Result<()> {
    ensure!(!rows.is_empty(), "no row");
    let mut faults = Vec::new();
    for row in rows {
        if let Err(fault) = expect::refused(dry(client, &with(row.base.clone(), &row.bad)).await, 422, row.said) {
            faults.push(format!("{:?}: {fault:#}", row.said));
        }
        match expect::accepted(dry(client, &with(row.base, &row.good)).await) {
            Ok(admitted) => ensure!(!admitted.name_any().is_empty(), "no name"),
            Err(fault) => faults.push(format!("neighbour of {:?}: {fault:#}", row.said)),
        }
    }
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    Ok(())
}
