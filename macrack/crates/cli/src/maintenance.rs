//! `kubectl macrack maintenance`: a Mac out of use for work on it, and back.
//!
//! Placeholders are never evicted or deleted for it: nothing else would free the Mac's two places by a Pod's end, and a
//! VM would be lost. What runs is stopped by an order to the Mac's agent, and kept.

use anyhow::Result;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use macrack_api::{MacNodeSpec, MacNodeStatus};
use serde_json::json;

use crate::cluster::{Access, mac_node, said};

/// Take a Mac out of use for work on it: no new lease is bound to it; with --drain what runs on it is stopped and kept
#[derive(clap::Args, Debug)]
pub(crate) struct Maintenance {
    /// The Mac's serial
    #[arg(value_name = "SERIAL")]
    serial: String,
    /// Begin
    #[arg(long, conflicts_with = "off", required_unless_present = "off")]
    on: bool,
    /// End: leases are bound to it again, and what was stopped for it runs again
    #[arg(long)]
    off: bool,
    /// Also stop what runs on it, cleanly; disks and leases are kept
    #[arg(long, conflicts_with = "off")]
    drain: bool,
}

impl Maintenance {
    pub(crate) async fn run(&self, access: &Access) -> Result<()> {
        let (nodes, node) = mac_node(access, &self.serial).await?;
        let name = node.name_any();
        let patch = json!({ "metadata": { "uid": node.metadata.uid }, "spec": {
            "unschedulable": self.on,
            "drain": (self.on && self.drain).then_some(true),
        } });
        let doing = format!("setting the maintenance of {name}");
        nodes.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await.map_err(|error| said(error, &doing))?;
        println!("{}", effect(&node.spec, &node.status.unwrap_or_default(), self.on, self.drain));
        Ok(())
    }
}

/// What it does, and to whom.
fn effect(spec: &MacNodeSpec, status: &MacNodeStatus, on: bool, drain: bool) -> String {
    let serial = &spec.serial;
    let tenant = status.lease_ref.as_ref().map(|lease| format!("{}/{}", lease.namespace, lease.name));
    let vms: Vec<String> = status.slots.iter().map(|slot| format!("{}/{}", slot.namespace, slot.name)).collect();
    if !on {
        let back = if spec.drain && !vms.is_empty() {
            format!("; started again by themselves: {}", vms.join(", "))
        } else {
            String::new()
        };
        return format!("{serial} is back in use{back}");
    }
    let mut words = vec![format!("{serial} is in maintenance: no new lease is bound to it")];
    words.extend(tenant.map(|tenant| format!("lease {tenant} keeps it, and its floor runs on")));
    words.push(match (drain, vms.as_slice()) {
        (true, []) => "nothing is on it".to_owned(),
        (true, vms) => format!("stopped cleanly and kept: {}", vms.join(", ")),
        (false, []) => "nothing runs on it".to_owned(),
        (false, vms) => format!("what runs goes on: {} (--drain stops it)", vms.join(", ")),
    });
    words.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_what_happens_and_to_whom() {
        let spec = |drain| -> MacNodeSpec {
            serde_json::from_value(json!({ "serial": "H4XK29Q0LW", "nodeClassName": "mini", "drain": drain })).unwrap()
        };
        let lease = json!({
            "namespace": "team-b", "name": "web", "uid": "u", "boundAt": "2026-11-30T13:00:00Z",
            "earliestReleaseAt": "2026-12-01T13:00:00Z",
        });
        let slot = json!({ "slot": 0, "uid": "i", "namespace": "team-b", "name": "build-1", "order": "Run" });
        let leased: MacNodeStatus = serde_json::from_value(json!({ "leaseRef": lease, "slots": [slot] })).unwrap();
        let free = MacNodeStatus::default();
        for (spec, status, on, drain, parts) in [
            (
                spec(false),
                &leased,
                true,
                true,
                &["team-b/web keeps it", "stopped cleanly and kept: team-b/build-1"][..],
            ),
            (spec(false), &leased, true, false, &["what runs goes on: team-b/build-1", "--drain"]),
            (spec(false), &free, true, true, &["no new lease", "nothing is on it"]),
            (spec(true), &leased, false, false, &["back in use", "started again by themselves: team-b/build-1"]),
            (spec(false), &free, false, false, &["H4XK29Q0LW is back in use"]),
        ] {
            let words = effect(&spec, status, on, drain);
            assert!(parts.iter().all(|part| words.contains(part)), "{words}");
        }
    }
}
