//! What the task does to a VM's process: reach it, tell it to stop, end it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use macrack_wire::{VmClient, VmDir, VmReport, VmWatch, WireError};
use rustix::process::{Pid, Signal, kill_process};

use crate::host::{Host, process_of};

/// How long a VM process may take to connect or to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Reaches the process; its reports, the present one first.
pub(super) async fn reach(dir: &VmDir) -> Result<VmWatch, WireError> {
    VmClient::connect(&dir.socket(), PATIENCE).await?.watch().await
}

/// Asks the process for a sign of life.
pub(super) async fn describe(dir: &VmDir) -> Result<VmReport, WireError> {
    VmClient::connect(&dir.socket(), PATIENCE).await?.describe().await
}

/// Tells the process to stop its VM within `grace_seconds`.
pub(super) async fn tell_to_stop(dir: &VmDir, grace_seconds: u32) -> Result<(), WireError> {
    VmClient::connect(&dir.socket(), PATIENCE).await?.stop(grace_seconds).await.map(drop)
}

/// The process that serves a directory, if one lives.
pub(super) async fn find(host: Arc<dyn Host>, dir: &Path) -> std::io::Result<Option<u32>> {
    let dir = dir.to_owned();
    match tokio::task::spawn_blocking(move || process_of(&*host, &dir)).await {
        Ok(found) => found,
        Err(ended) => Err(std::io::Error::other(ended)),
    }
}

/// Ends a process that was just found to serve a directory of ours; its VM dies with it.
pub fn end(pid: u32) {
    let Some(process) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return };
    match kill_process(process, Signal::KILL) {
        Ok(()) => tracing::warn!(pid, "a VM process was ended by force"),
        Err(error) => tracing::warn!(pid, %error, "a VM process could not be ended"),
    }
}
