//! What is watched and written in a tenant's namespace for one slot: the instance and its placeholder.
//!
//! Invariant: it lives exactly as long as the slot; rights that are missing or lost there are waited
//! for and change nothing about the VM.

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, ResourceExt};
use macrack_api::MacOSInstance;
use macrack_api::names;
use macrack_api::rack::node::Slot;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::bell::{Bell, replace};
use crate::gather::{Seen, follow};
use crate::orders::Placeholder;
use crate::report::instance::InstanceReport;
use crate::report::pod::PodReport;
use crate::status::{tell_instance, tell_pod};
use crate::writer::keep_written;

/// The watches and writers of one slot; dropping it ends them.
pub struct SlotLink {
    instance: watch::Receiver<Seen<MacOSInstance>>,
    pod: watch::Receiver<Seen<Pod>>,
    instance_report: watch::Sender<Option<InstanceReport>>,
    pod_report: watch::Sender<Option<PodReport>>,
    _tasks: JoinSet<()>,
}

impl SlotLink {
    /// Begins to watch.
    pub fn new(client: &Client, slot: &Slot, bell: &Bell) -> SlotLink {
        let mut tasks = JoinSet::new();
        let pods: Api<Pod> = Api::namespaced(client.clone(), &slot.namespace);
        let instances: Api<MacOSInstance> = Api::namespaced(client.clone(), &slot.namespace);
        let placeholder = names::placeholder(&slot.name);
        let (seen_instance, instance) = watch::channel(Seen::default());
        let (seen_pod, pod) = watch::channel(Seen::default());
        tasks.spawn(follow(instances.clone(), slot.name.clone(), seen_instance, bell.clone()));
        tasks.spawn(follow(pods.clone(), placeholder.clone(), seen_pod, bell.clone()));
        let (instance_report, wanted) = watch::channel(None);
        tasks.spawn(write_instance(instances, slot.clone(), wanted));
        let (pod_report, wanted) = watch::channel(None);
        tasks.spawn(write_pod(pods, placeholder, wanted));
        SlotLink { instance, pod, instance_report, pod_report, _tasks: tasks }
    }

    /// The instance.
    pub fn instance(&self) -> Seen<MacOSInstance> {
        self.instance.borrow().clone()
    }

    /// The placeholder.
    pub fn pod(&self) -> Seen<Pod> {
        self.pod.borrow().clone()
    }

    /// Has these reports written.
    pub fn tell(&self, instance: Option<InstanceReport>, pod: Option<PodReport>) {
        replace(&self.instance_report, instance);
        replace(&self.pod_report, pod);
    }
}

/// How the placeholder of `slot` stands to `node`.
pub fn placeholder(slot: &Slot, pod: &Seen<Pod>, node: &str) -> Placeholder {
    let name = format!("pod {}/{}", slot.namespace, names::placeholder(&slot.name));
    let missing = |why: String| Placeholder::Missing(why);
    let pod = match pod {
        Seen::Unknown(why) => return missing(format!("its placeholder {name} cannot be read: {why}")),
        Seen::Absent => return missing(format!("waits for its placeholder {name}; the operator makes it")),
        Seen::Present(pod) => pod,
    };
    let labels = pod.metadata.labels.as_ref();
    if labels.and_then(|labels| labels.get(names::LABEL_INSTANCE)) != Some(&slot.uid) {
        return missing(format!("{name} is the placeholder of another instance; waits for its own"));
    }
    if pod.metadata.deletion_timestamp.is_some() {
        return missing(format!("its placeholder {name} is being deleted"));
    }
    match pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) {
        Some(bound) if bound == node => Placeholder::Bound,
        Some(other) => missing(format!("its placeholder {name} was bound to node {other}")),
        None => missing(format!("waits for the scheduler to bind its placeholder {name}")),
    }
}

/// The placeholder, when it is this slot's own and bound here, being deleted or not.
pub fn placeholder_of<'a>(slot: &Slot, seen: &'a Seen<Pod>, node: &str) -> Option<&'a Pod> {
    let pod = seen.present()?;
    let ours = pod.labels().get(names::LABEL_INSTANCE) == Some(&slot.uid);
    let here = pod.spec.as_ref()?.node_name.as_deref() == Some(node);
    (ours && here).then_some(pod)
}

async fn write_instance(api: Api<MacOSInstance>, slot: Slot, wanted: watch::Receiver<Option<InstanceReport>>) {
    let what = format!("status of MacOSInstance {}/{}", slot.namespace, slot.name);
    keep_written(what, wanted, |report: InstanceReport| {
        let (api, slot) = (api.clone(), slot.clone());
        // a later instance of the same name is another one
        async move { tell_instance(&api, &slot.name, &slot.uid, &report).await }
    })
    .await;
}

async fn write_pod(api: Api<Pod>, name: String, wanted: watch::Receiver<Option<PodReport>>) {
    let what = format!("pod {name}");
    keep_written(what, wanted, |report: PodReport| {
        let (api, name) = (api.clone(), name.clone());
        async move { tell_pod(&api, &name, report).await }
    })
    .await;
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use macrack_api::rack::node::Order;
    use serde_json::json;

    use super::*;

    #[test]
    fn only_the_instances_own_placeholder_on_this_node_counts() {
        let slot = Slot {
            slot: 0,
            uid: "u-1".to_owned(),
            namespace: "tenant".to_owned(),
            name: "build-1".to_owned(),
            order: Order::Run,
        };
        let pod = |uid: &str, node: Option<&str>, deleted: Option<&str>| {
            let pod = json!({
                "metadata": { "labels": { names::LABEL_INSTANCE: uid }, "deletionTimestamp": deleted },
                "spec": { "nodeName": node, "containers": [] },
            });
            Seen::Present(Arc::new(serde_json::from_value(pod).unwrap()))
        };
        for (seen, why) in [
            (pod("u-1", Some("macrack-a"), None), None),
            (pod("u-2", Some("macrack-a"), None), Some("another instance")),
            (pod("u-1", Some("macrack-b"), None), Some("bound to node macrack-b")),
            (pod("u-1", None, None), Some("scheduler")),
            (pod("u-1", Some("macrack-a"), Some("2026-01-01T00:00:00Z")), Some("being deleted")),
            (Seen::Absent, Some("the operator makes it")),
            (Seen::Unknown("403".to_owned()), Some("cannot be read: 403")),
        ] {
            match (placeholder(&slot, &seen, "macrack-a"), why) {
                (Placeholder::Bound, None) => {}
                (Placeholder::Missing(words), Some(why)) => {
                    assert!(words.contains(why) && words.contains("tenant/macrack-vm-build-1"), "{words}");
                }
                (found, _) => panic!("{seen:?} is {found:?}"),
            }
        }
    }
}
