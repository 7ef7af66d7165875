//! Disks that come, stay and go by ways of their own.

use anyhow::{Context as _, Result, ensure};
use dockerios_acceptance::{Chronicle, Fleet, Thing, make, see};
use dockerios_api::machine::macos_machine::MachinePhase;
use dockerios_api::{IdentityPool, MacOSMachine, MacOSMachineClass, names};
use dockerios_kubevirt::DataVolume;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
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
    // a full pass over the machine: something of it changes
    let machines = fleet.api::<MacOSMachine>(ns);
    let touch = Patch::Merge(json!({"metadata": {"annotations": {"team.example.com/note": "x"}}}));
    machines.patch("m", &PatchParams::default(), &touch).await?;
    let claims = fleet.api::<PersistentVolumeClaim>(ns);
    ensure!(
        claims.list(&Default::default()).await?.items.len() == 2,
        "system disk and bootdisk stay"
    );
    ensure!(see::machine_phase(&machines.get("m").await?) == Some(MachinePhase::Ready));
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
pub(crate) async fn a_storage_class_that_waits_for_its_consumer_is_no_deadlock() -> Result<()> {
    let fleet = fleet().await?;
    let scratch = fleet.namespace("wffc").await?;
    let (ns, client) = (scratch.name(), &fleet.client);
    for storage in ["mac-wffc", "mac-snapshot", "mac-copy"] {
        let class = make::with(make::class(storage), "systemDisk/storageClassName", json!(storage));
        let _: MacOSMachineClass = make::cluster(client, class).await?;
        let _: MacOSMachine = make::within(client, ns, make::machine(storage, storage)).await?;
    }
    for storage in ["mac-wffc", "mac-snapshot", "mac-copy"] {
        see::machine(&fleet.api(ns), storage, MachinePhase::Ready).await?;
    }
    Ok(())
}
