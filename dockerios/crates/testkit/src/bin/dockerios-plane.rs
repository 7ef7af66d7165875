//! Starts a control plane in a folder, prints where its admin's kubeconfig lies, and stays until it is interrupted.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Parser;
use dockerios_testkit::{ControlPlane, Options};
use tokio::signal::unix::{SignalKind, signal};

/// A real Kubernetes control plane on loopback, for development.
///
/// Runs etcd, kube-apiserver, kube-controller-manager and kube-scheduler until Ctrl-C, and prints the path of the
/// admin's kubeconfig once they work.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Folder for certificates, data and logs; an earlier plane's data in it is dropped
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// A feature gate of all components; may be repeated
    #[arg(long = "feature-gate", value_name = "NAME=BOOL", value_parser = gate)]
    feature_gates: Vec<(String, bool)>,
}

fn gate(text: &str) -> Result<(String, bool), String> {
    let named = text.split_once('=').filter(|(name, _)| !name.is_empty());
    let (name, value) = named.ok_or_else(|| "must be NAME=true or NAME=false".to_owned())?;
    let on = value
        .parse()
        .map_err(|_| format!("{value:?} is neither true nor false"))?;
    Ok((name.to_owned(), on))
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let options = Options {
        dir: Some(arguments.dir),
        feature_gates: arguments.feature_gates,
        ..Options::default()
    };
    let plane = tokio::select! {
        plane = ControlPlane::start(options) => plane?,
        // what was started ends with this process
        () = interrupted(&mut terminate) => return Ok(()),
    };
    writeln!(std::io::stdout(), "{}", plane.kubeconfig().display())?;
    interrupted(&mut terminate).await;
    Ok(())
}

async fn interrupted(terminate: &mut tokio::signal::unix::Signal) {
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
}
