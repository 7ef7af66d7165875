//! Asks hosts for `kvm.ignore_msrs`: one short pod a node, of the launcher image that is there already, which reads the
//! kernel's own file in /sys (the same in every container) and leaves it as its last words. No rights, no token.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, bail};
use dockerios_api::names::{MANAGED_BY, PLATFORM_NAMESPACE};
use dockerios_core::decide::platform::image_of;
use dockerios_kubevirt::names::KVM_RESOURCE;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{ContainerState, Pod};
use kube::api::{DeleteParams, PostParams};
use kube::runtime::watcher::{self, Event};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use tokio::sync::watch;

use super::judge::{Facts, away, offers};
use crate::access::Cluster;
use crate::answer::{plain, said};
use crate::follow::{self, Met};
use crate::interrupt::{Interrupt, Interrupted};
use crate::out;

/// A pull of the image included, which a KVM node has as a rule.
const PATIENCE: Duration = Duration::from_secs(120);
/// What the label of the pods says that they are managed by.
const MANAGER: &str = "kubectl-dockerios";
/// The kernel's word: `Y` or `N`.
const FILE: &str = "/sys/module/kvm/parameters/ignore_msrs";

/// What each node with KVM answers, or why none was asked.
///
/// # Errors
/// [`Interrupted`], once the pods are removed again, or as soon as whoever interrupts insists.
pub(super) async fn nodes(
    cluster: &Cluster,
    facts: &Facts,
) -> Result<Result<BTreeMap<String, Result<bool, String>>, String>> {
    let (nodes, kubevirts) = match (&facts.nodes, &facts.kubevirts) {
        (Ok(nodes), Ok(kubevirts)) => (nodes, kubevirts),
        (Err(why), _) => return Ok(Err(format!("nodes could not be read: {why}"))),
        (_, Err(why)) => return Ok(Err(format!("the KubeVirt object could not be read: {why}"))),
    };
    let Some(image) = kubevirts.first().and_then(image_of) else {
        return Ok(Err(
            "KubeVirt has not recorded its launcher image (status.observedDeploymentConfig)".to_owned(),
        ));
    };
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), PLATFORM_NAMESPACE);
    // each pod hears of the same end, and none is made after it
    let mut interrupt = Interrupt::listen();
    let (tell, ended) = watch::channel(false);
    let asked = nodes.iter().filter(|node| offers(node, KVM_RESOURCE)).map(|node| {
        let (pods, image, ended) = (&pods, &image, ended.clone());
        async move {
            let answer = match away(node) {
                Some("not Ready") => Err("it is not Ready, a pod would not end there".to_owned()),
                _ => ask(pods, &node.name_any(), image, ended)
                    .await
                    .map_err(|error| format!("{error:#}")),
            };
            (node.name_any(), answer)
        }
    });
    let answers = futures::stream::iter(asked).buffer_unordered(8).collect();
    tokio::select! {
        answers = answers => match *ended.borrow() {
            true => Err(Interrupted.into()),
            false => Ok(Ok(answers)),
        },
        () = insisted(&mut interrupt, &tell) => {
            out::note(&format!(
                "the pods may be there still: kubectl delete pods -n {PLATFORM_NAMESPACE} -l {MANAGED_BY}={MANAGER}"
            ));
            Err(Interrupted.into())
        }
    }
}

/// Ends with the second interrupt; tells of the first, after which each pod is removed.
async fn insisted(interrupt: &mut Interrupt, tell: &watch::Sender<bool>) {
    interrupt.happened().await;
    tell.send_replace(true);
    out::note("the pods are being removed; interrupt once more to leave them");
    interrupt.happened().await;
}

async fn ask(pods: &Api<Pod>, node: &str, image: &str, mut ended: watch::Receiver<bool>) -> Result<bool> {
    if *ended.borrow() {
        return Err(Interrupted.into());
    }
    let made = pods
        .create(&PostParams::default(), &pod(node, image)?)
        .await
        .map_err(|error| said(error, "making the pod"))?;
    let name = made.name_any();
    let answer = tokio::select! {
        answer = last_words(pods.clone(), &name) => answer,
        // an error would say that nobody tells any more; who tells outlives every pod
        _ = ended.wait_for(|ended| *ended) => Err(Interrupted.into()),
    };
    // gone either way; that it could not be removed is worth a word and no more
    match pods.delete(&name, &DeleteParams::default().grace_period(0)).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.is_not_found() => {}
        Err(error) => out::note(&format!(
            "{:#}; kubectl delete pod {name} -n {PLATFORM_NAMESPACE}",
            said(error, &format!("removing pod {PLATFORM_NAMESPACE}/{name}"))
        )),
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

/// What the pod leaves behind when it ends.
async fn last_words(pods: Api<Pod>, name: &str) -> Result<String> {
    let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut waits = String::new();
    let met = follow::until(pods, only, &format!("pod {name}"), PATIENCE, |event| {
        let pod = match event {
            Event::Apply(pod) | Event::InitApply(pod) => pod,
            Event::Delete(_) => bail!("its pod was deleted by somebody else"),
            Event::Init | Event::InitDone => return Ok(None),
        };
        waits = waiting(&pod);
        ending(&pod)
    })
    .await?;
    match met {
        Met::Seen(words) => Ok(words),
        Met::TooLate(trouble) => bail!("its pod did not end within {} s{waits}{trouble}", PATIENCE.as_secs()),
    }
}

fn state(pod: &Pod) -> Option<&ContainerState> {
    let container = pod.status.as_ref()?.container_statuses.as_ref()?.first()?;
    container.state.as_ref()
}

fn ending(pod: &Pod) -> Result<Option<String>> {
    if let Some(end) = state(pod).and_then(|state| state.terminated.as_ref()) {
        let words = end.message.clone().unwrap_or_default();
        if end.exit_code == 0 {
            return Ok(Some(words));
        }
        bail!("its pod ended with {}: {}", end.exit_code, plain(words.trim()));
    }
    // a node may refuse a pod before it makes a container
    let status = pod.status.as_ref();
    if status.and_then(|status| status.phase.as_deref()) == Some("Failed") {
        let of = |text: Option<&String>| text.map(|text| plain(text)).unwrap_or_default();
        bail!(
            "the node refused its pod: {} {}",
            of(status.and_then(|status| status.reason.as_ref())),
            of(status.and_then(|status| status.message.as_ref()))
        );
    }
    Ok(None)
}

/// ` (ImagePullBackOff: …)`: what it waits for, to be told when it took too long.
fn waiting(pod: &Pod) -> String {
    let waits = state(pod).and_then(|state| state.waiting.as_ref());
    waits.map_or_else(String::new, |waits| {
        let text = |text: &Option<String>| text.as_deref().map(plain).unwrap_or_default();
        format!(" ({}: {})", text(&waits.reason), text(&waits.message))
    })
}

fn pod(node: &str, image: &str) -> Result<Pod> {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"generateName": "doctor-", "labels": {MANAGED_BY: MANAGER}},
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
    fn a_pod_that_did_not_answer_says_what_became_of_it() {
        let pod = |status: serde_json::Value| -> Pod { serde_json::from_value(json!({"status": status})).unwrap() };
        let container = |state: serde_json::Value| {
            pod(
                json!({"phase": "Running", "containerStatuses": [{"name": "ask", "image": "x", "imageID": "",
                "ready": false, "restartCount": 0, "state": state}]}),
            )
        };
        let answered = container(json!({"terminated": {"exitCode": 0, "message": "Y\n"}}));
        assert_eq!(ending(&answered).unwrap().as_deref(), Some("Y\n"));
        let failed = container(json!({"terminated": {"exitCode": 2, "message": "sh: no such file"}}));
        let failed = ending(&failed).unwrap_err().to_string();
        assert_eq!(failed, "its pod ended with 2: sh: no such file");
        let waits = container(json!({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}));
        assert_eq!(ending(&waits).unwrap(), None);
        assert_eq!(waiting(&waits), " (ImagePullBackOff: no such image)");
        let refused = pod(json!({"phase": "Failed", "reason": "OutOfmemory", "message": "too little"}));
        let refused = ending(&refused).unwrap_err().to_string();
        assert_eq!(refused, "the node refused its pod: OutOfmemory too little");
    }

    #[test]
    fn the_pod_goes_to_its_node_without_rights() {
        let pod = pod("kvm-1", "launcher@sha256:1").unwrap();
        let spec = pod.spec.unwrap();
        assert_eq!(spec.node_name.as_deref(), Some("kvm-1"));
        assert_eq!(spec.automount_service_account_token, Some(false));
    }
}
