//! `bench` against the real API server. KubeVirt, CDI and the node are the test; the lines on the console are fio's own.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use dockerios_api::PlatformConfig;
use dockerios_kubevirt::{DataVolume, VirtualMachine, crds};
use dockerios_testkit::{ControlPlane, Options, Proc, Scratch, apply_yaml, expect};
use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Node, PersistentVolumeClaim, Pod};
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::core::NamespaceResourceScope;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::task::JoinHandle;

use crate::kubelet::{Kubelet, Log};
use crate::{definitions, plugin};

const FIO: &str = include_str!("../../src/bench/fio-3.33.txt");
const LABEL: &str = "bench.dockerios.io/run";
const MINUTE: Duration = Duration::from_secs(60);

/// The console of a run: NVMe does twice the operations.
fn console(path: &str) -> String {
    let mut text = String::from("Linux version 6.1.0 (debian)\n");
    for line in FIO.lines() {
        let mut fields: Vec<String> = line.split(';').map(str::to_owned).collect();
        if path.contains("-nvme-") {
            // fields 8 and 49: operations per second, read and written
            for at in [7, 48] {
                fields[at] = (fields[at].parse::<u64>().unwrap_or_default() * 2).to_string();
            }
        }
        text.push_str(&format!("[   31.2] dockerios-bench: {}\r\n", fields.join(";")));
    }
    text + "dockerios-bench: done\n"
}

struct Stage {
    plane: ControlPlane,
    client: Client,
    kubelet: Kubelet,
}

impl Stage {
    async fn set() -> Result<Stage> {
        let plane = ControlPlane::start(Options::default()).await?;
        let client = plane.client().await?;
        definitions(&client).await?;
        for definition in crds() {
            apply_yaml(&client, &serde_json::to_string(&definition)?).await?;
        }
        // the first connection is not answered, the second is cut in the middle of the third figure
        let kubelet = Kubelet::start(Arc::new(|path, before| {
            let text = console(path);
            match before {
                0 => Log::Nothing,
                1 => Log::Cut(text[..text.len() / 2].to_owned()),
                _ => Log::Whole(text),
            }
        }))
        .await?;
        let hook = format!("registry.example.com/hook@sha256:{}", "a".repeat(64));
        let platform = json!({"apiVersion": "config.dockerios.io/v1alpha1", "kind": "PlatformConfig",
            "metadata": {"name": "default"}, "spec": {"domainHook": {"image": hook}}});
        let storage = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "fast"},
            "provisioner": "example.com/none"});
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "kvm-1"}});
        apply_yaml(&client, &format!("{platform}\n---\n{storage}\n---\n{node}\n")).await?;
        let probed = json!({"status": {"launchers": [{"digest": format!("sha256:{}", "b".repeat(64)),
            "image": "registry.example.com/launcher", "nvme": "Native", "smc": true, "nicModels": [],
            "probedAt": "2026-03-01T12:00:00Z"}]}});
        let platforms: Api<PlatformConfig> = Api::all(client.clone());
        platforms
            .patch_status("default", &PatchParams::default(), &Patch::Merge(&probed))
            .await?;
        let reached = json!({"status": {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet.port}}}});
        let nodes: Api<Node> = Api::all(client.clone());
        nodes
            .patch_status("kvm-1", &PatchParams::default(), &Patch::Merge(&reached))
            .await?;
        Ok(Stage { plane, client, kubelet })
    }

    fn bench(&self, ns: &str, dir: &Path, more: &[&str]) -> Result<Proc> {
        self.bench_by(self.plane.kubeconfig(), ns, dir, more)
    }

    fn bench_by(&self, kubeconfig: &Path, ns: &str, dir: &Path, more: &[&str]) -> Result<Proc> {
        let image = format!("registry.example.com/linux@sha256:{}", "c".repeat(64));
        let words = ["bench", "--storage-class", "fast", "--image", &image, "-n", ns];
        let command = plugin(Some(kubeconfig), &[&words, more].concat());
        Proc::spawn("bench", command, dir.join("bench.log"))
    }

    /// Fails when something of a run is left; pods are KubeVirt's to remove.
    async fn nothing_is_left(&self, ns: &str) -> Result<()> {
        async fn none<K>(client: &Client, ns: &str) -> Result<()>
        where
            K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + std::fmt::Debug,
        {
            let api: Api<K> = Api::namespaced(client.clone(), ns);
            let left = api.list(&ListParams::default().labels(LABEL)).await?.items;
            ensure!(left.is_empty(), "left: {left:?}");
            Ok(())
        }
        none::<VirtualMachine>(&self.client, ns).await?;
        none::<DataVolume>(&self.client, ns).await?;
        none::<ConfigMap>(&self.client, ns).await?;
        none::<PersistentVolumeClaim>(&self.client, ns).await
    }
}

/// Plays KubeVirt and CDI in a namespace: a claim for each disk, and a launcher pod for each VM.
fn play(client: Client, ns: String) -> JoinHandle<Result<()>> {
    tokio::spawn(async move {
        let vms = Api::<VirtualMachine>::namespaced(client.clone(), &ns);
        let claims = Api::<PersistentVolumeClaim>::namespaced(client.clone(), &ns);
        let pods = Api::<Pod>::namespaced(client.clone(), &ns);
        let volumes = Api::<DataVolume>::namespaced(client, &ns);
        let changes = watcher(vms, watcher::Config::default())
            .default_backoff()
            .applied_objects();
        tokio::pin!(changes);
        while let Some(vm) = changes.try_next().await? {
            let name = vm.name_any();
            if vm.metadata.deletion_timestamp.is_some() || pods.get_opt(&name).await?.is_some() {
                continue;
            }
            let volume = volumes.get(&name).await?;
            let claim = serde_json::from_value(json!({"metadata": {"name": name, "labels": {LABEL: name},
                "ownerReferences": [{"apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "name": name,
                    "uid": volume.uid()}]},
                "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
                    "resources": {"requests": {"storage": "1Gi"}}}}))?;
            claims.create(&PostParams::default(), &claim).await?;
            let container = |name: &str| json!({"name": name, "image": "registry.example.com/launcher"});
            let pod = serde_json::from_value(
                json!({"metadata": {"name": name, "labels": {"vm.kubevirt.io/name": name}},
                "spec": {"nodeName": "kvm-1", "automountServiceAccountToken": false,
                    "containers": [container("compute"), container("guest-console-log")]}}),
            )?;
            pods.create(&PostParams::default(), &pod).await?;
            let runs = |name: &str| {
                json!({"name": name, "image": "x", "imageID": "", "ready": true, "restartCount": 0,
                "state": {"running": {"startedAt": "2026-03-01T12:00:00Z"}}})
            };
            let status = json!({"status": {"phase": "Running",
                "containerStatuses": [runs("compute"), runs("guest-console-log")]}});
            pods.patch_status(&name, &PatchParams::default(), &Patch::Merge(&status))
                .await?;
        }
        Ok(())
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn two_disks_are_compared_by_fios_own_figures_and_whatever_its_end_nothing_is_left() -> Result<()> {
    let stage = Stage::set().await?;
    let dir = tempfile::tempdir()?;
    compared(&stage, dir.path()).await?;
    interrupted(&stage, dir.path()).await?;
    refused(&stage, dir.path()).await?;
    let dir = tempfile::tempdir()?;
    nothing_made(&stage, dir.path()).await
}

async fn compared(stage: &Stage, dir: &Path) -> Result<()> {
    let scratch = Scratch::new(&stage.plane, "bench").await?;
    let playing = play(stage.client.clone(), scratch.name().to_owned());
    let bench = stage.bench(scratch.name(), dir, &["--timeout", "4m"])?;
    let ended = bench.wait(MINUTE * 4).await?;
    let log = bench.log();
    ensure!(ended.success(), "{ended}: {log}");
    ensure!(log.matches(" 2.00x").count() == 5, "{log}");
    ensure!(log.contains("random-read-4k        47363 IOPS, 185.0 MiB/s"), "{log}");
    // told once each, though the first log was read twice
    ensure!(log.matches("  random-read-4k: ").count() == 2, "{log}");
    ensure!(
        stage.kubelet.asked() == 4,
        "cut twice, read anew, and the other: {}",
        stage.kubelet.asked()
    );
    playing.abort();
    stage.nothing_is_left(scratch.name()).await
}

async fn interrupted(stage: &Stage, dir: &Path) -> Result<()> {
    let scratch = Scratch::new(&stage.plane, "bench-ended").await?;
    // nobody plays: the guest never starts
    let bench = stage.bench(scratch.name(), dir, &[])?;
    let vms: Api<VirtualMachine> = Api::namespaced(stage.client.clone(), scratch.name());
    let mut changes = std::pin::pin!(
        watcher(vms, watcher::Config::default())
            .default_backoff()
            .applied_objects()
    );
    changes.try_next().await?;
    let ended = bench.terminate(MINUTE).await?;
    let log = bench.log();
    ensure!(
        ended.code() == Some(130) && log.contains("error: the sata run: interrupted"),
        "{ended}: {log}"
    );
    stage.nothing_is_left(scratch.name()).await?;

    let short = stage.bench(scratch.name(), dir, &["--timeout", "5s"])?;
    let ended = short.wait(MINUTE).await?;
    let log = short.log();
    ensure!(ended.code() == Some(1), "{ended}: {log}");
    ensure!(
        log.contains("its guest did not start in time: there is no launcher pod"),
        "{log}"
    );
    stage.nothing_is_left(scratch.name()).await
}

async fn refused(stage: &Stage, dir: &Path) -> Result<()> {
    let scratch = Scratch::new(&stage.plane, "bench-quota").await?;
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none",
        "namespace": scratch.name()}, "spec": {"hard": {"count/virtualmachines.kubevirt.io": "0"}}});
    apply_yaml(&stage.client, &quota.to_string()).await?;
    let quotas: Api<k8s_openapi::api::core::v1::ResourceQuota> = Api::namespaced(stage.client.clone(), scratch.name());
    expect::until(quotas, "none", "its count", |quota| {
        quota.status.as_ref().is_some_and(|status| status.used.is_some())
    })
    .await?;
    let bench = stage.bench(scratch.name(), dir, &[])?;
    let ended = bench.wait(MINUTE).await?;
    let log = bench.log();
    ensure!(ended.code() == Some(1), "{ended}: {log}");
    ensure!(
        log.contains("error: the sata run: making the VM: ") && log.contains("exceeded quota"),
        "{log}"
    );
    stage.nothing_is_left(scratch.name()).await
}

/// Who may read and make nothing: what was never made is not removed, and nobody is told to.
async fn nothing_made(stage: &Stage, dir: &Path) -> Result<()> {
    let scratch = Scratch::new(&stage.plane, "bench-reader").await?;
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "reader"}, "rules": [
            {"apiGroups": ["config.dockerios.io"], "resources": ["platformconfigs"], "verbs": ["get"]}]});
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": "reader"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "reader"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "reader"}]});
    apply_yaml(&stage.client, &format!("{role}\n---\n{binding}\n")).await?;
    let platforms: Api<PlatformConfig> = Api::all(stage.plane.client_as("reader", &[]).await?);
    expect::until_accepted(|| platforms.get("default")).await?;
    let bench = stage.bench_by(&stage.plane.kubeconfig_for("reader", &[])?, scratch.name(), dir, &[])?;
    let ended = bench.wait(MINUTE).await?;
    let log = bench.log();
    ensure!(ended.code() == Some(1), "{ended}: {log}");
    ensure!(
        log.contains("error: the sata run: making the ConfigMap: ") && log.contains("is forbidden"),
        "{log}"
    );
    ensure!(!log.contains("kubectl delete") && !log.contains("removing"), "{log}");
    stage.nothing_is_left(scratch.name()).await
}
