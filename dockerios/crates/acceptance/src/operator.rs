//! The operator's process.

use std::path::Path;
use std::process::Command;

use anyhow::Result;
use dockerios_testkit::{Proc, bin};

/// Where an operator listens. The same after each of its ends: guests and the API server know it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ports {
    pub(crate) webhook: u16,
    pub(crate) collector: u16,
    pub(crate) metrics: u16,
}

/// A running operator. Dropped, it is killed.
pub struct Operator {
    /// Its process.
    pub process: Proc,
}

impl Operator {
    pub(crate) fn spawn(kubeconfig: &Path, ports: Ports, elected: bool, log: &Path) -> Result<Operator> {
        let mut command = Command::new(bin("dockerios-operator")?);
        command
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .args(["--namespace", crate::fleet::PLATFORM]);
        command.args(["--webhook-listen", &format!("127.0.0.1:{}", ports.webhook)]);
        command.args(["--webhook-url", "https://127.0.0.1:{port}"]);
        command.args(["--collector-listen", &format!("127.0.0.1:{}", ports.collector)]);
        command.args(["--collector-url", "https://127.0.0.1:{port}"]);
        command.args(["--metrics-listen", &format!("127.0.0.1:{}", ports.metrics)]);
        if !elected {
            command.arg("--no-leader-election");
        }
        command
            .env("RUST_LOG", "info,dockerios=debug")
            .env("NO_COLOR", "1")
            .env("RUST_BACKTRACE", "0");
        Ok(Operator {
            process: Proc::spawn("dockerios-operator", command, log)?,
        })
    }
}
