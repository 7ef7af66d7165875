//! Claims and pools at odds; names that meet; a deletion that would take everything at once.

use std::collections::HashMap;

use anyhow::{Context as _, Result, ensure};
use dockerios_acceptance::{Chronicle, Thing, make, see};
use dockerios_api::machine::claim::ClaimPhase;
use dockerios_api::machine::macos_machine::MachinePhase;
use dockerios_api::{IdentityPool, MacOSMachine, MacOSMachineClaim, MacOSMachineClass, MacOSMachinePool, names};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Secret};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::json;

use crate::fleet;

pub(crate) async fn sixteen_claims_on_twelve_warm_machines_while_the_pool_rolls_and_shrinks() -> Result<()> {
    let fleet = fleet().await?;
    let scratch = fleet.namespace("race").await?;
    let (ns, client) = (scratch.name(), &fleet.client);
    let _: MacOSMachineClass = make::cluster(client, make::class("race")).await?;
    let _: MacOSMachinePool = make::within(client, ns, make::pool("race", "race", 12, 40)).await?;
    let pools = fleet.api::<MacOSMachinePool>(ns);
    see::until(&pools, "race", "twelve warm machines", |pool| {
        pool.status.as_ref().is_some_and(|status| status.warm == 12)
    })
    .await?;
    let chronicle = Chronicle::start(client, ns).await?;
    let warm = fleet.api::<MacOSMachine>(ns).list(&ListParams::default()).await?.items;

    // all at once: sixteen claims, another class (a roll), another size (a scale-down)
    let merge = PatchParams::default();
    let classes = fleet.all::<MacOSMachineClass>();
    let roll = Patch::Merge(json!({"spec": {"memory": {"size": "6Gi"}}}));
    let shrink = Patch::Merge(json!({"spec": {"replicas": 2}}));
    let claim_all = try_join_all((0..16).map(|n| async move {
        make::within::<MacOSMachineClaim>(client, ns, make::claim(&format!("c-{n:02}"), "race")).await
    }));
    let (claimed, rolled, shrunk) = tokio::join!(
        claim_all,
        classes.patch("race", &merge, &roll),
        pools.patch("race", &merge, &shrink)
    );
    claimed?;
    rolled?;
    shrunk?;
    let claims = fleet.api::<MacOSMachineClaim>(ns);
    let bound = see::count(&claims, "sixteen Bound claims", |all| {
        let phase = |claim: &MacOSMachineClaim| claim.status.as_ref().and_then(|status| status.phase);
        all.iter()
            .filter(|claim| phase(claim) == Some(ClaimPhase::Bound))
            .count()
            == 16
    })
    .await?;
    see::until(&pools, "race", "two warm machines of the new class", |pool| {
        pool.status
            .as_ref()
            .is_some_and(|status| status.warm == 2 && status.replicas == 2)
    })
    .await?;

    let mut given = HashMap::new();
    for claim in &bound {
        let told = claim
            .status
            .as_ref()
            .and_then(|status| status.machine_ref.as_ref())
            .context("machineRef")?;
        let other = given.insert(told.uid.clone(), claim.uid().unwrap_or_default());
        ensure!(other.is_none(), "{} was given to two claims", told.name);
    }
    chronicle
        .always("no machine that a claim has, told or not, is deleted", |world| {
            world
                .iter()
                .filter(|m| m.thing == Thing::Machine)
                .all(|m| m.text("/spec/claimRef/uid").is_empty() || m.text("/metadata/deletionTimestamp").is_empty())
        })
        .await?;
    let moments = chronicle.moments().await?;
    let mut claim_of: HashMap<&str, &str> = HashMap::new();
    for moment in moments.iter().filter(|m| m.thing == Thing::Machine) {
        let claim = moment.text("/spec/claimRef/uid");
        if claim.is_empty() {
            continue;
        }
        ensure!(!moment.gone, "{}, which a claim has, was deleted", moment.name);
        let known = claim_of.insert(&moment.uid, claim);
        ensure!(
            known.is_none_or(|known| known == claim),
            "{} went from one claim to another",
            moment.name
        );
    }
    for (machine, claim) in &given {
        ensure!(
            claim_of.get(machine.as_str()) == Some(&claim.as_str()),
            "machine {machine} is not bound to {claim}"
        );
    }
    let told = moments
        .iter()
        .filter(|m| m.thing == Thing::Claim)
        .map(|m| m.text("/status/machineRef/uid"));
    let told: std::collections::HashSet<_> = told.filter(|uid| !uid.is_empty()).collect();
    ensure!(
        told.len() == 16 && told.iter().all(|uid| given.contains_key(*uid)),
        "claims were told of {told:?}"
    );
    // what the roll replaced had no claim, and there was something to replace, unless claims were quicker with all twelve
    let taken = warm
        .iter()
        .filter(|machine| given.contains_key(&machine.uid().unwrap_or_default()))
        .count();
    ensure!(
        taken == 12 || moments.iter().any(|m| m.thing == Thing::Machine && m.gone),
        "{taken} of twelve were taken, and neither roll nor scale-down deleted any"
    );
    claims
        .delete_collection(&DeleteParams::default(), &Default::default())
        .await?;
    pools.delete("race", &DeleteParams::default()).await?;
    see::none_left(&fleet.api::<MacOSMachine>(ns)).await
}

pub(crate) async fn a_machine_named_db_touches_nothing_of_the_tenants_db_config() -> Result<()> {
    let fleet = fleet().await?;
    let scratch = fleet.namespace("db").await?;
    let (ns, client) = (scratch.name(), &fleet.client);
    // the tenant's own things, by every name that a machine named db could think of
    let secrets = fleet.api::<Secret>(ns);
    let maps = fleet.api::<ConfigMap>(ns);
    for name in ["db", "db-config", "db-hook", "db-system", "macs-db-config"] {
        let secret = json!({"metadata": {"name": name}, "stringData": {"password": "the tenant's"}});
        let _: Secret = make::within(client, ns, secret).await?;
        let map = json!({"metadata": {"name": name}, "data": {"host": "the tenant's"}});
        let _: ConfigMap = make::within(client, ns, map).await?;
    }
    let versions = async || -> Result<Vec<(String, Option<String>)>> {
        let own = |name: &str| name == "db" || name.starts_with("db-") || name == "macs-db-config";
        let mut all: Vec<_> = secrets
            .list(&Default::default())
            .await?
            .iter()
            .map(|s| (s.name_any(), s.resource_version()))
            .collect();
        all.extend(
            maps.list(&Default::default())
                .await?
                .iter()
                .map(|m| (m.name_any(), m.resource_version())),
        );
        Ok(all.into_iter().filter(|(name, _)| own(name)).collect())
    };
    let before = versions().await?;
    ensure!(before.len() == 10, "{before:?}");
    let _: MacOSMachineClass = make::cluster(client, make::class("db")).await?;
    let _: MacOSMachine = make::within(client, ns, make::machine("db", "db")).await?;
    let machines = fleet.api::<MacOSMachine>(ns);
    see::machine(&machines, "db", MachinePhase::Ready).await?;
    ensure!(
        versions().await? == before,
        "something of the tenant's was touched while db came up"
    );
    machines.delete("db", &DeleteParams::default()).await?;
    see::gone(&machines, "db").await?;
    ensure!(
        versions().await? == before,
        "something of the tenant's was touched while db went"
    );
    Ok(())
}

pub(crate) async fn a_foreground_deletion_keeps_the_order_and_the_retained_disk() -> Result<()> {
    let fleet = fleet().await?;
    let scratch = fleet.namespace("foreground").await?;
    let (ns, client) = (scratch.name(), &fleet.client);
    let _: IdentityPool = make::cluster(client, make::identities("foreground", 2, "Recycle")).await?;
    let retained = make::with(
        make::class_of("foreground", "foreground"),
        "systemDisk/reclaimPolicy",
        json!("Retain"),
    );
    let _: MacOSMachineClass = make::cluster(client, retained).await?;
    let chronicle = Chronicle::start(client, ns).await?;
    let machine: MacOSMachine = make::within(client, ns, make::machine("keeper", "foreground")).await?;
    let uid = machine.uid().context("uid")?;
    let machines = fleet.api::<MacOSMachine>(ns);
    see::machine(&machines, "keeper", MachinePhase::Ready).await?;
    let identity = see::identity_of(client, &uid).await?.context("identity")?.name_any();
    let volumes = fleet.api::<PersistentVolumeClaim>(ns);
    let system = names::of_machine("keeper", &uid, "system");
    let disk = volumes.get(&system).await?.uid();

    let output = fleet
        .plane
        .kubectl()?
        .args([
            "-n",
            ns,
            "delete",
            "macs",
            "keeper",
            "--cascade=foreground",
            "--wait=false",
        ])
        .output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    see::gone(&machines, "keeper").await?;
    let kept = volumes.get(&system).await.context("the retained disk")?;
    ensure!(
        kept.uid() == disk && kept.metadata.deletion_timestamp.is_none(),
        "the disk was not kept as it was"
    );
    ensure!(
        kept.labels().get(names::RETAINED).map(String::as_str) == Some("true"),
        "{:?}",
        kept.labels()
    );
    ensure!(
        volumes
            .get_opt(&names::of_machine("keeper", &uid, "boot"))
            .await?
            .is_none(),
        "the bootdisk is left"
    );

    crate::job::in_order(&chronicle, &uid, &identity, &[Thing::DataVolume, Thing::Volume]).await
}
