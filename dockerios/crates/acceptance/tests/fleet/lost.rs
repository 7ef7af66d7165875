//! A node that is lost under a claimed machine, from the silence to the end.

use anyhow::{Context as _, Result, ensure};
use dockerios_acceptance::{Chronicle, Fleet, Moment, Thing, make, see};
use dockerios_api::machine::claim::ClaimPhase;
use dockerios_api::machine::macos_machine::MachinePhase;
use dockerios_api::{MacOSMachine, MacOSMachineClaim, MacOSMachinePool, names};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::fleet;
use crate::nodes::{self, Claimed};

/// Two spare nodes that share a label, so that what leaves the one has the other.
const PAIR: [&str; 2] = ["kvm-pair-a", "kvm-pair-b"];
const LABEL: &str = "acceptance.dockerios.io/pair";

async fn class(fleet: &Fleet) -> Result<Value> {
    for node in PAIR {
        let patch = Patch::Merge(json!({"metadata": {"labels": {LABEL: "lost"}}}));
        fleet.all::<Node>().patch(node, &PatchParams::default(), &patch).await?;
    }
    let mut class = make::on_node(make::class_of("pair", "pair"), PAIR[0]);
    class["spec"]["placement"]["nodeSelector"] = json!({LABEL: "lost"});
    Ok(class)
}

/// The pool's machine that is not one of those.
async fn another(fleet: &Fleet, ns: &str, known: &[&str]) -> Result<MacOSMachine> {
    let new = |machine: &MacOSMachine| !known.contains(&machine.name_any().as_str());
    let all = see::count(&fleet.api::<MacOSMachine>(ns), "another machine", |all| {
        all.iter().any(new)
    })
    .await?;
    all.into_iter().find(|machine| new(machine)).context("another machine")
}

async fn scale(fleet: &Fleet, ns: &str, replicas: u32) -> Result<()> {
    let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
    let pools = fleet.api::<MacOSMachinePool>(ns);
    pools.patch("pair", &PatchParams::default(), &patch).await?;
    Ok(())
}

pub(crate) async fn while_a_lost_node_is_away_others_get_other_identities_and_its_machine_fails_once_when_it_is_back()
-> Result<()> {
    let fleet = fleet().await?;
    let scratch = fleet.namespace("pair").await?;
    let (ns, client) = (scratch.name(), &fleet.client);
    let chronicle = Chronicle::start(client, ns).await?;
    let Claimed {
        machine,
        name: lost,
        uid,
        identity,
    } = nodes::claimed(fleet, ns, "pair", class(fleet).await?).await?;
    let claims = fleet.api::<MacOSMachineClaim>(ns);
    let machines = fleet.api::<MacOSMachine>(ns);
    let node = machine
        .status
        .and_then(|status| status.node_name)
        .context("its node")?
        .to_string();

    fleet.sim.fault(&format!("node-lost /{node}"))?;
    see::reason(&claims, "c", "Ready", "MachineUnreachable").await?;
    ensure!(see::machine_phase(&machines.get(&lost).await?) == Some(MachinePhase::Unknown));
    // a warm one is made on the other node, with the other identity
    scale(fleet, ns, 1).await?;
    let second = another(fleet, ns, &[&lost]).await?;
    let second_name = second.name_any();
    let ready = see::machine(&machines, &second_name, MachinePhase::Ready).await?;
    let elsewhere = ready.status.and_then(|status| status.node_name);
    ensure!(
        elsewhere.as_ref().is_some_and(|other| other.to_string() != node),
        "{second_name} is on {elsewhere:?}, {node} is lost"
    );
    let other = see::identity_of(client, &second.uid().context("uid")?).await?;
    ensure!(
        other.is_some_and(|other| other.name_any() != identity),
        "one identity for two"
    );
    // and a third waits: what may still run with the first identity keeps it
    scale(fleet, ns, 2).await?;
    let third = another(fleet, ns, &[&lost, &second_name]).await?.name_any();
    let waits = see::reason(&machines, &third, "IdentityAllocated", "IdentityExhausted").await?;
    ensure!(
        see::machine_phase(&waits) == Some(MachinePhase::Pending),
        "{:?}",
        waits.status
    );
    let held = see::identity_of(client, &uid).await?.map(|held| held.name_any());
    ensure!(
        held.as_ref() == Some(&identity),
        "the lost machine's identity is {held:?}"
    );

    // the node comes back, and QEMU had ended badly meanwhile
    let back_at = chronicle.moments().await?.last().context("moments")?.at;
    let vm = names::of_machine(&lost, &uid, "vm");
    fleet.sim.fault(&format!("crash {ns}/{vm}"))?;
    fleet.sim.clear(&format!("node-lost /{node}"))?;
    see::claim(&claims, "c", ClaimPhase::Lost).await?;
    see::machine(&machines, &third, MachinePhase::Ready).await?;
    let failed = chronicle
        .first(Thing::Machine, "Failed", |m| {
            m.uid == uid && m.text("/status/phase") == "Failed"
        })
        .await?;
    ensure!(
        failed > back_at,
        "failed at {failed}, before its node was back at {back_at}"
    );
    one_holder_at_a_time(&chronicle, &identity, &uid, back_at).await?;
    let forced = fleet.requests()?.into_iter().find(|request| {
        request.namespace == ns
            && request.verb == "delete"
            && matches!(&*request.resource, "pods" | "virtualmachineinstances")
    });
    ensure!(forced.is_none(), "{forced:?}");
    Ok(())
}

/// The identity was given back once, after the node was back, and never ran twice.
async fn one_holder_at_a_time(chronicle: &Chronicle, identity: &str, uid: &str, back_at: u64) -> Result<()> {
    let moments = chronicle.moments().await?;
    let holders: Vec<_> = moments
        .iter()
        .filter(|m| m.thing == Thing::Identity && m.name == identity)
        .map(|m| (m.at, m.text("/status/claimRef/uid") == uid))
        .collect();
    let freed: Vec<u64> = holders
        .windows(2)
        .filter(|pair| pair[0].1 && !pair[1].1)
        .map(|pair| pair[1].0)
        .collect();
    ensure!(
        freed.len() == 1 && freed[0] > back_at,
        "given back at {freed:?}, the node was back at {back_at}"
    );
    let carries = |m: &Moment| {
        matches!(m.thing, Thing::VirtualMachine | Thing::Instance | Thing::Pod) && m.label(names::IDENTITY) == identity
    };
    let owners = |world: &[&Moment]| {
        let owners = world.iter().filter(|m| carries(m)).map(|m| m.label(names::MACHINE_UID));
        owners.collect::<std::collections::HashSet<_>>().len()
    };
    chronicle
        .always("one machine carries an identity", |world| owners(world) <= 1)
        .await
}
