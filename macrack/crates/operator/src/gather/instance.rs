//! The facts of one instance.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt};
use macrack_api::{MacNode, MacOSInstance, names};
use macrack_core::{
    decide::{self, instance::Facts},
    plan::{Kind, Ref},
    seen::Seen,
};

use super::{Pass, Sources, node::ending, own_part};
use crate::cache::Key;

/// Gathers and decides one instance.
pub async fn instance(sources: &Sources, key: &Key) -> Option<Pass> {
    let world = &sources.world;
    let instance = match world.instances.get(key) {
        Seen::Present(instance) => instance,
        Seen::Absent => return orphaned_pod(sources, key).await,
        Seen::Unknown(why) => {
            tracing::warn!(namespace = key.namespace, name = key.name, why, "this MacOSInstance is left as it is");
            return None;
        }
    };
    let uid = instance.uid().unwrap_or_default();
    let chassis = chassis(sources, &instance, &uid).await;
    let neighbours = neighbours(sources, chassis.present(), &uid);
    let size = |i: &MacOSInstance| world.sizes.get(&Key::cluster(&i.spec.instance_class_name)).map(|c| c.spec.clone());
    let pod_key = Key::new(&key.namespace, names::placeholder(&key.name));
    let pod = sources.confirmed(world.pods.get(&pod_key), &pod_key).await;
    let kube_node = chassis.present().map(|c| world.kube_nodes.get(&Key::cluster(names::node(&c.name_any()))));
    let facts = Facts {
        clocks: sources.clock.operator(),
        lease: world.leases.get(&Key::new(&key.namespace, &instance.spec.lease_name)).map(|l| l.as_ref().clone()),
        pod_in_slot: in_slot(sources, pod.present(), &uid).await,
        pod,
        size: size(&instance),
        image: world.images.get(&Key::cluster(&instance.spec.image_name)).map(|i| i.spec.clone()),
        neighbour_sizes: neighbours.iter().filter_map(|n| size(n).present().cloned()).collect(),
        node_class: match chassis.present() {
            Some(c) => world.node_classes.get(&Key::cluster(&c.spec.node_class_name)).map(|c| c.spec.clone()),
            None => Seen::Absent,
        },
        namespace_ending: ending(&world.namespaces.get(&Key::cluster(&key.namespace)).map(|n| n.as_ref().clone()))
            .present()
            == Some(&true),
        agent_answers: kube_node.is_some_and(|n| n.present().is_some_and(|n| is_ready(n))),
        instance: instance.as_ref().clone(),
        chassis,
        neighbours,
    };
    Some(Pass {
        turn: None,
        of: Ref::namespaced(Kind::MacOSInstance, &key.namespace, &key.name),
        uid,
        plan: decide::instance::decide(&facts),
        status: own_part(instance.status.as_ref(), &["vm", "guest"]),
        verdict: Ok(()),
    })
}

/// A placeholder whose instance was removed by force: it goes once no slot names its VM any more.
async fn orphaned_pod(sources: &Sources, key: &Key) -> Option<Pass> {
    let pod_key = Key::new(&key.namespace, names::placeholder(&key.name));
    let pod = sources.world.pods.get(&pod_key);
    let pod = pod.present()?;
    let uid = pod.labels().get(names::LABEL_INSTANCE)?;
    if !sources.world.nodes.by("slot", uid).is_empty() || !matches!(slot_of(sources, uid).await, Seen::Absent) {
        return None;
    }
    let instances: Api<MacOSInstance> = Api::namespaced(sources.client.clone(), &key.namespace);
    if !matches!(instances.get_opt(&key.name).await, Ok(None)) {
        return None;
    }
    Some(Pass {
        turn: None,
        of: Ref::namespaced(Kind::MacOSInstance, &key.namespace, &key.name),
        uid: String::new(),
        plan: decide::instance::orphaned(pod),
        status: serde_json::json!({}),
        verdict: Ok(()),
    })
}

/// The chassis that its lease holds, or else the one with a slot of its: what another Mac says of this VM is not believed
/// before that. That an instance which goes is on no chassis at all is asked of the API server itself.
async fn chassis(sources: &Sources, instance: &MacOSInstance, uid: &str) -> Seen<MacNode> {
    let nodes = &sources.world.nodes;
    let lease = instance.status.as_ref().and_then(|s| s.lease_uid.clone()).unwrap_or_default();
    let (slot, held) = (nodes.by("slot", uid), nodes.by("lease", &lease));
    let both = held.iter().find(|node| slot.iter().any(|other| other.name_any() == node.name_any())).cloned();
    let found = both.into_iter().chain(held).chain(slot).next();
    if let Some(node) = found {
        return Seen::Present(node.as_ref().clone());
    }
    if let Some(why) = unreadable(sources, instance) {
        return Seen::Unknown(why);
    }
    if instance.metadata.deletion_timestamp.is_none() {
        return Seen::Absent;
    }
    slot_of(sources, uid).await
}

/// Why the chassis that the instance or its lease names cannot be read, if it cannot: then it is not known to be gone.
fn unreadable(sources: &Sources, instance: &MacOSInstance) -> Option<String> {
    let node = instance.status.as_ref().and_then(|s| s.node_name.as_deref()?.strip_prefix(names::NODE_PREFIX));
    let lease =
        sources.world.leases.get(&Key::new(instance.namespace().unwrap_or_default(), &instance.spec.lease_name));
    let serial = lease.present().and_then(|l| l.status.as_ref()?.serial.as_deref().map(names::mac_node));
    let named = node.map(str::to_owned).into_iter().chain(serial);
    named.map(|name| sources.world.nodes.get(&Key::cluster(name))).find_map(|seen| match seen {
        Seen::Unknown(why) => Some(why),
        _ => None,
    })
}

/// Whether the VM of a placeholder that another instance of this name left behind is in a slot. Of one's own nobody asks.
async fn in_slot(sources: &Sources, pod: Option<&Pod>, uid: &str) -> Seen<bool> {
    let Some(other) = pod.and_then(|p| p.labels().get(names::LABEL_INSTANCE)).filter(|other| *other != uid) else {
        return Seen::Absent;
    };
    match slot_of(sources, other).await {
        Seen::Unknown(why) => Seen::Unknown(why),
        seen => Seen::Present(!seen.is_absent()),
    }
}

async fn slot_of(sources: &Sources, uid: &str) -> Seen<MacNode> {
    let names = |slot: &serde_json::Value| slot["uid"] == uid;
    sources.node_where(|status| status["slots"].as_array().is_some_and(|slots| slots.iter().any(names))).await
}

fn neighbours(sources: &Sources, chassis: Option<&MacNode>, uid: &str) -> Vec<MacOSInstance> {
    let slots = chassis.and_then(|c| c.status.as_ref()).map(|s| s.slots.as_slice()).unwrap_or_default();
    slots
        .iter()
        .filter(|s| s.uid != uid)
        .filter_map(|s| {
            let seen: Seen<Arc<MacOSInstance>> = sources.world.instances.get(&Key::new(&s.namespace, &s.name));
            seen.present().filter(|i| i.uid().as_ref() == Some(&s.uid)).map(|i| i.as_ref().clone())
        })
        .collect()
}

fn is_ready(node: &k8s_openapi::api::core::v1::Node) -> bool {
    let conditions = node.status.as_ref().and_then(|s| s.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
}
