//! `dockerios-sim`: the simulator on a cluster of its own. Exit codes: 0 asked to end, 1 could not begin.

use std::{
    collections::BTreeMap,
    io::{IsTerminal as _, Write as _},
    net::SocketAddr,
    path::PathBuf,
    process::ExitCode,
};

use anyhow::{Context, Result, anyhow};
use clap::{Parser, ValueEnum};
use dockerios_sim::{NodeShape, Options, Programs, Sim, Timings};
use kube::{Client, Config};

/// Development only: plays KubeVirt, CDI, a CSI driver and kubelets on a control plane of this machine.
///
/// No VM boots. Virtualising macOS off Apple hardware is outside Apple's licence: for learning, and for Intel Macs
/// while they last.
#[derive(Parser)]
#[command(name = "dockerios-sim", version)]
struct Arguments {
    /// Cluster to play on, with every right; a cluster of its own [default: as kubectl]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Directory of its own for sockets, volumes and guests' files
    #[arg(long, value_name = "DIRECTORY")]
    dir: PathBuf,
    /// Directory with dockerios-domain-hook, dockerios-guest and dockerios-bootdisk [default: where this program is]
    #[arg(long, value_name = "DIRECTORY")]
    programs: Option<PathBuf>,
    /// Directory with KubeVirt's, CDI's and the snapshot controller's definitions (kubevirt/, cdi/, snapshot/)
    #[arg(long, value_name = "DIRECTORY")]
    crds: Option<PathBuf>,
    /// How fast it is
    #[arg(long, value_enum, default_value_t = Pace::Demo)]
    pace: Pace,
    /// How many nodes there are
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=1000))]
    nodes: u16,
    /// An image that pods mount, and the directory that stands for what is in it; `*` for all others; may be given often
    #[arg(long = "image", value_name = "REFERENCE=DIRECTORY", value_parser = image)]
    images: Vec<(String, PathBuf)>,
    /// Devices that the launcher's QEMU has not got
    #[arg(long = "launcher-lacks", value_name = "DEVICE")]
    lacks: Vec<String>,
    /// Where the API server finds webhooks and subresources; loopback
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
}

#[derive(Clone, Copy, ValueEnum)]
enum Pace {
    /// For tests
    Fast,
    /// For people
    Demo,
}

fn image(text: &str) -> Result<(String, PathBuf), String> {
    // a digest has no `=`
    let (reference, directory) = text.rsplit_once('=').ok_or("not REFERENCE=DIRECTORY")?;
    Ok((reference.to_owned(), PathBuf::from(directory)))
}

fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into()))
        .with_writer(std::io::stderr)
        // a file or a journal shows colours as rubbish
        .with_ansi(std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty()))
        .init();
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let done = runtime
        .map_err(|error| anyhow!("no runtime: {error}"))
        .and_then(|runtime| runtime.block_on(run(arguments)));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "dockerios-sim: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn client(arguments: &Arguments) -> Result<Client> {
    let config = match &arguments.kubeconfig {
        Some(path) => {
            let known = kube::config::Kubeconfig::read_from(path).with_context(|| format!("{}", path.display()))?;
            Config::from_custom_kubeconfig(known, &kube::config::KubeConfigOptions::default()).await?
        }
        None => Config::infer().await?,
    };
    Ok(Client::try_from(config)?)
}

async fn run(arguments: Arguments) -> Result<()> {
    // only the first of a process is taken
    let _ = rustls::crypto::ring::default_provider().install_default();
    let beside = std::env::current_exe()
        .ok()
        .and_then(|path| path.parent().map(PathBuf::from));
    let programs = arguments
        .programs
        .clone()
        .or(beside)
        .context("--programs: needed here")?;
    let mut options = Options::new(arguments.dir.clone(), Programs::of(&programs));
    options.crds = arguments.crds.clone();
    options.listen = arguments.listen;
    options.images = arguments.images.iter().cloned().collect::<BTreeMap<_, _>>();
    options
        .launcher_devices
        .retain(|device| !arguments.lacks.contains(device));
    options.nodes = (1..=arguments.nodes)
        .map(|at| NodeShape::large(&format!("kvm-{at}")))
        .collect();
    options.timings = match arguments.pace {
        Pace::Fast => Timings::fast(),
        Pace::Demo => Timings::demo(),
    };
    let sim = Sim::start(client(&arguments).await?, options).await?;
    // that nobody reads it is no reason to end
    let _ = writeln!(
        std::io::stdout(),
        "playing KubeVirt, CDI, CSI and {} nodes; ends with Ctrl-C",
        arguments.nodes
    );
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
    drop(sim);
    Ok(())
}
