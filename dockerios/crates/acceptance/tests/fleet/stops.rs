//! How a machine stops and starts: asked in the guest, by the power button, cut off; and a disk that stays behind.

use anyhow::{Context as _, Result, ensure};
use dockerios_acceptance::{Chronicle, Fleet, Thing, make, see};
use dockerios_api::machine::claim::ClaimPhase;
use dockerios_api::machine::macos_machine::MachinePhase;
use dockerios_api::{MacOSImage, MacOSMachine, MacOSMachineClaim, MacOSMachineClass, names};
use dockerios_kubevirt::{VirtualMachine, VirtualMachineInstance};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use crate::fleet;

async fn power(fleet: &Fleet, ns: &str, name: &str, state: &str) -> Result<()> {
    let patch = Patch::Merge(json!({"spec": {"powerState": state}}));
    let machines = fleet.api::<MacOSMachine>(ns);
    machines.patch(name, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// From now on no agent speaks in the guest, and it ignores the power button.
pub(crate) async fn deafen(fleet: &Fleet, ns: &str, vm: &str) -> Result<()> {
    fleet.sim.fault(&format!("ignore-acpi {ns}/*"))?;
    fleet.sim.fault(&format!("no-agent {ns}/*"))?;
    // an agent that is still there would shut the guest down as it is asked to, and nobody would press the button
    let deadline = tokio::time::Instant::now() + see::PATIENCE;
    while fleet.sim.has_agent(ns, vm) != Some(false) {
        ensure!(tokio::time::Instant::now() < deadline, "the agent is not taken away");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    Ok(())
}

fn clean(machine: &MacOSMachine) -> Option<bool> {
    machine.status.as_ref()?.guest.as_ref()?.clean_shutdown
}

pub(crate) async fn a_guest_with_an_agent_is_shut_down_from_inside_and_nobody_presses_the_button() -> Result<()> {
    let fleet = fleet().await?;
    let scratch = fleet.namespace("asked").await?;
    let (ns, client) = (scratch.name(), &fleet.client);
    let _: MacOSMachineClass = make::cluster(client, make::class("asked")).await?;
    let chronicle = Chronicle::start(client, ns).await?;
    let _: MacOSMachine = make::within(client, ns, make::machine("m", "asked")).await?;
    let machines = fleet.api::<MacOSMachine>(ns);
    let first = see::machine(&machines, "m", MachinePhase::Ready).await?;
    ensure!(
        clean(&first).is_none(),
        "there was no shutdown before: {:?}",
        first.status
    );

    power(fleet, ns, "m", "Stopped").await?;
    let stopped = see::machine(&machines, "m", MachinePhase::Stopped).await?;
    ensure!(clean(&stopped) == Some(true), "{:?}", stopped.status);
    let asked = chronicle
        .first(Thing::Machine, "stopRequestedAt", |m| {
            !m.text("/status/stopRequestedAt").is_empty()
        })
        .await?;
    let ended = chronicle
        .first(Thing::Instance, "Succeeded", |m| m.text("/status/phase") == "Succeeded")
        .await?;
    let halted = chronicle
        .first(Thing::VirtualMachine, "Halted", |m| {
            m.text("/spec/runStrategy") == "Halted"
        })
        .await?;
    ensure!(
        asked < ended && ended < halted,
        "asked {asked}, the guest ended {ended}, KubeVirt was asked {halted}"
    );
    // the agent's own note of it is on the disk, and outlasts the run
    power(fleet, ns, "m", "Running").await?;
    let again = see::machine(&machines, "m", MachinePhase::Ready).await?;
    ensure!(clean(&again) == Some(true), "{:?}", again.status);
    Ok(())
}

pub(crate) async fn a_guest_that_was_cut_off_is_called_so_and_says_so_itself_after_the_next_start() -> Result<()> {
    let fleet = fleet().await?;
    let scratch = fleet.namespace("cut-off").await?;
    let (ns, client) = (scratch.name(), &fleet.client);
    let _: MacOSMachineClass = make::cluster(client, make::class("cut-off")).await?;
    let machine: MacOSMachine = make::within(client, ns, make::machine("m", "cut-off")).await?;
    let machines = fleet.api::<MacOSMachine>(ns);
    see::machine(&machines, "m", MachinePhase::Ready).await?;
    let vm = names::of_machine("m", &machine.uid().context("uid")?, "vm");
    deafen(fleet, ns, &vm).await?;
    power(fleet, ns, "m", "Stopped").await?;
    see::machine(&machines, "m", MachinePhase::Stopped).await?;
    see::reason(&machines, "m", "InstanceRunning", "UncleanShutdown").await?;
    let told = see::event(client, ns, "m", "UncleanShutdown").await?;
    ensure!(told.contains("did not shut down within its grace period"), "{told}");

    for fault in ["ignore-acpi", "no-agent"] {
        fleet.sim.clear(&format!("{fault} {ns}/*"))?;
    }
    power(fleet, ns, "m", "Running").await?;
    let again = see::machine(&machines, "m", MachinePhase::Ready).await?;
    ensure!(clean(&again) == Some(false), "{:?}", again.status);
    let said = see::condition_of(&again, "GuestReady").context("GuestReady")?;
    ensure!(
        said["status"] == "True" && said["message"].as_str().is_some_and(|m| m.contains("cut off")),
        "{said}"
    );
    Ok(())
}

/// KubeVirt pauses a guest whose disk takes no more writes. It can still be saved, so nothing of it is given up.
pub(crate) async fn a_machine_that_a_write_error_paused_is_not_ready_and_keeps_everything_until_it_goes_on()
-> Result<()> {
    let fleet = fleet().await?;
    let scratch = fleet.namespace("paused").await?;
    let (ns, client) = (scratch.name(), &fleet.client);
    let _: MacOSMachineClass = make::cluster(client, make::class("paused")).await?;
    let _: MacOSMachineClaim = make::within(client, ns, make::claim_of("c", "paused")).await?;
    let claims = fleet.api::<MacOSMachineClaim>(ns);
    let before = see::claimed(client, ns, "c").await?;
    let name = before.name_any();
    let machines = fleet.api::<MacOSMachine>(ns);
    let instances = fleet.api::<VirtualMachineInstance>(ns);
    let vm = names::of_machine(&name, &before.uid().context("uid")?, "vm");
    let instance = instances.get(&vm).await?.uid();

    fleet.sim.fault(&format!("io-error {ns}/*"))?;
    let paused = see::reason(&machines, &name, "Ready", "Paused").await?;
    let ready = see::condition_of(&paused, "Ready").context("Ready")?;
    ensure!(
        ready["status"] == "False" && ready["message"].as_str().is_some_and(|m| m.contains("PausedIOError")),
        "{ready}"
    );
    let running = see::condition_of(&paused, "InstanceRunning").context("InstanceRunning")?;
    ensure!(
        running["status"] == "False" && running["reason"] == "Paused",
        "{running}"
    );
    let told = see::condition(&claims, "c", "Ready", "False").await?;
    ensure!(
        told.status.and_then(|status| status.phase) == Some(ClaimPhase::Bound),
        "the tenant keeps it"
    );

    fleet.sim.clear(&format!("io-error {ns}/*"))?;
    see::machine(&machines, &name, MachinePhase::Ready).await?;
    see::condition(&claims, "c", "Ready", "True").await?;
    ensure!(instances.get(&vm).await?.uid() == instance, "it was not the same run");
    Ok(())
}

pub(crate) async fn a_retained_disk_becomes_an_image_and_a_machine_boots_from_it() -> Result<()> {
    let fleet = fleet().await?;
    let scratch = fleet.namespace("kept").await?;
    let (ns, client) = (scratch.name(), &fleet.client);
    let keeps = make::with(make::class("kept"), "systemDisk/reclaimPolicy", json!("Retain"));
    let _: MacOSMachineClass = make::cluster(client, keeps).await?;
    let machine: MacOSMachine = make::within(client, ns, make::machine("first", "kept")).await?;
    let machines = fleet.api::<MacOSMachine>(ns);
    see::machine(&machines, "first", MachinePhase::Ready).await?;
    machines.delete("first", &DeleteParams::default()).await?;
    see::gone(&machines, "first").await?;
    let disk = names::of_machine("first", &machine.uid().context("uid")?, "system");
    let volumes = fleet.api::<PersistentVolumeClaim>(ns);
    let kept = volumes.get(&disk).await.context("the retained disk")?;

    // its owner lets the platform clone it, as the page on storage says
    crate::clones::permit(fleet, ns).await?;
    let source = json!({"pvc": {"namespace": ns, "name": disk}});
    let image = make::with(make::image("of-kept", make::STORAGE), "source", source);
    let _: MacOSImage = make::cluster(client, image).await?;
    see::condition(&fleet.all::<MacOSImage>(), "of-kept", "Ready", "True").await?;
    let class = make::with(make::class("of-kept"), "imageName", json!("of-kept"));
    let _: MacOSMachineClass = make::cluster(client, class).await?;
    let _: MacOSMachine = make::within(client, ns, make::machine("second", "of-kept")).await?;
    see::machine(&machines, "second", MachinePhase::Ready).await?;
    let still = volumes.get(&disk).await.context("the retained disk")?;
    ensure!(
        still.uid() == kept.uid() && still.metadata.deletion_timestamp.is_none(),
        "the retained disk itself was taken"
    );
    ensure!(
        fleet
            .api::<VirtualMachine>(ns)
            .list(&Default::default())
            .await?
            .items
            .len()
            == 1,
        "the first machine is gone, the second runs"
    );
    Ok(())
}
