//! The plugin as a person runs it, on the real API server: without what it needs, and over a network that breaks.

mod bench;
mod cuts;
mod import;
mod kubelet;
mod link;
mod silent;
mod without;

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use dockerios_testkit::{Proc, apply_file};
use kube::Client;

/// What it said, and with which code it ended.
#[derive(Debug)]
struct Said {
    code: i32,
    out: String,
    err: String,
}

/// The plugin, with that kubeconfig and with nothing else of this process's environment that leads to a cluster.
fn plugin(kubeconfig: Option<&Path>, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-dockerios"));
    for name in ["KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"] {
        command.env_remove(name);
    }
    if let Some(path) = kubeconfig {
        command.env("KUBECONFIG", path);
    }
    command.args(words).stdin(Stdio::null());
    command
}

async fn run(mut command: Command) -> Result<Said> {
    let output = tokio::task::spawn_blocking(move || command.output()).await??;
    Ok(Said {
        code: output.status.code().context("it was killed")?,
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

impl Said {
    /// It ended with that code, said these words, and none that only a programmer understands.
    #[track_caller]
    fn expect(&self, code: i32, fragments: &[&str]) -> Result<()> {
        let whole = format!("{}{}", self.out, self.err);
        ensure!(self.code == code, "ended with {}, not {code}: {whole}", self.code);
        for fragment in fragments {
            ensure!(whole.contains(fragment), "no {fragment:?} in: {whole}");
        }
        for foreign in [
            "panicked",
            "Error {",
            "Error(",
            "Status {",
            "Some(",
            "ApiError",
            "ServiceError",
            "HyperError",
        ] {
            ensure!(!whole.contains(foreign), "{foreign:?} in: {whole}");
        }
        Ok(())
    }
}

/// Asks it to end, once, and waits for nothing.
fn interrupt(process: &Proc) -> Result<()> {
    let sent = Command::new("kill")
        .args(["-TERM", &process.pid().to_string()])
        .status()?;
    ensure!(sent.success(), "kill: {sent}");
    Ok(())
}

/// DockerIOS's own kinds.
async fn definitions(client: &Client) -> Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/crds");
    for entry in std::fs::read_dir(&folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|kind| kind == "yaml") {
            apply_file(client, path).await?;
        }
    }
    Ok(())
}
