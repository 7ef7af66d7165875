//! The operator is killed after each single write of a machine's life, its last answer lost.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use dockerios_acceptance::{Chronicle, Fleet, Moment, Thing, make, see};
use dockerios_api::machine::macos_machine::MachinePhase;
use dockerios_api::{IdentityPool, MacOSMachine, MacOSMachineClass, MachineIdentity, names};
use dockerios_kubevirt::{DataVolume, VirtualMachine};
use dockerios_testkit::{Answer, Cut, WriteCutter};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams};
use serde_json::json;

use crate::fleet;

/// More lives than a machine's whole life has writes: past it the operator does not get on.
const MOST_LIVES: usize = 150;
const LIFE: Duration = Duration::from_secs(60);

/// Lives of one write each, until `done`.
async fn live(
    fleet: &Fleet,
    cutter: &WriteCutter,
    what: &str,
    done: impl AsyncFn() -> Result<bool>,
) -> Result<Vec<String>> {
    let mut writes = Vec::new();
    for _ in 0..MOST_LIVES {
        cutter.hold();
        let operator = fleet.spawn_operator(cutter.kubeconfig(), false)?;
        cutter.arm(Cut {
            after: 1,
            answer: Answer::Lost,
            pid: operator.process.pid(),
        })?;
        let finished = async {
            while !done().await? {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            anyhow::Ok(())
        };
        tokio::select! {
            cut = cutter.until_cut(LIFE) => cut.with_context(|| format!("{what}; the log ends:\n{}", operator.process.tail(10)))?,
            over = finished => {
                over?;
                return Ok(writes);
            }
        }
        writes.extend(cutter.writes().iter().map(ToString::to_string));
    }
    bail!("{what}: not reached in {MOST_LIVES} lives; the writes: {writes:#?}")
}

/// A machine's whole life, the operator killed after each of its writes; gives its uid and that of its system disk.
async fn whole_life(fleet: &Fleet, cutter: &WriteCutter, ns: &str, name: &str) -> Result<(String, Option<String>)> {
    // the webhook answers while no write of the operator's passes: the machine's life begins with the first cut
    cutter.reset();
    cutter.hold();
    let operator = fleet.spawn_operator(cutter.kubeconfig(), false)?;
    let machine: MacOSMachine = make::within(&fleet.client, ns, make::machine(name, name)).await?;
    operator.process.kill9().await?;
    ensure!(cutter.writes().is_empty(), "{:?}", cutter.writes());
    let uid = machine.uid().context("uid")?;
    let machines = fleet.api::<MacOSMachine>(ns);
    let born = live(fleet, cutter, "a Ready machine", async || {
        Ok(see::machine_phase(&machines.get(name).await?) == Some(MachinePhase::Ready))
    })
    .await?;
    ensure!(
        born.len() >= 3,
        "it was made in {} cut writes: little is shown: {born:#?}",
        born.len()
    );
    let disk = fleet
        .api::<PersistentVolumeClaim>(ns)
        .get(&names::of_machine(name, &uid, "system"))
        .await?;
    machines.delete(name, &DeleteParams::default()).await?;
    let ended = live(fleet, cutter, "the machine's end", async || {
        Ok(machines.get_opt(name).await?.is_none())
    })
    .await?;
    ensure!(
        ended.len() >= 5,
        "it ended in {} cut writes: little is shown: {ended:#?}",
        ended.len()
    );
    eprintln!(
        "{name}: killed after each of {} writes up to Ready and {} down to the end",
        born.len(),
        ended.len()
    );
    Ok((uid, disk.uid()))
}

/// Nothing of the machine was made twice, and it had one identity.
fn once(moments: &[Moment], uid: &str) -> Result<()> {
    for thing in [Thing::VirtualMachine, Thing::DataVolume] {
        let its = moments
            .iter()
            .filter(|m| m.thing == thing && m.label(names::MACHINE_UID) == uid);
        let made: HashSet<_> = its.map(|m| (&m.name, &m.uid)).collect();
        let names: HashSet<_> = made.iter().map(|(name, _)| name).collect();
        ensure!(names.len() == made.len(), "{thing:?} made twice: {made:?}");
    }
    let had: HashSet<_> = moments
        .iter()
        .filter(|m| m.thing == Thing::Identity && m.text("/status/claimRef/uid") == uid)
        .map(|m| &m.name)
        .collect();
    ensure!(had.len() == 1, "it had {had:?}");
    Ok(())
}

pub(crate) async fn killed_between_any_two_writes_the_operator_goes_on_and_nothing_leaks_or_is_lost() -> Result<()> {
    let fleet = fleet().await?;
    let scratch = fleet.namespace("cut").await?;
    let (ns, client) = (scratch.name(), &fleet.client);
    let kubeconfig = fleet.operators_kubeconfig().await?;
    let operator = fleet.spawn_operator(&kubeconfig, false)?;
    let _: IdentityPool = make::cluster(client, make::identities("cut", 2, "Recycle")).await?;
    see::condition(&fleet.all::<IdentityPool>(), "cut", "Replenished", "True").await?;
    for (name, policy) in [("keeps", "Retain"), ("keeps-none", "Delete")] {
        let class = make::with(make::class_of(name, "cut"), "systemDisk/reclaimPolicy", json!(policy));
        let _: MacOSMachineClass = make::cluster(client, class).await?;
        see::condition(&fleet.all::<MacOSMachineClass>(), name, "Ready", "True").await?;
    }
    let chronicle = Chronicle::start(client, ns).await?;
    operator.process.kill9().await?;
    let cutter = WriteCutter::start(&kubeconfig).await?;
    let (keeps, disk) = whole_life(fleet, &cutter, ns, "keeps").await?;
    let (keeps_none, _) = whole_life(fleet, &cutter, ns, "keeps-none").await?;

    // no volume that is retained is lost, none that is not survives
    let left = fleet
        .api::<PersistentVolumeClaim>(ns)
        .list(&ListParams::default())
        .await?
        .items;
    let names: Vec<_> = left.iter().map(|volume| volume.name_any()).collect();
    let system = names::of_machine("keeps", &keeps, "system");
    ensure!(names == [system.clone()] && left[0].uid() == disk, "{names:?}");
    let volumes = fleet.api::<DataVolume>(ns).list(&ListParams::default()).await?;
    let data: Vec<_> = volumes.iter().map(|d| d.name_any()).collect();
    ensure!(data.iter().all(|name| *name == system), "{data:?}");
    see::none_left(&fleet.api::<VirtualMachine>(ns)).await?;
    let moments = chronicle.moments().await?;
    for uid in [&keeps, &keeps_none] {
        once(&moments, uid)?;
    }
    // and no identity leaked
    let operator = fleet.spawn_operator(&kubeconfig, false)?;
    let of_pool = ListParams::default().fields("spec.poolName=cut");
    see::until(&fleet.all::<IdentityPool>(), "cut", "two of two Available", |pool| {
        pool.status
            .as_ref()
            .is_some_and(|status| status.available == 2 && status.total == 2)
    })
    .await?;
    for identity in fleet.all::<MachineIdentity>().list(&of_pool).await? {
        ensure!(see::holder(&identity).is_none(), "{} leaked", identity.name_any());
    }
    operator.process.kill9().await?;
    Ok(())
}
