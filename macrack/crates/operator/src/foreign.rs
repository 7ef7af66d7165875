//! Pods on Macs that are not MacRack's: bound before its policies were installed, or while somebody had removed them.
//!
//! Nothing on a Mac runs them, confirms their deletion, or gives back what they request, so an admin is told of each, with
//! the way out. They are only told of: whose they are and what they are for is not for this program to judge.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::{Node, ObjectReference, Pod};
use kube::{
    Api, ResourceExt,
    api::ListParams,
    runtime::events::{Event, EventType, Recorder},
};
use macrack_api::{
    condition,
    names::{LABEL_SERIAL, POD_PREFIX},
};
use macrack_core::plan::Kind;

use crate::{cache::Key, gather::Sources, run::reference};

/// Between looks. There is no watch for it: each Mac would need one of its own, or one of every pod of the cluster, for
/// what an admin mends within hours.
const LOOK: Duration = Duration::from_secs(60);
/// Events are kept for an hour (`--event-ttl` of the API server): what still holds is then told again.
const AGAIN: Duration = Duration::from_secs(3600);

/// Tells of every such pod, once an hour while it is there. Never returns.
pub(crate) async fn tell(sources: &Sources, recorder: &Recorder) {
    let mut told: BTreeMap<String, Instant> = BTreeMap::new();
    loop {
        told.retain(|_, at| at.elapsed() < AGAIN);
        for node in sources.world.kube_nodes.all() {
            match of(sources, &node).await {
                Ok(pods) => {
                    for pod in pods.iter().filter(|pod| is_foreign(pod)) {
                        if !told.contains_key(&pod.uid().unwrap_or_default())
                            && publish(sources, recorder, &node, pod).await
                        {
                            told.insert(pod.uid().unwrap_or_default(), Instant::now());
                        }
                    }
                }
                Err(error) => tracing::warn!(node = node.name_any(), %error, "its pods cannot be listed; tried again"),
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// The pods of a Node, from the API server's cache, which has them by Node.
async fn of(sources: &Sources, node: &Node) -> kube::Result<Vec<Pod>> {
    let pods: Api<Pod> = Api::all(sources.client.clone());
    let on = ListParams::default().fields(&format!("spec.nodeName={}", node.name_any())).match_any();
    Ok(pods.list(&on).await?.items)
}

/// Whether a pod holds something of a Mac and is no placeholder.
fn is_foreign(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    !pod.name_any().starts_with(POD_PREFIX) && !matches!(phase, Some("Succeeded" | "Failed"))
}

/// What an admin is told of it.
fn words(pod: &Pod) -> String {
    let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
    let owner = pod.owner_references().iter().find(|owner| owner.controller == Some(true));
    let (of, then) = match owner {
        Some(owner) => (
            format!(" of {} {}", owner.kind, owner.name),
            format!(
                "first give the pods of {} {} a node affinity that leaves Macs out (kubernetes.io/os NotIn darwin), then ",
                owner.kind, owner.name
            ),
        ),
        None => (String::new(), String::new()),
    };
    condition::bounded(&format!(
        "pod {namespace}/{name}{of} is bound to this Mac, which carries macOS VMs alone: it never starts, and what it requests is missing for VMs; {then}remove it: kubectl delete pod -n {namespace} {name} --force --grace-period=0 (nothing on a Mac confirms a slower deletion), and see that MacRack's admission policies are installed"
    ))
}

/// Whether it was told.
async fn publish(sources: &Sources, recorder: &Recorder, node: &Node, pod: &Pod) -> bool {
    let Some(serial) = node.labels().get(LABEL_SERIAL) else { return false };
    let mac_node = sources.world.nodes.get(&Key::cluster(serial));
    let Some(mac_node) = mac_node.present() else { return false };
    let on = ObjectReference { name: Some(serial.clone()), uid: mac_node.uid(), ..reference(Kind::MacNode) };
    let event = Event {
        type_: EventType::Warning,
        reason: "ForeignPod".into(),
        note: Some(words(pod)),
        action: "Observe".into(),
        secondary: Some(ObjectReference {
            namespace: pod.namespace(),
            name: Some(pod.name_any()),
            uid: pod.uid(),
            ..reference(Kind::Pod)
        }),
    };
    tracing::warn!(
        node = node.name_any(),
        pod = pod.name_any(),
        namespace = pod.namespace(),
        "a pod on a Mac is not MacRack's"
    );
    match recorder.publish(&event, &on).await {
        Ok(_) => true,
        Err(error) => {
            tracing::warn!(%error, "event of a pod on a Mac not told; tried again");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, owner: Option<&str>, phase: Option<&str>) -> Pod {
        let owners = owner.map(|name| json!([{ "apiVersion": "apps/v1", "kind": "DaemonSet", "name": name, "uid": "d", "controller": true }]));
        serde_json::from_value(json!({
            "metadata": { "name": name, "namespace": "kube-system", "uid": "u", "ownerReferences": owners.unwrap_or(json!([])) },
            "status": { "phase": phase },
        }))
        .unwrap()
    }

    #[test]
    fn a_placeholder_and_a_pod_that_has_ended_take_nothing_from_a_mac() {
        for (name, phase, foreign) in [
            ("macrack-vm-ci", Some("Running"), false),
            ("proxy", Some("Pending"), true),
            ("proxy", None, true),
            ("job", Some("Succeeded"), false),
            ("job", Some("Failed"), false),
        ] {
            assert_eq!(is_foreign(&pod(name, None, phase)), foreign, "{name} {phase:?}");
        }
    }

    #[test]
    fn the_way_out_of_a_daemon_sets_pod_begins_with_the_daemon_set_which_would_make_it_again() {
        let said = words(&pod("proxy-1", Some("proxy"), None));
        for part in [
            "pod kube-system/proxy-1 of DaemonSet proxy",
            "first give the pods of DaemonSet proxy a node affinity",
            "kubectl delete pod -n kube-system proxy-1 --force --grace-period=0",
        ] {
            assert!(said.contains(part), "{said}");
        }
        assert!(said.len() <= 1024, "an event's note holds no more: {}", said.len());
        assert!(!words(&pod("p", None, None)).contains("affinity"), "a pod of nobody is not made again");
    }
}
