//! `macrack-operator`: see the crate.

use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Parser;
use kube::Config;
use macrack_operator::{Options, admission::terminated, clock::Clock, decide, image_store::DirectoryStore};

/// Leases dedicated Macs to the tenants of a cluster and runs their macOS VMs.
///
/// macOS runs on Apple hardware only, two VMs a Mac; a lease is to one legal entity for at least 24 consecutive
/// hours. MacRack has no way to ask for more.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Where goldens are looked up: dir:/absolute/path
    #[arg(long, env = "MACRACK_IMAGE_STORE")]
    image_store: DirectoryStore,
    /// This replica's name in the leader election; default: the host's name and a process id.
    #[arg(long, env = "POD_NAME")]
    identity: Option<String>,
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
    let client = macrack_thin::connect(config).context("the credentials are not usable")?;
    let host = std::env::var("HOSTNAME").unwrap_or_else(|_| "operator".into());
    let identity = args.identity.unwrap_or_else(|| format!("{host}-{}", std::process::id()));
    let webhook = macrack_operator::admission::serve(client.clone(), args.webhook, terminated());
    let options = Options {
        clock: Clock::new(client.clone()),
        store: Arc::new(args.image_store),
        identity: Some(identity),
        client,
    };
    tokio::select! {
        served = webhook => served,
        () = decide(options, terminated()) => Ok(()),
    }
}
