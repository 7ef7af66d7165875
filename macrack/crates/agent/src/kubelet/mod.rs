//! What the API server reaches on this Mac: `kubectl exec` and `kubectl logs` of placeholders.
//!
//! ```text
//!   kubectl ──▶ API server (who may what) ──TLS, client certificate──▶ here ──vm.sock──▶ VM ──▶ guest
//! ```
//!
//! Invariants: nothing is answered to a caller that does not show a certificate of the cluster's client CA with
//! the one name that the bootstrap file says; a session reaches the guest of the placeholder that it names and
//! nothing else on this Mac; sessions and followers are counted and bounded.

mod certificate;
mod exec;
mod logs;
mod routes;
mod server;

pub use certificate::Wish;
pub use server::{Callers, KubeletError};

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use macrack_wire::VmDir;
use tokio::sync::watch;
use tokio::task::JoinSet;

use self::certificate::{Names, keep as keep_certificate};
use self::server::{Certificate, Server};
use crate::bell::replace;

/// A placeholder whose VM is on this Mac.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The VM's directory.
    pub dir: VmDir,
    /// Names of the pod's containers; all of them are the VM.
    pub containers: Vec<String>,
    /// Whether a process of the VM lives.
    pub alive: bool,
}

/// Placeholders by namespace and name.
pub type Targets = BTreeMap<(String, String), Target>;

/// Port of kubelets everywhere.
pub const PORT: u16 = 10_250;

/// What the loop of the agent tells this port.
#[derive(Debug)]
pub struct Publisher {
    port: u16,
    node: String,
    names: watch::Sender<Names>,
    targets: watch::Sender<Targets>,
}

impl Publisher {
    /// The port that is listened on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// These are the Mac's addresses and its placeholders now.
    pub fn publish(&self, addresses: &[IpAddr], targets: Targets) {
        // the Node's status names one address, so the API server calls that one
        let names = Names { node: self.node.clone(), addresses: addresses.iter().take(1).copied().collect() };
        replace(&self.names, names);
        replace(&self.targets, targets);
    }
}

/// The VM of a placeholder that is bound here.
pub fn target(pod: &Pod, dir: VmDir, alive: bool) -> Option<((String, String), Target)> {
    let key = (pod.metadata.namespace.clone()?, pod.metadata.name.clone()?);
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers).map(|container| container.name.clone());
    Some((key, Target { dir, containers: containers.collect(), alive }))
}

/// Where to listen: everywhere, unless the Mac is reached by a loopback address alone, as a simulated one is.
pub fn listen_on(addresses: &[IpAddr], port: u16) -> SocketAddr {
    let address = match addresses.first() {
        Some(loopback) if loopback.is_loopback() => *loopback,
        Some(IpAddr::V6(_)) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        _ => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    };
    SocketAddr::new(address, port)
}

/// Listens on `address`, and serves and keeps its certificate in `tasks`; the certificate is asked for once there is
/// a token.
///
/// # Errors
/// When it cannot listen.
pub async fn start(
    address: SocketAddr,
    callers: Callers,
    (client, wish, node): (Client, Wish, String),
    mut has_token: watch::Receiver<bool>,
    tasks: &mut JoinSet<()>,
) -> Result<Publisher, KubeletError> {
    let certificate = Arc::new(Certificate::default());
    let server = Server::bind(address, callers, certificate.clone()).await?;
    let port = server.port();
    let (targets, seen) = watch::channel(Targets::new());
    let (names, wanted) = watch::channel(Names { node: node.clone(), addresses: Vec::new() });
    tasks.spawn(server.run(seen));
    tasks.spawn(async move {
        if has_token.wait_for(|has| *has).await.is_ok() {
            keep_certificate(client, wish, wanted, certificate).await;
        }
    });
    tracing::info!(port, "kubectl exec and logs are answered here");
    Ok(Publisher { port, node, names, targets })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_simulated_mac_is_reached_on_its_own_machine_alone() {
        for (address, listens) in [("127.0.0.1", "127.0.0.1:7"), ("10.0.0.7", "0.0.0.0:7"), ("fd00::7", "[::]:7")] {
            assert_eq!(listen_on(&[address.parse().unwrap()], 7).to_string(), listens);
        }
    }
}
