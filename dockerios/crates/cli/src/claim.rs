//! `claim`: asks for a machine and waits for it, by a watch.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use dockerios_api::machine::claim::ClaimPhase;
use dockerios_api::{MacOSMachine, MacOSMachineClaim};
use futures::{StreamExt as _, pin_mut};
use jiff::Timestamp;
use kube::api::PostParams;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use crate::access::{Access, interrupted, plain, said, words};
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
    Bound,
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
        let (name, uid) = (made.name_any(), made.uid().unwrap_or_default());
        eprintln!(
            "claim {}/{name} made; it stays when you interrupt this",
            cluster.namespace
        );
        let bound = tokio::select! {
            bound = wait(&claims, &name, &uid) => bound?,
            () = tokio::time::sleep(timeout) => bail!(
                "not bound within {}; the claim stays: kubectl dockerios why macclaim/{name} -n {}, or kubectl delete \
                 macclaim {name} -n {1}",
                self.timeout, cluster.namespace
            ),
            () = interrupted() => {
                eprintln!("the claim stays: kubectl delete macclaim {name} -n {} ends it", cluster.namespace);
                return Ok(ExitCode::from(130));
            }
        };
        let machine = match cluster.here::<MacOSMachine>().get_opt(bound.machine()).await {
            Ok(machine) => machine,
            // it is bound all the same; only where it is cannot be told
            Err(error) => {
                eprintln!("{:#}", said(error, "reading the machine"));
                None
            }
        };
        println!("{}", account(&bound.0, machine.as_ref(), Timestamp::now()));
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

/// A claim that has a machine.
struct Bound(MacOSMachineClaim);

impl Bound {
    fn machine(&self) -> &str {
        let status = self.0.status.as_ref();
        status
            .and_then(|status| status.machine_ref.as_ref())
            .map_or("", |machine| &machine.name)
    }
}

async fn wait(claims: &Api<MacOSMachineClaim>, name: &str, uid: &str) -> Result<Bound> {
    let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let changes = watcher(claims.clone(), only).default_backoff();
    pin_mut!(changes);
    let (mut told, mut listed) = (String::new(), false);
    while let Some(event) = changes.next().await {
        let claim = match event {
            Ok(Event::Init) => {
                listed = false;
                continue;
            }
            Ok(Event::InitDone) if listed => continue,
            Ok(Event::InitDone | Event::Delete(_)) => bail!("claim {name} is gone: somebody deleted it"),
            Ok(Event::InitApply(claim) | Event::Apply(claim)) => claim,
            Err(error) if is_final(&error) => {
                bail!("claim {name} cannot be watched: {}; the claim stays", because(&error))
            }
            // the watch is taken up again by itself
            Err(error) => {
                eprintln!("  the watch was cut: {}", because(&error));
                continue;
            }
        };
        listed = true;
        if claim.uid().as_deref() != Some(uid) {
            bail!("claim {name} was deleted and made again by somebody else; that one is not yours to wait for");
        }
        if claim.metadata.deletion_timestamp.is_some() {
            bail!("claim {name} is being deleted");
        }
        match step(&claim) {
            Step::Bound => return Ok(Bound(claim)),
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

/// Whether trying again would be answered the same: a right is missing, or the kind is not served.
fn is_final(error: &watcher::Error) -> bool {
    use watcher::Error::{InitialListFailed, WatchError, WatchFailed, WatchStartFailed};
    let code = match error {
        InitialListFailed(kube::Error::Api(status))
        | WatchStartFailed(kube::Error::Api(status))
        | WatchFailed(kube::Error::Api(status))
        | WatchError(status) => status.code,
        _ => return false,
    };
    matches!(code, 401 | 403 | 404)
}

fn because(error: &watcher::Error) -> String {
    use watcher::Error::{InitialListFailed, WatchError, WatchFailed, WatchStartFailed};
    match error {
        InitialListFailed(error) | WatchStartFailed(error) | WatchFailed(error) => words(error),
        WatchError(status) => plain(&status.message),
        other => other.to_string(),
    }
}

fn step(claim: &MacOSMachineClaim) -> Step {
    let status = claim.status.clone().unwrap_or_default();
    let ready = dockerios_api::condition::of(&status.conditions, "Ready");
    let said = ready.map_or_else(
        || "Pending".to_owned(),
        |ready| format!("{}: {}", ready.reason, plain(&ready.message)),
    );
    match (status.phase, status.machine_ref) {
        (Some(ClaimPhase::Expired | ClaimPhase::Lost), _) => Step::Ended(said),
        (Some(ClaimPhase::Bound), Some(_)) => Step::Bound,
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
        lines.push(format!("address   {}", plain(&of_machine.addresses.join(", "))));
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
        assert_eq!(step(&claim(bound)), Step::Bound);
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
