//! Starts a control plane and keeps it until Ctrl-C:
//!
//! ```text
//! cargo run -p macrack-testkit [-- COMMAND ARGS…]
//! ```
//!
//! A COMMAND runs beside it with KUBECONFIG set; its output goes to the log that is named.

use anyhow::Result;
use macrack_testkit::{ControlPlane, Options, Program};
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let plane = ControlPlane::start(Options::default())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut words = std::env::args_os().skip(1);
    let _command = match words.next() {
        Some(path) => {
            let program = Program::new(path).args(words).env("KUBECONFIG", plane.kubeconfig());
            let child = program.start("command")?;
            println!("command: process {}, log {}", child.pid(), child.log_path().display());
            Some(child)
        }
        None => None,
    };
    println!("ready: export KUBECONFIG={}   (Ctrl-C ends it)", plane.kubeconfig().display());
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}
