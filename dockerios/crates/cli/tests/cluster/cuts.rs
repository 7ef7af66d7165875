//! Over a network that breaks while something is waited for.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use dockerios_api::MacOSMachineClaim;
use dockerios_api::names::PLATFORM_NAMESPACE;
use dockerios_kubevirt::KubeVirt;
use dockerios_testkit::{ControlPlane, Options, Proc, Scratch, WriteCutter, apply_yaml, expect};
use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Client, CustomResourceExt as _, ResourceExt as _};
use serde_json::json;

use crate::link::Link;
use crate::{definitions, interrupt, plugin};

const MINUTE: Duration = Duration::from_secs(60);

/// Until the API server has as many watches of single objects of that resource: the plugin's own are such.
async fn watched(client: &Client, resource: &str, at_least: f64) -> Result<()> {
    let line = format!("resource=\"{resource}\",scope=\"resource\"");
    let until = tokio::time::Instant::now() + MINUTE;
    loop {
        let metrics = client
            .request_text(http::Request::get("/metrics").body(Vec::new())?)
            .await?;
        let count: f64 = metrics
            .lines()
            .filter(|text| text.starts_with("apiserver_longrunning_requests{") && text.contains(&line))
            .filter_map(|text| text.rsplit(' ').next()?.parse::<f64>().ok())
            .sum();
        if count >= at_least {
            return Ok(());
        }
        ensure!(tokio::time::Instant::now() < until, "nobody watches {resource}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Until the cut has been met as often as it was to be.
async fn met(link: &Link) -> Result<()> {
    let until = tokio::time::Instant::now() + MINUTE;
    while link.to_refuse() > 0 {
        ensure!(tokio::time::Instant::now() < until, "nobody connects anew");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_and_a_node_that_are_waited_for_survive_a_network_that_breaks() -> Result<()> {
    let plane = ControlPlane::start(Options::default()).await?;
    let client = plane.client().await?;
    definitions(&client).await?;
    let dir = tempfile::tempdir()?;
    claim(
        &client,
        &Scratch::new(&plane, "cuts").await?,
        &Link::before(plane.kubeconfig(), dir.path()).await?,
        dir.path(),
    )
    .await?;
    let dir = tempfile::tempdir()?;
    probe(
        &client,
        &Link::before(plane.kubeconfig(), dir.path()).await?,
        dir.path(),
    )
    .await
}

async fn claim(client: &Client, scratch: &Scratch, link: &Link, dir: &Path) -> Result<()> {
    let ns = scratch.name();
    let words = ["claim", "--pool", "ci", "--name", "job", "-n", ns, "--timeout", "5m"];
    let waits = Proc::spawn("claim", plugin(Some(link.kubeconfig()), &words), dir.join("claim.log"))?;
    let claims: Api<MacOSMachineClaim> = Api::namespaced(client.clone(), ns);
    watched(client, "macosmachineclaims", 1.0).await?;
    link.cut(3);
    met(link).await?;
    let bound = json!({"status": {"phase": "Bound", "machineRef": {"name": "ci-7", "uid": "u"}}});
    claims
        .patch_status("job", &PatchParams::default(), &Patch::Merge(&bound))
        .await?;
    let status = waits.wait(MINUTE * 2).await?;
    let log = waits.log();
    ensure!(status.success(), "{status}: {log}");
    ensure!(log.contains("machine   ci-7"), "{log}");
    ensure!(
        log.contains("claim job is not seen just now: ") && log.contains("claim job is seen again"),
        "{log}"
    );
    Ok(())
}

async fn probe(client: &Client, link: &Link, dir: &Path) -> Result<()> {
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "kvm-1"}});
    let crd = serde_json::to_string(&KubeVirt::crd())?;
    let namespaces = format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {PLATFORM_NAMESPACE}}}\n");
    apply_yaml(client, &format!("{crd}\n---\n{namespaces}---\n{node}\n")).await?;
    // a pod is admitted only where this account is
    let account: Api<k8s_openapi::api::core::v1::ServiceAccount> = Api::namespaced(client.clone(), PLATFORM_NAMESPACE);
    expect::until(account, "default", "it", |_| true).await?;
    let record = json!({"virtLauncherImage": "registry.example/virt-launcher@sha256:1"}).to_string();
    apply_yaml(
        client,
        &json!({"apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "spec": {},
        "metadata": {"name": "kubevirt", "namespace": PLATFORM_NAMESPACE}})
        .to_string(),
    )
    .await?;
    let status = json!({"status": {"observedDeploymentConfig": record}});
    let kubevirts: Api<KubeVirt> = Api::namespaced(client.clone(), PLATFORM_NAMESPACE);
    kubevirts
        .patch_status("kubevirt", &PatchParams::default(), &Patch::Merge(&status))
        .await?;
    let able = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}],
        "capacity": {"devices.kubevirt.io/kvm": "1k", "cpu": "8", "memory": "32Gi", "pods": "110"},
        "allocatable": {"devices.kubevirt.io/kvm": "1k", "cpu": "8", "memory": "32Gi", "pods": "110"}}});
    let nodes: Api<Node> = Api::all(client.clone());
    nodes
        .patch_status("kvm-1", &PatchParams::default(), &Patch::Merge(&able))
        .await?;

    let words = ["doctor", "--probe-nodes"];
    let asks = Proc::spawn(
        "doctor",
        plugin(Some(link.kubeconfig()), &words),
        dir.join("doctor.log"),
    )?;
    watched(client, "pods", 1.0).await.with_context(|| asks.log())?;
    link.cut(2);
    met(link).await.with_context(|| asks.log())?;
    // what the node's kubelet would say
    let pods: Api<Pod> = Api::namespaced(client.clone(), PLATFORM_NAMESPACE);
    let its = ListParams::default().labels("app.kubernetes.io/managed-by=kubectl-dockerios");
    let pod = pods.list(&its).await?.items.pop().context("its pod")?.name_any();
    let end = json!({"status": {"phase": "Succeeded", "containerStatuses": [{"name": "ask", "image": "x", "imageID": "",
        "ready": false, "restartCount": 0, "state": {"terminated": {"exitCode": 0, "message": "Y\n"}}}]}});
    pods.patch_status(&pod, &PatchParams::default(), &Patch::Merge(&end))
        .await?;
    let ended = asks.wait(MINUTE * 2).await?;
    let log = asks.log();
    ensure!(log.contains("kvm-1 ignores unknown MSRs"), "{ended}: {log}");
    expect::gone(pods.clone(), &pod).await?;

    let ended_early = Proc::spawn("doctor", plugin(Some(link.kubeconfig()), &words), dir.join("ended.log"))?;
    watched(client, "pods", 1.0).await.with_context(|| ended_early.log())?;
    let ended = ended_early.terminate(MINUTE).await?;
    let log = ended_early.log();
    ensure!(
        ended.code() == Some(130) && log.contains("error: interrupted"),
        "{ended}: {log}"
    );
    let left = pods.list(&its).await?.items.len();
    ensure!(left == 0, "{left} pods are left");
    unanswered(link, &pods, dir).await
}

/// Its pod cannot be removed, since no write is answered any more: whoever insists is let go.
async fn unanswered(link: &Link, pods: &Api<Pod>, dir: &Path) -> Result<()> {
    let cutter = WriteCutter::start(link.kubeconfig()).await?;
    let words = ["doctor", "--probe-nodes"];
    let command = plugin(Some(cutter.kubeconfig()), &words);
    let asks = Proc::spawn("doctor", command, dir.join("unanswered.log"))?;
    let mut changes = std::pin::pin!(
        watcher(pods.clone(), watcher::Config::default())
            .default_backoff()
            .applied_objects()
    );
    let made = tokio::time::timeout(MINUTE, changes.try_next()).await;
    made.with_context(|| asks.log())??.context("its pod")?;
    cutter.hold();
    interrupt(&asks)?;
    asks.until_logged("interrupt once more to leave them", MINUTE).await?;
    let ended = asks.terminate(MINUTE).await?;
    let log = asks.log();
    ensure!(ended.code() == Some(130), "{ended}: {log}");
    let by_hand = "kubectl delete pods -n dockerios-system -l app.kubernetes.io/managed-by=kubectl-dockerios";
    ensure!(log.contains(by_hand), "{log}");
    Ok(())
}
