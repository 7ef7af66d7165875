//! A lease, two VMs, and somebody else who would like to use them.

use std::time::Instant;

use anyhow::{Context, Result};
use kube::Api;
use macrack_api::{MacNode, MacNodeLease, names};

use super::{Stage, follow_instance, follow_lease};
use crate::say::Tone;
use crate::seen::until;

/// team-a has a Mac for itself.
pub(super) async fn a_mac(stage: &mut Stage) -> Result<()> {
    let command = "apply -n team-a -f samples/lease.yaml";
    stage.say.step(1, "team-a leases a Mac", &format!("kubectl {command}"));
    let began = Instant::now();
    let apply = async { stage.cluster.kubectl(&stage.team_a, command).await?.worked() };
    tokio::try_join!(apply, follow_lease(stage, "team-a", "ios-ci", began, "Bound"))?;
    Ok(())
}

/// The golden is pulled once and cloned twice.
pub(super) async fn two_vms(stage: &mut Stage) -> Result<()> {
    let command = "apply -n team-a -f samples/instances.yaml";
    stage.say.step(2, "two macOS VMs on it", &format!("kubectl {command}"));
    let began = Instant::now();
    let apply = async { stage.cluster.kubectl(&stage.team_a, command).await?.worked() };
    let first = follow_instance(stage, "team-a", "build-1", began, "Ready");
    let second = follow_instance(stage, "team-a", "build-2", began, "Ready");
    tokio::try_join!(apply, first, second)?;
    pulled_once(stage, began).await
}

/// What the Mac says of its pull.
async fn pulled_once(stage: &Stage, began: Instant) -> Result<()> {
    let client = stage.cluster.admin().await?;
    let lease = Api::<MacNodeLease>::namespaced(client.clone(), "team-a").get("ios-ci").await?;
    let serial = lease.status.and_then(|status| status.serial).context("lease ios-ci names its Mac")?;
    let nodes: Api<MacNode> = Api::all(client);
    let finished = |node: &MacNode| {
        let agent = node.status.as_ref()?.agent.as_ref()?;
        agent.pulls.iter().find(|pull| pull.finished_at.is_some()).cloned()
    };
    let name = names::mac_node(&serial);
    let node = until(&nodes, &name, "a finished pull", |node: &MacNode| finished(node).is_some()).await?;
    let pull = finished(&node).context("a finished pull")?;
    let clones = node.status.and_then(|status| status.agent).map(|agent| agent.goldens).unwrap_or_default();
    let clones = clones.iter().find(|golden| golden.digest == pull.digest).map_or(0, |golden| golden.clones);
    let gigabytes = |bytes: i64| format!("{}.{} GB", bytes / 1_000_000_000, bytes / 100_000_000 % 10);
    let rate = pull.bytes_per_second.map(gigabytes).unwrap_or_default();
    let whole = gigabytes(pull.total_bytes);
    stage.say.moment(
        began,
        format!("{serial}   pulled {whole} once at {rate}/s, every chunk checked; {clones} clones of it run"),
    );
    Ok(())
}

/// team-b finds nothing under team-a's name, and has a Mac of its own.
pub(super) async fn somebody_else(stage: &mut Stage) -> Result<()> {
    let command = "apply -n team-b -f samples/on-foreign-lease.yaml";
    stage.say.step(4, "somebody else", &format!("kubectl {command}"));
    let refusal = stage.cluster.kubectl(&stage.team_b, command).await?.refused()?;
    stage.say.quote(format!("{} {refusal}", stage.say.paint(Tone::No, "denied")));
    for (sample, name, wanted) in
        [("lease-for-a-week", "release-week", "Bound"), ("first-boot", "provisioned", "Ready")]
    {
        let command = format!("apply -n team-b -f samples/{sample}.yaml");
        stage.say.command(&format!("kubectl {command}"));
        let began = Instant::now();
        let apply = async { stage.cluster.kubectl(&stage.team_b, &command).await?.worked() };
        if wanted == "Bound" {
            tokio::try_join!(apply, follow_lease(stage, "team-b", name, began, wanted))?;
        } else {
            tokio::try_join!(apply, follow_instance(stage, "team-b", name, began, wanted))?;
        }
    }
    Ok(())
}
