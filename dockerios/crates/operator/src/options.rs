//! What the operator is told when it starts.

use std::{net::SocketAddr, path::PathBuf};

use anyhow::{Result, anyhow};
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
            None => format!("https://{}:{port}", self.collector_service()),
        }
    }

    /// DNS name of the Service in front of the collectors of all replicas.
    pub fn collector_service(&self) -> String {
        format!("dockerios-collector.{}.svc", self.namespace)
    }

    /// The name, or the address without brackets, by which guests know the collector: what its certificate is for.
    ///
    /// # Errors
    /// When `--collector-url` has none.
    pub fn collector_host(&self) -> Result<String> {
        let url = self.collector_at(0);
        let uri = url.parse::<http::Uri>().ok();
        let https = uri.as_ref().filter(|uri| uri.scheme_str() == Some("https"));
        let host = https.and_then(|uri| uri.host());
        let host = host.map(|host| host.trim_matches(['[', ']']).to_owned());
        host.filter(|host| !host.is_empty())
            .ok_or_else(|| anyhow!("--collector-url {url:?} is no https URL with a host; write https://host:port"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_collectors_certificate_is_for_the_host_that_guests_are_told() {
        let of = |url: &str| {
            let options = Options::try_parse_from(["dockerios-operator", "--collector-url", url]);
            options.expect("options").collector_host()
        };
        for (url, host) in [
            ("https://10.60.0.5:7443", "10.60.0.5"),
            ("https://reports.example:{port}", "reports.example"),
            ("https://[2001:db8::7]:7443", "2001:db8::7"),
        ] {
            assert_eq!(of(url).ok().as_deref(), Some(host), "{url}");
        }
        for url in ["", "/reports", "reports.example:7443", "http://reports.example:7443"] {
            let refused = of(url).expect_err("it has no host").to_string();
            assert!(
                refused.contains("--collector-url") && refused.contains("https://host:port"),
                "{refused}"
            );
        }
    }
}
