//! `doctor --prove`: two VMs by hand, and a third that the kernel refuses with code 6.
//!
//! Invariant: it begins only where no VM runs and no agent works, and whatever happens on its way, nothing that it made
//! is left: neither a process nor a file.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use macrack_wire::classify::{VZ_DOMAIN, VZ_LIMIT};
use macrack_wire::layout::read_json;
use macrack_wire::{BundleDir, MacAddress, VmClient, VmDescription, VmDir, VmReport, VmState};

use crate::host::{Host, process_of, random};
use crate::images::Manifest;
use crate::images::copy::clone_file;
use crate::state_dir::StateDir;
use crate::vms::{Shape, end_process};

/// How long a VM may take to run, or to be refused: the framework loads, the guest's boot is not awaited.
const START: Duration = Duration::from_secs(120);
/// How long a VM may take to be gone once it is forced.
const END: Duration = Duration::from_secs(30);
/// How long a VM process may take to connect or to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// VMs that must start; the next must not.
const ADMITTED: usize = 2;
/// What a VM gets unless the golden says that it needs more.
const CORES: u32 = 4;
const MEMORY: u64 = 4 << 30;

/// What a proof needs. The caller holds the state directory's lock.
pub struct Proof {
    /// The state directory: the VMs are made in it for a minute.
    pub state_dir: StateDir,
    /// The Mac.
    pub host: Arc<dyn Host>,
    /// The program `macrack-vm`.
    pub vm_binary: PathBuf,
    /// A folder with `disk.img`, `aux.img`, and `bundle.json` or `manifest.json`.
    pub golden: PathBuf,
}

/// What a golden says of the VMs that are made of it.
struct Needs {
    hardware_model: Option<String>,
    cpu_cores: u32,
    memory_bytes: u64,
}

/// Carries the proof out; `say` is told of each step.
///
/// # Errors
/// When it may not begin, when one of the two did not start, when the third was not refused with code 6, or when
/// something of it is left.
pub async fn prove(proof: &Proof, say: &mut dyn FnMut(&str)) -> Result<()> {
    nothing_runs(&*proof.host)?;
    let needs = needs(&proof.golden)?;
    let mut made = Vec::new();
    let proved = tokio::select! {
        proved = start_three(proof, &needs, &mut made, say) => proved,
        _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
    };
    let cleaned = clean(proof, &made, say).await;
    match (proved, cleaned) {
        (Ok(()), cleaned) => cleaned,
        (Err(error), Ok(())) => Err(error),
        (Err(error), Err(left)) => Err(error.context(format!("and something of it is left: {left:#}"))),
    }
}

fn nothing_runs(host: &dyn Host) -> Result<()> {
    let vms = host.vm_processes().context("the VMs on this Mac cannot be listed")?;
    let pids: Vec<String> = vms.iter().map(|vm| vm.pid.to_string()).collect();
    if !pids.is_empty() {
        bail!(
            "VMs run on this Mac (process {}): the proof counts from nothing, and never ends a VM that is not its own; \
             end them first",
            pids.join(", ")
        );
    }
    Ok(())
}

fn needs(golden: &Path) -> Result<Needs> {
    for file in ["disk.img", "aux.img"] {
        if !golden.join(file).is_file() {
            bail!(
                "{} is not there: --golden is a folder as `macrack-vm install` makes it, or one of images/ in a state \
                 directory",
                golden.join(file).display()
            );
        }
    }
    let bundle = BundleDir::new(golden);
    if bundle.manifest().exists() {
        let bundle = bundle.read()?;
        return Ok(Needs {
            hardware_model: Some(bundle.hardware_model),
            cpu_cores: bundle.cpu_count_min.max(CORES),
            memory_bytes: bundle.memory_min.max(MEMORY),
        });
    }
    let manifest: Manifest = read_json(&golden.join("manifest.json"))?;
    Ok(Needs { hardware_model: manifest.hardware_model, cpu_cores: CORES, memory_bytes: MEMORY })
}

async fn start_three(proof: &Proof, needs: &Needs, made: &mut Vec<VmDir>, say: &mut dyn FnMut(&str)) -> Result<()> {
    for number in 1..=ADMITTED {
        let dir = make(proof, needs, number, made).await?;
        let report = start(proof, &dir).await.with_context(|| format!("VM {number}"))?;
        if report.state != VmState::Running {
            let why = report.error.map(|error| error.to_string()).unwrap_or_else(|| format!("{:?}", report.state));
            bail!("VM {number} did not start: {why}");
        }
        say(&format!("VM {number} of {ADMITTED} runs, process {}", report.pid));
    }
    let number = ADMITTED + 1;
    let dir = make(proof, needs, number, made).await?;
    let report = start(proof, &dir).await.with_context(|| format!("VM {number}"))?;
    match report.error {
        Some(error) if error.domain == VZ_DOMAIN && error.code == VZ_LIMIT => {
            say(&format!("VM {number} is refused: {error}"));
            Ok(())
        }
        Some(error) => bail!("VM {number} was refused, but not for the limit: {error}"),
        None => bail!("VM {number} runs: this kernel does not hold the limit of {ADMITTED}; do not rent this Mac out"),
    }
}

/// Makes a VM with an identity of its own. It is noted in `made` before any of it is on the disk.
async fn make(proof: &Proof, needs: &Needs, number: usize, made: &mut Vec<VmDir>) -> Result<VmDir> {
    let uid = uid(random()?);
    let dir = proof.state_dir.vm(&uid);
    made.push(dir.clone());
    let shape = Shape {
        uid,
        namespace: "macrack-doctor".to_owned(),
        name: format!("proof-{number}"),
        cpu_cores: needs.cpu_cores,
        memory_bytes: needs.memory_bytes,
        display: None,
        first_boot: false,
    };
    let described = shape.described(proof.host.machine_identifier()?, MacAddress::locally_administered(random()?));
    let description = VmDescription { hardware_model: needs.hardware_model.clone(), ..described };
    let (golden, into) = (proof.golden.clone(), dir.clone());
    tokio::task::spawn_blocking(move || write(&golden, &into, &description))
        .await?
        .with_context(|| format!("VM {number} cannot be made"))?;
    Ok(dir)
}

fn write(golden: &Path, dir: &VmDir, description: &VmDescription) -> std::io::Result<()> {
    DirBuilder::new().mode(0o700).create(dir.path())?;
    for (from, to) in [("disk.img", &description.disk), ("aux.img", &description.aux)] {
        clone_file(&golden.join(from), &dir.path().join(to), 0, &mut |_| Ok(()))?;
    }
    dir.write_description(description)
}

/// Starts a VM and returns its report once it runs or has ended.
async fn start(proof: &Proof, dir: &VmDir) -> Result<VmReport> {
    let (binary, path) = (proof.vm_binary.clone(), dir.path().to_owned());
    tokio::task::spawn_blocking(move || macrack_vm::spawn(&binary, &path)).await??;
    let settled = |report: &VmReport| report.state == VmState::Running || report.state.is_final();
    until(dir, START, settled).await
}

/// The first report that is as `wanted`; a process that has ended leaves its last one on the disk.
async fn until(dir: &VmDir, within: Duration, wanted: impl Fn(&VmReport) -> bool) -> Result<VmReport> {
    let watched = async {
        if let Ok(client) = VmClient::connect(&dir.socket(), PATIENCE).await
            && let Ok(mut reports) = client.watch().await
        {
            while let Ok(Some(report)) = reports.next().await {
                if wanted(&report) {
                    return Ok(report);
                }
            }
        }
        let state = dir.read_state()?.with_context(|| format!("its process ended without a word; {}", log(dir)))?;
        if wanted(&state.report) {
            return Ok(state.report);
        }
        bail!("its process ended while it was {:?}; {}", state.report.state, log(dir));
    };
    tokio::time::timeout(within, watched).await.with_context(|| format!("nothing within {within:?}; {}", log(dir)))?
}

fn log(dir: &VmDir) -> String {
    match fs::read_to_string(dir.log()) {
        Ok(text) => format!("its log ends with: {}", text.lines().last().unwrap_or("nothing")),
        Err(error) => format!("its log cannot be read: {error}"),
    }
}

/// Ends every VM of the proof and removes its files.
async fn clean(proof: &Proof, made: &[VmDir], say: &mut dyn FnMut(&str)) -> Result<()> {
    let mut left = Vec::new();
    for dir in made {
        if let Err(error) = remove(proof, dir).await {
            left.push(format!("{}: {error:#}", dir.path().display()));
        }
    }
    if !left.is_empty() {
        bail!("{}; end the process and remove the directory by hand", left.join("; "));
    }
    say("everything of the proof is stopped and removed");
    Ok(())
}

async fn remove(proof: &Proof, dir: &VmDir) -> Result<()> {
    if let Ok(mut client) = VmClient::connect(&dir.socket(), PATIENCE).await {
        // its golden's copy is thrown away: no guest needs to save anything
        client.stop(0).await.map(drop).or_else(|error| match error {
            macrack_wire::WireError::Refused(_) => Ok(()),
            other => Err(other),
        })?;
        until(dir, END, |report| report.state.is_final()).await?;
    } else if let Some(pid) = process_of(&*proof.host, dir.path())? {
        end_process(pid);
    }
    let dir = dir.clone();
    // its job first: launchd remembers where it lies
    Ok(tokio::task::spawn_blocking(move || macrack_vm::launch::forget(&dir).and_then(|()| erase(dir.path()))).await??)
}

fn erase(path: &Path) -> std::io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// A random (version 4) uid, as the API server makes them.
fn uid(mut bytes: [u8; 16]) -> String {
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}
