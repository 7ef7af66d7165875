//! `status`: the platform on one screen.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::Result;
use dockerios_api::machine::claim::ClaimPhase;
use dockerios_api::{
    Condition, IdentityPool, MacOSImage, MacOSMachine, MacOSMachineClaim, MacOSMachinePool, PlatformConfig, Verdict,
    names,
};
use jiff::Timestamp;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};

use crate::access::{Access, plain, words};
use crate::table::table;
use crate::times::relative;

/// Show platform, images, identities, pools, machines and waiting claims on one screen
#[derive(clap::Args, Debug)]
pub(crate) struct Status {
    /// Machines, pools and claims of every namespace
    #[arg(short = 'A', long)]
    all_namespaces: bool,
}

/// What is shown. A list that could not be read is the reason why.
pub(crate) struct Seen {
    platform: Result<Option<PlatformConfig>, String>,
    images: Result<Vec<MacOSImage>, String>,
    identities: Result<Vec<IdentityPool>, String>,
    pools: Result<Vec<MacOSMachinePool>, String>,
    machines: Result<Vec<MacOSMachine>, String>,
    claims: Result<Vec<MacOSMachineClaim>, String>,
}

impl Status {
    pub(crate) async fn run(&self, access: &Access) -> Result<ExitCode> {
        let cluster = access.open().await?;
        macro_rules! list {
            ($api:expr) => {
                $api.list(&ListParams::default())
                    .await
                    .map(|list| list.items)
                    .map_err(|error| words(&error))
            };
        }
        macro_rules! namespaced {
            ($kind:ty) => {
                if self.all_namespaces {
                    list!(Api::<$kind>::all(cluster.client.clone()))
                } else {
                    list!(cluster.here::<$kind>())
                }
            };
        }
        let seen = Seen {
            platform: cluster
                .all::<PlatformConfig>()
                .get_opt(names::PLATFORM)
                .await
                .map_err(|error| words(&error)),
            images: list!(cluster.all::<MacOSImage>()),
            identities: list!(cluster.all::<IdentityPool>()),
            pools: namespaced!(MacOSMachinePool),
            machines: namespaced!(MacOSMachine),
            claims: namespaced!(MacOSMachineClaim),
        };
        print!("{}", screen(&seen, Timestamp::now()));
        Ok(ExitCode::SUCCESS)
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
    part("identity pools", seen.identities.as_ref().map(|all| identities(all)));
    part("machine pools", seen.pools.as_ref().map(|all| pools(all)));
    part("machines", seen.machines.as_ref().map(|all| machines(all)));
    part("waiting claims", seen.claims.as_ref().map(|all| waiting(all, now)));
    text
}

fn platform(platform: &Result<Option<PlatformConfig>, String>, now: Timestamp) -> String {
    let platform = match platform {
        Ok(Some(platform)) => platform,
        Ok(None) => return "platform: there is no PlatformConfig default; see docs/admin.md\n".to_owned(),
        Err(why) => return format!("platform: not seen ({why})\n"),
    };
    let conditions = platform.status.as_ref().map_or(&[][..], |status| &status.conditions);
    if conditions.is_empty() {
        return "platform: nobody has looked at it yet; does the operator run?\n".to_owned();
    }
    let bad: Vec<&Condition> = conditions
        .iter()
        .filter(|condition| condition.status != Verdict::True)
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
            let since = relative(condition.last_transition_time.0, now);
            format!(
                "platform: {} {:?} ({}) since {since}: {}\n",
                condition.kind,
                condition.status,
                condition.reason,
                plain(&condition.message)
            )
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
            platform: Ok(None),
            images: Ok(Vec::new()),
            identities: Err("machines are forbidden".to_owned()),
            pools: Ok(Vec::new()),
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
        let text = super::platform(&Ok(Some(platform)), "2026-03-01T12:00:00Z".parse().unwrap());
        assert_eq!(
            text,
            "platform: Ready False (GateDisabled) since 1h ago (11:00:00Z): turn it on\n"
        );
    }
}
