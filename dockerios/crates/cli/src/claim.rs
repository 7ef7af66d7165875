//! `claim`: asks for a machine and waits for it, by a watch.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use dockerios_api::machine::claim::ClaimPhase;
use dockerios_api::{MacOSMachine, MacOSMachineClaim};
use jiff::Timestamp;
use kube::api::PostParams;
use kube::runtime::watcher::{self, Event};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use crate::access::{Access, get};
use crate::answer::{plain, said};
use crate::follow::{self, Met};
use crate::interrupt::Interrupt;
use crate::out::{self, Output};
use crate::times::{duration, relative};

/// Claim a machine, wait for it, and print where it is
///
/// The claim stays when this program ends, by Ctrl-C too: delete it, or let its ttl run out, and the machine goes.
#[derive(clap::Args, Debug)]
#[command(group = clap::ArgGroup::new("from").args(["pool", "class"]).required(true))]
pub(crate) struct Claim {
    /// A MacOSMachinePool of the namespace
    #[arg(long, value_name = "NAME")]
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
    /// How the claim is printed when it is bound
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
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
        let mut interrupt = Interrupt::listen();
        let claim = self.object().map_err(|why| anyhow!(why))?;
        let at = &cluster.namespace;
        let Some(made) = make(&claims, &claim, at, &mut interrupt).await? else {
            return Ok(ExitCode::from(130));
        };
        let (name, uid) = (made.name_any(), made.uid().unwrap_or_default());
        out::note(&format!("claim {at}/{name} made; it stays when you interrupt this"));
        let bound = tokio::select! {
            met = wait(claims, &name, &uid, timeout) => match met? {
                Met::Seen(bound) => bound,
                Met::TooLate(trouble) => bail!(
                    "not bound within {}{trouble}; the claim stays: kubectl dockerios why macclaim/{name} -n {at}, or \
                     kubectl delete macclaim {name} -n {at}",
                    self.timeout
                ),
            },
            () = interrupt.happened() => {
                out::note(&stays(&name, at));
                return Ok(ExitCode::from(130));
            }
        };
        if let Some(text) = out::objects(std::slice::from_ref(&bound.0), self.output)? {
            out::program(&text)?;
            return Ok(ExitCode::SUCCESS);
        }
        let machine = match get(&cluster.here::<MacOSMachine>(), bound.machine()).await {
            Ok(machine) => machine,
            // it is bound all the same; only where it is cannot be told
            Err(error) => {
                out::note(&format!("{:#}", said(error, "reading the machine")));
                None
            }
        };
        out::line(&account(&bound.0, machine.as_ref(), Timestamp::now()))?;
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

/// What whoever interrupts is told of a claim that is there.
fn stays(name: &str, at: &str) -> String {
    format!("the claim stays: kubectl delete macclaim {name} -n {at} ends it")
}

/// Makes the claim; `None` when it was interrupted, and all is said. The answer to a request that is on its way is
/// waited for, by Ctrl-C too, since the claim may be there already; whoever insists leaves without knowing.
async fn make(
    claims: &Api<MacOSMachineClaim>,
    claim: &MacOSMachineClaim,
    at: &str,
    interrupt: &mut Interrupt,
) -> Result<Option<MacOSMachineClaim>> {
    let post = PostParams::default();
    let made = claims.create(&post, claim);
    tokio::pin!(made);
    tokio::select! {
        made = &mut made => return made.map(Some).map_err(|error| said(error, "claiming a machine")),
        () = interrupt.happened() => {}
    }
    out::note("the claim is being made and its answer waited for; interrupt once more to leave without it");
    tokio::select! {
        made = made => {
            let made = made.map_err(|error| said(error, "claiming a machine"))?;
            out::note(&stays(&made.name_any(), at));
        }
        () = interrupt.happened() => out::note(&format!(
            "whether the claim was made is not known: kubectl get macclaim -n {at}"
        )),
    }
    Ok(None)
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

async fn wait(claims: Api<MacOSMachineClaim>, name: &str, uid: &str, patience: Duration) -> Result<Met<Bound>> {
    let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let (mut told, mut listed) = (String::new(), false);
    let what = format!("claim {name}");
    follow::until(claims, only, &what, patience, |event| {
        let claim = match event {
            Event::Init => {
                listed = false;
                return Ok(None);
            }
            Event::InitDone if listed => return Ok(None),
            Event::InitDone | Event::Delete(_) => bail!("claim {name} is gone: somebody deleted it"),
            Event::InitApply(claim) | Event::Apply(claim) => claim,
        };
        listed = true;
        if claim.uid().as_deref() != Some(uid) {
            bail!("claim {name} was deleted and made again by somebody else; that one is not yours to wait for");
        }
        if claim.metadata.deletion_timestamp.is_some() {
            bail!("claim {name} is being deleted");
        }
        match step(&claim) {
            Step::Bound => return Ok(Some(Bound(claim))),
            Step::Ended(why) => bail!("claim {name} has ended: {why}"),
            Step::Waits(why) if why != told => {
                out::note(&format!("  {why}"));
                told = why;
            }
            Step::Waits(_) => {}
        }
        Ok(None)
    })
    .await
}

fn step(claim: &MacOSMachineClaim) -> Step {
    let status = claim.status.clone().unwrap_or_default();
    let ready = dockerios_api::condition::of(&status.conditions, "Ready");
    let said = ready.map_or_else(
        || "Pending".to_owned(),
        |ready| plain(&format!("{}: {}", ready.reason, ready.message)),
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
        lines.push(format!("address   {}", of_machine.addresses.join(", ")));
    }
    if let Some(node) = of_machine.node_name {
        lines.push(format!("node      {node}"));
    }
    if let Some(expires) = status.expires_at {
        lines.push(format!("expires   {}", relative(expires.0, now)));
    }
    lines.iter().map(|line| plain(line)).collect::<Vec<_>>().join("\n")
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
}
