//! `macrack-demo`: a live account of what MacRack does and refuses, on a real control plane.
//!
//! Invariant: **nothing is staged.** What is printed was answered by the API server, kubectl, the operator or an agent
//! while it was printed; a step that does not happen ends the account with its name, the object, the logs, and an exit
//! code that is not zero. What it starts ends with it.

mod cluster;
mod golden;
mod install;
mod macs;
mod say;
mod seen;
mod story;
mod uninstall;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

use cluster::Cluster;
use say::{Say, Tone};
use story::Stage;

/// The story of MacRack: a control plane, four simulated Macs, two tenants; then it is yours until Ctrl-C
#[derive(Parser, Debug)]
#[command(version)]
struct Args {
    /// The folder with etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubectl
    #[arg(long)]
    assets: PathBuf,
    /// The folder with MacRack's binaries
    #[arg(long)]
    bin_dir: PathBuf,
    /// Where state, logs and kubeconfigs lie
    #[arg(long)]
    dir: PathBuf,
    /// A cluster to use instead of starting one: its admin's kubeconfig
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    /// With --kubeconfig: the address at which that cluster's API server reaches this machine
    #[arg(long, env = "MACRACK_DEMO_HOST")]
    host: Option<String>,
    /// End after the last step
    #[arg(long)]
    once: bool,
}

const LICENCE: &str = "\
MacRack leases whole Macs through Kubernetes. Everything here runs on this machine, on loopback; the Macs, their kernel
and their guests are simulated, all else is the real thing.

What Apple's licence for macOS asks, as we read it, and what MacRack holds: macOS runs on Apple hardware only; a Mac
runs two macOS VMs at most; a leased Mac goes to one person or organisation for at least 24 consecutive hours. Whether
your use is one that the licence permits is a question for you and your counsel.
";

/// How it ended, when nothing failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// The whole account was given.
    Told,
    /// Somebody ended it before.
    Interrupted,
}

fn main() -> ExitCode {
    let mut args = Args::parse();
    // processes are started from folders of their own
    for path in [&mut args.assets, &mut args.bin_dir] {
        match path.canonicalize() {
            Ok(whole) => *path = whole,
            Err(error) => {
                eprintln!("macrack-demo: {}: {error}", path.display());
                return ExitCode::FAILURE;
            }
        }
    }
    let say = Say::new();
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("macrack-demo: {error}");
            return ExitCode::FAILURE;
        }
    };
    let ended = runtime.block_on(run(&args, say));
    // a control plane that is just being started would be waited for
    runtime.shutdown_background();
    match ended {
        Ok(Ending::Told) => ExitCode::SUCCESS,
        // as shells say of a program that was interrupted
        Ok(Ending::Interrupted) => ExitCode::from(130),
        Err(error) => {
            eprintln!("\nmacrack-demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Resolves on Ctrl-C or SIGTERM.
async fn interrupted() {
    let (Ok(mut interrupt), Ok(mut terminate)) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        return;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

async fn run(args: &Args, say: Say) -> Result<Ending> {
    say.line(LICENCE);
    let (dir, _alone) = fresh(&args.dir)?;
    let began = Instant::now();
    let cluster = tokio::select! {
        cluster = Cluster::new(&args.assets, &args.bin_dir, &dir, args.kubeconfig.as_deref()) => Arc::new(cluster?),
        () = interrupted() => return Ok(Ending::Interrupted),
    };
    let version = cluster.admin().await?.apiserver_version().await.context("asking the API server for its version")?;
    let whose = if cluster.is_external() { "yours" } else { "etcd and" };
    say.part(
        "control plane",
        format!("{whose} Kubernetes {} at {}", version.git_version, cluster.server()),
        began.elapsed(),
    );
    if cluster.is_external() {
        install::refuse_if_in_use(&cluster).await?;
    }
    let told = AtomicBool::new(false);
    let ended = tokio::select! {
        told = account(args, say, &cluster, &dir, &told) => told.map(|()| Ending::Told),
        () = interrupted() => Ok(if told.load(Ordering::Relaxed) { Ending::Told } else { Ending::Interrupted }),
    };
    if ended.as_ref().is_ok_and(|_| !args.once) {
        say.line("\nEnding everything.");
    }
    if cluster.is_external() {
        uninstall::everything(&cluster).await.context("removing MacRack from your cluster")?;
        say.line("MacRack and the two tenants are removed from your cluster.");
    }
    ended
}

/// The whole account; with `--once` it ends, otherwise it lasts until somebody ends it.
async fn account(args: &Args, say: Say, cluster: &Arc<Cluster>, dir: &Path, told: &AtomicBool) -> Result<()> {
    let mut stage = set(args, say, cluster, dir).await?;
    if let Err(error) = story::tell(&mut stage).await {
        eprintln!("\n{}", tails(&stage));
        return Err(error);
    }
    told.store(true, Ordering::Relaxed);
    if args.once {
        return Ok(());
    }
    yours(&stage, args, dir)?;
    std::future::pending().await
}

/// The folder, without what an earlier demo left in it but for the goldens; and the lock by which a second demo knows
/// that it is in use, before it touches anything in it.
fn fresh(dir: &Path) -> Result<(PathBuf, fs::File)> {
    let named = || format!("the demo's folder {}", dir.display());
    fs::create_dir_all(dir).with_context(named)?;
    let dir = dir.canonicalize().with_context(named)?;
    let lock = fs::File::create(dir.join("demo.lock")).with_context(named)?;
    lock.try_lock()
        .with_context(|| format!("another demo runs in {}: end it first, or choose another --dir", dir.display()))?;
    for old in ["logs", "bin", "kubectl-cache"] {
        match fs::remove_dir_all(dir.join(old)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error).with_context(named),
            _ => {}
        }
    }
    fs::create_dir_all(dir.join("logs")).with_context(named)?;
    Ok((dir, lock))
}

/// MacRack, its operator, four Macs and two tenants, ready.
async fn set(args: &Args, say: Say, cluster: &Arc<Cluster>, dir: &Path) -> Result<Stage> {
    let logs = dir.join("logs");
    let began = Instant::now();
    let golden = golden::pushed(&args.bin_dir, dir).await?;
    let words = golden.words.split(';').next().unwrap_or_default();
    let text = format!("{words} to a registry at {}", golden.registry.address());
    say.part("golden", text, began.elapsed());

    let began = Instant::now();
    let kinds = install::manifests(cluster).await?;
    let host = args.host.as_deref();
    let operator = install::operator(cluster, &args.bin_dir, &logs.join("operator.log"), host).await?;
    say.part(
        "macrack",
        format!("{kinds} kinds, roles, policies; the operator decides, its webhook is asked"),
        began.elapsed(),
    );

    let began = Instant::now();
    macs::catalogue(cluster, &golden.manifest).await?;
    let enrolled = macs::MACS.map(|mac| macs::enrol(cluster, &args.bin_dir, &logs, mac));
    let macs = futures::future::try_join_all(enrolled).await?;
    let minis = macs::MACS.iter().filter(|(_, class)| class.starts_with("mini")).count();
    let studios = macs.len() - minis;
    let text = format!("simulated: {minis} Mac minis, {studios} Mac Studios, joined by kubectl macrack enroll");
    say.part("macs", text, began.elapsed());

    let began = Instant::now();
    let [team_a, team_b] = [install::tenant(cluster, "team-a").await?, install::tenant(cluster, "team-b").await?];
    say.part("tenants", "team-a and team-b: a namespace each, and the role edit in it", began.elapsed());
    Ok(Stage {
        say,
        cluster: cluster.clone(),
        _registry: golden.registry,
        operator,
        macs,
        team_a,
        team_b,
        bin_dir: args.bin_dir.clone(),
    })
}

/// The ends of the logs, for whoever finds out why a step did not happen.
fn tails(stage: &Stage) -> String {
    const LINES: usize = 12;
    const WIDTH: usize = 220;
    let agents = stage.macs.iter().map(|mac| mac.agent.log_path());
    let paths = std::iter::once(stage.operator.log_path()).chain(agents);
    let tail = |path: &Path| {
        let text = fs::read_to_string(path).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let short = |line: &&str| line.chars().take(WIDTH).collect::<String>();
        let end: Vec<String> = lines[lines.len().saturating_sub(LINES)..].iter().map(short).collect();
        let end = end.join("\n  ");
        format!("{} ends:\n  {end}", path.display())
    };
    paths.map(tail).collect::<Vec<_>>().join("\n")
}

/// What a person can do now.
fn yours(stage: &Stage, args: &Args, dir: &Path) -> Result<()> {
    let bin = dir.join("bin");
    fs::create_dir_all(&bin)?;
    for (name, target) in [("kubectl", &args.assets), ("kubectl-macrack", &args.bin_dir)] {
        let target = target.join(name).canonicalize().with_context(|| format!("find {name}"))?;
        symlink(target, bin.join(name)).with_context(|| format!("link {name} into {}", bin.display()))?;
    }
    let say = stage.say;
    say.line(format!("\n{}", say.paint(Tone::Strong, "Yours until Ctrl-C. In another terminal:")));
    say.line(format!("  export KUBECONFIG={} PATH={}:$PATH", stage.cluster.kubeconfig().display(), bin.display()));
    for (command, about) in [
        ("kubectl get macrack -A", "everything, and why it waits"),
        ("kubectl macrack why mnl/ios-ci -n team-b", "the same as a sentence, with the way out"),
        ("kubectl describe mnl ios-ci -n team-a", "its conditions, one by one"),
        ("kubectl explain macnodelease.spec", "what can be asked for"),
        ("kubectl get mnl -A -w", "watch, and try to get around it"),
        ("kubectl exec macrack-vm-provisioned -n team-b -- sw_vers", "simulated: it runs on this machine, as you"),
    ] {
        say.line(format!("  {command:<58}{}", say.paint(Tone::Dim, format!("# {about}"))));
    }
    let tenant = dir.join("team-a.kubeconfig");
    say.line(format!(
        "  As a tenant: -n team-a --kubeconfig {}. Samples: {}",
        tenant.display(),
        stage.cluster.deploy().join("samples").display()
    ));
    say.line(format!("  Logs: {}", dir.join("logs").display()));
    Ok(())
}
