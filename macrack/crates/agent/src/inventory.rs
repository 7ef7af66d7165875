//! What is on this chassis when the agent starts: the state directory first, then everything else.
//!
//! Invariant: nothing is reported, started or stopped before every VM directory was looked at and every
//! process that serves one was adopted or called Unknown.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::time::Duration;

use macrack_api::rack::node::WipeReceipt;
use macrack_wire::layout::is_uid;

use crate::life::Life;
use crate::state_dir::StateDir;
use crate::vms::{LOOKING, Surroundings, Vm, end_process, wipes};

/// How long all VMs together may take to be found out about; more than a silent process is given.
const PATIENCE: Duration = Duration::from_secs(15);

/// Ends every VM process of this chassis whose directory is gone: nothing could ever reach it, its disk is
/// lost with it, and Wiped must be true when it is said.
async fn reap(state_dir: &StateDir, around: &Surroundings) -> io::Result<()> {
    let host = around.host.clone();
    let listed = tokio::task::spawn_blocking(move || host.vm_processes()).await;
    for process in listed.unwrap_or_else(|ended| Err(io::Error::other(ended)))? {
        let Some(dir) = process.dir else { continue };
        // of one whose place cannot be looked at nobody knows that it is gone
        if dir.starts_with(state_dir.vms()) && matches!(dir.try_exists(), Ok(false)) {
            tracing::warn!(pid = process.pid, dir = %dir.display(), "a VM process has outlived its directory");
            end_process(process.pid);
        }
    }
    Ok(())
}

/// Takes up every VM on the disk; with the receipts of those that were wiped, by uid.
///
/// # Errors
/// When the directory of VMs or the processes of the host cannot be listed: what is there is then not known,
/// and nothing is done.
pub async fn take(
    state_dir: &StateDir,
    around: &Surroundings,
) -> io::Result<(BTreeMap<String, Vm>, BTreeMap<String, WipeReceipt>)> {
    reap(state_dir, around).await?;
    let mut vms = BTreeMap::new();
    for entry in fs::read_dir(state_dir.vms())? {
        let entry = entry?;
        match entry.file_name().into_string() {
            Ok(uid) if is_uid(&uid) => {
                let vm = Vm::adopt(state_dir.vm(&uid), around.clone());
                vms.insert(uid, vm);
            }
            name => tracing::warn!(?name, "this is no VM of MacRack; it is left alone"),
        }
    }
    let wipes = wipes(&state_dir.wipes())?;
    for uid in &wipes.unfinished {
        // its directory may be gone, and its DHCP lease not
        vms.entry(uid.clone()).or_insert_with(|| Vm::adopt(state_dir.vm(uid), around.clone()));
    }
    let found_out = async {
        for vm in vms.values() {
            let mut facts = vm.watch();
            // a task that ended has nothing more to find out
            let _ended = facts.wait_for(|facts| facts.life != Life::Unknown(LOOKING.to_owned())).await;
        }
    };
    if tokio::time::timeout(PATIENCE, found_out).await.is_err() {
        tracing::warn!("not every VM could be looked at in time; those are Unknown");
    }
    tracing::info!("inventory: {} VMs on this Mac", vms.len());
    for (uid, vm) in &vms {
        tracing::info!(vm = %uid, "found {}", vm.facts().life);
    }
    Ok((vms, wipes.done))
}
