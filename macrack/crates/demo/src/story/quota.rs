//! The kernel's count of VMs does not go down: the guests stop, the Mac is rebooted once, and its tenant has it back.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use kube::{Api, ResourceExt};
use macrack_api::instance::macos_instance::MacOSInstancePhase as Phase;
use macrack_api::rack::node::{MacNodePhase, MacNodeStatus};
use macrack_api::{MacNode, MacNodeLease, MacOSInstance, condition, names};
use macrack_vm::sim::Fault;
use macrack_wire::VmState;
use serde_json::json;

use super::Stage;
use crate::say::Tone;
use crate::seen::{DEADLINE, until, until_gone};

/// The policy: within its budget nobody has to be woken for a reboot.
const AUTOMATIC: &str = "patch rackconfig default --type=merge -p {\"spec\":{\"quota\":{\"reboot\":\"Automatic\"}}}";

/// One VM of two ends and stays counted: the next is refused although only one runs.
pub(super) async fn sticks(stage: &mut Stage) -> Result<()> {
    let client = stage.cluster.admin().await?;
    let leases: Api<MacNodeLease> = Api::namespaced(client.clone(), "team-b");
    let instances: Api<MacOSInstance> = Api::namespaced(client.clone(), "team-b");
    let nodes: Api<MacNode> = Api::all(client);
    let serial = leases.get("release-week").await?.status.and_then(|s| s.serial).context("release-week has a Mac")?;
    let name = names::mac_node(&serial);
    stage.say.step(6, &format!("a kernel's counter sticks (simulated, on team-b's {serial})"), "");
    let admin = stage.cluster.admin_person();
    stage.say.command(&format!("kubectl {}", AUTOMATIC.replace("-p ", "-p '") + "'"));
    stage.cluster.kubectl(&admin, AUTOMATIC).await?.worked()?;
    stage.mac(&serial)?.chassis.set_fault(Fault::StickCounter(true))?;

    let began = Instant::now();
    create(stage, &instances, "passing").await?;
    until(&instances, "passing", "Ready", |i: &MacOSInstance| phase(i) == Some(Phase::Ready)).await?;
    stage.cluster.kubectl(&stage.team_b, "delete -n team-b mi passing --wait=false").await?.worked()?;
    until_gone(&instances, "passing").await?;
    stage.say.moment(began, "passing      was deleted and wiped; the kernel still counts it beside provisioned");
    create(stage, &instances, "next").await?;
    let uid = instances.get("provisioned").await?.uid().context("an instance has a uid")?;
    let before = nodes.get(&name).await?.status.unwrap_or_default();
    until(&nodes, &name, "Quarantined", |node: &MacNode| is(node, |s| !s.quarantine.is_empty())).await?;
    let word = stage.say.paint(Tone::No, "Quarantined (QuotaStuck)");
    stage.say.moment(began, format!("{serial}   Leased > {word}: next is refused (VZError 6) while one VM runs"));

    down(stage, &serial, &uid, began).await?;
    back(stage, &serial, &before, began).await?;
    for again in ["provisioned", "next"] {
        until(&instances, again, "Ready again", |i: &MacOSInstance| phase(i) == Some(Phase::Ready)).await?;
    }
    stage.say.moment(began, "provisioned and next run: the same disk, the first-boot script not run again");
    stage.cluster.kubectl(&stage.team_b, "delete -n team-b mi next --wait=false").await?.worked()?;
    until_gone(&instances, "next").await
}

fn phase(instance: &MacOSInstance) -> Option<Phase> {
    instance.status.as_ref()?.phase
}

fn is(node: &MacNode, so: impl Fn(&MacNodeStatus) -> bool) -> bool {
    node.status.as_ref().is_some_and(so)
}

/// One more like `provisioned`, without its script.
async fn create(stage: &Stage, instances: &Api<MacOSInstance>, name: &str) -> Result<()> {
    let mut spec = serde_json::to_value(instances.get("provisioned").await?.spec)?;
    if let Some(spec) = spec.as_object_mut() {
        spec.remove("firstBoot");
    }
    let instance = json!({
        "apiVersion": "instance.macrack.io/v1alpha1", "kind": "MacOSInstance", "metadata": { "name": name }, "spec": spec,
    });
    stage.say.command(&format!("kubectl create -n team-b -f {name}.yaml"));
    let arguments = ["create", "-n", "team-b", "-f", "-"];
    stage.cluster.run(&stage.team_b, &arguments, &instance.to_string()).await?.worked()?;
    Ok(())
}

/// Nothing runs any more, then the host goes down, once.
async fn down(stage: &mut Stage, serial: &str, uid: &str, began: Instant) -> Result<()> {
    let mac = stage.mac(serial)?;
    mac.agent.wait(DEADLINE).await.context("waiting for the reboot, which ends the agent")?;
    let ended = mac.vm_state(uid)?.report;
    ensure!(ended.state == VmState::Stopped, "provisioned was cut off by the reboot: {ended:?}");
    let boots = mac.chassis.read()?.boots;
    ensure!(boots == 2, "{serial} was rebooted {} times", boots - 1);
    mac.chassis.set_fault(Fault::StickCounter(false))?;
    // launchd
    mac.agent.restart()?;
    stage.say.moment(began, format!("{serial}   guests stopped cleanly > rebooted once, by macrack-hostd"));
    Ok(())
}

/// A start has succeeded in the new boot: the tenant that had it has it.
async fn back(stage: &Stage, serial: &str, before: &MacNodeStatus, began: Instant) -> Result<()> {
    let nodes: Api<MacNode> = Api::all(stage.cluster.admin().await?);
    let healthy =
        |s: &MacNodeStatus| s.phase == Some(MacNodePhase::Leased) && condition::is_true(&s.conditions, "QuotaHealthy");
    let node = until(&nodes, &names::mac_node(serial), "Leased again", |node: &MacNode| is(node, healthy)).await?;
    let status = node.status.unwrap_or_default();
    ensure!(status.lease_ref == before.lease_ref, "{serial} has changed hands: {:?}", status.lease_ref);
    let reboot = status.reboot.context("the reboot is on record")?;
    let by = reboot.approved_by.map(|by| format!("{by:?}").to_lowercase()).unwrap_or_default();
    let word = stage.say.paint(Tone::Good, "Leased");
    stage.say.moment(began, format!("{serial}   {word}, still team-b's, the same floor; approved by the {by}"));
    stage.why(&stage.team_b, "mnl/release-week -n team-b").await
}
