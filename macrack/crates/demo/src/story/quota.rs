//! The kernel's count of VMs does not go down: the Mac is quarantined and stays its tenant's.

use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use kube::Api;
use macrack_api::instance::macos_instance::MacOSInstancePhase as Phase;
use macrack_api::{MacNode, MacNodeLease, MacOSInstance, names};
use macrack_vm::sim::Fault;

use super::{Stage, ready};
use crate::say::Tone;
use crate::seen::until;

const TURN: [&str; 2] = ["Stopped", "Running"];

/// Every end of a VM leaves its count behind, until two are counted and none runs.
pub(super) async fn sticks(stage: &mut Stage) -> Result<()> {
    let client = stage.cluster.admin().await?;
    let leases: Api<MacNodeLease> = Api::namespaced(client.clone(), "team-b");
    let instances: Api<MacOSInstance> = Api::namespaced(client.clone(), "team-b");
    let nodes: Api<MacNode> = Api::all(client);
    let lease = leases.get("release-week").await?;
    let serial = lease.status.and_then(|s| s.serial).context("lease release-week names its Mac")?;
    let name = names::mac_node(&serial);
    let title = format!("a kernel's counter sticks (simulated, on team-b's {serial})");
    stage.say.step(6, &title, "");
    stage.mac(&serial)?.chassis.set_fault(Fault::StickCounter(true))?;
    let began = Instant::now();
    let quarantined = |node: &MacNode| node.status.as_ref().is_some_and(|status| !status.quarantine.is_empty());
    for turn in 1..=3 {
        for power in TURN {
            let patch =
                format!("patch -n team-b mi provisioned --type=merge -p {{\"spec\":{{\"powerState\":\"{power}\"}}}}");
            if turn == 1 {
                stage.say.command(&format!("kubectl {}", patch.replace("-p ", "-p '") + "'"));
            }
            stage.cluster.kubectl(&stage.team_b, &patch).await?.worked()?;
            let wanted = if power == "Stopped" { Phase::Stopped } else { Phase::Ready };
            let phase = until(&instances, "provisioned", power, |instance: &MacOSInstance| {
                instance.status.as_ref().is_some_and(|status| status.phase == Some(wanted))
            });
            let stuck = until(&nodes, &name, "quarantined", quarantined);
            tokio::select! {
                done = phase => { done?; }
                done = stuck => { done?; }
            }
        }
        let node = nodes.get(&name).await?;
        if quarantined(&node) {
            return tell(stage, &nodes, &name, began).await;
        }
        stage.say.moment(
            began,
            format!("provisioned  stopped and started again; the kernel still counts the one that ended ({turn})"),
        );
    }
    bail!("{serial} is not quarantined although its counter sticks")
}

async fn tell(stage: &Stage, nodes: &Api<MacNode>, name: &str, began: Instant) -> Result<()> {
    let node = until(nodes, name, "Quarantined, with its reason", |node: &MacNode| {
        node.status.as_ref().is_some_and(|status| ready(&status.conditions).0 == "QuotaStuck")
    })
    .await?;
    let status = node.status.unwrap_or_default();
    let tenant = status.lease_ref.as_ref().map(|lease| lease.namespace.as_str());
    ensure!(tenant == Some("team-b"), "{name} has changed hands: {:?}", status.lease_ref);
    let word = stage.say.paint(Tone::No, "Quarantined (QuotaStuck)");
    stage.say.moment(
        began,
        format!("{}   Leased > {word}: starts nothing more until it is rebooted; it stays team-b's", node.spec.serial),
    );
    stage.why(&stage.team_b, "mnl/release-week -n team-b").await
}
