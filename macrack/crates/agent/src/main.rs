//! `macrack-agent`: the Node of one Mac.

use std::panic;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use macrack_agent::host::Host;
use macrack_agent::images::{DirectoryStore, ImageStore};
use macrack_agent::run::{Options, run};
use macrack_agent::state_dir::StateDir;
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
}

#[derive(Debug, clap::Args)]
struct Run {
    /// What `kubectl macrack enroll <serial>` printed
    #[arg(long)]
    bootstrap: PathBuf,
    /// Where everything of this chassis is kept
    #[arg(long)]
    state_dir: PathBuf,
    /// Where goldens are pulled from: dir:/path
    #[arg(long)]
    image_store: String,
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
    let Verb::Run(arguments) = cli.verb;
    match start(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("macrack-agent: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start(arguments: Run) -> Result<()> {
    let state_dir = StateDir::open(&arguments.state_dir)?;
    let host = host(&state_dir)?;
    let store = store(&arguments.image_store)?;
    let vm_binary = match arguments.vm_binary {
        Some(binary) => binary,
        None => std::env::current_exe()?.with_file_name("macrack-vm"),
    };
    if !vm_binary.is_file() {
        bail!("{} is not there: install macrack-vm beside macrack-agent, or give --vm-binary", vm_binary.display());
    }
    let _lock = state_dir.lock()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let ended = runtime.block_on(run(Options { bootstrap: arguments.bootstrap, state_dir, host, store, vm_binary }));
    // a copy under way is of no use to anyone
    runtime.shutdown_background();
    ended
}

fn store(argument: &str) -> Result<Arc<dyn ImageStore>> {
    let Some(path) = argument.strip_prefix("dir:") else {
        bail!("--image-store {argument}: only a directory is known, written dir:/path");
    };
    let path = PathBuf::from(path);
    if !path.is_dir() {
        bail!("--image-store {argument}: {} is no directory", path.display());
    }
    Ok(Arc::new(DirectoryStore::new(path)))
}

#[cfg(all(feature = "sim", target_os = "linux"))]
fn host(state_dir: &StateDir) -> Result<Arc<dyn Host>> {
    let host = macrack_agent::host::SimulatedHost::open(state_dir.path())
        .context("this build simulates a Mac, and the state directory holds none")?;
    Ok(Arc::new(host))
}

#[cfg(not(all(feature = "sim", target_os = "linux")))]
fn host(_: &StateDir) -> Result<Arc<dyn Host>> {
    bail!(
        "this build knows no Mac: it reads no hardware and holds no hypervisor for {}. On Linux, a build with the cargo feature `sim` simulates one",
        std::env::consts::OS
    );
}
