//! The facts of one lease.

use kube::ResourceExt;
use macrack_api::{MacNode, MacNodeLease, names, rack::node::MacNodeReason};
use macrack_core::{
    clock::Clocks,
    decide::{
        self,
        lease::{Candidate, Facts, free_at},
        node::{Leasable, leasable},
    },
    plan::{Kind, Ref},
    seen::Seen,
};

use super::{Pass, Sources, own_part};
use crate::cache::Key;

/// Gathers and decides one lease.
pub async fn lease(sources: &Sources, key: &Key) -> Option<Pass> {
    let world = &sources.world;
    let lease = match world.leases.get(key) {
        Seen::Present(lease) => lease,
        Seen::Absent => return None,
        Seen::Unknown(why) => {
            tracing::warn!(namespace = key.namespace, name = key.name, why, "this MacNodeLease is left as it is");
            return None;
        }
    };
    let uid = lease.uid().unwrap_or_default();
    let holder = holder(sources, &lease, &uid).await;
    let now = sources.clock.now();
    let mut facts = Facts {
        clocks: sources.clock.operator(),
        named: named(sources, &lease),
        class: world.node_classes.get(&Key::cluster(&lease.spec.node_class_name)).map(|_| ()),
        candidates: if holder.is_absent() {
            candidates(sources, &lease, &sources.clock.operator())
        } else {
            Vec::new()
        },
        ahead: ahead(sources, &lease),
        lease: lease.as_ref().clone(),
        holder,
    };
    let lease_ref = facts.holder.present().and_then(|h| h.status.as_ref()?.lease_ref.clone());
    let choosing = facts.holder.is_absent() && decide::lease::choose(&facts).is_some();
    if decide::lease::needs_server_clock(&lease, lease_ref.as_ref(), choosing, now) {
        facts.clocks = sources.clock.both().await;
    }
    Some(Pass {
        turn: None,
        of: Ref::namespaced(Kind::MacNodeLease, &key.namespace, &key.name),
        uid,
        plan: decide::lease::decide(&facts),
        status: own_part(lease.status.as_ref(), &[]),
        verdict: Ok(()),
    })
}

/// The chassis whose leaseRef has this uid. Where the lease is about to be let go, "none" is asked of the API server
/// itself: a binding written moments ago by an earlier leader must be seen.
async fn holder(sources: &Sources, lease: &MacNodeLease, uid: &str) -> Seen<MacNode> {
    if let Some(node) = sources.world.nodes.by("lease", uid).into_iter().next() {
        return Seen::Present(node.as_ref().clone());
    }
    let ended = lease.status.as_ref().is_some_and(|s| s.end.is_some());
    if lease.metadata.deletion_timestamp.is_none() && !ended {
        return Seen::Absent;
    }
    sources.node_where(|status| status["leaseRef"]["uid"] == uid).await
}

fn named(sources: &Sources, lease: &MacNodeLease) -> Seen<MacNode> {
    let Some(serial) = lease.status.as_ref().and_then(|s| s.serial.as_ref()) else { return Seen::Absent };
    sources.world.nodes.get(&Key::cluster(names::mac_node(serial))).map(|n| n.as_ref().clone())
}

/// Every chassis of the class, by name.
fn candidates(sources: &Sources, lease: &MacNodeLease, clocks: &Clocks) -> Vec<Candidate> {
    let world = &sources.world;
    let class = world.node_classes.get(&Key::cluster(&lease.spec.node_class_name)).map(|c| c.as_ref().clone());
    let nodes = world.nodes.by("class", &lease.spec.node_class_name);
    let dying = is_dying(sources, lease);
    let one = |node: &MacNode| {
        let name = node.name_any();
        let kube_node = world.kube_nodes.get(&Key::cluster(names::node(&name))).map(|n| n.as_ref().clone());
        let claimed = world
            .leases
            .by("serial", &node.spec.serial)
            .iter()
            .any(|l| l.uid() != lease.uid() && decide::lease::claims(l, clocks))
            || super::node::unreadable_claim(world, node).is_some();
        Candidate {
            leasable: if dying {
                Leasable::No(MacNodeReason::Deleting, "the namespace of this lease is being deleted".into())
            } else {
                leasable(node, &class, &kube_node, claimed, clocks.operator)
            },
            free_at: free_at(node),
            remembered: decide::node::remembered_floor(node),
            uid: node.uid().unwrap_or_default(),
            serial: node.spec.serial.clone(),
            name,
        }
    };
    nodes.iter().map(|n| one(n)).collect()
}

/// How many older leases wait for any chassis of the class.
fn ahead(sources: &Sources, lease: &MacNodeLease) -> usize {
    let world = &sources.world;
    let rank = |l: &MacNodeLease| (l.creation_timestamp().map(|t| t.0), l.namespace(), l.name_any());
    let mine = rank(lease);
    let waits =
        |l: &MacNodeLease| l.uid().is_some_and(|uid| world.nodes.by("lease", &uid).is_empty()) && !is_dying(sources, l);
    world.leases.by("waiting", &lease.spec.node_class_name).iter().filter(|l| rank(l) < mine && waits(l)).count()
}

/// Whether its namespace is being deleted: it still waits there while the namespace's pods end, and would take a Mac for
/// a day in which nobody can use it.
fn is_dying(sources: &Sources, lease: &MacNodeLease) -> bool {
    let namespace = sources.world.namespaces.get(&Key::cluster(lease.namespace().unwrap_or_default()));
    namespace.present().is_some_and(|ns| ns.metadata.deletion_timestamp.is_some())
}
