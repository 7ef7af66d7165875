//! Guests that do not do what is expected of them.

use std::collections::HashSet;

use anyhow::{Context as _, Result, ensure};
use dockerios_acceptance::{Chronicle, Thing, make, see};
use dockerios_api::identity::machine_identity::IdentityPhase;
use dockerios_api::machine::macos_machine::MachinePhase;
use dockerios_api::{IdentityPool, MacOSMachine, MacOSMachineClass, MachineIdentity, names};
use dockerios_kubevirt::VirtualMachine;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Secret};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::json;

use crate::fleet;
use crate::plugin::plugin;

pub(crate) async fn a_guest_that_is_not_ready_in_time_gives_back_identity_volume_and_vm_and_stays_as_evidence()
-> Result<()> {
    let fleet = fleet().await?;
    let scratch = fleet.namespace("late").await?;
    let (ns, client) = (scratch.name(), &fleet.client);
    // Quarantine: for used ones; this one never is
    let _: IdentityPool = make::cluster(client, make::identities("late", 1, "Quarantine")).await?;
    let impatient = make::with(make::class_of("late", "late"), "readinessTimeout", json!("60s"));
    let _: MacOSMachineClass = make::cluster(client, impatient).await?;
    fleet.sim.fault(&format!("hang-at {ns}/* LoginWindow"))?;
    let machine: MacOSMachine = make::within(client, ns, make::machine("late", "late")).await?;
    let uid = machine.uid().context("uid")?;
    let machines = fleet.api::<MacOSMachine>(ns);
    let failed = see::machine(&machines, "late", MachinePhase::Failed).await?;
    let status = failed.status.context("status")?;
    let failure = status.failure.context("status.failure")?;
    ensure!(failure.reason == "ReadinessTimeout", "{failure:?}");
    let started = status.started_at.context("startedAt")?;
    let waited = failure.at.0.duration_since(started.0).as_secs_f64();
    ensure!(waited >= 60.0, "failed {waited} s after power-on, 60 were allowed");
    ensure!(
        status.guest.is_some_and(|guest| guest.stage.is_some()),
        "the last report is gone"
    );

    see::none_left(&fleet.api::<VirtualMachine>(ns)).await?;
    see::none_left(&fleet.api::<PersistentVolumeClaim>(ns)).await?;
    let its = ListParams::default().labels(&format!("{}={uid}", names::MACHINE_UID));
    ensure!(
        fleet.api::<Secret>(ns).list(&its).await?.items.is_empty(),
        "its Secret is left"
    );
    let identities = fleet.all::<MachineIdentity>();
    let pool = ListParams::default().fields("spec.poolName=late");
    let identity = identities
        .list(&pool)
        .await?
        .items
        .pop()
        .context("the identity")?
        .name_any();
    see::until(&identities, &identity, "Available", |identity| {
        identity.status.as_ref().and_then(|s| s.phase) == Some(IdentityPhase::Available)
    })
    .await?;
    // the screen that a person would look at
    let screen = failure.screen.context("no screen was kept")?;
    let map = fleet.api::<ConfigMap>(ns).get(&screen).await?;
    let png = map
        .binary_data
        .unwrap_or_default()
        .into_values()
        .any(|bytes| bytes.0.starts_with(b"\x89PNG"));
    ensure!(png, "ConfigMap {screen} holds no picture");
    let dir = tempfile::tempdir()?;
    let shown = plugin(dir.path(), &["screenshot", "mac/late", "-n", ns]).await?;
    ensure!(
        shown.good && shown.out.contains("last screen (ReadinessTimeout) of "),
        "{}{}",
        shown.out,
        shown.err
    );
    ensure!(dir.path().join("late.png").is_file(), "no picture was written");
    let why = plugin(dir.path(), &["why", "mac/late", "-n", ns]).await?;
    ensure!(
        why.out.contains("kubectl dockerios screenshot macs/late"),
        "{}{}",
        why.out,
        why.err
    );
    machines.delete("late", &DeleteParams::default()).await?;
    see::gone(&machines, "late").await
}

pub(crate) async fn a_guest_that_ignores_the_power_button_gets_its_grace_before_anything_is_deleted() -> Result<()> {
    let fleet = fleet().await?;
    let scratch = fleet.namespace("deaf").await?;
    let (ns, client) = (scratch.name(), &fleet.client);
    let _: IdentityPool = make::cluster(client, make::identities("deaf", 1, "Recycle")).await?;
    let _: MacOSMachineClass = make::cluster(client, make::class_of("deaf", "deaf")).await?;
    let chronicle = Chronicle::start(client, ns).await?;
    let machine: MacOSMachine = make::within(client, ns, make::machine("deaf", "deaf")).await?;
    let uid = machine.uid().context("uid")?;
    let machines = fleet.api::<MacOSMachine>(ns);
    see::machine(&machines, "deaf", MachinePhase::Ready).await?;
    let vm = names::of_machine("deaf", &uid, "vm");
    let rendered = fleet.api::<VirtualMachine>(ns).get(&vm).await?;
    let grace = rendered.spec.template.spec.termination_grace_period_seconds;
    ensure!(
        grace.is_some_and(|seconds| seconds >= 180),
        "the class says nothing: 180 s at least, not {grace:?}"
    );
    let identity = see::identity_of(client, &uid).await?.context("identity")?.name_any();

    crate::stops::deafen(fleet, ns, &vm).await?;
    machines.delete("deaf", &DeleteParams::default()).await?;
    see::gone(&machines, "deaf").await?;
    see::event(client, ns, "deaf", "UncleanShutdown").await?;
    crate::job::in_order(&chronicle, &uid, &identity, &[Thing::DataVolume, Thing::Volume]).await?;
    // the guest was asked before KubeVirt was, and KubeVirt was asked before anything was deleted
    let moments = chronicle.moments().await?;
    let at = |what: &str, found: Option<&dockerios_acceptance::Moment>| {
        found.map(|m| m.at).with_context(|| format!("never: {what}"))
    };
    let asked = at(
        "stopRequestedAt",
        moments
            .iter()
            .find(|m| m.thing == Thing::Machine && !m.text("/status/stopRequestedAt").is_empty()),
    )?;
    let halted = at(
        "Halted",
        moments
            .iter()
            .find(|m| m.thing == Thing::VirtualMachine && m.text("/spec/runStrategy") == "Halted"),
    )?;
    let deleted = at(
        "the VM's deletion",
        moments.iter().find(|m| {
            m.thing == Thing::VirtualMachine && (m.gone || !m.text("/metadata/deletionTimestamp").is_empty())
        }),
    )?;
    ensure!(
        asked < halted && halted < deleted,
        "asked {asked}, halted {halted}, deleted {deleted}"
    );
    let by_force = fleet.requests()?.into_iter().find(|request| {
        request.namespace == ns && request.verb == "delete" && request.resource == "virtualmachineinstances"
    });
    ensure!(by_force.is_none(), "the instance was deleted by force: {by_force:?}");
    Ok(())
}

pub(crate) async fn a_guest_that_shuts_itself_down_is_not_started_again_until_it_is_asked_for() -> Result<()> {
    let fleet = fleet().await?;
    let scratch = fleet.namespace("poweroff").await?;
    let (ns, client) = (scratch.name(), &fleet.client);
    let _: MacOSMachineClass = make::cluster(client, make::class("poweroff")).await?;
    let chronicle = Chronicle::start(client, ns).await?;
    let machine: MacOSMachine = make::within(client, ns, make::machine("m", "poweroff")).await?;
    let machines = fleet.api::<MacOSMachine>(ns);
    see::machine(&machines, "m", MachinePhase::Ready).await?;
    let vm = names::of_machine("m", &machine.uid().context("uid")?, "vm");
    fleet.sim.fault(&format!("poweroff {ns}/{vm}"))?;
    see::reason(&machines, "m", "Ready", "GuestShutDown").await?;
    fleet.sim.clear(&format!("poweroff {ns}/{vm}"))?;
    let power = async |state: &str| {
        let patch = Patch::Merge(json!({"spec": {"powerState": state}}));
        machines.patch("m", &PatchParams::default(), &patch).await
    };
    power("Stopped").await?;
    see::until(&machines, "m", "Stopped as asked", |machine| {
        see::machine_phase(machine) == Some(MachinePhase::Stopped)
            && see::condition_of(machine, "Ready").is_some_and(|ready| ready["reason"] == "Stopped")
    })
    .await?;
    let strategy = fleet.api::<VirtualMachine>(ns).get(&vm).await?.spec.run_strategy;
    ensure!(
        strategy == Some(dockerios_kubevirt::vm::RunStrategy::Halted),
        "{strategy:?}"
    );
    // nobody stopped it to start it again before it was asked for
    let asked = chronicle.first(Thing::Machine, "asked to stop", |m| {
        m.text("/spec/powerState") == "Stopped"
    });
    let halted = chronicle.first(Thing::VirtualMachine, "Halted", |m| {
        m.text("/spec/runStrategy") == "Halted"
    });
    let (asked, halted) = (asked.await?, halted.await?);
    ensure!(asked < halted, "halted at {halted}, asked for at {asked}");
    let runs = async || -> Result<HashSet<String>> {
        let moments = chronicle.moments().await?.into_iter();
        Ok(moments.filter(|m| m.thing == Thing::Instance).map(|m| m.uid).collect())
    };
    ensure!(runs().await?.len() == 1, "it was started again: {:?}", runs().await?);
    power("Running").await?;
    see::machine(&machines, "m", MachinePhase::Ready).await?;
    ensure!(runs().await?.len() == 2, "it was asked for once: {:?}", runs().await?);
    Ok(())
}
