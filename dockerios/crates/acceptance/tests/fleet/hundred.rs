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
    let most = no_identity_twice(&chronicle, "hundred").await?;
    ensure!(most == 50, "at most {most} of fifty identities were out at once");
    let identities = chronicle
        .moments()
        .await?
        .into_iter()
        .filter(|m| m.thing == Thing::Identity);
    let minted: HashSet<String> = identities
        .filter(|m| m.text("/spec/poolName") == "hundred")
        .map(|m| m.name)
        .collect();
    ensure!(minted.len() == 50, "{} identities were minted for fifty", minted.len());

    let deletion = DeleteParams::default();
    machines.delete_collection(&deletion, &Default::default()).await?;
    see::none_left(&machines).await?;
    see::none_left(&fleet.api::<VirtualMachine>(ns)).await
}

/// At no moment do two machines have one identity, neither by the identity's own word nor by what runs with it (its
/// label, and the UUID that the guest's firmware shows), nor does something run with an identity that is free. Gives how
/// many were out at once, at most.
async fn no_identity_twice(chronicle: &Chronicle, pool: &str) -> Result<usize> {
    let (mut given, mut running) = (0, 0);
    let what = "one machine for each identity, and one identity for each machine";
    let holds = |world: &[&Moment]| {
        let of_pool = world
            .iter()
            .filter(|m| m.thing == Thing::Identity && m.text("/spec/poolName") == pool);
        let holders: HashMap<&str, (&str, &str)> = of_pool
            .map(|m| {
                (
                    m.name.as_str(),
                    (m.text("/status/claimRef/uid"), m.text("/spec/systemUUID")),
                )
            })
            .collect();
        let taken: Vec<&str> = holders
            .values()
            .map(|(uid, _)| *uid)
            .filter(|uid| !uid.is_empty())
            .collect();
        given = given.max(taken.len());
        let each_once = taken.iter().collect::<HashSet<_>>().len() == taken.len();
        let (mut by_right, mut runs) = (true, 0);
        for m in world {
            let uuid = match m.thing {
                Thing::VirtualMachine => m.text("/spec/template/spec/domain/firmware/uuid"),
                Thing::Instance => m.text("/spec/domain/firmware/uuid"),
                Thing::Pod => "",
                _ => continue,
            };
            let Some((holder, system_uuid)) = holders.get(m.label(names::IDENTITY)) else {
                continue;
            };
            runs += 1;
            by_right &= *holder == m.label(names::MACHINE_UID);
            by_right &= uuid.eq_ignore_ascii_case(system_uuid) || m.thing == Thing::Pod;
        }
        running = running.max(runs);
        each_once && by_right
    };
    chronicle.always(what, holds).await?;
    // a VirtualMachine, an instance and a pod of each
    ensure!(
        running >= 3 * given,
        "{given} identities were out and {running} objects carried one: little is shown"
    );
    Ok(given)
}
