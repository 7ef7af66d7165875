//! What the operator keeps around a chassis: its finalizer, its Node with the taint that leaseRef implies, the
//! access of its agent.

use kube::ResourceExt;
use macrack_api::{
    names::{self, FINALIZER_NODE},
    rack::node::LeaseRef,
};
use serde_json::{Value, json};

use super::{Facts, Hold};
use crate::{
    clock::floor,
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
            plan.steps.push(Step::RemoveFinalizer { of, finalizer: FINALIZER_NODE, finalizers, resource_version });
        }
        _ => {}
    }
}

/// A MacNode that was made again gets back the leaseRef that its lease remembers, with the same clock.
pub(super) fn restore_lease(facts: &Facts, plan: &mut Plan) {
    let (None, Seen::Present(lease), Some(_)) = (facts.lease_ref(), &facts.claim, &facts.node.status) else {
        return;
    };
    let Some(status) = &lease.status else { return };
    let (Some(bound_at), Some(earliest)) = (&status.bound_at, &status.earliest_release_at) else {
        return;
    };
    let earliest = earliest.0.max(floor(bound_at.0, &lease.spec.minimum_duration));
    plan.steps.push(Step::Bind {
        mac_node: facts.node.name_any(),
        mac_node_uid: facts.node.uid().unwrap_or_default(),
        lease_ref: LeaseRef {
            namespace: lease.namespace().unwrap_or_default(),
            name: lease.name_any(),
            uid: lease.uid().unwrap_or_default(),
            bound_at: bound_at.clone(),
            earliest_release_at: crate::clock::time(earliest),
            releasing: false,
        },
    });
}

/// The Node and the agent's own access exist and are as they should be.
pub(super) fn ensure(facts: &Facts, plan: &mut Plan) {
    let name = facts.node.name_any();
    let lease = tainting(facts);
    match &facts.kube_node {
        Seen::Unknown(_) => {}
        Seen::Absent => {
            let object = Ref::cluster(Kind::Node, &names::node(&name));
            plan.steps.push(Step::Create { object, body: render::new(&facts.node, lease) });
        }
        Seen::Present(_) => plan.steps.extend(patch_node(facts, lease)),
    }
    for (object, body) in access::chassis(&name) {
        apply_if_changed(facts, object, body, plan);
    }
}

/// The lease whose taint the Node carries: none once the release has begun.
fn tainting(facts: &Facts) -> Option<&LeaseRef> {
    facts.lease_ref().filter(|r| !r.releasing)
}

/// Brings labels, taints and the cordon of an existing Node to what they should be, in one write.
pub(super) fn patch_node(facts: &Facts, lease: Option<&LeaseRef>) -> Option<Step> {
    let node = facts.kube_node.present()?;
    let quarantined = !super::quarantine::decide(&facts.node, facts.clocks.operator).is_empty();
    let patch = render::patch(node, &facts.node, lease, quarantined)?;
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
    let slots = facts.status().slots;
    let inside: Vec<_> = slots.iter().filter(|s| s.namespace == lease_ref.namespace).collect();
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

/// Applies an object unless one with the same content is there.
fn apply_if_changed(facts: &Facts, object: Ref, mut body: Value, plan: &mut Plan) {
    let hash = access::hash(&body);
    if facts.existing.get(&object) == Some(&hash) {
        return;
    }
    body["metadata"]["annotations"] = json!({ access::HASH: hash });
    plan.steps.push(Step::Apply { object, body });
}
