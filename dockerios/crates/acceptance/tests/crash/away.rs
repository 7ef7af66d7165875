//! The API server stops answering, for longer than anybody waits, and comes back.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use dockerios_acceptance::{Request, make, see};
use dockerios_api::machine::macos_machine::MachinePhase;
use dockerios_api::{IdentityPool, MacOSMachine, MacOSMachineClass, names};
use dockerios_kubevirt::VirtualMachineInstance;
use kube::ResourceExt as _;
use kube::api::DeleteParams;

use crate::fleet;

/// Longer than the leader's Lease holds, so that it must step back.
const AWAY: Duration = Duration::from_secs(20);

pub(crate) async fn an_api_server_that_is_away_for_a_while_frees_nothing() -> Result<()> {
    let fleet = fleet().await?;
    let scratch = fleet.namespace("away").await?;
    let (ns, client) = (scratch.name(), &fleet.client);
    let operator = fleet.spawn_operator(&fleet.operators_kubeconfig().await?, true)?;
    let _: IdentityPool = make::cluster(client, make::identities("away", 2, "Recycle")).await?;
    let _: MacOSMachineClass = make::cluster(client, make::class_of("away", "away")).await?;
    let machine: MacOSMachine = make::within(client, ns, make::machine("m", "away")).await?;
    let uid = machine.uid().context("uid")?;
    let machines = fleet.api::<MacOSMachine>(ns);
    see::machine(&machines, "m", MachinePhase::Ready).await?;
    let identity = see::identity_of(client, &uid).await?.context("identity")?.name_any();
    let instances = fleet.api::<VirtualMachineInstance>(ns);
    let vm = names::of_machine("m", &uid, "vm");
    let instance = instances.get(&vm).await?.uid();

    fleet.stop_api_server().await?;
    // nothing can be watched while nobody answers
    tokio::time::sleep(AWAY).await;
    fleet.continue_api_server().await?;

    // an operator that steps back ends, and its Deployment starts it again
    let kubeconfig = fleet.operators_kubeconfig().await?;
    let successor = if operator.process.is_running() {
        None
    } else {
        Some(fleet.spawn_operator(&kubeconfig, true)?)
    };
    let second: MacOSMachine = make::within(client, ns, make::machine("second", "away")).await?;
    see::machine(&machines, "second", MachinePhase::Ready).await?;
    let now = machines.get("m").await?;
    ensure!(
        now.uid().as_ref() == Some(&uid) && now.metadata.deletion_timestamp.is_none(),
        "the machine was deleted"
    );
    let held = see::identity_of(client, &uid)
        .await?
        .map(|identity| identity.name_any());
    ensure!(held.as_ref() == Some(&identity), "{held:?}, it had {identity}");
    ensure!(second.uid().as_ref() != Some(&uid));
    ensure!(
        instances.get(&vm).await?.uid() == instance,
        "its guest was started anew"
    );
    // nor was anything deleted that was made again
    let deletes = |request: &Request| {
        request.namespace == ns && request.verb.starts_with("delete") && !request.line.contains("dryRun=All")
    };
    let deleted = fleet.requests()?.into_iter().find(deletes);
    ensure!(deleted.is_none(), "{deleted:?}");
    for name in ["m", "second"] {
        machines.delete(name, &DeleteParams::default()).await?;
        see::gone(&machines, name).await?;
    }
    drop(successor);
    Ok(())
}
