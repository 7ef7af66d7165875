//! Disks that come, stay and go by ways of their own.

use anyhow::{Context as _, Result, ensure};
use dockerios_acceptance::{Chronicle, Fleet, Thing, make, see};
use dockerios_api::machine::macos_machine::MachinePhase;
use dockerios_api::{IdentityPool, MacOSMachine, MacOSMachineClass, names};
use dockerios_kubevirt::DataVolume;
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim};
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use crate::fleet;

async fn ready(fleet: &Fleet, ns: &str, class: &str) -> Result<String> {
    let machine: MacOSMachine = make::within(&fleet.client, ns, make::machine("m", class)).await?;
    see::machine(&fleet.api(ns), "m", MachinePhase::Ready).await?;
    machine.uid().context("uid")
}

pub(crate) async fn a_datavolume_that_cdi_collects_is_not_made_again_and_its_claim_goes_with_the_machine() -> Result<()>
{
    let fleet = fleet().await?;
    let scratch = fleet.namespace("collected").await?;
    let (ns, client) = (scratch.name(), &fleet.client);
    let _: IdentityPool = make::cluster(client, make::identities("collected", 1, "Recycle")).await?;
    let _: MacOSMachineClass = make::cluster(client, make::class_of("collected", "collected")).await?;
    let chronicle = Chronicle::start(client, ns).await?;
    let uid = ready(fleet, ns, "collected").await?;
    let identity = see::identity_of(client, &uid).await?.context("identity")?.name_any();
    // as CDI before 1.62 did it: the DataVolume goes, what it owned stays
    let volumes = fleet.api::<DataVolume>(ns);
    let orphan = DeleteParams {
        propagation_policy: Some(kube::api::PropagationPolicy::Orphan),
        ..Default::default()
    };
    for volume in volumes.list(&Default::default()).await?.items {
        volumes.delete(&volume.name_any(), &orphan).await?;
        see::gone(&volumes, &volume.name_any()).await?;
    }
    // off and on again: whatever looks after disks has looked then
    let machines = fleet.api::<MacOSMachine>(ns);
    for (state, phase) in [("Stopped", MachinePhase::Stopped), ("Running", MachinePhase::Ready)] {
        let power = Patch::Merge(json!({"spec": {"powerState": state}}));
        machines.patch("m", &PatchParams::default(), &power).await?;
        see::machine(&machines, "m", phase).await?;
    }
    let claims = fleet.api::<PersistentVolumeClaim>(ns);
    ensure!(
        claims.list(&Default::default()).await?.items.len() == 2,
        "system disk and bootdisk stay"
    );
    machines.delete("m", &DeleteParams::default()).await?;
    see::gone(&machines, "m").await?;
    see::none_left(&claims).await?;
    crate::job::in_order(&chronicle, &uid, &identity, &[Thing::Volume]).await?;
    let made: std::collections::HashSet<_> = chronicle
        .moments()
        .await?
        .into_iter()
        .filter(|m| m.thing == Thing::DataVolume)
        .map(|m| m.uid)
        .collect();
    ensure!(made.len() == 2, "a DataVolume was made again: {} in all", made.len());
    Ok(())
}

pub(crate) async fn a_disk_that_is_lost_fails_the_machine_and_is_not_cloned_anew() -> Result<()> {
    let fleet = fleet().await?;
    let scratch = fleet.namespace("disk-lost").await?;
    let (ns, client) = (scratch.name(), &fleet.client);
    let _: MacOSMachineClass = make::cluster(client, make::class("disk-lost")).await?;
    let chronicle = Chronicle::start(client, ns).await?;
    let uid = ready(fleet, ns, "disk-lost").await?;
    let machines = fleet.api::<MacOSMachine>(ns);
    let power = async |state: &str| {
        let patch = Patch::Merge(json!({"spec": {"powerState": state}}));
        machines.patch("m", &PatchParams::default(), &patch).await
    };
    power("Stopped").await?;
    see::machine(&machines, "m", MachinePhase::Stopped).await?;
    // somebody deletes the disk: DataVolume and claim
    let system = names::of_machine("m", &uid, "system");
    fleet
        .api::<DataVolume>(ns)
        .delete(&system, &DeleteParams::default())
        .await?;
    let claims = fleet.api::<PersistentVolumeClaim>(ns);
    if claims.get_opt(&system).await?.is_some() {
        let _ = claims.delete(&system, &DeleteParams::default()).await;
    }
    see::gone(&claims, &system).await?;
    power("Running").await?;
    let failed = see::machine(&machines, "m", MachinePhase::Failed).await?;
    let failure = failed
        .status
        .and_then(|status| status.failure)
        .context("status.failure")?;
    ensure!(failure.reason == "VolumeLost", "{failure:?}");
    let systems: std::collections::HashSet<_> = chronicle
        .moments()
        .await?
        .into_iter()
        .filter(|m| m.thing == Thing::DataVolume && m.name == system)
        .map(|m| m.uid)
        .collect();
    ensure!(systems.len() == 1, "the disk was cloned {} times", systems.len());
    Ok(())
}

/// DataVolumes and VM are made together: who waits for the clone first waits for ever.
pub(crate) async fn a_storage_class_that_waits_for_its_consumer_is_no_deadlock_and_the_real_way_of_cloning_is_told()
-> Result<()> {
    let fleet = fleet().await?;
    let scratch = fleet.namespace("wffc").await?;
    let (ns, client) = (scratch.name(), &fleet.client);
    let chronicle = Chronicle::start(client, ns).await?;
    // a class without a populator waits in a phase of another name
    fleet.sim.fault(&format!("first-consumer {ns}/macs-old-*"))?;
    // name, storage class, phase in which it waits, how CDI makes it of a volume of mac-csi
    let rows = [
        ("wffc", "mac-wffc", "PendingPopulation", "csi-clone"),
        ("old", "mac-wffc", "WaitForFirstConsumer", "csi-clone"),
        // the golden volume is of another driver
        ("snapshot", "mac-snapshot", "", "copy"),
        ("copied", "mac-copy", "PendingPopulation", "copy"),
    ];
    for (name, storage, ..) in rows {
        let class = format!("wffc-{name}");
        let object = make::with(make::class(&class), "systemDisk/storageClassName", json!(storage));
        let _: MacOSMachineClass = make::cluster(client, object).await?;
        let _: MacOSMachine = make::within(client, ns, make::machine(name, &class)).await?;
    }
    for (name, _, waits, strategy) in rows {
        let machine = see::machine(&fleet.api(ns), name, MachinePhase::Ready).await?;
        let system = names::of_machine(name, &machine.uid().context("uid")?, "system");
        let disks = machine
            .status
            .as_ref()
            .map(|status| status.disks.clone())
            .unwrap_or_default();
        ensure!(
            disks.len() == 1 && disks[0].name == system && disks[0].strategy == strategy,
            "{name}: {disks:?}"
        );
        let told = see::event(client, ns, name, "Cloned").await?;
        ensure!(told.contains(&format!("{system} by {strategy}")), "{name}: {told}");
        if strategy == "copy" {
            let warned = see::event(client, ns, name, "DiskCopied").await?;
            ensure!(
                warned.contains(&system) && warned.contains("copied by a pod"),
                "{warned}"
            );
        }
        let moments = chronicle.moments().await?;
        let phases: Vec<&str> = moments
            .iter()
            .filter(|moment| moment.thing == Thing::DataVolume && moment.name == system)
            .map(|moment| moment.text("/status/phase"))
            .collect();
        ensure!(
            waits.is_empty() || phases.contains(&waits),
            "{name} never was {waits}: {phases:?}"
        );
    }
    let events = fleet.api::<Event>(ns).list(&Default::default()).await?.items;
    let warned: Vec<_> = events
        .iter()
        .filter(|event| event.reason.as_deref() == Some("DiskCopied"))
        .collect();
    ensure!(warned.len() == 2, "only copies are warned of, and once: {warned:?}");
    Ok(())
}

/// CDI never fails a clone by itself.
pub(crate) async fn a_clone_that_never_ends_is_shown_and_given_up_when_its_class_says_so() -> Result<()> {
    let fleet = fleet().await?;
    let scratch = fleet.namespace("stuck").await?;
    let (ns, client) = (scratch.name(), &fleet.client);
    let class = make::with(make::class("stuck"), "cloneTimeout", json!("30s"));
    let _: MacOSMachineClass = make::cluster(client, class).await?;
    fleet.sim.fault(&format!("stuck {ns}/*"))?;
    let chronicle = Chronicle::start(client, ns).await?;
    let _: MacOSMachine = make::within(client, ns, make::machine("m", "stuck")).await?;
    let machines = fleet.api::<MacOSMachine>(ns);
    see::until(&machines, "m", "where CDI stands", |machine| {
        see::machine_phase(machine) == Some(MachinePhase::Cloning)
            && see::condition_of(machine, "DiskCloned").is_some_and(|cloned| {
                cloned["status"] == "False" && cloned["message"].to_string().contains("CsiCloneInProgress")
            })
    })
    .await?;
    let failed = see::machine(&machines, "m", MachinePhase::Failed).await?;
    let failure = failed
        .status
        .and_then(|status| status.failure)
        .context("status.failure")?;
    ensure!(failure.reason == "CloneTimeout", "{failure:?}");
    let event = see::event(client, ns, "m", "CloneTimeout").await?;
    for words in [&failure.message, &event] {
        ensure!(
            words.contains("not cloned within 30s") && words.contains("CsiCloneInProgress"),
            "{words}"
        );
    }
    see::none_left(&fleet.api::<DataVolume>(ns)).await?;
    see::none_left(&fleet.api::<PersistentVolumeClaim>(ns)).await?;
    let moments = chronicle.moments().await?;
    let volumes = moments.iter().filter(|moment| moment.thing == Thing::DataVolume);
    let made: std::collections::HashSet<_> = volumes.map(|moment| &moment.uid).collect();
    ensure!(
        made.len() == 1,
        "a clone that says nothing is not begun anew: {}",
        made.len()
    );
    Ok(())
}

pub(crate) async fn a_machine_that_was_in_use_waits_for_a_node_with_its_disk_and_goes_on_when_there_is_one()
-> Result<()> {
    let fleet = fleet().await?;
    let scratch = fleet.namespace("no-room").await?;
    let (ns, client) = (scratch.name(), &fleet.client);
    let _: MacOSMachineClass = make::cluster(client, make::on_node(make::class("no-room"), "kvm-full")).await?;
    let uid = ready(fleet, ns, "no-room").await?;
    let machines = fleet.api::<MacOSMachine>(ns);
    let used = machines.get("m").await?.status.and_then(|status| status.first_ready_at);
    ensure!(used.is_some(), "that it was in use is not kept");
    let claims = fleet.api::<PersistentVolumeClaim>(ns);
    let system = names::of_machine("m", &uid, "system");
    let disk = claims.get(&system).await?.uid();
    let power = async |state: &str| {
        let patch = Patch::Merge(json!({"spec": {"powerState": state}}));
        machines.patch("m", &PatchParams::default(), &patch).await
    };
    let cordon = async |cordoned: bool| {
        let patch = Patch::Merge(json!({"spec": {"unschedulable": cordoned}}));
        fleet
            .all::<Node>()
            .patch("kvm-full", &PatchParams::default(), &patch)
            .await
    };
    power("Stopped").await?;
    see::machine(&machines, "m", MachinePhase::Stopped).await?;
    cordon(true).await?;
    power("Running").await?;
    let waits = see::reason(&machines, "m", "InstanceRunning", "Unschedulable").await?;
    ensure!(see::machine_phase(&waits) == Some(MachinePhase::Starting), "{waits:?}");
    let told = see::event(client, ns, "m", "Unschedulable").await?;
    ensure!(told.contains("no node takes it"), "{told}");
    cordon(false).await?;
    see::machine(&machines, "m", MachinePhase::Ready).await?;
    ensure!(claims.get(&system).await?.uid() == disk, "it has another disk");
    Ok(())
}
