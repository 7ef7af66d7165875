//! `dockerios-demo`: a live account of what DockerIOS does, on a real control plane. Development only.
//!
//! Invariant: nothing is staged. What is printed was read from the API server or answered by kubectl while it was
//! printed, times are measured, and what is started here ends with it, by whichever signal.
//!
//! Exit codes: 0 told to its end, 1 a step failed, 2 cannot begin, 130 interrupted before the end.

mod cluster;
mod eye;
mod files;
mod folder;
mod leave;
mod real;
mod say;
mod story;

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result};
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

use cluster::Cluster;
use folder::Folder;

/// The story of DockerIOS on a control plane of this machine; then it is yours until Ctrl-C.
///
/// KubeVirt and CDI are played, no VM boots. Virtualising macOS off Apple hardware is outside Apple's licence: for
/// learning, and for Intel Macs while they last.
#[derive(Debug, Parser)]
#[command(name = "dockerios-demo", version)]
struct Arguments {
    /// Folder with etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubectl
    #[arg(long, value_name = "DIR")]
    assets: PathBuf,
    /// Folder with the product's programs
    #[arg(long, value_name = "DIR")]
    bin_dir: PathBuf,
    /// Folder for state, logs and manifests; its content goes at the end
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// A cluster to use instead of starting one: its admin's kubeconfig
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// End after the last step
    #[arg(long)]
    exit_after_story: bool,
}

/// Set when this program has started itself anew with the environment that the control plane's starter reads.
const FURNISHED: &str = "DOCKERIOS_DEMO_FURNISHED";
/// Where the starter finds the binaries.
const ASSETS: &str = "KUBEBUILDER_ASSETS";

fn main() -> ExitCode {
    let mut arguments = Arguments::parse();
    for path in [&mut arguments.assets, &mut arguments.bin_dir] {
        match path.canonicalize() {
            Ok(whole) => *path = whole,
            Err(error) => return cannot_begin(&format!("{}: {error}", path.display())),
        }
    }
    let Some(temporary) = std::env::var_os(FURNISHED) else {
        let error = furnished(&arguments);
        return cannot_begin(&format!("{error:#}"));
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return cannot_begin(&error.to_string()),
    };
    let folder = match Folder::take(&arguments.dir) {
        Ok(folder) => folder,
        Err(error) => {
            let _ = fs::remove_dir_all(temporary);
            return cannot_begin(&format!("{error:#}"));
        }
    };
    let ended = runtime.block_on(run(&arguments, folder));
    // a control plane that is just being started would be waited for
    runtime.shutdown_background();
    // left by children that were killed with what they had open
    let _ = fs::remove_dir_all(temporary);
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(130),
        Err(error) => {
            say::aside(&format!("\ndockerios-demo: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn cannot_begin(why: &str) -> ExitCode {
    say::aside(&format!("dockerios-demo: {why}"));
    ExitCode::from(2)
}

/// The same program anew, in the same process, with what the control plane's starter takes from its environment and a
/// temporary folder of its own. Returns only with an error.
fn furnished(arguments: &Arguments) -> anyhow::Error {
    let begin = || -> Result<std::io::Error> {
        // hooks' sockets lie in it, and a socket's path has 107 bytes
        let whole = std::env::temp_dir();
        let short = if whole.as_os_str().len() > 32 {
            Path::new("/tmp")
        } else {
            &whole
        };
        let temporary = tempfile::Builder::new().prefix("demo.").tempdir_in(short)?.keep();
        let mut again = Command::new(std::env::current_exe()?);
        again.args(std::env::args_os().skip(1));
        again.env(FURNISHED, &temporary).env("TMPDIR", &temporary);
        again.env(ASSETS, &arguments.assets);
        match &arguments.kubeconfig {
            Some(path) => again.env(dockerios_testkit::KUBECONFIG, path.canonicalize()?),
            None => again.env_remove(dockerios_testkit::KUBECONFIG),
        };
        Ok(again.exec())
    };
    match begin() {
        Ok(error) => anyhow::Error::new(error).context("start anew"),
        Err(error) => error,
    }
}

/// Resolves on Ctrl-C, SIGTERM, or when the terminal is closed.
async fn interrupted() -> Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
    Ok(())
}

/// True when the whole account was given.
async fn run(arguments: &Arguments, folder: Folder) -> Result<bool> {
    log(folder.path())?;
    let told = Arc::new(AtomicBool::new(false));
    let mut cluster = tokio::select! {
        started = begin(arguments, folder.path()) => match started {
            Ok(cluster) => Some(cluster),
            Err(error) => return Err(folder.keep_logs(error)),
        },
        signal = interrupted() => { signal?; None }
    };
    let mut ended = Ok(());
    if let Some(cluster) = &mut cluster {
        ended = tokio::select! {
            ended = account(arguments, cluster, &told) => ended,
            signal = interrupted() => signal,
        };
        if !arguments.exit_after_story || !told.load(Ordering::Relaxed) {
            say::line("\nEnding everything.");
        }
        if cluster.is_yours() {
            let gone = leave::everything(cluster).await;
            ended = ended.and(gone.context("take DockerIOS out of your cluster"));
        }
    }
    drop(cluster);
    match ended {
        Ok(()) => {
            folder.leave()?;
            Ok(told.load(Ordering::Relaxed))
        }
        Err(error) => Err(folder.keep_logs(error)),
    }
}

async fn begin(arguments: &Arguments, dir: &Path) -> Result<Cluster> {
    say::line(story::OPENING);
    Cluster::start(arguments, dir).await
}

async fn account(arguments: &Arguments, cluster: &mut Cluster, told: &AtomicBool) -> Result<()> {
    if cluster.is_yours() {
        if real::look(cluster).await? {
            real::beside_kubevirt(cluster).await?;
            told.store(true, Ordering::Relaxed);
            return Ok(());
        }
        real::loopback(cluster).await?;
        real::free(cluster).await?;
        cluster.entered = true;
    }
    let template = cluster.dir.join("template");
    let sha = files::template(&template, &arguments.bin_dir.join("dockerios-bootdisk"))?;
    files::write(&cluster.dir.join("manifests"), &sha)?;
    cluster.play(&arguments.bin_dir, &template).await?;
    cluster.install().await?;
    cluster.operate(&arguments.bin_dir).await?;
    story::tell(cluster).await?;
    told.store(true, Ordering::Relaxed);
    if arguments.exit_after_story {
        return Ok(());
    }
    story::yours(cluster, &arguments.assets, &arguments.bin_dir);
    std::future::pending().await
}

/// What the simulator says of itself goes to a file.
fn log(dir: &Path) -> Result<()> {
    let file = File::create(dir.join("logs/sim.log")).context("write the simulator's log")?;
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::new("info"))
        .with_writer(std::sync::Mutex::new(file))
        .with_ansi(false)
        .init();
    Ok(())
}
