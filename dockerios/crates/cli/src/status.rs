//! `status`: the platform on one screen.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::Result;
use dockerios_api::machine::claim::ClaimPhase;
use dockerios_api::{
    Condition, IdentityPool, MacOSImage, MacOSMachine, MacOSMachineClaim, MacOSMachinePool, PlatformConfig, condition,
    names,
};
use jiff::Timestamp;
use kube::api::ListParams;
use kube::core::NamespaceResourceScope;
use kube::{Api, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::access::{Access, Cluster, get};
use crate::answer::{CannotBegin, plain, words};
use crate::out;
use crate::table::{listed, table};
use crate::times::{relative, since};

/// Show platform, images, identities, pools, machines and waiting claims on one screen
///
/// What you may not read is told as not seen. Ends with 2 when nothing at all could be seen.
#[derive(clap::Args, Debug)]
pub(crate) struct Status {
    /// Machines, pools and claims of every namespace
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Print the objects themselves
    #[arg(short, long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// The screen
    Text,
    /// JSON, each part an array, or a text that says why it was not seen
    Json,
    /// The same as YAML
    Yaml,
}

/// What was asked for. A list that could not be read is the reason why.
type Part<T> = Result<Vec<T>, String>;

/// What is shown.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Seen {
    #[serde(serialize_with = "part")]
    platform: Part<PlatformConfig>,
    #[serde(serialize_with = "part")]
    images: Part<MacOSImage>,
    #[serde(serialize_with = "part")]
    identity_pools: Part<IdentityPool>,
    #[serde(serialize_with = "part")]
    machine_pools: Part<MacOSMachinePool>,
    #[serde(serialize_with = "part")]
    machines: Part<MacOSMachine>,
    #[serde(serialize_with = "part")]
    claims: Part<MacOSMachineClaim>,
}

fn part<T: Serialize, S: serde::Serializer>(part: &Part<T>, serializer: S) -> Result<S::Ok, S::Error> {
    match part {
        Ok(items) => items.serialize(serializer),
        Err(why) => serializer.collect_str(&format_args!("not seen: {why}")),
    }
}

impl Status {
    pub(crate) async fn run(&self, access: &Access) -> Result<ExitCode> {
        let cluster = access.open().await?;
        let platforms = cluster.all();
        let (platform, images, identity_pools, machine_pools, machines, claims) = tokio::join!(
            // by its name: who may get it need not be allowed to list
            get(&platforms, names::PLATFORM),
            list(cluster.all()),
            list(cluster.all()),
            list(self.scope(&cluster)),
            list(self.scope(&cluster)),
            list(self.scope(&cluster)),
        );
        let seen = Seen {
            platform: platform
                .map(|one| one.into_iter().collect())
                .map_err(|error| words(&error)),
            images,
            identity_pools,
            machine_pools,
            machines,
            claims,
        };
        let unseen = seen.unseen();
        if let Some(why) = seen.nothing() {
            return Err(CannotBegin(format!("nothing could be seen: {why}")).into());
        }
        match self.output {
            Format::Text => out::print(&screen(&seen, Timestamp::now()))?,
            Format::Json => out::program(&out::as_json(&seen)?)?,
            Format::Yaml => out::program(&serde_yaml::to_string(&seen)?)?,
        }
        if !unseen.is_empty() {
            out::note(&format!("this is not all: {} could not be seen", unseen.join(", ")));
        }
        Ok(ExitCode::SUCCESS)
    }

    fn scope<K>(&self, cluster: &Cluster) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        if self.all_namespaces {
            Api::all(cluster.client.clone())
        } else {
            cluster.here()
        }
    }
}

async fn list<K>(api: Api<K>) -> Part<K>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    let list = api.list(&ListParams::default()).await;
    list.map(|list| list.items).map_err(|error| words(&error))
}

impl Seen {
    /// Each part's name, and why it was not seen.
    fn parts(&self) -> [(&'static str, Option<&str>); 6] {
        fn why<T>(part: &Part<T>) -> Option<&str> {
            part.as_ref().err().map(String::as_str)
        }
        [
            ("platform", why(&self.platform)),
            ("images", why(&self.images)),
            ("identity pools", why(&self.identity_pools)),
            ("machine pools", why(&self.machine_pools)),
            ("machines", why(&self.machines)),
            ("waiting claims", why(&self.claims)),
        ]
    }

    fn unseen(&self) -> Vec<&'static str> {
        let parts = self.parts().into_iter();
        parts.filter(|(_, why)| why.is_some()).map(|(name, _)| name).collect()
    }

    /// Why, when none of all was seen; each reason once.
    fn nothing(&self) -> Option<String> {
        let mut reasons = Vec::new();
        for (_, why) in self.parts() {
            let why = why?;
            if !reasons.contains(&why) {
                reasons.push(why);
            }
        }
        Some(reasons.join("; "))
    }
}

fn screen(seen: &Seen, now: Timestamp) -> String {
    let mut text = platform(&seen.platform, now);
    let mut part = |name: &str, shown: Result<String, &String>| match shown {
        Ok(shown) if shown.is_empty() => text.push_str(&format!("\n{name}: none\n")),
        Ok(shown) => text.push_str(&format!("\n{shown}")),
        Err(why) => text.push_str(&format!("\n{name}: not seen ({why})\n")),
    };
    part("images", seen.images.as_ref().map(|all| images(all)));
    part(
        "identity pools",
        seen.identity_pools.as_ref().map(|all| identities(all)),
    );
    part("machine pools", seen.machine_pools.as_ref().map(|all| pools(all)));
    part("machines", seen.machines.as_ref().map(|all| machines(all)));
    part("waiting claims", seen.claims.as_ref().map(|all| waiting(all, now)));
    text + &cut_off(seen.machines.as_deref().unwrap_or_default())
}

/// The machines whose guest says that its last shutdown was not clean.
fn cut_off(machines: &[MacOSMachine]) -> String {
    let names: Vec<_> = machines
        .iter()
        .filter(|machine| {
            let guest = machine.status.as_ref().and_then(|status| status.guest.as_ref());
            guest.and_then(|guest| guest.clean_shutdown) == Some(false)
        })
        .map(|machine| format!("{}/{}", machine.namespace().unwrap_or_default(), machine.name_any()))
        .collect();
    if names.is_empty() {
        return String::new();
    }
    format!(
        "\nnot shut down cleanly, as the guest saw it: {}\n",
        listed(names.into_iter())
    )
}

fn platform(platform: &Part<PlatformConfig>, now: Timestamp) -> String {
    let all = match platform {
        Ok(all) => all,
        Err(why) => return format!("platform: not seen ({why})\n"),
    };
    let Some(platform) = all.first() else {
        return "platform: there is no PlatformConfig default; see docs/admin.md\n".to_owned();
    };
    let conditions = platform.status.as_ref().map_or(&[][..], |status| &status.conditions);
    if conditions.is_empty() {
        return "platform: nobody has looked at it yet; does the operator run?\n".to_owned();
    }
    let bad: Vec<&Condition> = conditions
        .iter()
        .filter(|condition| condition::is_wrong(condition))
        .collect();
    if bad.is_empty() {
        let launcher = platform.status.as_ref().and_then(|status| status.launchers.first());
        let mode = launcher
            .map(|found| format!(", NVMe {:?}", found.nvme))
            .unwrap_or_default();
        return format!("platform: Ready{mode}\n");
    }
    bad.iter()
        .map(|condition| {
            let since = since(condition.last_transition_time.0, now);
            let said = format!(
                "platform: {} {:?} ({}) {since}: {}",
                condition.kind, condition.status, condition.reason, condition.message
            );
            plain(&said) + "\n"
        })
        .collect()
}

fn ready(conditions: &[Condition]) -> String {
    let found = dockerios_api::condition::of(conditions, "Ready");
    found.map_or_else(|| "NotSeen".to_owned(), |ready| ready.reason.clone())
}

fn images(all: &[MacOSImage]) -> String {
    let rows = all.iter().map(|image| {
        let status = image.status.clone().unwrap_or_default();
        vec![
            image.name_any(),
            image.spec.os_version.to_string(),
            ready(&status.conditions),
        ]
    });
    table(&["IMAGE", "OS", "REASON"], &rows.collect::<Vec<_>>())
}

fn identities(all: &[IdentityPool]) -> String {
    let rows = all.iter().map(|pool| {
        let status = pool.status.clone().unwrap_or_default();
        let counts = [status.available, status.allocated, status.quarantined, status.waiting];
        let mut row = vec![pool.name_any(), format!("{}/{}", status.total, pool.spec.max_size)];
        row.extend(counts.map(|count| count.to_string()));
        row.push(ready(&status.conditions));
        row
    });
    let head = [
        "IDENTITIES",
        "TOTAL",
        "AVAILABLE",
        "ALLOCATED",
        "QUARANTINED",
        "WAITING",
        "REASON",
    ];
    table(&head, &rows.collect::<Vec<_>>())
}

fn pools(all: &[MacOSMachinePool]) -> String {
    let rows = all.iter().map(|pool| {
        let status = pool.status.clone().unwrap_or_default();
        vec![
            format!("{}/{}", pool.namespace().unwrap_or_default(), pool.name_any()),
            format!("{}/{}", status.warm, pool.spec.replicas),
            status.claimed.to_string(),
            status.waiting.to_string(),
            status.failed.to_string(),
            ready(&status.conditions),
        ]
    });
    let head = ["POOL", "WARM", "CLAIMED", "WAITING", "FAILED", "REASON"];
    table(&head, &rows.collect::<Vec<_>>())
}

/// Machines by class, phase and reason: a fleet of hundreds stays one screen.
fn machines(all: &[MacOSMachine]) -> String {
    let mut counts: BTreeMap<(String, String, String), usize> = BTreeMap::new();
    for machine in all {
        let status = machine.status.clone().unwrap_or_default();
        let phase = status
            .phase
            .map_or_else(|| "NotSeen".to_owned(), |phase| format!("{phase:?}"));
        let class = machine.spec.machine_class_name.to_string();
        *counts.entry((class, phase, ready(&status.conditions))).or_default() += 1;
    }
    let rows = counts
        .into_iter()
        .map(|((class, phase, reason), count)| vec![class, phase, count.to_string(), reason]);
    table(&["CLASS", "PHASE", "MACHINES", "REASON"], &rows.collect::<Vec<_>>())
}

fn waiting(all: &[MacOSMachineClaim], now: Timestamp) -> String {
    let pending = |claim: &&MacOSMachineClaim| {
        claim
            .status
            .as_ref()
            .and_then(|status| status.phase)
            .unwrap_or(ClaimPhase::Pending)
            == ClaimPhase::Pending
    };
    let rows = all.iter().filter(pending).map(|claim| {
        let conditions = claim.status.as_ref().map_or(&[][..], |status| &status.conditions);
        let since = claim
            .creation_timestamp()
            .map(|at| relative(at.0, now))
            .unwrap_or_default();
        let name = format!("{}/{}", claim.namespace().unwrap_or_default(), claim.name_any());
        vec![name, since, ready(conditions)]
    });
    table(&["WAITING CLAIM", "SINCE", "REASON"], &rows.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn empty() -> Seen {
        Seen {
            platform: Ok(Vec::new()),
            images: Ok(Vec::new()),
            identity_pools: Err("machines are forbidden".to_owned()),
            machine_pools: Ok(Vec::new()),
            machines: Ok(Vec::new()),
            claims: Ok(Vec::new()),
        }
    }

    #[test]
    fn what_is_not_there_is_told_from_what_could_not_be_seen() {
        let text = screen(&empty(), Timestamp::UNIX_EPOCH);
        assert!(
            text.starts_with("platform: there is no PlatformConfig default"),
            "{text}"
        );
        assert!(text.contains("\nimages: none\n"), "{text}");
        assert!(
            text.contains("\nidentity pools: not seen (machines are forbidden)\n"),
            "{text}"
        );
    }

    #[test]
    fn nothing_seen_is_told_from_some_of_it_seen() {
        let mut seen = empty();
        assert_eq!(seen.unseen(), ["identity pools"]);
        assert_eq!(seen.nothing(), None, "the rest was seen");
        let denied = || "forbidden: User \"eve\"".to_owned();
        seen.platform = Err(denied());
        seen.images = Err(denied());
        seen.machine_pools = Err(denied());
        seen.machines = Err(denied());
        assert_eq!(seen.nothing(), None, "claims were seen, though there are none");
        seen.claims = Err(denied());
        assert_eq!(
            seen.nothing().unwrap(),
            "forbidden: User \"eve\"; machines are forbidden",
            "each reason once"
        );
    }

    #[test]
    fn what_a_program_reads_says_what_was_not_seen_too() {
        let seen = serde_json::to_value(empty()).unwrap();
        assert_eq!(seen["identityPools"], "not seen: machines are forbidden");
        assert_eq!(seen["machines"], json!([]));
    }

    #[test]
    fn a_guest_that_was_cut_off_is_named_and_one_that_says_nothing_is_not() {
        let machine = |name: &str, guest: serde_json::Value| -> MacOSMachine {
            serde_json::from_value(json!({
                "apiVersion": "machine.dockerios.io/v1alpha1", "kind": "MacOSMachine",
                "metadata": {"name": name, "namespace": "team-a"}, "spec": {"machineClassName": "ci"},
                "status": {"guest": guest},
            }))
            .unwrap()
        };
        let machines = [
            machine("up", json!({})),
            machine("well", json!({"cleanShutdown": true})),
            machine("cut", json!({"cleanShutdown": false})),
        ];
        assert_eq!(
            cut_off(&machines),
            "\nnot shut down cleanly, as the guest saw it: team-a/cut\n"
        );
        assert_eq!(cut_off(&machines[..2]), "");
    }

    #[test]
    fn machines_are_counted_by_class_phase_and_reason() {
        let machine = |name: &str, phase: &str, reason: &str| -> MacOSMachine {
            serde_json::from_value(json!({
                "apiVersion": "machine.dockerios.io/v1alpha1", "kind": "MacOSMachine", "metadata": {"name": name},
                "spec": {"machineClassName": "ci"},
                "status": {"phase": phase, "conditions": [{"type": "Ready", "status": "False", "reason": reason,
                    "message": "", "lastTransitionTime": "2026-03-01T12:00:00Z"}]},
            }))
            .unwrap()
        };
        let all = [
            machine("a", "Ready", "Ready"),
            machine("b", "Pending", "IdentityExhausted"),
            machine("c", "Pending", "IdentityExhausted"),
        ];
        assert_eq!(
            machines(&all),
            "CLASS   PHASE     MACHINES   REASON\nci      Pending   2          IdentityExhausted\n\
             ci      Ready     1          Ready\n"
        );
    }

    #[test]
    fn a_platform_that_is_not_ready_says_each_thing_that_is_missing() {
        let platform: PlatformConfig = serde_json::from_value(json!({
            "apiVersion": "config.dockerios.io/v1alpha1", "kind": "PlatformConfig", "metadata": {"name": "default"},
            "spec": {},
            "status": {"conditions": [
                {"type": "Ready", "status": "False", "reason": "GateDisabled", "message": "turn it on",
                    "lastTransitionTime": "2026-03-01T11:00:00Z"},
                {"type": "EndOfLife", "status": "True", "reason": "IntelSunset", "message": "",
                    "lastTransitionTime": "2026-03-01T11:00:00Z"},
            ]},
        }))
        .unwrap();
        let text = super::platform(&Ok(vec![platform]), "2026-03-01T12:00:00Z".parse().unwrap());
        assert_eq!(
            text,
            "platform: Ready False (GateDisabled) since 11:00:00Z (1h ago): turn it on\n"
        );
    }
}
