//! `dockerios-guest`: the agent's command line. Exit codes: 0 asked to end, 2 could not begin.

use std::{
    io::{IsTerminal as _, Write as _},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use clap::Parser;
use dockerios_guest::{
    agent::{Agent, Options},
    chance::run_name,
    facts::{Facts, Probe},
    look::{Rhythm, keep_looking},
    programs::Wanted,
    ready::{Readiness, WithoutChecks},
    runs::Runs,
    shutdown::Command,
};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};

const NAME: &str = "dockerios-guest";

/// Tells the platform how far a macOS guest has come, and shuts it down in order when asked.
///
/// Virtualising macOS off Apple hardware is outside Apple's licence: for learning, and for Intel Macs while they last.
/// The x86 path ends with macOS 26.
#[derive(Parser)]
#[command(name = NAME, version)]
struct Arguments {
    /// Where the volume DOCKERIOS is mounted; waited for
    #[arg(long, value_name = "DIRECTORY", default_value = "/Volumes/DOCKERIOS")]
    config_dir: PathBuf,
    /// A program whose version is reported; may be given often
    #[arg(long = "software", value_name = "NAME=/PATH/BUNDLE*.app")]
    software: Vec<Wanted>,
    /// Where it is noted how a run ends, so that the next boot can say it
    #[arg(long, value_name = "FILE", default_value = "/var/db/dockerios/run.json")]
    run_note: PathBuf,
    /// Executables here must all exit 0 before the guest is ready
    #[arg(long, value_name = "DIRECTORY", default_value = "/usr/local/lib/dockerios/ready.d")]
    ready_dir: PathBuf,
    /// What counts as ready while there is no such executable
    #[arg(long, value_enum, default_value_t = WithoutChecks::Session)]
    ready_without_checks: WithoutChecks,
    /// Program that shuts the system down, run without arguments [default on macOS: /sbin/shutdown -h now]
    #[arg(long, value_name = "PROGRAM")]
    shutdown_command: Option<PathBuf>,
    /// Milliseconds between two looks at the guest
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(10..=60_000))]
    look_milliseconds: u64,
    /// Milliseconds between two rounds of the readiness checks
    #[arg(long, value_name = "N", default_value_t = 5000, value_parser = clap::value_parser!(u64).range(10..=600_000))]
    check_milliseconds: u64,
    /// Read the guest from the files of a directory instead of looking at this system
    #[cfg(feature = "probe-directory")]
    #[arg(long, value_name = "DIRECTORY")]
    probe_dir: Option<PathBuf>,
}

fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into()))
        .with_writer(std::io::stderr)
        // a file or a journal shows colours as rubbish
        .with_ansi(std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty()))
        .init();
    let began = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(run(Arguments::parse())),
        Err(e) => Err(e.to_string()),
    };
    match began {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            // nobody may hear it: `2>&1 | head`
            let _ = writeln!(std::io::stderr(), "{NAME}: {message}");
            ExitCode::from(2)
        }
    }
}

async fn run(arguments: Arguments) -> Result<(), String> {
    #[cfg(feature = "probe-directory")]
    if let Some(directory) = &arguments.probe_dir {
        let probe = dockerios_guest::directory::DirectoryProbe::new(directory.clone());
        return agent(arguments, probe).await;
    }
    on_this_system(arguments).await
}

#[cfg(target_os = "macos")]
async fn on_this_system(mut arguments: Arguments) -> Result<(), String> {
    let wanted = std::mem::take(&mut arguments.software);
    let probe = dockerios_guest::mac::MacProbe::new(wanted);
    agent(arguments, probe).await
}

#[cfg(not(target_os = "macos"))]
async fn on_this_system(arguments: Arguments) -> Result<(), String> {
    let _ = arguments.software;
    Err(
        "this is no macOS: there is nothing to look at here. Install it in a macOS guest, see the agent's README.md"
            .into(),
    )
}

async fn agent<P: Probe>(arguments: Arguments, probe: P) -> Result<(), String> {
    let mut terminate = signal(SignalKind::terminate()).map_err(|e| e.to_string())?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(|e| e.to_string())?;
    let macos = cfg!(target_os = "macos");
    let shutdown = match arguments.shutdown_command {
        Some(program) => Command {
            program: program.into(),
            arguments: Vec::new(),
        },
        None if macos => Command::macos(),
        None => return Err("--shutdown-command: needed off macOS; name a program that ends this guest".into()),
    };
    let runs = Runs::at(arguments.run_note);
    let options = Options {
        config: arguments.config_dir,
        shutdown,
        mount: macos.then(|| Command {
            program: "/usr/sbin/diskutil".into(),
            arguments: ["mount", "readOnly", dockerios_wire::LABEL].map(Into::into).into(),
        }),
        run: run_name()?,
        runs: runs.clone(),
    };
    let readiness = Readiness::new(arguments.ready_dir, arguments.ready_without_checks);
    let rhythm = Rhythm {
        look: Duration::from_millis(arguments.look_milliseconds),
        check: Duration::from_millis(arguments.check_milliseconds),
    };
    let (facts, seen) = watch::channel(Facts::default());
    tracing::info!(version = env!("CARGO_PKG_VERSION"), "agent started");
    tokio::select! {
        () = keep_looking(probe, readiness, rhythm, facts) => {}
        () = Agent::new(options, seen).run() => {}
        // launchd sends it when the system goes down
        _ = terminate.recv() => match runs.ended() {
            Ok(()) => tracing::info!("asked to end"),
            Err(why) => tracing::warn!("asked to end; this run will count as cut off: {why}"),
        },
        _ = interrupt.recv() => tracing::info!("asked to end"),
    }
    Ok(())
}
