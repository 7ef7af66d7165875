//! The main job: claim a macOS machine and get one.

use std::collections::HashSet;

use anyhow::{Context as _, Result, ensure};
use dockerios_acceptance::{Chronicle, Moment, Thing, make, see};
use dockerios_api::machine::claim::ClaimPhase;
use dockerios_api::{IdentityPool, MacOSMachine, MacOSMachineClaim, MacOSMachineClass, MacOSMachinePool, names};
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Secret};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams};
use serde_json::json;

use crate::fleet;

pub(crate) async fn claim_a_macos_machine_and_get_one_warm_then_cold_until_its_time_is_over() -> Result<()> {
    let fleet = fleet().await?;
    let scratch = fleet.namespace("job").await?;
    let ns = scratch.name();
    let client = &fleet.client;
    let chronicle = Chronicle::start(client, ns).await?;

    // identities are made ahead of need
    let _: IdentityPool = make::cluster(client, make::identities("job", 6, "Recycle")).await?;
    see::condition(&fleet.all::<IdentityPool>(), "job", "Replenished", "True").await?;
    let _: MacOSMachineClass = make::cluster(client, make::class_of("job", "job")).await?;
    see::condition(&fleet.all::<MacOSMachineClass>(), "job", "Ready", "True").await?;

    // a warm pool of three
    let _: MacOSMachinePool = make::within(client, ns, make::pool("ci", "job", 3, 6)).await?;
    let pools = fleet.api::<MacOSMachinePool>(ns);
    let warm = |pool: &MacOSMachinePool| pool.status.as_ref().is_some_and(|status| status.warm == 3);
    see::until(&pools, "ci", "three warm machines", warm).await?;
    let machines = fleet.api::<MacOSMachine>(ns);
    let before: Vec<String> = machines
        .list(&ListParams::default())
        .await?
        .iter()
        .map(|m| m.name_any())
        .collect();

    // a claim, served warm: it gets one that was there
    let claims = fleet.api::<MacOSMachineClaim>(ns);
    let _: MacOSMachineClaim = make::within(client, ns, make::claim("warm", "ci")).await?;
    let bound = see::claim(&claims, "warm", ClaimPhase::Bound).await?;
    let name = see::machine_of(&bound)?;
    ensure!(before.contains(&name), "{name} is none of the warm machines {before:?}");
    let status = bound.status.as_ref().context("a Bound claim has a status")?;
    let (from, until) = (
        status.bound_at.as_ref().context("boundAt")?,
        status.expires_at.as_ref().context("expiresAt")?,
    );
    ensure!(
        until.0.duration_since(from.0).as_hours() == 2,
        "the platform's ttl of 2h counts: {from:?} to {until:?}"
    );
    let taken = machines.get(&name).await?;
    let uid = taken.uid().context("a machine has a uid")?;
    ensure!(
        taken.labels().get(names::CLAIMED).map(String::as_str) == Some("true"),
        "{:?}",
        taken.labels()
    );
    ensure!(
        taken.owner_references().is_empty(),
        "the pool still owns it: {:?}",
        taken.owner_references()
    );
    ensure!(
        taken.spec.claim_ref.as_ref().map(|claim| &claim.uid) == bound.metadata.uid.as_ref(),
        "claimRef"
    );
    // and the pool is filled again
    let refilled = |pool: &MacOSMachinePool| pool.status.as_ref().is_some_and(|s| s.warm == 3 && s.claimed == 1);
    see::until(&pools, "ci", "three warm machines and one claimed", refilled).await?;

    // a claim, served cold: nothing is warm of that class
    let _: MacOSMachineClass = make::cluster(client, make::class("job-cold")).await?;
    let short = make::with(make::claim_of("cold", "job-cold"), "ttl", json!("60s"));
    let _: MacOSMachineClaim = make::within(client, ns, short).await?;
    let cold = see::claim(&claims, "cold", ClaimPhase::Bound).await?;
    let cold_machine = see::machine_of(&cold)?;
    ensure!(
        cold_machine == names::for_claim(&cold.uid().unwrap_or_default()),
        "{cold_machine}"
    );

    // the tenant is done: the machine goes, in order
    let identity = see::identity_of(client, &uid)
        .await?
        .context("a PerMachine machine has an identity")?
        .name_any();
    claims.delete("warm", &DeleteParams::default()).await?;
    see::gone(&machines, &name).await?;
    let of_machine = |key: &str| ListParams::default().labels(&format!("{}={key}", names::MACHINE_UID));
    ensure!(
        fleet.api::<Secret>(ns).list(&of_machine(&uid)).await?.items.is_empty(),
        "its Secret is left"
    );
    ensure!(
        fleet
            .api::<ConfigMap>(ns)
            .list(&of_machine(&uid))
            .await?
            .items
            .is_empty(),
        "its ConfigMap is left"
    );
    ensure!(
        fleet
            .api::<PersistentVolumeClaim>(ns)
            .list(&of_machine(&uid))
            .await?
            .items
            .is_empty(),
        "a disk is left"
    );
    in_order(&chronicle, &uid, &identity, &[Thing::DataVolume, Thing::Volume]).await?;

    // the cold one's time runs out
    see::event(client, ns, "cold", "ExpiresSoon").await?;
    let expired = see::claim(&claims, "cold", ClaimPhase::Expired).await?;
    see::gone(&machines, &cold_machine).await?;
    let status = expired.status.context("status")?;
    let (due, ended) = (
        status.expires_at.context("expiresAt")?,
        status.end.context("status.end")?,
    );
    ensure!(ended.at.0 >= due.0, "ended {:?} before its time {due:?}", ended.at);
    // the key of the SMC went nowhere
    let osk = fleet.osk().await?;
    for moment in chronicle
        .moments()
        .await?
        .iter()
        .filter(|moment| moment.thing != Thing::ConfigMap)
    {
        ensure!(
            !moment.object.to_string().contains(&osk),
            "{:?} {} holds the key",
            moment.thing,
            moment.name
        );
    }
    Ok(())
}

/// Instance and pod, VirtualMachine, disks, ConfigMap, identity, machine: each has gone before the next is told to go.
/// `disks`: what may not be told to go before. A disk that is retained stays out of it.
pub(crate) async fn in_order(chronicle: &Chronicle, uid: &str, identity: &str, disks: &[Thing]) -> Result<()> {
    let moments = chronicle.moments().await?;
    let its = |moment: &Moment| moment.label(names::MACHINE_UID) == uid;
    let kept: HashSet<&str> = moments
        .iter()
        .filter(|moment| !moment.label(names::RETAINED).is_empty())
        .map(|moment| moment.uid.as_str())
        .collect();
    let gone = async |what: &'static str, thing| -> Result<(&'static str, u64)> {
        let which = |moment: &Moment| its(moment) && !kept.contains(moment.uid.as_str());
        Ok((what, chronicle.last_gone(thing, "of the machine", which).await?))
    };
    let first_told = |what: &str, things: &[Thing]| {
        let told = moments.iter().find(|m| things.contains(&m.thing) && its(m) && m.goes());
        told.map(|m| m.at).with_context(|| format!("{what} went"))
    };
    let free = given_back(&moments, uid, identity)?;
    let stages = [
        gone("instance", Thing::Instance).await?,
        gone("launcher pod", Thing::Pod).await?,
        gone("VirtualMachine", Thing::VirtualMachine).await?,
        gone("disks", Thing::Volume).await?,
        gone("ConfigMap", Thing::ConfigMap).await?,
    ];
    let begins = [
        // what must have gone before: so many of the stages
        (3, "a disk was told to go", first_told("its disks", disks)?),
        (
            4,
            "its ConfigMap was told to go",
            first_told("its ConfigMap", &[Thing::ConfigMap])?,
        ),
        (5, "the identity was given back", free),
    ];
    for (before, what, at) in begins {
        for (stage, gone) in &stages[..before] {
            ensure!(*gone < at, "{what} at {at}, its {stage} was gone at {gone}");
        }
    }
    let last = chronicle
        .last_gone(Thing::Machine, "the machine", |moment| moment.uid == uid)
        .await?;
    ensure!(
        free < last,
        "the machine was gone at {last}, its identity given back at {free}"
    );
    Ok(())
}

/// When the machine with that uid had the identity no more.
fn given_back(moments: &[Moment], uid: &str, identity: &str) -> Result<u64> {
    let has = |m: &&Moment| m.text("/status/claimRef/uid") == uid;
    let mut of_identity = moments
        .iter()
        .filter(|m| m.thing == Thing::Identity && m.name == identity)
        .skip_while(|m| !has(m));
    of_identity.next().context("the machine had the identity")?;
    let free = of_identity.find(|m| !has(m)).context("the identity was given back")?;
    Ok(free.at)
}
