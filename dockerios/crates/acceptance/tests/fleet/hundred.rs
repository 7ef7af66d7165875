//! More machines than identities.

use std::collections::{HashMap, HashSet};

use anyhow::{Result, ensure};
use dockerios_acceptance::{Chronicle, Moment, Thing, make, see};
use dockerios_api::machine::macos_machine::MachinePhase;
use dockerios_api::{IdentityPool, MacOSMachine, MacOSMachineClass, names};
use dockerios_kubevirt::VirtualMachine;
use futures::future::try_join_all;
use kube::ResourceExt as _;
use kube::api::DeleteParams;

use crate::fleet;

const IDENTITIES: u32 = 50;
const MACHINES: usize = 100;

pub(crate) async fn a_hundred_machines_on_fifty_identities_fifty_wait_no_identity_twice_all_served_in_the_end()
-> Result<()> {
    let fleet = fleet().await?;
    let scratch = fleet.namespace("hundred").await?;
    let (ns, client) = (scratch.name(), &fleet.client);
    let _: IdentityPool = make::cluster(client, make::identities("hundred", IDENTITIES, "Recycle")).await?;
    see::condition(&fleet.all::<IdentityPool>(), "hundred", "Replenished", "True").await?;
    let _: MacOSMachineClass = make::cluster(client, make::class_of("hundred", "hundred")).await?;
    let chronicle = Chronicle::start(client, ns).await?;

    try_join_all((0..MACHINES).map(|n| async move {
        make::within::<MacOSMachine>(client, ns, make::machine(&format!("m-{n:03}"), "hundred")).await
    }))
    .await?;
    let machines = fleet.api::<MacOSMachine>(ns);
    let in_phase = |all: &[MacOSMachine], phase| all.iter().filter(|m| see::machine_phase(m) == Some(phase)).count();
    let all = see::count(&machines, "fifty Ready, fifty Pending", |all| {
        in_phase(all, MachinePhase::Ready) == 50 && in_phase(all, MachinePhase::Pending) == 50
    })
    .await?;
    let (first, waiting): (Vec<_>, Vec<_>) = all
        .into_iter()
        .partition(|m| see::machine_phase(m) == Some(MachinePhase::Ready));
    for machine in &waiting {
        let name = machine.name_any();
        let said = see::condition_of(machine, "IdentityAllocated").unwrap_or_default();
        ensure!(said["reason"] == "IdentityExhausted", "{name}: {said}");
        let note = see::event(client, ns, &name, "IdentityExhausted").await?;
        ensure!(
            note.contains("hundred") && note.contains("50"),
            "the event names pool and numbers: {note}"
        );
    }

    // the first fifty go, the waiting ones are served
    try_join_all(first.iter().map(|machine| {
        let machines = machines.clone();
        async move { machines.delete(&machine.name_any(), &DeleteParams::default()).await }
    }))
    .await?;
    see::count(&machines, "the waiting fifty Ready", |all| {
        all.len() == 50 && in_phase(all, MachinePhase::Ready) == 50
    })
    .await?;
    no_identity_twice(&chronicle, "hundred").await?;

    let deletion = DeleteParams::default();
    machines.delete_collection(&deletion, &Default::default()).await?;
    see::none_left(&machines).await?;
    see::none_left(&fleet.api::<VirtualMachine>(ns)).await
}

/// At no moment do two machines have one identity, neither by the identity's own word nor by what runs with it, nor
/// does something run with an identity that is free.
pub(crate) async fn no_identity_twice(chronicle: &Chronicle, pool: &str) -> Result<()> {
    let mut given = 0;
    chronicle
        .always(
            "one machine for each identity, and one identity for each machine",
            |world| {
                let of_pool = |m: &&&Moment| m.thing == Thing::Identity && m.text("/spec/poolName") == pool;
                let holders: HashMap<&str, &str> = world
                    .iter()
                    .filter(of_pool)
                    .map(|identity| (identity.name.as_str(), identity.text("/status/claimRef/uid")))
                    .collect();
                let taken: Vec<&str> = holders.values().copied().filter(|uid| !uid.is_empty()).collect();
                given = given.max(taken.len());
                let each_once = taken.iter().collect::<HashSet<_>>().len() == taken.len();
                let runs = |m: &&&Moment| {
                    matches!(m.thing, Thing::VirtualMachine | Thing::Instance | Thing::Pod)
                        && holders.contains_key(m.label(names::IDENTITY))
                };
                let by_right = world
                    .iter()
                    .filter(runs)
                    .all(|m| holders.get(m.label(names::IDENTITY)) == Some(&m.label(names::MACHINE_UID)));
                each_once && by_right
            },
        )
        .await?;
    ensure!(
        given > 1,
        "at most {given} identities were given out at once: little is shown"
    );
    Ok(())
}
