//! How the operator serves admission: every replica does, leading or not.

use std::{net::SocketAddr, path::PathBuf, sync::Arc};

use anyhow::{Context, Result};
use kube::Client;
use macrack_webhook::{ApiFacts, Certificate, Reach, WebhookOptions, bind, install};

/// The webhook's part of the command line.
#[derive(clap::Args, Clone, Debug)]
pub struct AdmissionArgs {
    /// Where the admission webhook listens.
    #[arg(long, env = "MACRACK_WEBHOOK_LISTEN", default_value = "[::]:8443")]
    pub webhook_listen: SocketAddr,
    /// How the API server reaches it, for an operator outside the cluster: https://host:{port}. Default: the Service.
    #[arg(long, env = "MACRACK_WEBHOOK_URL")]
    pub webhook_url: Option<String>,
    /// tls.crt and tls.key made by cert-manager. Default: a certificate of its own, renewed while it serves.
    #[arg(long, env = "MACRACK_WEBHOOK_CERT_DIR")]
    pub webhook_cert_dir: Option<PathBuf>,
}

/// Installs the policies and serves the webhook until `stop` resolves.
///
/// # Errors
/// When the address, the certificate or the API server does not let us.
pub async fn serve(client: Client, args: AdmissionArgs, stop: impl Future<Output = ()>) -> Result<()> {
    install::install_policies(&client).await.context("installing the admission policies")?;
    let options = WebhookOptions {
        listen: args.webhook_listen,
        reach: args.webhook_url.map_or(Reach::Service, Reach::Url),
        certificate: args.webhook_cert_dir.map_or(Certificate::SelfMade, Certificate::Dir),
        ..WebhookOptions::in_cluster()
    };
    let facts = Arc::new(ApiFacts::new(client.clone()));
    let webhook = bind(client, facts, options).await.context("starting the admission webhook")?;
    tracing::info!(address = %webhook.address(), "admission webhook serves");
    webhook.run(stop).await.context("serving the admission webhook")
}

/// Resolves on SIGTERM or Ctrl-C.
pub async fn terminated() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut term) = signal(SignalKind::terminate()) else { return };
    tokio::select! {
        _ = term.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}
