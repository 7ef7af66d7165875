//! What must be looked at again when something changed.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::{Resource, ResourceExt};
use macrack_api::{
    InstanceClass, MacNode, MacNodeClass, MacNodeLease, MacOSImage, MacOSInstance, RackConfig,
    names::{self, LABEL_SERIAL},
};
use macrack_core::plan::Kind;

use crate::{
    cache::{Change, Entry, Key},
    world::{Meta, World},
};

/// One object to look at.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Work {
    /// Its kind.
    pub kind: Kind,
    /// Its name.
    pub key: Key,
}

fn work(kind: Kind, key: Key) -> Work {
    Work { kind, key }
}

fn of<K: Resource>(kind: Kind, objects: Vec<Arc<K>>) -> impl Iterator<Item = Work> {
    objects.into_iter().map(move |o| work(kind, Key::of(o.meta())))
}

fn both<K>(change: &Change<K>) -> impl Iterator<Item = &K> {
    let new = change.new.as_ref().and_then(|e| if let Entry::Good(o) = e { Some(o.as_ref()) } else { None });
    change.old.as_deref().into_iter().chain(new)
}

pub(crate) fn node_class(world: &World, change: &Change<MacNodeClass>) -> Vec<Work> {
    let class = &change.key.name;
    [work(Kind::MacNodeClass, change.key.clone())]
        .into_iter()
        .chain(of(Kind::MacNode, world.nodes.by("class", class)))
        .chain(of(Kind::MacNodeLease, world.leases.by("class", class)))
        .collect()
}

pub(crate) fn node(world: &World, change: &Change<MacNode>) -> Vec<Work> {
    let mut all = vec![work(Kind::MacNode, change.key.clone())];
    for node in both(change) {
        let class = &node.spec.node_class_name;
        all.push(work(Kind::MacNodeClass, Key::cluster(class.clone())));
        all.extend(of(Kind::MacNodeLease, world.leases.by("waiting", class)));
        all.extend(of(Kind::MacNodeLease, world.leases.by("serial", &node.spec.serial)));
        let Some(status) = &node.status else { continue };
        if let Some(lease_ref) = &status.lease_ref {
            all.push(work(Kind::MacNodeLease, Key::new(&lease_ref.namespace, &lease_ref.name)));
            all.extend(of(Kind::MacOSInstance, world.instances.by("lease", &lease_ref.uid)));
        }
        all.extend(status.slots.iter().map(|s| work(Kind::MacOSInstance, Key::new(&s.namespace, &s.name))));
    }
    let goldens = |node: &MacNode| {
        let agent = node.status.as_ref()?.agent.as_ref()?;
        Some(agent.goldens.iter().map(|g| g.digest.clone()).collect::<Vec<_>>())
    };
    let mut seen = both(change).map(goldens);
    if seen.next() != seen.next() {
        all.extend(of(Kind::MacOSImage, world.images.all()));
    }
    all.sort_by(|a, b| (a.kind, &a.key).cmp(&(b.kind, &b.key)));
    all.dedup();
    all
}

pub(crate) fn lease(world: &World, change: &Change<MacNodeLease>) -> Vec<Work> {
    let mut all = vec![work(Kind::MacNodeLease, change.key.clone())];
    let name = format!("{}/{}", change.key.namespace, change.key.name);
    all.extend(of(Kind::MacOSInstance, world.instances.by("leaseName", &name)));
    for lease in both(change) {
        if let Some(uid) = lease.uid() {
            all.extend(of(Kind::MacNode, world.nodes.by("lease", &uid)));
        }
        if let Some(serial) = lease.status.as_ref().and_then(|s| s.serial.as_ref()) {
            all.push(work(Kind::MacNode, Key::cluster(names::mac_node(serial))));
        }
    }
    // those that wait move up when one goes or is bound
    let waits = |l: &MacNodeLease| {
        l.status.as_ref().is_none_or(|s| s.bound_at.is_none()) && l.metadata.deletion_timestamp.is_none()
    };
    let moved =
        change.old.as_deref().is_some_and(waits) && !both(change).last().is_some_and(waits) || change.new.is_none();
    if moved {
        for lease in both(change).take(1) {
            all.extend(of(Kind::MacNodeLease, world.leases.by("waiting", &lease.spec.node_class_name)));
        }
    }
    all
}

pub(crate) fn size(world: &World, change: &Change<InstanceClass>) -> Vec<Work> {
    [work(Kind::InstanceClass, change.key.clone())]
        .into_iter()
        .chain(of(Kind::MacOSInstance, world.instances.by("size", &change.key.name)))
        .collect()
}

pub(crate) fn instance(world: &World, change: &Change<MacOSInstance>) -> Vec<Work> {
    let mut all = vec![work(Kind::MacOSInstance, change.key.clone())];
    for instance in both(change) {
        if let Some(uid) = instance.uid() {
            all.extend(of(Kind::MacNode, world.nodes.by("slot", &uid)));
        }
        if let Some(lease) = instance.status.as_ref().and_then(|s| s.lease_uid.as_ref()) {
            all.extend(of(Kind::MacNode, world.nodes.by("lease", lease)));
            // a neighbour that begins to go, or is gone, is a slot that comes free
            let going = change.new.is_none() || instance.metadata.deletion_timestamp.is_some();
            if going {
                all.extend(of(Kind::MacOSInstance, world.instances.by("lease", lease)));
            }
        }
    }
    all
}

pub(crate) fn image(world: &World, change: &Change<MacOSImage>) -> Vec<Work> {
    [work(Kind::MacOSImage, change.key.clone())]
        .into_iter()
        .chain(of(Kind::MacOSInstance, world.instances.by("image", &change.key.name)))
        // one that is pulled ahead may come after the lease that names it, with a pull secret to be handed on
        .chain(of(Kind::MacNode, prefetching(world, &change.key.name)))
        .collect()
}

fn prefetching(world: &World, image: &str) -> Vec<Arc<MacNode>> {
    let named = |node: &Arc<MacNode>| {
        node.status.as_ref().is_some_and(|status| status.prefetch_image_names.iter().any(|name| name == image))
    };
    world.nodes.all().into_iter().filter(named).collect()
}

pub(crate) fn config(world: &World, change: &Change<RackConfig>) -> Vec<Work> {
    [work(Kind::RackConfig, change.key.clone())].into_iter().chain(of(Kind::MacNode, world.nodes.all())).collect()
}

pub(crate) fn kube_node(world: &World, change: &Change<Node>) -> Vec<Work> {
    let mut all = Vec::new();
    for node in both(change) {
        let Some(name) = node.labels().get(LABEL_SERIAL) else { continue };
        let key = Key::cluster(name.clone());
        if let Some(mac) = world.nodes.get(&key).present() {
            let slots = mac.status.as_ref().map(|s| s.slots.as_slice()).unwrap_or_default();
            all.extend(slots.iter().map(|s| work(Kind::MacOSInstance, Key::new(&s.namespace, &s.name))));
            all.extend(of(Kind::MacNodeLease, world.leases.by("waiting", &mac.spec.node_class_name)));
        }
        all.push(work(Kind::MacNode, key));
    }
    all
}

pub(crate) fn pod(_: &World, change: &Change<Pod>) -> Vec<Work> {
    let instance = change.key.name.strip_prefix(names::POD_PREFIX);
    instance.map(|name| work(Kind::MacOSInstance, Key::new(&change.key.namespace, name))).into_iter().collect()
}

pub(crate) fn namespace(world: &World, change: &Change<Namespace>) -> Vec<Work> {
    let ending = |ns: &Namespace| ns.metadata.deletion_timestamp.is_some();
    let began = change.new.is_none() || both(change).last().is_some_and(ending);
    if !began {
        return Vec::new();
    }
    // its leases that wait leave the line: those behind them move up
    let theirs = world.leases.all().into_iter().filter(|l| l.namespace().as_ref() == Some(&change.key.name));
    let moved: BTreeSet<String> = theirs.map(|l| l.spec.node_class_name.clone()).collect();
    of(Kind::MacNode, world.nodes.by("namespace", &change.key.name))
        .chain(moved.iter().flat_map(|class| of(Kind::MacNodeLease, world.leases.by("waiting", class))))
        .chain(of(Kind::MacOSInstance, world.instances.by("namespace", &change.key.name)))
        .collect()
}

pub(crate) fn kept(change: &Change<Meta>) -> Vec<Work> {
    let serial = |meta: &Meta| meta.labels().get(LABEL_SERIAL).cloned();
    both(change).filter_map(serial).map(|name| work(Kind::MacNode, Key::cluster(name))).collect()
}
