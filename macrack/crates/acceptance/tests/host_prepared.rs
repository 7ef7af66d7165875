//! What is wrong with a Mac, from the Mac itself to the condition that an admin reads. Operator, agent and
//! macrack-hostd are the product's own; only the Mac is simulated.

use std::time::Duration;

use anyhow::Result;
use kube::Api;
use macrack_acceptance::{Mac, Rack, objects};
use macrack_api::{MacNode, condition};
use macrack_testkit::expect;

/// The agent looks at its host every ten seconds, on a machine that others use too.
const LOOKED: Duration = Duration::from_secs(45);

/// The status, the reason and the message of a condition.
fn says(node: &MacNode, type_: &str) -> (String, String, String) {
    let conditions = node.status.clone().unwrap_or_default().conditions;
    let found =
        condition::find(&conditions, type_).map(|c| (format!("{:?}", c.status), c.reason.clone(), c.message.clone()));
    found.unwrap_or_default()
}

#[tokio::test]
async fn a_mac_that_cannot_serve_is_not_leasable_says_the_way_out_and_is_leasable_again_once_mended() -> Result<()> {
    let rack = Rack::shared();
    let admin = rack.plane.admin().await?;
    objects::make(&admin, &objects::node_class("prepared")).await?;
    let mut mac = Mac::enrol(rack, "ZZPREPARED1", "prepared").await?;
    let nodes: Api<MacNode> = Api::all(admin);
    let until = async |what: &str, status: &str, reason: &str, words: &str| {
        let seen = |node: &MacNode| {
            let (is, because, why) = says(node, "HostPrepared");
            let leasable = says(node, "Leasable").0 == "True";
            is == status && because == reason && why.contains(words) && leasable == (status == "True")
        };
        expect::until_seen(&nodes, "zzprepared1", what, LOOKED, seen).await;
    };
    until("prepared", "True", "Prepared", "").await;

    mac.hostd.kill9()?;
    until("without its hostd", "False", "NotPrepared", "load its LaunchDaemon").await;
    mac.hostd.restart()?;
    until("with its hostd again", "True", "Prepared", "").await;

    mac.chassis.modify(|chassis| chassis.spec.host_version = "14.7".into())?;
    until("too old", "False", "NotPrepared", "15 or newer is needed").await;
    mac.chassis.modify(|chassis| chassis.spec.host_version = "26.1".into())?;
    mac.chassis.modify(|chassis| chassis.spec.host_prepared.keychain_unlocked = false)?;
    until("locked", "False", "KeychainLocked", "turn on automatic login").await;
    mac.chassis.modify(|chassis| chassis.spec.host_prepared.keychain_unlocked = true)?;
    until("mended", "True", "Prepared", "").await;
    Ok(())
}
