//! Everything the operator watches, one cache per kind. `feed` fills them.

use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::{
    Resource, ResourceExt,
    api::{DynamicObject, PartialObjectMeta},
};
use macrack_api::{
    InstanceClass, MacNode, MacNodeClass, MacNodeLease, MacOSImage, MacOSInstance, RackConfig,
    names::{FINALIZER_LEASE, LABEL_SERIAL},
};
use macrack_core::plan::Kind;
use tokio::sync::Notify;

use crate::cache::{Cache, Index};

/// Only the metadata of an object.
pub type Meta = PartialObjectMeta<DynamicObject>;

/// The caches.
pub struct World {
    /// MacNodeClasses.
    pub node_classes: Cache<MacNodeClass>,
    /// MacNodes, by `class`, `lease` (uid of leaseRef), `namespace` (of leaseRef), `slot` (uids).
    pub nodes: Cache<MacNode>,
    /// MacNodeLeases, by `class`, `waiting` (class of those that wait for any chassis), `serial` (once bound).
    pub leases: Cache<MacNodeLease>,
    /// InstanceClasses.
    pub sizes: Cache<InstanceClass>,
    /// MacOSInstances, by `lease` (uid), `leaseName` (namespace/name), `namespace`, `image`, `size`.
    pub instances: Cache<MacOSInstance>,
    /// MacOSImages.
    pub images: Cache<MacOSImage>,
    /// The RackConfig.
    pub configs: Cache<RackConfig>,
    /// Nodes of Macs.
    pub kube_nodes: Cache<Node>,
    /// Placeholders and whatever else is labelled ours.
    pub pods: Cache<Pod>,
    /// Namespaces.
    pub namespaces: Cache<Namespace>,
    /// What the operator keeps for chassis, by `serial`.
    pub kept: Vec<(Kind, Cache<Meta>)>,
    /// Told whenever a cache got its first whole list.
    pub(crate) filled: Notify,
    /// Woken by every change.
    pub changed: Notify,
}

/// Kinds that the operator keeps for chassis.
const KEPT: [Kind; 6] =
    [Kind::ServiceAccount, Kind::Lease, Kind::Role, Kind::RoleBinding, Kind::ClusterRole, Kind::ClusterRoleBinding];

fn none<K>(_: &K) -> Vec<(&'static str, String)> {
    Vec::new()
}

fn by_serial<K: Resource>(object: &K) -> Vec<(&'static str, String)> {
    object.meta().labels.as_ref().and_then(|l| l.get(LABEL_SERIAL)).map(|s| ("serial", s.clone())).into_iter().collect()
}

fn of_node(node: &MacNode) -> Vec<(&'static str, String)> {
    let mut index = vec![("class", node.spec.node_class_name.clone())];
    if let Some(status) = &node.status {
        if let Some(lease_ref) = &status.lease_ref {
            index.push(("lease", lease_ref.uid.clone()));
            index.push(("namespace", lease_ref.namespace.clone()));
        }
        index.extend(status.slots.iter().map(|s| ("slot", s.uid.clone())));
    }
    index
}

fn of_lease(lease: &MacNodeLease) -> Vec<(&'static str, String)> {
    let class = &lease.spec.node_class_name;
    let mut index = vec![("class", class.clone())];
    let status = lease.status.as_ref();
    let bound = status.is_some_and(|s| s.bound_at.is_some() || s.end.is_some());
    let ready = lease.metadata.deletion_timestamp.is_none() && lease.finalizers().iter().any(|f| f == FINALIZER_LEASE);
    if !bound && lease.spec.serial.is_none() && ready {
        index.push(("waiting", class.clone()));
    }
    index.extend(status.and_then(|s| s.serial.clone()).map(|s| ("serial", s)));
    index
}

fn of_instance(instance: &MacOSInstance) -> Vec<(&'static str, String)> {
    let namespace = instance.namespace().unwrap_or_default();
    let mut index = vec![
        ("leaseName", format!("{namespace}/{}", instance.spec.lease_name)),
        ("namespace", namespace),
        ("image", instance.spec.image_name.clone()),
        ("size", instance.spec.instance_class_name.clone()),
    ];
    index.extend(instance.status.as_ref().and_then(|s| s.lease_uid.clone()).map(|uid| ("lease", uid)));
    index
}

impl World {
    /// Empty caches.
    pub fn new() -> Self {
        Self {
            node_classes: Cache::new(none),
            nodes: Cache::new(of_node),
            leases: Cache::new(of_lease),
            sizes: Cache::new(none),
            instances: Cache::new(of_instance),
            images: Cache::new(none),
            configs: Cache::new(none),
            kube_nodes: Cache::new(by_serial as Index<Node>),
            pods: Cache::new(none),
            namespaces: Cache::new(none),
            kept: KEPT.iter().map(|kind| (*kind, Cache::new(by_serial as Index<Meta>))).collect(),
            filled: Notify::new(),
            changed: Notify::new(),
        }
    }

    /// Waits until every cache has its first whole list.
    pub async fn whole(&self) {
        loop {
            let filled = self.filled.notified();
            if self.is_ready() {
                return;
            }
            filled.await;
        }
    }

    /// Whether every cache has its first whole list. Before that nothing is decided.
    pub fn is_ready(&self) -> bool {
        self.node_classes.is_ready()
            && self.nodes.is_ready()
            && self.leases.is_ready()
            && self.sizes.is_ready()
            && self.instances.is_ready()
            && self.images.is_ready()
            && self.configs.is_ready()
            && self.kube_nodes.is_ready()
            && self.pods.is_ready()
            && self.namespaces.is_ready()
            && self.kept.iter().all(|(_, cache)| cache.is_ready())
    }
}

impl Default for World {
    fn default() -> Self {
        Self::new()
    }
}
