//! The end of the agent: a shutdown of the whole Mac is told from a restart of the agent alone.
//!
//! Invariants: at a mere restart nothing is stopped and nothing is waited for. At a shutdown nothing is started any more,
//! the Node says that it is not Ready and why, and what becomes of the VMs is told for as long as launchd leaves. The VMs
//! are stopped by launchd, which signals their own processes as it does this one; they stop as on any order.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use macrack_api::MacNode;
use macrack_api::rack::node::VmState;
use tokio::sync::watch;

use crate::gather::Seen;
use crate::host::Host;
use crate::node::says_shutdown;

/// The longest that is waited: more than a VM's own grace on a signal (15 s), less than the 20 s from launchd's SIGTERM
/// to its SIGKILL (launchd.plist(5), `ExitTimeOut`).
const PATIENCE: Duration = Duration::from_secs(18);

/// Whether the Mac goes down. Where that cannot be read nothing is concluded from it.
pub fn goes_down(host: &dyn Host) -> bool {
    host.going_down().unwrap_or_else(|error| {
        tracing::error!(%error, "whether this Mac is shutting down cannot be read; it is taken to stay up");
        false
    })
}

/// Waits until the API server shows that this Mac goes down and that none of its VMs runs, as far as there is time.
pub async fn told(mut node: watch::Receiver<Seen<Node>>, mut mac_node: watch::Receiver<Seen<MacNode>>) {
    let all = async {
        let said = node.wait_for(|node| node.present().is_some_and(|node| says_shutdown(node))).await.is_ok();
        let ended = mac_node.wait_for(|mac_node| mac_node.present().is_some_and(|found| !runs(found))).await.is_ok();
        said && ended
    };
    match tokio::time::timeout(PATIENCE, all).await {
        Ok(true) => tracing::info!("the API server knows that this Mac goes down and that its VMs have stopped"),
        Ok(false) | Err(_) => tracing::warn!("this Mac goes down before the API server was told of all its VMs"),
    }
}

/// Whether its agent reports a VM that has not ended.
fn runs(mac_node: &MacNode) -> bool {
    let agent = mac_node.status.as_ref().and_then(|status| status.agent.as_ref());
    let live =
        |state: &VmState| matches!(state, VmState::Starting | VmState::Running | VmState::Stopping | VmState::Unknown);
    agent.is_some_and(|agent| agent.vms.iter().any(|vm| live(&vm.state)))
}
