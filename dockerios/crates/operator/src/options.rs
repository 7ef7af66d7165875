//! What the operator is told when it starts.

use std::{net::SocketAddr, path::PathBuf};

use clap::Parser;
use dockerios_api::names::PLATFORM_NAMESPACE;

use crate::metrics::serve::Listen;

/// Runs macOS machines on KubeVirt: controllers, admission webhook, collector of guests' reports.
///
/// Apple's licence does not cover macOS on hardware that Apple did not make. This is for learning, and for Intel Macs
/// while they last.
#[derive(Debug, Parser)]
#[command(name = "dockerios-operator", version)]
pub struct Options {
    /// How to reach the cluster; in a pod, its own ServiceAccount is used when this is left out.
    #[arg(long, env = "KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// Namespace of golden images, bootdisks, keys and the leader's Lease.
    #[arg(long, default_value = PLATFORM_NAMESPACE)]
    pub namespace: String,
    /// Where the admission webhook listens.
    #[arg(long, default_value = "0.0.0.0:8443")]
    pub webhook_listen: SocketAddr,
    /// Outside a cluster: URL at which the API server reaches the webhook; `{port}` stands for its port.
    #[arg(long)]
    pub webhook_url: Option<String>,
    /// Where the collector listens.
    #[arg(long, default_value = "0.0.0.0:7443")]
    pub collector_listen: SocketAddr,
    /// URL at which guests reach the collector when PlatformConfig names none; `{port}` stands for its port. Left out:
    /// the Service `dockerios-collector`.
    #[arg(long)]
    pub collector_url: Option<String>,
    /// Where /metrics is served, as plain HTTP; `off`: nowhere.
    #[arg(long, default_value = "0.0.0.0:8080", value_name = "ADDRESS:PORT|off")]
    pub metrics_listen: Listen,
    /// Decide without being elected: only when no other operator can run.
    #[arg(long)]
    pub no_leader_election: bool,
}

impl Options {
    /// URL at which guests reach the collector, now that its port is known.
    pub fn collector_at(&self, port: u16) -> String {
        match &self.collector_url {
            Some(url) => url.replace("{port}", &port.to_string()),
            None => format!("https://dockerios-collector.{}.svc:{port}", self.namespace),
        }
    }
}
