//! `claim`: asks for a machine and waits for it, by a watch.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use dockerios_api::machine::claim::ClaimPhase;
use dockerios_api::{MacOSMachine, MacOSMachineClaim};
use futures::{TryStreamExt as _, pin_mut};
use jiff::Timestamp;
use kube::api::PostParams;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use crate::access::{Access, said};
use crate::times::relative;

/// Claim a machine, wait for it, and print where it is
///
/// The claim stays when this program ends, by Ctrl-C too: delete it, or let its ttl run out, and the machine goes.
#[derive(clap::Args, Debug)]
pub(crate) struct Claim {
    /// A MacOSMachinePool of the namespace
    #[arg(
        long,
        value_name = "NAME",
        required_unless_present = "class",
        conflicts_with = "class"
    )]
    pool: Option<String>,
    /// A MacOSMachineClass; any pool of it in the namespace may serve
    #[arg(long, value_name = "NAME")]
    class: Option<String>,
    /// How long the machine is needed, e.g. 90m or 2h; the platform's default when left out
    #[arg(long, value_name = "DURATION")]
    ttl: Option<String>,
    /// Name of the claim; one is made up when left out
    #[arg(long)]
    name: Option<String>,
    /// How long to wait for the machine; the claim stays
    #[arg(long, value_name = "DURATION", default_value = "30m")]
    timeout: String,
}

/// How far a claim is.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Waits(String),
    Bound(String),
    Ended(String),
}

impl Claim {
    pub(crate) async fn run(&self, access: &Access) -> Result<ExitCode> {
        let timeout = duration("--timeout", &self.timeout)?;
        if let Some(ttl) = &self.ttl {
            duration("--ttl", ttl)?;
        }
        let cluster = access.open().await?;
        let claims: Api<MacOSMachineClaim> = cluster.here();
        let claim = self.object().map_err(|why| anyhow!(why))?;
        let made = claims
            .create(&PostParams::default(), &claim)
            .await
            .map_err(|error| said(error, "claiming a machine"))?;
        let name = made.name_any();
        eprintln!(
            "claim {}/{name} made; it stays when you interrupt this",
            cluster.namespace
        );
        let bound = tokio::select! {
            bound = wait(&claims, &name) => bound?,
            () = tokio::time::sleep(timeout) => bail!(
                "not bound within {}; the claim stays: kubectl dockerios why macclaim/{name} -n {}, or kubectl delete \
                 macclaim {name} -n {1}",
                self.timeout, cluster.namespace
            ),
            _ = tokio::signal::ctrl_c() => {
                eprintln!("the claim stays: kubectl delete macclaim {name} -n {} ends it", cluster.namespace);
                return Ok(ExitCode::from(130));
            }
        };
        let machine = cluster
            .here::<MacOSMachine>()
            .get_opt(&bound)
            .await
            .map_err(|error| said(error, "reading the machine"))?;
        println!(
            "{}",
            account(&claims.get(&name).await?, machine.as_ref(), Timestamp::now())
        );
        Ok(ExitCode::SUCCESS)
    }

    fn object(&self) -> Result<MacOSMachineClaim, String> {
        let metadata = match &self.name {
            Some(name) => json!({"name": name}),
            None => json!({"generateName": "claim-"}),
        };
        let mut spec = json!({});
        for (field, value) in [
            ("poolName", &self.pool),
            ("machineClassName", &self.class),
            ("ttl", &self.ttl),
        ] {
            if let Some(value) = value {
                spec[field] = json!(value);
            }
        }
        serde_json::from_value(json!({
            "apiVersion": "machine.dockerios.io/v1alpha1", "kind": "MacOSMachineClaim",
            "metadata": metadata, "spec": spec,
        }))
        .map_err(|error| error.to_string())
    }
}

/// The platform's own form of a duration, by its one parser.
fn duration(flag: &str, text: &str) -> Result<Duration> {
    let span: dockerios_api::Span = text.parse().map_err(|why| anyhow!("{flag} {text:?}: {why}"))?;
    Ok(Duration::from_secs(span.seconds()))
}

async fn wait(claims: &Api<MacOSMachineClaim>, name: &str) -> Result<String> {
    let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let changes = watcher(claims.clone(), only).default_backoff().touched_objects();
    pin_mut!(changes);
    let mut told = String::new();
    while let Some(claim) = changes.try_next().await.transpose() {
        let claim = match claim {
            Ok(claim) => claim,
            // the watch is taken up again by itself
            Err(error) => {
                eprintln!("  the watch was cut: {error}");
                continue;
            }
        };
        if claim.metadata.deletion_timestamp.is_some() {
            bail!("claim {name} is being deleted");
        }
        match step(&claim) {
            Step::Bound(machine) => return Ok(machine),
            Step::Ended(why) => bail!("claim {name} has ended: {why}"),
            Step::Waits(why) if why != told => {
                eprintln!("  {why}");
                told = why;
            }
            Step::Waits(_) => {}
        }
    }
    bail!("the watch ended")
}

fn step(claim: &MacOSMachineClaim) -> Step {
    let status = claim.status.clone().unwrap_or_default();
    let ready = dockerios_api::condition::of(&status.conditions, "Ready");
    let said = ready.map_or_else(
        || "Pending".to_owned(),
        |ready| format!("{}: {}", ready.reason, ready.message),
    );
    match (status.phase, status.machine_ref) {
        (Some(ClaimPhase::Expired | ClaimPhase::Lost), _) => Step::Ended(said),
        (Some(ClaimPhase::Bound), Some(machine)) => Step::Bound(machine.name.to_string()),
        _ => Step::Waits(said),
    }
}

fn account(claim: &MacOSMachineClaim, machine: Option<&MacOSMachine>, now: Timestamp) -> String {
    let status = claim.status.clone().unwrap_or_default();
    let machine_name = status
        .machine_ref
        .map(|machine| machine.name.to_string())
        .unwrap_or_default();
    let mut lines = vec![
        format!("claim     {}", claim.name_any()),
        format!("machine   {machine_name}"),
    ];
    let of_machine = machine.and_then(|machine| machine.status.clone()).unwrap_or_default();
    if !of_machine.addresses.is_empty() {
        lines.push(format!("address   {}", of_machine.addresses.join(", ")));
    }
    if let Some(node) = of_machine.node_name {
        lines.push(format!("node      {node}"));
    }
    if let Some(expires) = status.expires_at {
        lines.push(format!("expires   {}", relative(expires.0, now)));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn claim(status: Value) -> MacOSMachineClaim {
        serde_json::from_value(json!({
            "apiVersion": "machine.dockerios.io/v1alpha1", "kind": "MacOSMachineClaim",
            "metadata": {"name": "job", "namespace": "team-a"}, "spec": {"poolName": "ci"}, "status": status,
        }))
        .unwrap()
    }

    fn ready(reason: &str, message: &str) -> Value {
        json!([{"type": "Ready", "status": "False", "reason": reason, "message": message,
            "lastTransitionTime": "2026-03-01T12:00:00Z"}])
    }

    #[test]
    fn a_claim_waits_until_it_is_bound_with_a_machine_or_has_ended() {
        assert_eq!(step(&claim(json!({}))), Step::Waits("Pending".to_owned()));
        let waits = json!({"phase": "Pending", "conditions": ready("AtMaxMachines", "pool ci has 3 of 3")});
        assert_eq!(
            step(&claim(waits)),
            Step::Waits("AtMaxMachines: pool ci has 3 of 3".to_owned())
        );
        let bound = json!({"phase": "Bound", "machineRef": {"name": "ci-7", "uid": "u"}});
        assert_eq!(step(&claim(bound)), Step::Bound("ci-7".to_owned()));
        let over = json!({"phase": "Expired", "conditions": ready("Expired", "its ttl is over")});
        assert_eq!(step(&claim(over)), Step::Ended("Expired: its ttl is over".to_owned()));
    }

    #[test]
    fn the_account_says_machine_address_and_end() {
        let bound = claim(json!({"phase": "Bound", "machineRef": {"name": "ci-7", "uid": "u"},
            "expiresAt": "2026-03-01T14:00:00Z"}));
        let machine: MacOSMachine = serde_json::from_value(json!({
            "apiVersion": "machine.dockerios.io/v1alpha1", "kind": "MacOSMachine", "metadata": {"name": "ci-7"},
            "spec": {"machineClassName": "ci"}, "status": {"addresses": ["10.0.0.7"], "nodeName": "kvm-1"},
        }))
        .unwrap();
        let text = account(&bound, Some(&machine), "2026-03-01T12:00:00Z".parse().unwrap());
        assert_eq!(
            text,
            "claim     job\nmachine   ci-7\naddress   10.0.0.7\nnode      kvm-1\nexpires   in 2h (14:00:00Z)"
        );
    }

    #[test]
    fn a_duration_has_the_platforms_one_form() {
        assert_eq!(duration("--timeout", "1h30m").unwrap(), Duration::from_secs(5_400));
        let refused = duration("--timeout", "1d").unwrap_err().to_string();
        assert!(refused.starts_with("--timeout \"1d\""), "{refused}");
    }
}
