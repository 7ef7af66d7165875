//! Two operators, one Lease.

use anyhow::{Context as _, Result, ensure};
use dockerios_acceptance::{Fleet, make, see};
use dockerios_api::machine::macos_machine::MachinePhase;
use dockerios_api::{IdentityPool, MacOSMachine, MacOSMachineClass};
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt as _;
use kube::api::DeleteParams;

use crate::fleet;

/// Whose writes there were in the namespace, in their order, each operator once for all that it wrote in a row.
fn writers(fleet: &Fleet, ns: &str) -> Result<Vec<String>> {
    let requests = fleet.requests()?.into_iter();
    let mut writers: Vec<String> = requests
        .filter(|request| request.namespace == ns && request.writes() && request.resource != "events")
        .map(|request| request.credential)
        .collect();
    writers.dedup();
    Ok(writers)
}

fn holder(lease: &Lease) -> String {
    lease
        .spec
        .as_ref()
        .and_then(|spec| spec.holder_identity.clone())
        .unwrap_or_default()
}

pub(crate) async fn when_the_leader_is_killed_the_other_goes_on_and_only_one_decides() -> Result<()> {
    let fleet = fleet().await?;
    let scratch = fleet.namespace("leaders").await?;
    let (ns, client) = (scratch.name(), &fleet.client);
    let leases = fleet.api::<Lease>("dockerios-system");
    // a token each, by which the API server tells them apart
    let leader = fleet.spawn_operator(&fleet.operators_kubeconfig().await?, true)?;
    let held = see::until(&leases, "dockerios-operator", "a holder", |lease| {
        !holder(lease).is_empty()
    })
    .await?;
    // its webhook and collector are on ports of their own; the last to register is called
    let other = fleet.spawn_another_operator(&fleet.operators_kubeconfig().await?)?;
    let _: IdentityPool = make::cluster(client, make::identities("leaders", 1, "Recycle")).await?;
    let _: MacOSMachineClass = make::cluster(client, make::class_of("leaders", "leaders")).await?;
    let machine: MacOSMachine = make::within(client, ns, make::machine("m", "leaders")).await?;
    let machines = fleet.api::<MacOSMachine>(ns);
    see::machine(&machines, "m", MachinePhase::Ready).await?;
    ensure!(
        holder(&leases.get("dockerios-operator").await?) == holder(&held),
        "the Lease changed hands for no reason"
    );

    let first = writers(fleet, ns)?;
    ensure!(
        first.len() == 1 && !first[0].is_empty(),
        "of two operators one decides, not {first:?}"
    );

    // while it goes down
    machines.delete("m", &DeleteParams::default()).await?;
    leader.process.kill9().await?;
    let taken = see::until(&leases, "dockerios-operator", "another holder", |lease| {
        let now = holder(lease);
        !now.is_empty() && now != holder(&held)
    })
    .await?;
    see::gone(&machines, "m").await?;
    ensure!(
        see::identity_of(client, &machine.uid().context("uid")?)
            .await?
            .is_none(),
        "its identity leaked"
    );
    ensure!(other.process.is_running(), "the other ended too");
    let both = writers(fleet, ns)?;
    ensure!(
        both.len() == 2 && both[0] == first[0],
        "one decided after the other: {both:?}"
    );
    // one that is told to end gives the Lease back at once
    other.process.terminate(std::time::Duration::from_secs(20)).await?;
    let after = leases.get("dockerios-operator").await?;
    ensure!(holder(&after) != holder(&taken), "not given back: {after:?}");
    Ok(())
}
