//! Objects that others write to as well, or wrote in ways that we do not know.

use anyhow::{Context as _, Result, ensure};
use dockerios_acceptance::{Chronicle, Thing, make, see};
use dockerios_api::machine::macos_machine::MachinePhase;
use dockerios_api::names::TEARDOWN;
use dockerios_api::{IdentityPool, MacOSMachine, MacOSMachineClass, MachineIdentity, names};
use dockerios_kubevirt::VirtualMachine;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{CustomResourceDefinition, JSON};
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, CustomResourceExt as _, ResourceExt as _};
use serde_json::{Value, json};

use crate::fleet;

const X: &str = "a.example/x";
const Y: &str = "b.example/y";

pub(crate) async fn finalizers_of_others_survive_and_a_machine_that_is_going_gets_none_of_ours() -> Result<()> {
    let fleet = fleet().await?;
    let scratch = fleet.namespace("finalizers").await?;
    let (ns, client) = (scratch.name(), &fleet.client);
    let machines = fleet.api::<MacOSMachine>(ns);
    let merge = PatchParams::default();
    let chronicle = Chronicle::start(client, ns).await?;
    let _: MacOSMachineClass = make::cluster(client, make::class("finalizers")).await?;

    // two others; one goes while the machine is taken down
    let mut first = make::machine("mac-1", "finalizers");
    first["metadata"]["finalizers"] = json!([X, Y]);
    let _: MacOSMachine = make::within(client, ns, first).await?;
    see::machine(&machines, "mac-1", MachinePhase::Ready).await?;
    machines.delete("mac-1", &DeleteParams::default()).await?;
    let mut left = machines.get("mac-1").await?.finalizers().to_vec();
    ensure!(
        left.iter().any(|finalizer| finalizer == TEARDOWN),
        "the teardown was over too soon: {left:?}"
    );
    left.retain(|finalizer| finalizer != X);
    machines
        .patch(
            "mac-1",
            &merge,
            &Patch::Merge(json!({"metadata": {"finalizers": left}})),
        )
        .await?;
    see::until(&machines, "mac-1", "the other's finalizer alone", |m| {
        m.finalizers() == [Y]
    })
    .await?;

    // it is going and has none of ours: nothing is made for it, whatever becomes possible
    let mut second = make::machine("mac-2", "finalizers-later");
    second["metadata"]["finalizers"] = json!([Y]);
    let second: MacOSMachine = make::within(client, ns, second).await?;
    see::reason(&machines, "mac-2", "Ready", "ClassNotFound").await?;
    machines.delete("mac-2", &DeleteParams::default()).await?;
    see::until(&machines, "mac-2", "the other's finalizer alone", |m| {
        m.finalizers() == [Y]
    })
    .await?;
    let _: MacOSMachineClass = make::cluster(client, make::class("finalizers-later")).await?;
    see::condition(&fleet.all::<MacOSMachineClass>(), "finalizers-later", "Ready", "True").await?;

    // ours twice
    let _: MacOSMachine = make::within(client, ns, make::machine("mac-3", "finalizers")).await?;
    see::machine(&machines, "mac-3", MachinePhase::Ready).await?;
    let breaker: Api<MacOSMachine> = Api::namespaced(fleet.break_glass().await?, ns);
    let twice = Patch::Merge(json!({"metadata": {"finalizers": [TEARDOWN, TEARDOWN]}}));
    breaker.patch("mac-3", &merge, &twice).await?;
    machines.delete("mac-3", &DeleteParams::default()).await?;
    see::gone(&machines, "mac-3").await?;

    let uid = second.uid().context("uid")?;
    let moments = chronicle.moments().await?;
    let made = moments.iter().find(|m| m.label(names::MACHINE_UID) == uid);
    ensure!(
        made.is_none(),
        "something was made for a machine that was going: {made:?}"
    );
    let going = moments
        .iter()
        .filter(|m| m.uid == uid && !m.text("/metadata/deletionTimestamp").is_empty());
    let ours = |m: &&dockerios_acceptance::Moment| m.object["metadata"]["finalizers"].to_string().contains(TEARDOWN);
    let mut held: Vec<bool> = going.map(|m| ours(&m)).collect();
    held.dedup();
    ensure!(
        held == [true, false] || held == [false],
        "our finalizer came back on a machine that was going: {held:?}"
    );
    for name in ["mac-1", "mac-2"] {
        machines
            .patch(name, &merge, &Patch::Merge(json!({"metadata": {"finalizers": null}})))
            .await?;
        see::gone(&machines, name).await?;
    }
    Ok(())
}

/// A definition of a later version lets a word in that this operator's types do not have.
pub(crate) async fn what_a_newer_schema_wrote_stops_nobody_and_is_not_taken_for_absent() -> Result<()> {
    let fleet = fleet().await?;
    let scratch = fleet.namespace("newer").await?;
    let (ns, client) = (scratch.name(), &fleet.client);
    let _: IdentityPool = make::cluster(client, make::identities("newer", 2, "Recycle")).await?;
    let _: MacOSMachineClass = make::cluster(client, make::class_of("newer", "newer")).await?;
    let machine: MacOSMachine = make::within(client, ns, make::machine("odd", "newer")).await?;
    let uid = machine.uid().context("uid")?;
    let machines = fleet.api::<MacOSMachine>(ns);
    see::machine(&machines, "odd", MachinePhase::Ready).await?;
    let identity = see::identity_of(client, &uid).await?.context("identity")?.name_any();

    let definitions = fleet.all::<CustomResourceDefinition>();
    let mut wider = definitions.get(MacOSMachine::crd_name()).await?;
    let schema = wider.spec.versions[0]
        .schema
        .as_mut()
        .and_then(|schema| schema.open_api_v3_schema.as_mut());
    let spec = schema.and_then(|schema| schema.properties.as_mut()?.get_mut("spec")?.properties.as_mut());
    let power = spec
        .and_then(|spec| spec.get_mut("powerState")?.enum_.as_mut())
        .context("powerState has words")?;
    power.push(JSON(json!("Hibernated")));
    definitions
        .replace(MacOSMachine::crd_name(), &PostParams::default(), &wider)
        .await?;
    let untyped: Api<DynamicObject> =
        Api::namespaced_with(client.clone(), ns, &ApiResource::erase::<MacOSMachine>(&()));
    let hibernate = Patch::Merge(json!({"spec": {"powerState": "Hibernated"}}));
    // the API server takes a moment to serve the wider definition
    let deadline = tokio::time::Instant::now() + see::PATIENCE;
    while let Err(error) = untyped.patch("odd", &PatchParams::default(), &hibernate).await {
        ensure!(tokio::time::Instant::now() < deadline, "{error}");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    // others go on
    let _: MacOSMachine = make::within(client, ns, make::machine("even", "newer")).await?;
    let even = see::until(&untyped, "even", "Ready", |object: &DynamicObject| {
        object.data.pointer("/status/phase").and_then(Value::as_str) == Some("Ready")
    })
    .await?;
    // what cannot be read is not taken for gone, and keeps everything
    see::reason(&fleet.all::<MachineIdentity>(), &identity, "Ready", "Unreadable").await?;
    let held = see::identity_of(client, &uid)
        .await?
        .map(|identity| identity.name_any());
    ensure!(held.as_ref() == Some(&identity), "the identity was freed");
    let vm = names::of_machine("odd", &uid, "vm");
    ensure!(
        fleet
            .api::<VirtualMachine>(ns)
            .get(&vm)
            .await?
            .metadata
            .deletion_timestamp
            .is_none(),
        "the VM goes"
    );
    let log = fleet.log_about("odd");
    ensure!(
        log.contains("Hibernated") || log.contains("unreadable") || log.contains("cannot be read"),
        "nobody was told: {log}"
    );
    // and works again once it can be read
    let run = Patch::Merge(json!({"spec": {"powerState": "Running"}}));
    untyped.patch("odd", &PatchParams::default(), &run).await?;
    machines.delete("odd", &DeleteParams::default()).await?;
    see::gone(&machines, "odd").await?;
    ensure!(even.metadata.deletion_timestamp.is_none());
    Ok(())
}

pub(crate) async fn a_status_does_not_grow_with_what_others_say() -> Result<()> {
    let fleet = fleet().await?;
    let scratch = fleet.namespace("growth").await?;
    let (ns, client) = (scratch.name(), &fleet.client);
    let _: MacOSMachineClass = make::cluster(client, make::class("growth")).await?;
    // said by the one that writes the DataVolume's status, so that nobody says anything else over it
    fleet.sim.fault(&format!("clone-error {ns}/* at first"))?;
    let mut told: MacOSMachine = make::within(client, ns, make::machine("m", "growth")).await?;
    let machines = fleet.api::<MacOSMachine>(ns);
    for round in 0..8 {
        let long = format!("round {round}: {}", "ü".repeat(10_000));
        fleet.sim.fault(&format!("clone-error {ns}/* {long}"))?;
        told = see::until(&machines, "m", "what CDI says", |machine| {
            see::condition_of(machine, "DiskCloned").is_some_and(|c| {
                c["message"]
                    .as_str()
                    .is_some_and(|m| m.contains(&format!("round {round}: üü")))
            })
        })
        .await?;
    }
    let whole = serde_json::to_string(&told)?;
    ensure!(whole.len() < 64 << 10, "the machine has {} bytes", whole.len());
    for condition in &told.status.context("status")?.conditions {
        ensure!(
            condition.message.len() <= 1024,
            "{}: {} bytes",
            condition.kind,
            condition.message.len()
        );
    }
    fleet.sim.clear(&format!("clone-error {ns}/*"))?;
    machines.delete("m", &DeleteParams::default()).await?;
    see::gone(&machines, "m").await?;
    let chronicle = Chronicle::start(client, ns).await?;
    ensure!(
        chronicle.moments().await?.iter().all(|m| m.thing != Thing::DataVolume),
        "a DataVolume is left"
    );
    Ok(())
}
