//! `macrack-agent`: the Node of one Mac.

use std::panic;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use macrack_agent::doctor::{Ask, Proof, Verdict, judge, look, prove};
use macrack_agent::host::Host;
use macrack_agent::images::{DirectoryStore, ImageStore, OciStore};
use macrack_agent::notes;
use macrack_agent::run::{Options, run};
use macrack_agent::state_dir::StateDir;
use macrack_oci::client::Mirror;
use tracing_subscriber::EnvFilter;

/// The Node of one Mac: keeps its VMs as ordered
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run until SIGTERM; the VMs live on
    Run(Run),
    /// Look what is wrong with this Mac, and say how to mend it; ends with 1 unless everything is good
    Doctor(Doctor),
}

#[derive(Debug, clap::Args)]
struct Run {
    /// What `kubectl macrack enroll <serial>` printed
    #[arg(long)]
    bootstrap: PathBuf,
    /// Where everything of this chassis is kept
    #[arg(long)]
    state_dir: PathBuf,
    /// Where goldens are pulled from: oci, the registries that MacOSImages name; or dir:/path
    #[arg(long, default_value = "oci")]
    image_store: String,
    /// Ask this mirror before the registry: registry=https://host[:port][/path]; may be given again
    #[arg(long, value_name = "REGISTRY=URL")]
    registry_mirror: Vec<Mirror>,
    /// Speak plain HTTP to this registry, host[:port]; may be given again. Loopback needs no such word
    #[arg(long, value_name = "HOST")]
    insecure_registry: Vec<String>,
    /// The program macrack-vm; by default the one beside this program
    #[arg(long)]
    vm_binary: Option<PathBuf>,
    /// The port at which the API server reaches this Mac for kubectl exec and logs; 0 takes a free one
    #[arg(long, default_value_t = KUBELET_PORT)]
    kubelet_port: u16,
}

/// Many simulated Macs share one machine, so each takes a free port.
const KUBELET_PORT: u16 = if cfg!(feature = "sim") { 0 } else { macrack_agent::kubelet::PORT };

/// Where everything of a chassis is kept unless it is said otherwise; the installer makes it for the agent's user. Short,
/// since sockets lie in it.
const STATE_DIR: &str = "/Library/MacRack/state";

#[derive(Debug, clap::Args)]
struct Doctor {
    /// Where everything of this chassis is kept
    #[arg(long, default_value = STATE_DIR)]
    state_dir: PathBuf,
    /// What `kubectl macrack enroll <serial>` printed: look whether its API server answers, and at the clock
    #[arg(long)]
    bootstrap: Option<PathBuf>,
    /// Look whether this registry answers, e.g. https://ghcr.io; may be given again
    #[arg(long, value_name = "URL")]
    registry: Vec<String>,
    /// Print one JSON object per check and line
    #[arg(long)]
    json: bool,
    /// Start two VMs by hand, see a third refused with code 6, and remove them again. No agent may run, nor any VM
    #[arg(long, requires = "golden")]
    prove: bool,
    /// The golden that --prove starts: a folder with disk.img, aux.img and bundle.json
    #[arg(long, value_name = "DIR")]
    golden: Option<PathBuf>,
    /// The program macrack-vm; by default the one beside this program
    #[arg(long)]
    vm_binary: Option<PathBuf>,
}

/// What is logged unless RUST_LOG says otherwise: a watch that is tried again is told by this program.
const LOG: &str = "info,kube_runtime=error,kube_client=error";

fn main() -> ExitCode {
    let cli = Cli::parse();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(LOG));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(false)
        .init();
    // a task that panicked would leave its VM unwatched: the next agent takes everything up again
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        print(info);
        std::process::abort();
    }));
    let ended = match cli.verb {
        Verb::Run(arguments) => start(arguments).map(|()| true),
        Verb::Doctor(arguments) => examine(arguments),
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("macrack-agent: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start(arguments: Run) -> Result<()> {
    let state_dir = StateDir::open(&arguments.state_dir)?;
    let vm_binary = vm_binary(arguments.vm_binary.clone())?;
    let host = host(&state_dir, &vm_binary)?;
    let store = store(&arguments)?;
    let _lock = state_dir.lock()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let (bootstrap, kubelet_port) = (arguments.bootstrap, arguments.kubelet_port);
    let ended = runtime.block_on(run(Options { bootstrap, state_dir, host, store, vm_binary, kubelet_port }));
    // a copy under way is of no use to anyone
    runtime.shutdown_background();
    ended
}

/// Examines this Mac; whether all is good.
fn examine(arguments: Doctor) -> Result<bool> {
    if cfg!(target_os = "macos") && rustix::process::geteuid().is_root() {
        bail!("keychain, session and rights are looked at for the user that asks: run it as the agent's, sudo -u USER");
    }
    let state_dir = StateDir::open(&arguments.state_dir)?;
    let vm_binary = vm_binary(arguments.vm_binary)?;
    let host = host(&state_dir, &vm_binary)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    if let Some(golden) = arguments.golden.filter(|_| arguments.prove) {
        let _lock = state_dir.lock().context("the proof needs the Mac for itself")?;
        let proof = Proof { state_dir, host, vm_binary, golden };
        runtime.block_on(prove(&proof, &mut |step| println!("{step}")))?;
        return Ok(true);
    }
    let facts = host.facts().context("the facts of this Mac cannot be read")?;
    let notes = notes::problems(&state_dir, &facts.boot_id);
    let ask = Ask { bootstrap: arguments.bootstrap, registries: arguments.registry, notes };
    let found = judge(&facts, &runtime.block_on(look(host, &ask)));
    for finding in &found {
        match arguments.json {
            true => println!("{}", serde_json::to_string(finding)?),
            false => println!("{finding}"),
        }
    }
    Ok(found.iter().all(|finding| finding.verdict == Verdict::Good))
}

fn vm_binary(given: Option<PathBuf>) -> Result<PathBuf> {
    let binary = match given {
        Some(binary) => binary,
        None => std::env::current_exe()?.with_file_name("macrack-vm"),
    };
    if !binary.is_file() {
        bail!("{} is not there: install macrack-vm beside macrack-agent, or give --vm-binary", binary.display());
    }
    Ok(binary)
}

fn store(arguments: &Run) -> Result<Arc<dyn ImageStore>> {
    let argument = &arguments.image_store;
    if argument == "oci" {
        let (mirrors, insecure) = (arguments.registry_mirror.clone(), arguments.insecure_registry.clone());
        let options = macrack_oci::Options::reaching(mirrors, insecure);
        return Ok(Arc::new(OciStore::new(options)?));
    }
    let Some(path) = argument.strip_prefix("dir:") else {
        bail!("--image-store {argument}: write oci, or dir:/path");
    };
    let path = PathBuf::from(path);
    if !path.is_dir() {
        bail!("--image-store {argument}: {} is no directory", path.display());
    }
    Ok(Arc::new(DirectoryStore::new(path)))
}

#[cfg(all(feature = "sim", target_os = "linux"))]
fn host(state_dir: &StateDir, _: &Path) -> Result<Arc<dyn Host>> {
    let host = macrack_agent::host::SimulatedHost::open(state_dir.path())
        .context("this build simulates a Mac, and the state directory holds none")?;
    Ok(Arc::new(host))
}

#[cfg(target_os = "macos")]
fn host(state_dir: &StateDir, vm_binary: &Path) -> Result<Arc<dyn Host>> {
    Ok(Arc::new(macrack_agent::host::mac::Mac::new(state_dir.path(), vm_binary)))
}

#[cfg(not(any(target_os = "macos", all(feature = "sim", target_os = "linux"))))]
fn host(_: &StateDir, _: &Path) -> Result<Arc<dyn Host>> {
    bail!(
        "this build knows no Mac: it reads no hardware and holds no hypervisor for {}. On Linux, a build with the cargo feature `sim` simulates one",
        std::env::consts::OS
    );
}
