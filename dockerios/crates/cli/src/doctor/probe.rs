//! Asks hosts for `kvm.ignore_msrs`: one short pod a node, of the launcher image that is there already, which reads the
//! kernel's own file in /sys (the same in every container) and leaves it as its last words. No rights, no token.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, bail};
use dockerios_api::names::{MANAGED_BY, PLATFORM_NAMESPACE};
use dockerios_core::decide::platform::image_of;
use dockerios_kubevirt::names::KVM_RESOURCE;
use futures::{StreamExt as _, TryStreamExt as _, pin_mut};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, PostParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use super::judge::{Facts, offers};
use crate::access::{Cluster, interrupted, said};

/// A pull of the image included, which a KVM node has as a rule.
const PATIENCE: Duration = Duration::from_secs(120);
/// The kernel's word: `Y` or `N`.
const FILE: &str = "/sys/module/kvm/parameters/ignore_msrs";

/// What each node with KVM answers.
///
/// # Errors
/// When there is nothing to ask with.
pub(super) async fn nodes(cluster: &Cluster, facts: &Facts) -> Result<BTreeMap<String, Result<bool, String>>> {
    let (Ok(nodes), Ok(kubevirts)) = (&facts.nodes, &facts.kubevirts) else {
        bail!("--probe-nodes: nodes or the KubeVirt object could not be read");
    };
    let Some(image) = kubevirts.first().and_then(image_of) else {
        bail!("--probe-nodes: KubeVirt has not recorded its launcher image (status.observedDeploymentConfig)");
    };
    let able = nodes.iter().filter(|node| offers(node, KVM_RESOURCE));
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), PLATFORM_NAMESPACE);
    let asked = able.map(|node| async {
        let name = node.name_any();
        let answer = ask(&pods, &name, &image).await.map_err(|error| format!("{error:#}"));
        (name, answer)
    });
    Ok(futures::stream::iter(asked).buffer_unordered(8).collect().await)
}

async fn ask(pods: &Api<Pod>, node: &str, image: &str) -> Result<bool> {
    let made = pods
        .create(&PostParams::default(), &pod(node, image)?)
        .await
        .map_err(|error| said(error, "making the pod"))?;
    let name = made.name_any();
    let answer = tokio::select! {
        answer = ended(pods, &name) => answer,
        () = interrupted() => Err(anyhow::anyhow!("interrupted")),
        () = tokio::time::sleep(PATIENCE) => Err(anyhow::anyhow!("its pod did not end within {} s", PATIENCE.as_secs())),
    };
    // gone either way; that it could not be removed is worth a word and no more
    if let Err(error) = pods.delete(&name, &DeleteParams::default().grace_period(0)).await {
        eprintln!(
            "{:#}",
            said(error, &format!("removing pod {PLATFORM_NAMESPACE}/{name}"))
        );
    }
    read(&answer?)
}

fn read(words: &str) -> Result<bool> {
    match words.trim() {
        "Y" | "1" => Ok(true),
        "N" | "0" => Ok(false),
        other => bail!("{FILE} said {other:?}"),
    }
}

async fn ended(pods: &Api<Pod>, name: &str) -> Result<String> {
    let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let changes = watcher(pods.clone(), only).default_backoff().touched_objects();
    pin_mut!(changes);
    while let Some(pod) = changes.try_next().await? {
        let end = pod.status.as_ref().and_then(|status| {
            let container = status.container_statuses.as_ref()?.first()?;
            container.state.as_ref()?.terminated.clone()
        });
        match end {
            Some(end) if end.exit_code == 0 => return Ok(end.message.unwrap_or_default()),
            Some(end) => bail!(
                "its pod ended with {}: {}",
                end.exit_code,
                end.message.unwrap_or_default()
            ),
            None => {}
        }
    }
    bail!("the watch ended")
}

fn pod(node: &str, image: &str) -> Result<Pod> {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"generateName": "doctor-", "labels": {MANAGED_BY: "kubectl-dockerios"}},
        "spec": {
            "nodeName": node, "restartPolicy": "Never", "automountServiceAccountToken": false,
            "activeDeadlineSeconds": PATIENCE.as_secs(),
            "tolerations": [{"operator": "Exists"}],
            "securityContext": {"runAsNonRoot": true, "runAsUser": 107, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "ask", "image": image,
                "command": ["/bin/sh", "-c", format!("read -r word < {FILE} && echo \"$word\" > /dev/termination-log")],
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "64Mi"}},
                "securityContext": {"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
                    "capabilities": {"drop": ["ALL"]}},
            }],
        },
    });
    Ok(serde_json::from_value(pod)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_word_is_read_and_anything_else_is_no_answer() {
        assert!(read("Y\n").unwrap());
        assert!(!read("N").unwrap());
        assert!(read("").unwrap_err().to_string().contains("ignore_msrs said"));
    }

    #[test]
    fn the_pod_goes_to_its_node_without_rights() {
        let pod = pod("kvm-1", "launcher@sha256:1").unwrap();
        let spec = pod.spec.unwrap();
        assert_eq!(spec.node_name.as_deref(), Some("kvm-1"));
        assert_eq!(spec.automount_service_account_token, Some(false));
    }
}
