//! What every played part sees and reaches: caches of the cluster's objects, queues, faults, running domains.
//!
//! Invariant: caches are read, the API server is written; a write names the object it was decided on by
//! resourceVersion where two parts could write it. Objects that a part makes have names that follow from what they
//! are made for, so that a cache that lags never makes a second one.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::Result;
use dockerios_kubevirt::{DataVolume, StorageProfile, VirtualMachine, VirtualMachineInstance, names};
use futures::StreamExt;
use k8s_openapi::{
    api::{
        core::v1::{ConfigMap, Node, PersistentVolume, PersistentVolumeClaim, Pod},
        storage::v1::StorageClass,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    core::DynamicObject,
    runtime::{
        WatchStreamExt,
        events::{Event, EventType, Recorder, Reporter},
        reflector::{Lookup, ObjectRef, Store, store::Writer},
        watcher,
    },
};
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;

use crate::{
    Options,
    domains::Domains,
    faults::{Fault, Faults},
    kubelet::Programs,
    queue::{Key, Queue},
};

/// Namespace of the simulator's own objects.
pub const NAMESPACE: &str = "dockerios-sim";
/// Label of nodes that are played here.
pub const NODE_LABEL: &str = "sim.dockerios.io/node";

/// One queue for each kind that a part works on.
#[derive(Clone, Debug)]
pub(crate) struct Queues {
    pub(crate) machines: Queue,
    pub(crate) instances: Queue,
    pub(crate) volumes: Queue,
    pub(crate) claims: Queue,
    pub(crate) persistent: Queue,
    pub(crate) pods: Queue,
    pub(crate) nodes: Queue,
    pub(crate) classes: Queue,
    pub(crate) snapshots: Queue,
}

/// The caches.
#[derive(Debug)]
pub(crate) struct Stores {
    pub(crate) machines: Store<VirtualMachine>,
    pub(crate) instances: Store<VirtualMachineInstance>,
    pub(crate) volumes: Store<DataVolume>,
    pub(crate) claims: Store<PersistentVolumeClaim>,
    pub(crate) persistent: Store<PersistentVolume>,
    pub(crate) pods: Store<Pod>,
    pub(crate) nodes: Store<Node>,
    pub(crate) classes: Store<StorageClass>,
    pub(crate) profiles: Store<StorageProfile>,
    pub(crate) snapshots: Store<DynamicObject>,
}

pub(crate) struct World {
    pub(crate) client: Client,
    pub(crate) options: Options,
    pub(crate) faults: Faults,
    pub(crate) stores: Stores,
    pub(crate) queues: Queues,
    pub(crate) domains: Domains,
    pub(crate) programs: Programs,
    pub(crate) recorder: Recorder,
    clocks: Mutex<HashMap<(String, &'static str), Instant>>,
}

impl World {
    pub(crate) fn new(client: Client, options: Options, stores: Stores, queues: Queues) -> Arc<Self> {
        let reporter = Reporter {
            controller: "dockerios-sim".to_owned(),
            instance: None,
        };
        Arc::new(Self {
            recorder: Recorder::new(client.clone(), reporter),
            client,
            options,
            faults: Faults::default(),
            stores,
            queues,
            domains: Domains::default(),
            programs: Programs::default(),
            clocks: Mutex::default(),
        })
    }

    pub(crate) fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<Scope = kube::core::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// How long ago this was first asked of that object. A simulator that was restarted begins anew.
    pub(crate) fn elapsed(&self, uid: &str, what: &'static str) -> Duration {
        let mut clocks = self.clocks.lock().unwrap_or_else(PoisonError::into_inner);
        clocks
            .entry((uid.to_owned(), what))
            .or_insert_with(Instant::now)
            .elapsed()
    }

    /// What is left of `total` since this was first asked; `None` when it is over.
    pub(crate) fn left(&self, uid: &str, what: &'static str, total: Duration) -> Option<Duration> {
        total
            .checked_sub(self.elapsed(uid, what))
            .filter(|left| !left.is_zero())
    }

    /// Forgets the times of an object that is gone.
    pub(crate) fn forget(&self, uid: &str) {
        let mut clocks = self.clocks.lock().unwrap_or_else(PoisonError::into_inner);
        clocks.retain(|(known, _), _| known != uid);
    }

    pub(crate) fn fault(&self, fault: Fault, meta: &ObjectMeta) -> Option<String> {
        let (namespace, name) = (
            meta.namespace.as_deref().unwrap_or(""),
            meta.name.as_deref().unwrap_or(""),
        );
        self.faults.get(fault, namespace, name, &[meta.annotations.as_ref()])
    }

    /// The same for an instance, whose VirtualMachine may carry the annotation.
    pub(crate) fn instance_fault(&self, fault: Fault, vmi: &VirtualMachineInstance) -> Option<String> {
        let (namespace, name) = (ResourceExt::namespace(vmi).unwrap_or_default(), vmi.name_any());
        let machine = self.machine(&Key::new(&*namespace, &*name));
        let of_machine = machine.as_ref().and_then(|vm| vm.metadata.annotations.as_ref());
        self.faults.get(
            fault,
            &namespace,
            &name,
            &[vmi.metadata.annotations.as_ref(), of_machine],
        )
    }

    pub(crate) fn node_is_lost(&self, name: &str) -> bool {
        let node = self.stores.nodes.get(&ObjectRef::new(name));
        let annotations = node.as_ref().and_then(|node| node.metadata.annotations.as_ref());
        self.faults.get(Fault::NodeLost, "", name, &[annotations]).is_some()
    }

    pub(crate) fn machine(&self, key: &Key) -> Option<Arc<VirtualMachine>> {
        self.stores
            .machines
            .get(&ObjectRef::new(&key.name).within(&key.namespace))
    }

    pub(crate) fn instance(&self, key: &Key) -> Option<Arc<VirtualMachineInstance>> {
        self.stores
            .instances
            .get(&ObjectRef::new(&key.name).within(&key.namespace))
    }

    pub(crate) fn volume(&self, key: &Key) -> Option<Arc<DataVolume>> {
        self.stores
            .volumes
            .get(&ObjectRef::new(&key.name).within(&key.namespace))
    }

    pub(crate) fn claim(&self, key: &Key) -> Option<Arc<PersistentVolumeClaim>> {
        self.stores
            .claims
            .get(&ObjectRef::new(&key.name).within(&key.namespace))
    }

    pub(crate) fn pod(&self, key: &Key) -> Option<Arc<Pod>> {
        self.stores.pods.get(&ObjectRef::new(&key.name).within(&key.namespace))
    }

    /// Launcher pods of an instance, those that only wait for volumes too.
    pub(crate) fn launchers(&self, namespace: &str, uid: &str) -> Vec<Arc<Pod>> {
        self.stores.pods.state_filter(|pod| {
            pod.metadata.namespace.as_deref() == Some(namespace)
                && pod.labels().get(names::CREATED_BY).is_some_and(|by| by == uid)
        })
    }

    /// An event on an object. That it cannot be written changes nothing.
    pub(crate) async fn tell<K>(&self, object: &K, type_: EventType, reason: &str, note: String)
    where
        K: Resource<DynamicType = ()>,
    {
        let event = Event {
            type_,
            reason: reason.to_owned(),
            note: Some(note),
            action: reason.to_owned(),
            secondary: None,
        };
        if let Err(error) = self.recorder.publish(&event, &object.object_ref(&())).await {
            tracing::debug!("event {reason} is lost: {error}");
        }
    }

    /// Everything is looked at again: faults have changed.
    pub(crate) fn touch_all(&self) {
        self.stores
            .machines
            .state()
            .iter()
            .for_each(|o| self.queues.machines.add(Key::of(&**o)));
        self.stores
            .instances
            .state()
            .iter()
            .for_each(|o| self.queues.instances.add(Key::of(&**o)));
        self.stores
            .volumes
            .state()
            .iter()
            .for_each(|o| self.queues.volumes.add(Key::of(&**o)));
        self.stores
            .claims
            .state()
            .iter()
            .for_each(|o| self.queues.claims.add(Key::of(&**o)));
        self.stores
            .pods
            .state()
            .iter()
            .for_each(|o| self.queues.pods.add(Key::of(&**o)));
        self.stores
            .nodes
            .state()
            .iter()
            .for_each(|o| self.queues.nodes.add(Key::of(&**o)));
    }
}

/// Keeps a cache and says what was touched.
pub(crate) fn feed<K>(
    tasks: &mut JoinSet<()>,
    api: Api<K>,
    config: watcher::Config,
    mut writer: Writer<K>,
    touch: impl Fn(&K) + Send + 'static,
) where
    K: Resource + Lookup + Clone + DeserializeOwned + std::fmt::Debug + Send + Sync + 'static,
    <K as Resource>::DynamicType: Clone + Eq + std::hash::Hash,
    <K as Lookup>::DynamicType: Clone + Eq + std::hash::Hash + Send + Sync,
{
    tasks.spawn(async move {
        let reader = writer.as_reader();
        let stream = watcher(api, config).default_backoff().modify(|object| {
            object.managed_fields_mut().clear();
        });
        let mut stream = std::pin::pin!(stream);
        while let Some(event) = stream.next().await {
            match event {
                Ok(event) => {
                    writer.apply_watcher_event(&event);
                    match &event {
                        watcher::Event::Apply(object) | watcher::Event::Delete(object) => touch(object),
                        watcher::Event::InitDone => reader.state().iter().for_each(|object| touch(object)),
                        watcher::Event::Init | watcher::Event::InitApply(_) => {}
                    }
                }
                Err(error) => tracing::debug!("watch: {error}"),
            }
        }
    });
}

/// The faults' ConfigMap is read whenever it changes.
pub(crate) fn read_faults(world: &World, map: Option<&ConfigMap>) {
    for refused in world.faults.read(map.and_then(|map| map.data.as_ref())) {
        tracing::warn!("ConfigMap {NAMESPACE}/faults: {refused}");
    }
    world.touch_all();
}

/// Whether an error of the API server says that.
pub(crate) fn has_code(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

/// A thing that is already there, or already gone, is as wished.
pub(crate) fn unless<T>(result: kube::Result<T>, code: u16) -> Result<Option<T>> {
    match result {
        Ok(done) => Ok(Some(done)),
        Err(error) if has_code(&error, code) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The time now as the API server writes it.
pub(crate) fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// A short word that follows from what it is given, in the alphabet of generated names.
pub(crate) fn suffix(parts: &[&str]) -> String {
    let mut hash = crc32fast::Hasher::new();
    for part in parts {
        hash.update(part.as_bytes());
        hash.update(&[0]);
    }
    let (mut rest, mut word) = (hash.finalize(), String::new());
    for _ in 0..5 {
        word.push(char::from(b"bcdfghjklmnpqrstvwxz2456789"[(rest % 27) as usize]));
        rest /= 27;
    }
    word
}
