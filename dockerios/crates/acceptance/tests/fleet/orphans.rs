//! Identities whose machine is gone, or is another one than it seems.

use anyhow::{Context as _, Result, ensure};
use dockerios_acceptance::{Chronicle, Fleet, Thing, make, see};
use dockerios_api::identity::machine_identity::IdentityPhase;
use dockerios_api::machine::macos_machine::MachinePhase;
use dockerios_api::{IdentityPool, MacOSMachine, MacOSMachineClass, MachineIdentity, names};
use dockerios_kubevirt::{VirtualMachine, VirtualMachineInstance};
use dockerios_testkit::expect;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use crate::fleet;

/// A pool of one identity, a class of it, and a Ready machine `m` that has it: its uid, and the identity's name.
async fn one(fleet: &Fleet, ns: &str, name: &str, policy: &str) -> Result<(String, String)> {
    let client = &fleet.client;
    let _: IdentityPool = make::cluster(client, make::identities(name, 1, policy)).await?;
    let _: MacOSMachineClass = make::cluster(client, make::class_of(name, name)).await?;
    let machine: MacOSMachine = make::within(client, ns, make::machine("m", name)).await?;
    see::machine(&fleet.api(ns), "m", MachinePhase::Ready).await?;
    let uid = machine.uid().context("uid")?;
    let identity = see::identity_of(client, &uid)
        .await?
        .context("the machine has an identity")?
        .name_any();
    Ok((uid, identity))
}

/// The machine vanishes at once, its finalizer taken off by somebody of the break-glass group.
async fn by_force(fleet: &Fleet, ns: &str) -> Result<()> {
    let strip = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    // everybody else is refused, an admin too
    let as_admin = fleet
        .api::<MacOSMachine>(ns)
        .patch("m", &PatchParams::default(), &strip)
        .await;
    expect::refused(as_admin, 403, &["[teardown-owned]"])?;
    let machines: Api<MacOSMachine> = Api::namespaced(fleet.break_glass().await?, ns);
    let now = DeleteParams::default().grace_period(0);
    machines.delete("m", &now).await?;
    match machines.patch("m", &PatchParams::default(), &strip).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

fn phase(identity: &MachineIdentity) -> Option<IdentityPhase> {
    identity.status.as_ref()?.phase
}

pub(crate) async fn an_identity_is_not_given_out_while_the_vm_of_a_stripped_machine_runs() -> Result<()> {
    let fleet = fleet().await?;
    let scratch = fleet.namespace("stripped").await?;
    let ns = scratch.name();
    let (uid, identity) = one(fleet, ns, "stripped", "Recycle").await?;
    let chronicle = Chronicle::start(&fleet.client, ns).await?;
    // a VM that takes its time: its guest does not hear the power button
    let vm = names::of_machine("m", &uid, "vm");
    fleet.sim.fault(&format!("ignore-acpi {ns}/{vm}"))?;
    fleet.sim.fault(&format!("no-agent {ns}/{vm}"))?;
    by_force(fleet, ns).await?;
    let next: MacOSMachine = make::within(&fleet.client, ns, make::machine("next", "stripped")).await?;
    see::machine(&fleet.api(ns), "next", MachinePhase::Ready).await?;

    let given = chronicle
        .first(Thing::Identity, "given to the next machine", |m| {
            m.name == identity && Some(m.text("/status/claimRef/uid")) == next.metadata.uid.as_deref()
        })
        .await?;
    for thing in [Thing::VirtualMachine, Thing::Instance, Thing::Pod] {
        let gone = chronicle
            .last_gone(thing, "of the stripped machine", |m| m.label(names::MACHINE_UID) == uid)
            .await?;
        ensure!(gone < given, "given out at {given}, the {thing:?} was gone at {gone}");
    }
    see::none_left(&fleet.api::<MacOSMachine>(ns))
        .await
        .err()
        .context("the next machine is there")?;
    Ok(())
}

pub(crate) async fn a_machine_gone_by_force_leaves_its_identity_to_the_pools_policy() -> Result<()> {
    let fleet = fleet().await?;
    let identities = fleet.all::<MachineIdentity>();
    let scratch = fleet.namespace("forced").await?;
    let recycle = async {
        let (_, identity) = one(fleet, scratch.name(), "forced-recycle", "Recycle").await?;
        by_force(fleet, scratch.name()).await?;
        see::until(&identities, &identity, "Available again", |i| {
            phase(i) == Some(IdentityPhase::Available)
        })
        .await
    };
    let other = fleet.namespace("forced").await?;
    let quarantine = async {
        let (_, identity) = one(fleet, other.name(), "forced-quarantine", "Quarantine").await?;
        by_force(fleet, other.name()).await?;
        see::until(&identities, &identity, "Quarantined", |i| {
            phase(i) == Some(IdentityPhase::Quarantined)
        })
        .await
    };
    let third = fleet.namespace("forced").await?;
    let delete = async {
        let (_, identity) = one(fleet, third.name(), "forced-delete", "Delete").await?;
        by_force(fleet, third.name()).await?;
        see::gone(&identities, &identity).await
    };
    let (_, quarantined, ()) = tokio::try_join!(recycle, quarantine, delete)?;
    let said = see::condition_of(&quarantined, "Ready").context("Ready")?;
    ensure!(said["reason"] == "QuarantinedByPolicy", "{said}");
    // what nobody's machine left behind is swept away
    for ns in [scratch.name(), other.name(), third.name()] {
        see::none_left(&fleet.api::<VirtualMachine>(ns)).await?;
        see::none_left(&fleet.api::<VirtualMachineInstance>(ns)).await?;
    }
    Ok(())
}

pub(crate) async fn a_machine_made_again_under_the_name_does_not_inherit_the_identity() -> Result<()> {
    let fleet = fleet().await?;
    tokio::try_join!(
        made_again(fleet, "Recycle", "again-recycle"),
        made_again(fleet, "Quarantine", "again"),
        made_again(fleet, "Delete", "again-delete"),
    )?;
    Ok(())
}

/// What becomes of the one identity of a pool, and what the second machine named `m` gets.
async fn made_again(fleet: &Fleet, policy: &str, pool: &str) -> Result<()> {
    let scratch = fleet.namespace("again").await?;
    let ns = scratch.name();
    let (uid, identity) = one(fleet, ns, pool, policy).await?;
    let chronicle = Chronicle::start(&fleet.client, ns).await?;
    by_force(fleet, ns).await?;
    let second: MacOSMachine = make::within(&fleet.client, ns, make::machine("m", pool)).await?;
    let second_uid = second.uid().context("uid")?;
    ensure!(second_uid != uid, "the same uid");
    let (identities, machines) = (fleet.all::<MachineIdentity>(), fleet.api::<MacOSMachine>(ns));
    if policy == "Quarantine" {
        // it waits: the one identity is for a person to release
        see::until(&identities, &identity, "Quarantined", |i| {
            phase(i) == Some(IdentityPhase::Quarantined)
        })
        .await?;
        see::reason(&machines, "m", "IdentityAllocated", "IdentityExhausted").await?;
        chronicle
            .always("the second machine never has the identity of the first", |world| {
                world
                    .iter()
                    .all(|m| !(m.name == identity && m.text("/status/claimRef/uid") == second_uid))
            })
            .await?;
        // released by hand, it is given out
        let release = Patch::Merge(json!({"metadata": {"annotations": {names::RELEASE: "true"}}}));
        identities.patch(&identity, &PatchParams::default(), &release).await?;
    }
    see::machine(&machines, "m", MachinePhase::Ready).await?;
    let has = see::identity_of(&fleet.client, &second_uid)
        .await?
        .context("the second machine has an identity")?;
    ensure!(
        (has.name_any() == identity) == (policy != "Delete"),
        "{policy}: the first had {identity}, the second has {}",
        has.name_any()
    );
    if policy == "Delete" {
        see::gone(&identities, &identity).await?;
    }
    // by that policy's way, free in between, and not by the name
    let holders: Vec<String> = chronicle
        .moments()
        .await?
        .iter()
        .filter(|m| m.thing == Thing::Identity && m.name == identity && !m.gone)
        .map(|m| m.text("/status/claimRef/uid").to_owned())
        .collect();
    ensure!(
        holders.windows(2).all(|pair| pair[0] != uid || pair[1] != second_uid),
        "{policy}: it went from the first machine to the second at once"
    );
    Ok(())
}

pub(crate) async fn a_claim_reference_without_a_uid_is_no_wildcard() -> Result<()> {
    let fleet = fleet().await?;
    let scratch = fleet.namespace("nouid").await?;
    let (ns, client) = (scratch.name(), &fleet.client);
    let _: IdentityPool = make::cluster(client, make::identities("nouid", 1, "Recycle")).await?;
    see::condition(&fleet.all::<IdentityPool>(), "nouid", "Replenished", "True").await?;
    let _: MacOSMachineClass = make::cluster(client, make::class_of("nouid", "nouid")).await?;
    let pool = ListParams::default().fields("spec.poolName=nouid");
    let identity = fleet
        .all::<MachineIdentity>()
        .list(&pool)
        .await?
        .items
        .pop()
        .context("identity")?
        .name_any();
    let breaker: Api<MachineIdentity> = Api::all(fleet.break_glass().await?);
    let reference =
        |uid: &str| Patch::Merge(json!({"status": {"claimRef": {"namespace": ns, "name": "m", "uid": uid}}}));
    // the schema takes none; what an older one may have stored is judged in the operator's own tables
    let empty = breaker
        .patch_status(&identity, &PatchParams::default(), &reference(""))
        .await;
    expect::refused(empty, 422, &["status.claimRef.uid"])?;
    // a uid that no machine has: the machine of that name is another
    let other = "00000000-0000-4000-8000-000000000000";
    let chronicle = Chronicle::start(client, ns).await?;
    let stopped = {
        let mut machine = make::machine("m", "nouid");
        machine["spec"]["powerState"] = json!("Stopped");
        machine
    };
    let machine: MacOSMachine = make::within(client, ns, stopped).await?;
    breaker
        .patch_status(&identity, &PatchParams::default(), &reference(other))
        .await?;
    see::until(&fleet.all::<MachineIdentity>(), &identity, "Available again", |i| {
        phase(i) == Some(IdentityPhase::Available) && see::holder(i).is_none()
    })
    .await?;
    let uid = machine.uid().context("uid")?;
    chronicle
        .always(
            "nobody went from one machine to another without being free in between",
            {
                let mut before = String::new();
                move |world| {
                    let now = world
                        .iter()
                        .find(|m| m.name == identity)
                        .map_or("", |m| m.text("/status/claimRef/uid"));
                    let fine = before != other || now.is_empty() || now == other || now != uid;
                    now.clone_into(&mut before);
                    fine
                }
            },
        )
        .await
}

pub(crate) async fn an_identity_stays_with_its_machine_over_restarts_a_lost_vm_and_a_lost_status() -> Result<()> {
    let fleet = fleet().await?;
    let scratch = fleet.namespace("stable").await?;
    let ns = scratch.name();
    // two identities: it could take the other
    let client = &fleet.client;
    let _: IdentityPool = make::cluster(client, make::identities("stable", 2, "Recycle")).await?;
    see::condition(&fleet.all::<IdentityPool>(), "stable", "Replenished", "True").await?;
    let _: MacOSMachineClass = make::cluster(client, make::class_of("stable", "stable")).await?;
    let chronicle = Chronicle::start(client, ns).await?;
    let machine: MacOSMachine = make::within(client, ns, make::machine("m", "stable")).await?;
    let uid = machine.uid().context("uid")?;
    let machines = fleet.api::<MacOSMachine>(ns);
    see::machine(&machines, "m", MachinePhase::Ready).await?;
    let record = see::identity_of(client, &uid).await?.context("identity")?.name_any();
    let same = async |when: &str| -> Result<()> {
        let machine = see::machine(&machines, "m", MachinePhase::Ready).await?;
        let told = machine.status.and_then(|status| status.identity_ref).map(|name| name.0);
        ensure!(told.as_deref() == Some(&*record), "{when}: {told:?}, it was {record}");
        let held = see::identity_of(client, &uid)
            .await?
            .map(|identity| identity.name_any());
        ensure!(held.as_deref() == Some(&*record), "{when}: {held:?}, it was {record}");
        Ok(())
    };
    let power = async |state: &str| {
        let patch = Patch::Merge(json!({"spec": {"powerState": state}}));
        machines.patch("m", &PatchParams::default(), &patch).await
    };
    power("Stopped").await?;
    see::machine(&machines, "m", MachinePhase::Stopped).await?;
    power("Running").await?;
    same("stopped and started").await?;

    let vm = names::of_machine("m", &uid, "vm");
    let vms = fleet.api::<VirtualMachine>(ns);
    let first = vms.get(&vm).await?.uid();
    vms.delete(&vm, &DeleteParams::default()).await?;
    see::until(&vms, &vm, "another VirtualMachine", |now| now.uid() != first).await?;
    same("its VirtualMachine was deleted").await?;

    let breaker: Api<MacOSMachine> = Api::namespaced(fleet.break_glass().await?, ns);
    let wiped = Patch::Merge(json!({"status": null}));
    breaker.patch_status("m", &PatchParams::default(), &wiped).await?;
    same("its status was lost").await?;
    let mut had = false;
    chronicle
        .always(
            "one identity is the machine's, the same from the first moment on",
            |world| {
                let its: Vec<&str> = world
                    .iter()
                    .filter(|m| m.thing == Thing::Identity && m.text("/status/claimRef/uid") == uid)
                    .map(|m| m.name.as_str())
                    .collect();
                had |= !its.is_empty();
                its == [record.as_str()] || !had
            },
        )
        .await?;
    ensure!(had, "it never had one: nothing is shown");
    Ok(())
}
