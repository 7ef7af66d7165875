//! Development only: plays KubeVirt, CDI, a CSI driver and kubelets on a control plane without hardware.
//!
//! Real are the API server, its controllers and its scheduler, and this workspace's hook, guest agent and bootdisk
//! builder, which are run as processes. Played is what needs a hypervisor, a storage system or a node. No macOS boots
//! here, and virtualising it off Apple hardware is outside Apple's licence; the platform is for learning, and for
//! Intel Macs while they last.
//!
//! Invariant: state is in the cluster's objects; a simulator that is killed and started again goes on from them.
//!
//! ```text
//! kubevirt/  virt-api's refusals, virt-controller   domains  one task per machine: hook, guest, end
//! cdi/       DataVolumes                            hook     the launcher's side of the hook protocol
//! csi        volumes, snapshots, free space         domain   the domain's XML
//! kubelet/   nodes, pods, programs                  guest    the agent and what it sees
//! served/    webhooks, subresources, screens        faults   what goes wrong on demand
//! ```

mod cdi;
mod child;
mod csi;
mod domain;
mod domains;
mod faults;
mod guest;
mod hook;
mod install;
mod kubelet;
mod kubevirt;
mod options;
mod queue;
mod served;
mod world;

use std::{future::Future, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client, ResourceExt,
    runtime::{reflector, watcher},
};
use tokio::{sync::mpsc::UnboundedReceiver, task::JoinSet};

pub use faults::{Fault, PREFIX, Rule};
pub use guest::Stage;
pub use options::{ClassShape, NodeShape, Options, Programs, Timings};
pub use world::NAMESPACE;

use queue::{Again, Key, Queue};
use world::{Queues, Stores, World, feed};

/// How long the caches may take to fill.
const CACHES: Duration = Duration::from_secs(60);

/// A running simulator. Dropped, everything that it runs ends; the cluster's objects stay.
pub struct Sim {
    world: Arc<World>,
    _tasks: JoinSet<()>,
}

impl Sim {
    /// Installs what is played and begins to play. The client needs every right.
    pub async fn start(client: Client, options: Options) -> Result<Self> {
        for (what, program) in [
            ("hook", &options.programs.hook),
            ("bootdisk", &options.programs.bootdisk),
        ] {
            if !program.is_file() {
                bail!(
                    "the {what} program {} is not there: build the workspace first",
                    program.display()
                );
            }
        }
        hook::private(&options.dir).with_context(|| format!("{}", options.dir.display()))?;
        kubelet::scripts(&options)?;
        install::definitions(&client, &options).await?;
        install::objects(&client, &options).await?;
        let mut tasks = JoinSet::new();
        let world = wire(client.clone(), options, &mut tasks).await?;
        let served = served::serve(&world, &mut tasks).await?;
        install::registrations(&client, &served).await?;
        let listening = world.clone();
        tasks.spawn(async move {
            if let Err(error) = guest::listen(listening).await {
                tracing::error!("guests cannot shut themselves down: {error:#}");
            }
        });
        tasks.spawn(kubelet::heartbeats(world.clone()));
        Ok(Self { world, _tasks: tasks })
    }

    /// Lets something go wrong until it is cleared: `FAULT NAMESPACE/NAME [VALUE]`, see [`Fault`].
    pub fn fault(&self, line: &str) -> Result<()> {
        let rule: Rule = line.parse().map_err(anyhow::Error::msg)?;
        self.world.faults.set(rule);
        self.world.touch_all();
        Ok(())
    }

    /// Takes away what [`Sim::fault`] was asked for, in the same words without the value.
    pub fn clear(&self, line: &str) -> Result<()> {
        let rule: Rule = line.parse().map_err(anyhow::Error::msg)?;
        self.world.faults.clear(rule.fault, &rule.namespace, &rule.name);
        self.world.touch_all();
        Ok(())
    }

    /// The XML that a machine's QEMU would have been started with; it holds the SMC's key. `None` while it is not up.
    pub fn domain(&self, namespace: &str, instance: &str) -> Option<String> {
        let vmi = self.world.instance(&Key::new(namespace, instance))?;
        self.world.domains.xml(&vmi.uid()?)
    }

    /// How far a machine's guest has come. `None` while it is not up.
    pub fn stage(&self, namespace: &str, instance: &str) -> Option<Stage> {
        let vmi = self.world.instance(&Key::new(namespace, instance))?;
        self.world.domains.stage(&vmi.uid()?)
    }

    /// Whether an agent runs in a machine's guest, as last looked after. `None` while the machine is not up.
    pub fn has_agent(&self, namespace: &str, instance: &str) -> Option<bool> {
        let vmi = self.world.instance(&Key::new(namespace, instance))?;
        self.world.domains.has_agent(&vmi.uid()?)
    }

    /// What the simulator was told.
    pub fn options(&self) -> &Options {
        &self.world.options
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        self.world.domains.abandon();
        self.world.programs.abandon();
    }
}

fn spawn<F, W>(tasks: &mut JoinSet<()>, world: &Arc<World>, what: &'static str, keys: UnboundedReceiver<Key>, work: F)
where
    F: Fn(Arc<World>, Key) -> W + Send + Sync + 'static,
    W: Future<Output = Result<Again>> + Send + 'static,
{
    let world = world.clone();
    tasks.spawn(queue::run(what, keys, move |key| work(world.clone(), key)));
}

/// Caches, queues and workers.
async fn wire(client: Client, options: Options, tasks: &mut JoinSet<()>) -> Result<Arc<World>> {
    let (machines, machine_keys) = Queue::new();
    let (instances, instance_keys) = Queue::new();
    let (volumes, volume_keys) = Queue::new();
    let (claims, claim_keys) = Queue::new();
    let (persistent, persistent_keys) = Queue::new();
    let (pods, pod_keys) = Queue::new();
    let (nodes, node_keys) = Queue::new();
    let (classes, class_keys) = Queue::new();
    let (snapshots, snapshot_keys) = Queue::new();
    let queues = Queues {
        machines,
        instances,
        volumes,
        claims,
        persistent,
        pods,
        nodes,
        classes,
        snapshots,
    };
    let snapshot_writer = reflector::store::Writer::new(csi::snapshot_kind());
    let (vm_store, vm_writer) = reflector::store();
    let (vmi_store, vmi_writer) = reflector::store();
    let (dv_store, dv_writer) = reflector::store();
    let (pvc_store, pvc_writer) = reflector::store();
    let (pv_store, pv_writer) = reflector::store();
    let (pod_store, pod_writer) = reflector::store();
    let (node_store, node_writer) = reflector::store();
    let (class_store, class_writer) = reflector::store();
    let (profile_store, profile_writer) = reflector::store();
    let stores = Stores {
        machines: vm_store,
        instances: vmi_store,
        volumes: dv_store,
        claims: pvc_store,
        persistent: pv_store,
        pods: pod_store,
        nodes: node_store,
        classes: class_store,
        profiles: profile_store,
        snapshots: snapshot_writer.as_reader(),
    };
    let with_snapshots = install::has_snapshots(&client).await?;
    let world = World::new(client.clone(), options, stores, queues);
    let all = watcher::Config::default;

    // what waits for a volume looks again when anything about one changes in its namespace
    let waiting = |world: &World, namespace: &str| {
        for vmi in world.stores.instances.state() {
            let pending = vmi.status.as_ref().and_then(|status| status.phase).unwrap_or_default();
            if vmi.metadata.namespace.as_deref() == Some(namespace)
                && pending == dockerios_kubevirt::vmi::VmiPhase::Pending
            {
                world.queues.instances.add(Key::of(&*vmi));
            }
        }
    };
    let w = world.clone();
    feed(tasks, Api::all(client.clone()), all(), vm_writer, move |vm| {
        w.queues.machines.add(Key::of(vm));
        w.queues.instances.add(Key::of(vm));
    });
    let w = world.clone();
    feed(tasks, Api::all(client.clone()), all(), vmi_writer, move |vmi| {
        w.queues.instances.add(Key::of(vmi));
        w.queues.machines.add(Key::of(vmi));
    });
    let w = world.clone();
    feed(tasks, Api::all(client.clone()), all(), dv_writer, move |volume| {
        w.queues.volumes.add(Key::of(volume));
        waiting(&w, &volume.namespace().unwrap_or_default());
    });
    let w = world.clone();
    feed(
        tasks,
        Api::all(client.clone()),
        all(),
        pvc_writer,
        move |claim: &k8s_openapi::api::core::v1::PersistentVolumeClaim| {
            w.queues.claims.add(Key::of(claim));
            w.queues.volumes.add(Key::of(claim));
            waiting(&w, &claim.namespace().unwrap_or_default());
            // clones of this one
            for volume in w.stores.volumes.state() {
                let source = volume.spec.source.as_ref().and_then(|source| source.pvc.as_ref());
                if source.is_some_and(|from| Key::new(&*from.namespace, &*from.name) == Key::of(claim)) {
                    w.queues.volumes.add(Key::of(&*volume));
                }
            }
        },
    );
    let w = world.clone();
    feed(tasks, Api::all(client.clone()), all(), pv_writer, move |volume| {
        w.queues.persistent.add(Key::of(volume))
    });
    let w = world.clone();
    feed(
        tasks,
        Api::all(client.clone()),
        all(),
        pod_writer,
        move |pod: &k8s_openapi::api::core::v1::Pod| {
            w.queues.pods.add(Key::of(pod));
            if let Some(instance) = pod.annotations().get(dockerios_kubevirt::names::DOMAIN) {
                w.queues
                    .instances
                    .add(Key::new(pod.namespace().unwrap_or_default(), instance.clone()));
            }
        },
    );
    let w = world.clone();
    feed(tasks, Api::all(client.clone()), all(), node_writer, move |node| {
        w.queues.nodes.add(Key::of(node))
    });
    let w = world.clone();
    feed(tasks, Api::all(client.clone()), all(), class_writer, move |class| {
        w.queues.classes.add(Key::of(class))
    });
    feed(tasks, Api::all(client.clone()), all(), profile_writer, |_| {});
    if with_snapshots {
        let w = world.clone();
        let api = Api::all_with(client.clone(), &csi::snapshot_kind());
        feed(tasks, api, all(), snapshot_writer, move |snapshot| {
            w.queues.snapshots.add(Key::of(snapshot))
        });
    }
    let (map_store, map_writer) = reflector::store::<ConfigMap>();
    let w = world.clone();
    let only = watcher::Config::default().fields("metadata.name=faults");
    let reader = map_store.clone();
    feed(tasks, Api::namespaced(client, NAMESPACE), only, map_writer, move |_| {
        world::read_faults(&w, reader.state().first().map(|map| &**map));
    });

    let stores = &world.stores;
    let filled = async {
        stores.machines.wait_until_ready().await?;
        stores.instances.wait_until_ready().await?;
        stores.volumes.wait_until_ready().await?;
        stores.claims.wait_until_ready().await?;
        stores.persistent.wait_until_ready().await?;
        stores.pods.wait_until_ready().await?;
        stores.nodes.wait_until_ready().await?;
        stores.classes.wait_until_ready().await?;
        stores.profiles.wait_until_ready().await?;
        map_store.wait_until_ready().await
    };
    tokio::time::timeout(CACHES, filled)
        .await
        .context("the caches do not fill")??;

    spawn(tasks, &world, "VirtualMachine", machine_keys, kubevirt::machine);
    spawn(
        tasks,
        &world,
        "VirtualMachineInstance",
        instance_keys,
        kubevirt::instance,
    );
    spawn(tasks, &world, "DataVolume", volume_keys, cdi::volume);
    spawn(tasks, &world, "PersistentVolumeClaim", claim_keys, csi::claim);
    spawn(tasks, &world, "PersistentVolume", persistent_keys, csi::persistent);
    spawn(tasks, &world, "Pod", pod_keys, kubelet::pod);
    spawn(tasks, &world, "Node", node_keys, kubelet::node);
    spawn(tasks, &world, "StorageClass", class_keys, csi::class);
    spawn(tasks, &world, "VolumeSnapshot", snapshot_keys, csi::snapshot);
    Ok(world)
}
