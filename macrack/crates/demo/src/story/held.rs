//! A lease is deleted before its floor.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use macrack_api::{MacNodeLease, MacOSInstance};

use super::{Stage, follow_instance, follow_lease};
use crate::say::Tone;
use crate::seen::until_gone;

/// The Mac stays team-a's, is counted, and takes new instances.
pub(super) async fn lets_go(stage: &mut Stage) -> Result<()> {
    let client = stage.cluster.admin().await?;
    let leases: Api<MacNodeLease> = Api::namespaced(client.clone(), "team-a");
    let bound_at = leases.get("ios-ci").await?.status.and_then(|s| s.bound_at).context("ios-ci was bound")?;
    let seconds = Timestamp::now().as_second() - bound_at.0.as_second();
    let command = "delete -n team-a mnl ios-ci --wait=false";
    stage.say.step(7, &format!("team-a lets go after {seconds} s"), &format!("kubectl {command}"));
    let began = Instant::now();
    let output = stage.cluster.kubectl(&stage.team_a, command).await?;
    let warning = output.stderr.trim().to_owned();
    let answer = output.worked()?;
    ensure!(
        warning.starts_with("Warning:") && warning.contains("ios-ci is Held until"),
        "kubectl warned otherwise: {warning:?}"
    );
    stage.say.quote(stage.say.paint(Tone::Wait, &warning));
    stage.say.quote(answer.trim());
    let held = follow_lease(stage, "team-a", "ios-ci", began, "Held").await?;
    let first = follow_instance(stage, "team-a", "build-1", began, "Stopped");
    let second = follow_instance(stage, "team-a", "build-2", began, "Stopped");
    tokio::try_join!(first, second)?;

    stage.say.quote("What is older than the deletion is stopped; what is made now lives until the floor:");
    let instances: Api<MacOSInstance> = Api::namespaced(client, "team-a");
    stage.shown(&stage.team_a, "delete -n team-a mi build-1 build-2").await?.worked()?;
    for name in ["build-1", "build-2"] {
        until_gone(&instances, name).await?;
    }
    // times of objects are whole seconds, and one made in the second of the deletion counts as older
    let deleted = held.metadata.deletion_timestamp.context("the lease was deleted")?.0.as_second();
    let now = Timestamp::now();
    let to_the_next = (deleted + 1) * 1000 - now.as_millisecond();
    tokio::time::sleep(Duration::from_millis(u64::try_from(to_the_next).unwrap_or(0))).await;
    let command = "apply -n team-a -f samples/third.yaml";
    stage.say.command(&format!("kubectl {command}"));
    let began = Instant::now();
    let apply = async { stage.cluster.kubectl(&stage.team_a, command).await?.worked() };
    tokio::try_join!(apply, follow_instance(stage, "team-a", "build-3", began, "Ready"))?;

    stage.say.quote("Nobody else has it meanwhile:");
    let command = "apply -n team-b -f samples/lease.yaml";
    stage.say.command(&format!("kubectl {command}"));
    let began = Instant::now();
    let apply = async { stage.cluster.kubectl(&stage.team_b, command).await?.worked() };
    tokio::try_join!(apply, follow_lease(stage, "team-b", "ios-ci", began, "Pending"))?;
    let table = stage.shown(&stage.cluster.admin_person(), "get mnl -A").await?.worked()?;
    stage.say.table(&table);
    Ok(())
}
