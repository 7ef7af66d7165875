//! Nodes that are lost, drained, or nearly so.

use anyhow::{Context as _, Result, ensure};
use dockerios_acceptance::{Chronicle, Fleet, Thing, make, see};
use dockerios_api::machine::claim::ClaimPhase;
use dockerios_api::machine::macos_machine::MachinePhase;
use dockerios_api::{IdentityPool, MacOSMachine, MacOSMachineClaim, MacOSMachineClass, MacOSMachinePool, names};
use dockerios_kubevirt::VirtualMachineInstance;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::fleet;

async fn cordon(fleet: &Fleet, node: &str, cordoned: bool) -> Result<()> {
    let patch = Patch::Merge(json!({"spec": {"unschedulable": cordoned}}));
    fleet.all::<Node>().patch(node, &PatchParams::default(), &patch).await?;
    Ok(())
}

async fn launcher(fleet: &Fleet, ns: &str) -> Result<Pod> {
    let launchers = ListParams::default().labels("kubevirt.io=virt-launcher");
    let pods = fleet.api::<Pod>(ns).list(&launchers).await?.items;
    pods.into_iter()
        .find(|pod| pod.metadata.deletion_timestamp.is_none())
        .context("there is no launcher pod")
}

/// As `kubectl drain` does it: cordon, then ask for each pod's eviction. KubeVirt refuses, and marks the instance.
async fn drain(fleet: &Fleet, ns: &str, node: &str) -> Result<()> {
    cordon(fleet, node, true).await?;
    let pod = launcher(fleet, ns).await?.name_any();
    let evicted = fleet.api::<Pod>(ns).evict(&pod, &EvictParams::default()).await;
    let Err(kube::Error::Api(status)) = evicted else {
        anyhow::bail!("the eviction was not refused: {evicted:?}")
    };
    ensure!(status.code == 429, "{status:?}");
    Ok(())
}

/// A claim `c` on a pool that makes a machine for it, and what it got.
pub(crate) struct Claimed {
    pub(crate) machine: MacOSMachine,
    pub(crate) name: String,
    pub(crate) uid: String,
    /// Name of its identity.
    pub(crate) identity: String,
}

/// Identities, a class and a pool of that name, all of the class's making, and a claim `c` that has a machine.
pub(crate) async fn claimed(fleet: &Fleet, ns: &str, pool: &str, class: Value) -> Result<Claimed> {
    let client = &fleet.client;
    let _: IdentityPool = make::cluster(client, make::identities(pool, 2, "Recycle")).await?;
    let _: MacOSMachineClass = make::cluster(client, class).await?;
    let _: MacOSMachinePool = make::within(client, ns, make::pool(pool, pool, 0, 4)).await?;
    let _: MacOSMachineClaim = make::within(client, ns, make::claim("c", pool)).await?;
    let machine = see::claimed(client, ns, "c").await?;
    let uid = machine.uid().context("uid")?;
    let identity = see::identity_of(client, &uid).await?.context("identity")?;
    Ok(Claimed {
        name: machine.name_any(),
        identity: identity.name_any(),
        uid,
        machine,
    })
}

pub(crate) async fn a_lost_node_frees_nothing_until_it_is_known_what_became_of_the_guest() -> Result<()> {
    let fleet = fleet().await?;
    let scratch = fleet.namespace("lost").await?;
    let (ns, client) = (scratch.name(), &fleet.client);
    let chronicle = Chronicle::start(client, ns).await?;
    let class = make::on_node(make::class_of("lost", "lost"), "kvm-lost");
    let Claimed {
        name, uid, identity, ..
    } = claimed(fleet, ns, "lost", class).await?;
    let claims = fleet.api::<MacOSMachineClaim>(ns);
    let machines = fleet.api::<MacOSMachine>(ns);

    fleet.sim.fault("node-lost /kvm-lost")?;
    see::reason(&machines, &name, "Ready", "NodeLost").await?;
    ensure!(see::machine_phase(&machines.get(&name).await?) == Some(MachinePhase::Unknown));
    // the tenant is told, and keeps what may still run
    let told = see::reason(&claims, "c", "Ready", "MachineUnreachable").await?;
    ensure!(
        told.status.and_then(|s| s.phase) == Some(ClaimPhase::Bound),
        "the claim is no longer Bound"
    );
    // even when it is given up, nothing is freed that may still run
    claims.delete("c", &DeleteParams::default()).await?;
    see::until(&machines, &name, "that it is going", |m| {
        m.metadata.deletion_timestamp.is_some()
    })
    .await?;
    see::until(&machines, &name, "what it waits for", |machine| {
        see::condition_of(machine, "Ready").is_some_and(|ready| ready["reason"] != "NodeLost")
    })
    .await?;
    let held = see::identity_of(client, &uid)
        .await?
        .map(|identity| identity.name_any());
    ensure!(
        held.as_ref() == Some(&identity),
        "the identity was freed while its guest may run"
    );

    let back_at = chronicle.moments().await?.last().context("moments")?.at;
    fleet.sim.clear("node-lost /kvm-lost")?;
    see::gone(&machines, &name).await?;
    let gone = chronicle
        .last_gone(Thing::Instance, "its instance", |m| m.label(names::MACHINE_UID) == uid)
        .await?;
    ensure!(
        gone > back_at,
        "the instance was gone at {gone}, before the node came back at {back_at}"
    );
    crate::job::in_order(&chronicle, &uid, &identity, &[Thing::DataVolume, Thing::Volume]).await?;
    // nobody removed pod or instance by force
    let forced = fleet.requests()?.into_iter().find(|request| {
        request.namespace == ns
            && request.verb == "delete"
            && matches!(&*request.resource, "pods" | "virtualmachineinstances")
    });
    ensure!(forced.is_none(), "{forced:?}");
    Ok(())
}

pub(crate) async fn a_drained_node_waits_for_the_claim_then_the_machine_leaves() -> Result<()> {
    let fleet = fleet().await?;
    let scratch = fleet.namespace("drained").await?;
    let (ns, client) = (scratch.name(), &fleet.client);
    let _: MacOSMachineClass = make::cluster(client, make::on_node(make::class("drained"), "kvm-drained")).await?;
    let _: MacOSMachineClaim = make::within(client, ns, make::claim_of("c", "drained")).await?;
    let claims = fleet.api::<MacOSMachineClaim>(ns);
    let name = see::claimed(client, ns, "c").await?.name_any();
    drain(fleet, ns, "kvm-drained").await?;

    let machines = fleet.api::<MacOSMachine>(ns);
    let waits = see::reason(&machines, &name, "Draining", "WaitingForClaim").await?;
    let draining = see::condition_of(&waits, "Draining").context("Draining")?;
    let since: Timestamp = draining["lastTransitionTime"].as_str().unwrap_or_default().parse()?;
    ensure!(
        see::machine_phase(&waits) == Some(MachinePhase::Ready),
        "a tenant still works on it: {waits:?}"
    );
    // past the deadline it goes, and the claim is told that it is lost
    see::claim(&claims, "c", ClaimPhase::Lost).await?;
    let waited = Timestamp::now().duration_since(since).as_secs_f64();
    ensure!(
        waited >= make::DRAIN_SECONDS as f64,
        "the claim was waited for {waited} s only"
    );
    see::gone(&machines, &name).await?;
    ensure!(
        fleet.api::<Pod>(ns).list(&Default::default()).await?.items.is_empty(),
        "the node is not empty"
    );
    cordon(fleet, "kvm-drained", false).await
}

pub(crate) async fn a_drain_that_is_called_off_leaves_the_machine_where_it_is() -> Result<()> {
    let fleet = fleet().await?;
    let scratch = fleet.namespace("cancelled").await?;
    let (ns, client) = (scratch.name(), &fleet.client);
    let _: MacOSMachineClass = make::cluster(client, make::on_node(make::class("cancelled"), "kvm-cancelled")).await?;
    let _: MacOSMachineClaim = make::within(client, ns, make::claim_of("c", "cancelled")).await?;
    let claims = fleet.api::<MacOSMachineClaim>(ns);
    let machine = see::claimed(client, ns, "c").await?;
    let (name, uid) = (machine.name_any(), machine.uid().context("uid")?);
    let machines = fleet.api::<MacOSMachine>(ns);
    drain(fleet, ns, "kvm-cancelled").await?;
    see::reason(&machines, &name, "Draining", "WaitingForClaim").await?;
    cordon(fleet, "kvm-cancelled", false).await?;
    see::reason(&machines, &name, "Draining", "NotDraining").await?;
    let instances = fleet.api::<VirtualMachineInstance>(ns);
    let vm = names::of_machine(&name, &uid, "vm");
    see::until(&instances, &vm, "an instance without the mark", |instance| {
        let marked = instance
            .status
            .as_ref()
            .and_then(|status| status.evacuation_node_name.clone());
        marked.is_none_or(|node| node.is_empty())
    })
    .await?;
    // the mark went because KubeVirt was asked to take it away; audit knows a subresource up to its first slash
    let cancelled = fleet.requests()?.into_iter().find(|request| {
        request.namespace == ns && request.resource == "virtualmachineinstances/evacuate" && request.verb == "update"
    });
    ensure!(
        cancelled.as_ref().is_some_and(|request| request.code == 200),
        "{cancelled:?}"
    );
    let machine = machines.get(&name).await?;
    ensure!(see::machine_phase(&machine) == Some(MachinePhase::Ready) && machine.metadata.deletion_timestamp.is_none());
    let claim = claims.get("c").await?;
    ensure!(
        claim.status.as_ref().and_then(|status| status.phase) == Some(ClaimPhase::Bound),
        "the tenant lost it: {:?}",
        claim.status
    );
    Ok(())
}

/// KubeVirt refuses the eviction of a launcher whose instance has not noted its node yet, and marks nothing.
pub(crate) async fn a_cordoned_node_whose_instance_has_no_node_name_is_left_all_the_same() -> Result<()> {
    let fleet = fleet().await?;
    let scratch = fleet.namespace("cordoned").await?;
    let (ns, client) = (scratch.name(), &fleet.client);
    let _: MacOSMachineClass = make::cluster(client, make::on_node(make::class("cordoned"), "kvm-cordoned")).await?;
    let _: MacOSMachinePool = make::within(client, ns, make::pool("p", "cordoned", 0, 2)).await?;
    // its kubelet starts nothing, so the instance never notes where its launcher is
    fleet.sim.fault("node-lost /kvm-cordoned")?;
    let scale = Patch::Merge(json!({"spec": {"replicas": 1}}));
    fleet
        .api::<MacOSMachinePool>(ns)
        .patch("p", &PatchParams::default(), &scale)
        .await?;
    let instances = fleet.api::<VirtualMachineInstance>(ns);
    let unnamed = |instance: &VirtualMachineInstance| {
        instance
            .status
            .as_ref()
            .is_some_and(|status| status.node_name.as_deref().unwrap_or_default().is_empty())
    };
    let pods = fleet.api::<Pod>(ns);
    see::count(&pods, "a launcher pod on the node", |pods| {
        pods.iter().any(|pod| {
            pod.spec
                .as_ref()
                .is_some_and(|spec| spec.node_name.as_deref() == Some("kvm-cordoned"))
        })
    })
    .await?;
    let there = instances.list(&Default::default()).await?.items;
    ensure!(
        !there.is_empty() && there.iter().all(unnamed),
        "the scene is not as it should be: {there:?}"
    );
    let machines = fleet.api::<MacOSMachine>(ns);
    let first = machines
        .list(&Default::default())
        .await?
        .items
        .pop()
        .context("the machine")?;
    cordon(fleet, "kvm-cordoned", true).await?;
    // it is told to go; the node's kubelet, which answers again, clears up
    see::until(&machines, &first.name_any(), "that it is to go", |m| {
        m.metadata.deletion_timestamp.is_some()
    })
    .await?;
    fleet.sim.clear("node-lost /kvm-cordoned")?;
    see::gone(&machines, &first.name_any()).await?;
    let none = Patch::Merge(json!({"spec": {"replicas": 0}}));
    fleet
        .api::<MacOSMachinePool>(ns)
        .patch("p", &PatchParams::default(), &none)
        .await?;
    cordon(fleet, "kvm-cordoned", false).await
}
