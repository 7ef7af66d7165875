//! What the operator keeps around a chassis: its finalizer, its Node with the taint that leaseRef implies, the
//! access of its agent.

use std::collections::BTreeSet;

use kube::ResourceExt;
use macrack_api::{
    names::{self, FINALIZER_NODE},
    rack::node::{LeaseRef, Quarantine, Slot},
};
use serde_json::{Value, json};

use super::{Facts, Hold};
use crate::{
    clock::{floor, time},
    plan::{Kind, Plan, Ref, Step},
    render::{access, node as render},
    seen::Seen,
};

/// A MacNode with a leaseRef carries our finalizer, one without does not.
pub(super) fn finalizer(facts: &Facts, plan: &mut Plan) {
    let node = &facts.node;
    let has = node.finalizers().iter().any(|f| f == FINALIZER_NODE);
    let of = Ref::cluster(Kind::MacNode, &node.name_any());
    let (finalizers, resource_version) = (node.finalizers().to_vec(), node.resource_version().unwrap_or_default());
    match (facts.lease_ref().is_some(), has) {
        (true, false) if node.metadata.deletion_timestamp.is_none() => {
            plan.steps.push(Step::AddFinalizer { of, finalizer: FINALIZER_NODE, finalizers, resource_version });
        }
        (false, true) if facts.claim.is_absent() => {
            plan.steps.push(Step::RemoveFinalizer { of, uid: node.uid(), finalizer: FINALIZER_NODE, finalizers });
        }
        _ => {}
    }
}

/// A MacNode that was made again gets back the leaseRef that its lease remembers, with the same clock.
pub(super) fn restore_lease(facts: &Facts, plan: &mut Plan) {
    let (Some(lease_ref), Some(_)) = (remembered(facts), &facts.node.status) else {
        return;
    };
    plan.steps.push(Step::Bind {
        mac_node: facts.node.name_any(),
        mac_node_uid: facts.node.uid().unwrap_or_default(),
        lease_ref,
    });
}

/// The leaseRef that a lease remembers of this chassis, while the chassis itself knows of none.
fn remembered(facts: &Facts) -> Option<LeaseRef> {
    let (None, Seen::Present(lease)) = (facts.lease_ref(), &facts.claim) else {
        return None;
    };
    let (bound_at, earliest) = super::super::lease::wants_back(lease, &facts.clocks)?;
    Some(LeaseRef {
        namespace: lease.namespace().unwrap_or_default(),
        name: lease.name_any(),
        uid: lease.uid().unwrap_or_default(),
        bound_at: time(bound_at),
        earliest_release_at: time(earliest.max(floor(bound_at, &lease.spec.minimum_duration))),
        releasing: false,
    })
}

/// The Node and the agent's own access exist and are as they should be.
pub(super) fn ensure(facts: &Facts, quarantine: &[Quarantine], plan: &mut Plan) {
    let name = facts.node.name_any();
    let lease = tainting(facts);
    match &facts.kube_node {
        Seen::Unknown(_) => {}
        Seen::Absent => {
            let object = Ref::cluster(Kind::Node, &names::node(&name));
            plan.steps.push(Step::Create { object, body: render::new(&facts.node, lease.as_ref()) });
        }
        Seen::Present(_) => plan.steps.extend(patch_node(facts, lease.as_ref(), quarantine)),
    }
    let accounts = |object: &Ref| object.kind == Kind::ServiceAccount;
    let retired = facts.node.spec.retirement.is_some();
    if retired {
        // tokens are those of an account's uid: all that were ever given die with it, and one that is made again under
        // the same name has none
        let there = |object: &Ref| accounts(object) && facts.existing.contains_key(object);
        let dead = access::chassis_refs(&name).into_iter().filter(there);
        plan.steps.extend(dead.map(|object| Step::Delete { object, uid: None }));
    }
    let in_place = |object: &Ref| {
        (retired && accounts(object)) || facts.existing.get(object).is_some_and(|hash| hash == access::chassis_hash())
    };
    if !access::chassis_refs(&name).iter().all(in_place) {
        for (object, body) in access::chassis(&name).into_iter().filter(|(object, _)| !in_place(object)) {
            apply(object, body, access::chassis_hash(), plan);
        }
    }
}

/// The lease whose taint the Node carries: none once the release has begun, and one that is about to be written back.
fn tainting(facts: &Facts) -> Option<LeaseRef> {
    facts.lease_ref().filter(|r| !r.releasing).cloned().or_else(|| remembered(facts))
}

/// Whether a step makes or changes the Node, its taint included.
pub(super) fn writes_node(step: &Step) -> bool {
    match step {
        Step::PatchNode { .. } => true,
        Step::Create { object, .. } => object.kind == Kind::Node,
        _ => false,
    }
}

/// Brings labels, taints and the cordon of an existing Node to what they should be, in one write.
pub(super) fn patch_node(facts: &Facts, lease: Option<&LeaseRef>, quarantine: &[Quarantine]) -> Option<Step> {
    let node = facts.kube_node.present()?;
    let patch = render::patch(node, &facts.node, lease, !quarantine.is_empty())?;
    Some(Step::PatchNode {
        name: node.name_any(),
        resource_version: node.resource_version().unwrap_or_default(),
        patch,
    })
}

/// The agent may read the instances in its slots, their placeholders and their Secrets; nothing else there.
pub(super) fn grant(facts: &Facts, hold: &Hold, plan: &mut Plan) {
    let Some(lease_ref) = facts.lease_ref() else {
        return;
    };
    if lease_ref.releasing || *hold == Hold::Unreadable || facts.namespace_ending.present() != Some(&false) {
        return; // a namespace on its way out takes nothing new; a lost Role stops nothing
    }
    let inside: Vec<_> = facts.slots().iter().filter(|s| s.namespace == lease_ref.namespace).collect();
    let secrets = inside.iter().filter_map(|s| {
        let first_boot = facts.holders.get(&s.uid)?.present()?.spec.first_boot.as_ref()?;
        Some(first_boot.script_from.secret_key_ref.name.clone())
    });
    let (role, binding) = access::lease(
        &facts.node.name_any(),
        &lease_ref.namespace,
        &inside.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(),
        &secrets.collect::<Vec<_>>(),
    );
    for (object, body) in [role, binding] {
        apply_if_changed(facts, object, body, plan);
    }
}

/// The agent may read the pull secrets of the images that its chassis is to have, by name, in the operator's namespace;
/// without a lease none.
pub(super) fn hand_on_pull_secrets(facts: &Facts, plan: &mut Plan) {
    let leased = facts.lease_ref().is_some_and(|lease| !lease.releasing);
    let prefetch = facts.status().map_or(&[][..], |status| &status.prefetch_image_names);
    let of_slot = |slot: &Slot| Some(&facts.holders.get(&slot.uid)?.present()?.spec.image_name);
    let images = prefetch.iter().chain(facts.slots().iter().filter_map(of_slot));
    let secrets: BTreeSet<String> = images.filter_map(|image| facts.pull_secrets.get(image).cloned()).collect();
    let (role, binding) = access::pull_secrets(&facts.node.name_any(), &secrets);
    for (object, body) in [role, binding] {
        if leased && !secrets.is_empty() {
            apply_if_changed(facts, object, body, plan);
        } else if facts.existing.contains_key(&object) {
            plan.steps.push(Step::Delete { object, uid: None });
        }
    }
}

/// Access in a namespace that does not have the chassis goes whenever it is seen: an earlier lease's, should a cache that
/// was behind have hidden it at the release.
pub(super) fn revoke(facts: &Facts, plan: &mut Plan) {
    let account = names::agent_account(&facts.node.name_any());
    // what there is in the operator's own namespace is looked after by `hand_on_pull_secrets`
    let own = [names::AGENT_NAMESPACE, names::SYSTEM_NAMESPACE, "kube-node-lease"];
    let holder = tainting(facts).map(|r| r.namespace);
    let left = facts.existing.keys().filter(|object| {
        matches!(object.kind, Kind::Role | Kind::RoleBinding)
            && object.name == account
            && !own.contains(&object.namespace.as_str())
            && facts.lease_ref().map(|r| &r.namespace) != Some(&object.namespace)
            && holder.as_ref() != Some(&object.namespace)
    });
    plan.steps.extend(left.map(|object| Step::Delete { object: object.clone(), uid: None }));
}

/// Applies an object unless one with the same content is there.
fn apply_if_changed(facts: &Facts, object: Ref, body: Value, plan: &mut Plan) {
    let hash = access::hash(&body);
    if facts.existing.get(&object) != Some(&hash) {
        apply(object, body, &hash, plan);
    }
}

fn apply(object: Ref, mut body: Value, hash: &str, plan: &mut Plan) {
    body["metadata"]["annotations"] = json!({ access::HASH: hash });
    plan.steps.push(Step::Apply { object, body });
}
