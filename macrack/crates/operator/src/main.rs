//! `macrack-operator`: see the crate.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Parser;
use kube::Config;
use macrack_operator::{
    Options, admission::terminated, both, clock::Clock, decide, image_store::StoreArgs, serving::api_server_host,
};

/// Leases dedicated Macs to the tenants of a cluster and runs their macOS VMs.
///
/// macOS runs on Apple hardware only, two VMs a Mac; a lease is to one legal entity for at least 24 consecutive
/// hours. MacRack has no way to ask for more.
#[derive(Parser)]
#[command(version)]
struct Args {
    #[command(flatten)]
    store: StoreArgs,
    /// This replica's name in the leader election; default: the host's name and a process id.
    #[arg(long, env = "POD_NAME")]
    identity: Option<String>,
    /// Append who leased which Mac from when to when, and every wipe receipt, to this file: JSON lines, each with the
    /// sha256 of the one before. Put it on a volume that every replica has.
    #[arg(long, env = "MACRACK_AUDIT_LOG")]
    audit_log: Option<PathBuf>,
    #[command(flatten)]
    webhook: macrack_operator::admission::AdmissionArgs,
}

#[tokio::main]
async fn main() -> Result<()> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_env_filter(tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into()))
        .init();
    let args = Args::parse();
    let config = Config::infer().await.context("no API server: run in a cluster, or set KUBECONFIG")?;
    let api_server = api_server_host(&config);
    let client = macrack_thin::connect(config).context("the credentials are not usable")?;
    let host = std::env::var("HOSTNAME").unwrap_or_else(|_| "operator".into());
    let identity = args.identity.unwrap_or_else(|| format!("{host}-{}", std::process::id()));
    let over = tokio::sync::Notify::new();
    let stop = async {
        tokio::select! { () = terminated() => {}, () = over.notified() => {} }
    };
    let serving = macrack_operator::admission::serve(client.clone(), args.webhook, stop);
    let options = Options {
        clock: Clock::new(client.clone()),
        store: args.store.open(client.clone())?,
        identity: Some(identity),
        api_server,
        audit_log: args.audit_log,
        client,
    };
    both(serving, decide(options, terminated()), &over).await
}
