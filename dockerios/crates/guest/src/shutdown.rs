//! How the system is brought down. Invariant: once the command was accepted it is not run again, whatever is ordered.
//!
//! ```text
//! Up ──order──▶ (announced) ──command──▶ Accepted
//!                                └─────▶ Refused ──order stands, after a while──▶ (command again)
//!                                             └──order gone──▶ Up
//! ```

use std::{ffi::OsString, process::Stdio, time::Duration};

/// Time for the command to return; `shutdown` returns at once.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where the agent stands with the system's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Down {
    /// Nothing was asked.
    Up,
    /// The system is on its way down.
    Accepted,
    /// The command failed; it is tried again while the order stands.
    Refused,
}

/// Program and arguments that end the system in order.
#[derive(Debug, Clone)]
pub struct Command {
    /// Absolute path.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
}

impl Command {
    /// `/sbin/shutdown -h now`.
    #[must_use]
    pub fn macos() -> Self {
        Self {
            program: "/sbin/shutdown".into(),
            arguments: vec!["-h".into(), "now".into()],
        }
    }

    /// Runs it.
    ///
    /// # Errors
    /// Why the system is not going down.
    pub async fn run(&self) -> Result<(), String> {
        let child = tokio::process::Command::new(&self.program)
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        let program = self.program.to_string_lossy();
        match tokio::time::timeout(PATIENCE, child).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => Err(format!("{program} ended with {status}")),
            Ok(Err(e)) => Err(format!("{program} cannot be run: {e}")),
            Err(_) => Err(format!("{program} did not return within {} s", PATIENCE.as_secs())),
        }
    }
}
