//! `kubectl macrack reboot`: what a reboot would do and to whom, and its approval.
//!
//! Invariant: what is approved is the very request that was shown: its time is its name, is given back by whoever
//! approves, and is tested by the API server in the same write.

use anyhow::{Result, bail};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use macrack_api::rack::node::{MacNodeStatus, Reboot as Request};
use serde_json::json;

use crate::cluster::{Access, mac_node, said};
use crate::times::{absolute, in_words, relative};

/// Show the reboot that a Mac asks for, and what it would do to whom; approve it with --approve
#[derive(clap::Args, Debug)]
pub(crate) struct Reboot {
    /// The Mac's serial
    #[arg(value_name = "SERIAL")]
    serial: String,
    /// Approve the request of that time, as it was shown
    #[arg(long, value_name = "TIME")]
    approve: Option<String>,
}

impl Reboot {
    pub(crate) async fn run(&self, access: &Access) -> Result<()> {
        let (nodes, node) = mac_node(access, &self.serial).await?;
        let name = node.name_any();
        let now = Timestamp::now();
        let status = node.status.clone().unwrap_or_default();
        let request = pending(&node.spec.serial, &status).map_err(anyhow::Error::msg)?;
        let token = token(request);
        let Some(approved) = &self.approve else {
            println!("{}", shown(&node.spec.serial, &status, request, now));
            println!("To approve exactly this one: kubectl macrack reboot {name} --approve {token}");
            return Ok(());
        };
        if !names(approved, request) {
            bail!(
                "--approve {approved} names another request; the pending one is {token}. Look at it first: kubectl macrack reboot {name}"
            );
        }
        let patch = json!([
            { "op": "test", "path": "/metadata/uid", "value": node.metadata.uid },
            { "op": "test", "path": "/status/reboot/requestedAt", "value": Time(request.requested_at.0) },
            { "op": "add", "path": "/spec/approvedReboot", "value": Time(request.requested_at.0) },
        ]);
        let patch: Patch<()> = Patch::Json(serde_json::from_value(patch)?);
        let doing = format!("approving the reboot of {name}");
        nodes.patch(&name, &PatchParams::default(), &patch).await.map_err(|error| said(error, &doing))?;
        println!(
            "approved: {} is rebooted once, as soon as nothing runs on it. kubectl get mn {name} -w shows it come back",
            node.spec.serial
        );
        Ok(())
    }
}

/// How a request is named.
fn token(request: &Request) -> String {
    absolute(request.requested_at.0)
}

/// Whether a text that somebody gives back names that request, in whatever zone they write it.
fn names(text: &str, request: &Request) -> bool {
    text.parse::<Timestamp>().is_ok_and(|moment| moment == request.requested_at.0)
}

/// The request that waits for an approval.
fn pending<'a>(serial: &str, status: &'a MacNodeStatus) -> Result<&'a Request, String> {
    let request = status.reboot.as_ref().filter(|request| request.done_boot_id.is_none());
    let Some(request) = request else {
        let name = serial.to_lowercase();
        return Err(format!(
            "nothing asks for a reboot of {serial}. MacRack reboots a Mac only to end a stuck VM counter, when the Mac \
             itself asks for it and nothing runs on it; to work on it by hand: kubectl macrack maintenance {name} --on --drain"
        ));
    };
    if let Some(approved) = &request.approved_at {
        let by = request.approved_by.map(|by| format!(" by {by:?}")).unwrap_or_default();
        return Err(format!(
            "the reboot that {serial} asked for at {} was approved{by} at {}; one approval is one reboot. If the Mac does \
             not come back, start it by hand",
            token(request),
            absolute(approved.0)
        ));
    }
    Ok(request)
}

/// What it would do, and to whom.
fn shown(serial: &str, status: &MacNodeStatus, request: &Request, now: Timestamp) -> String {
    let mut lines = vec![format!(
        "{serial} asks for a reboot of its host: {}, since {}",
        request.reason,
        relative(request.requested_at.0, now)
    )];
    lines.push(match &status.lease_ref {
        Some(lease) => format!(
            "leased by {}/{} until at least {}; the lease and its floor stay as they are",
            lease.namespace,
            lease.name,
            relative(lease.earliest_release_at.0, now)
        ),
        None => "nobody leases it".to_owned(),
    });
    let vms: Vec<String> = status.slots.iter().map(|slot| format!("{}/{}", slot.namespace, slot.name)).collect();
    lines.push(match vms.as_slice() {
        [] => "no VM is on it".to_owned(),
        vms => format!(
            "its VMs are stopped: {}; those that are to run are started by themselves in the new boot, with the same disk",
            vms.join(", ")
        ),
    });
    let settled = macrack_api::condition::find(&status.conditions, "RebootSettled");
    if let Some(why) = settled.map(|c| &c.message).filter(|message| !message.is_empty()) {
        let why = why.split(": to approve it").next().unwrap_or(why);
        lines.push(format!("not approved by the policy: {}", in_words(why, now)));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(approved: bool, done: bool) -> MacNodeStatus {
        let mut reboot = json!({ "reason": "QuotaStuck", "requestedAt": "2026-11-30T13:57:00Z", "bootID": "b" });
        if approved {
            reboot["approvedAt"] = "2026-11-30T13:58:00Z".into();
            reboot["approvedBy"] = "Policy".into();
        }
        if done {
            reboot["doneBootID"] = "c".into();
        }
        let lease = json!({
            "namespace": "team-b", "name": "web", "uid": "u", "boundAt": "2026-11-30T13:00:00Z",
            "earliestReleaseAt": "2026-12-01T13:00:00Z",
        });
        let slot = json!({ "slot": 0, "uid": "i", "namespace": "team-b", "name": "build-1", "order": "Stop" });
        serde_json::from_value(json!({ "reboot": reboot, "leaseRef": lease, "slots": [slot] })).unwrap()
    }

    #[test]
    fn what_a_reboot_does_and_to_whom_is_said_before_anybody_approves_it() {
        let now = "2026-11-30T14:00:00Z".parse().unwrap();
        let status = status(false, false);
        let request = pending("H4XK29Q0LW", &status).unwrap();
        let words = shown("H4XK29Q0LW", &status, request, now);
        for part in ["H4XK29Q0LW", "QuotaStuck", "3m ago", "team-b/web", "team-b/build-1", "in 23h0m"] {
            assert!(words.contains(part), "{part}: {words}");
        }
    }

    #[test]
    fn there_is_nothing_to_approve_twice_or_when_nothing_is_asked() {
        let refused = |status: &MacNodeStatus| pending("H4XK29Q0LW", status).unwrap_err();
        assert!(refused(&MacNodeStatus::default()).contains("nothing asks for a reboot"));
        assert!(refused(&status(true, true)).contains("kubectl macrack maintenance h4xk29q0lw --on --drain"));
        let again = refused(&status(true, false));
        assert!(again.contains("was approved by Policy at 2026-11-30T13:58:00Z"), "{again}");
    }

    #[test]
    fn a_request_is_named_by_its_moment_in_any_zone_and_by_no_other() {
        let status = status(false, false);
        let request = pending("S", &status).unwrap();
        for (text, is) in [
            ("2026-11-30T13:57:00Z", true),
            ("2026-11-30T14:57:00+01:00", true),
            ("2026-11-30T13:57:01Z", false),
            ("yes", false),
            ("", false),
        ] {
            assert_eq!(names(text, request), is, "{text}");
        }
    }
}
