//! The agent dies; the VMs do not.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use k8s_openapi::jiff::Timestamp;
use kube::{Api, ResourceExt};
use macrack_api::rack::node::VmState;
use macrack_api::{MacNode, MacNodeLease, MacOSInstance, condition, names};
use macrack_testkit::child::is_alive;

use super::Stage;
use crate::seen::{DEADLINE, until};

/// kill -9, and a new agent that finds everything as it was.
pub(super) async fn is_killed(stage: &mut Stage) -> Result<()> {
    let client = stage.cluster.admin().await?;
    let leases: Api<MacNodeLease> = Api::namespaced(client.clone(), "team-a");
    let instances: Api<MacOSInstance> = Api::namespaced(client.clone(), "team-a");
    let nodes: Api<MacNode> = Api::all(client);
    let serial = leases.get("ios-ci").await?.status.and_then(|s| s.serial).context("lease ios-ci names its Mac")?;
    let mut uids = Vec::new();
    for name in ["build-1", "build-2"] {
        uids.push(instances.get(name).await?.uid().context("an instance has a uid")?);
    }
    let say = stage.say;
    let mac = stage.mac(&serial)?;
    let before = uids.iter().map(|uid| mac.vm_state(uid)).collect::<Result<Vec<_>>>()?;
    let pids: Vec<i32> = before.iter().map(|state| i32::try_from(state.report.pid)).collect::<Result<_, _>>()?;
    say.step(5, "the agent is killed", &format!("kill -9 {}    (macrack-agent of {serial})", mac.agent.pid()));
    let began = Instant::now();
    mac.agent.kill9()?;
    ensure!(pids.iter().all(|pid| is_alive(*pid)), "a VM died with its agent");
    say.moment(began, format!("gone; build-1 and build-2 run on in their own processes {} and {}", pids[0], pids[1]));
    mac.agent.restart()?;
    for uid in &uids {
        mac.agent.until_logged(&format!("found running vm={uid}"), DEADLINE).await?;
    }
    until(&nodes, &names::mac_node(&serial), "Ready again, with both VMs", |node: &MacNode| {
        let Some(status) = &node.status else { return false };
        let vms = status.agent.as_ref().map(|agent| agent.vms.as_slice()).unwrap_or_default();
        let lives =
            |uid: &String| vms.iter().any(|vm| vm.uid == *uid && vm.state == VmState::Running && vm.guest_ready);
        condition::is_true(&status.conditions, "Ready") && uids.iter().all(lives)
    })
    .await?;
    let mut words = Vec::new();
    for ((uid, was), name) in uids.iter().zip(&before).zip(["build-1", "build-2"]) {
        let is = mac.vm_state(uid)?.report;
        ensure!(is.pid == was.report.pid && is.started_at == was.report.started_at, "{name} was started again");
        let up = Timestamp::now().as_second() - is.started_at.as_second();
        words.push(format!("{name} (up {up} s)"));
    }
    say.moment(
        began,
        format!("a new agent {} adopted {}: the same processes, uptime unbroken", mac.agent.pid(), words.join(" and ")),
    );
    Ok(())
}
