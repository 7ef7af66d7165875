//! `macrack-guest`: what launchd starts inside a macOS guest, and what stands for one in a simulation.

use std::process::ExitCode;

#[cfg(target_os = "linux")]
mod linux {
    use std::ffi::OsString;
    use std::fs;
    use std::io;
    use std::os::unix::process::CommandExt;
    use std::path::PathBuf;
    use std::process::Command;
    use std::sync::Arc;

    use clap::{Args, Parser, Subcommand};
    use macrack_guest::guest::Guest;
    use macrack_guest::self_check::SelfCheck;
    use macrack_guest::simulated::{SimulatedMac, die_with};
    use macrack_wire::link::Limits;
    use tokio::net::UnixListener;

    use super::finish;

    /// Answers the host of this guest; on Linux, for a simulated disk.
    #[derive(Debug, Parser)]
    #[command(version, args_conflicts_with_subcommands = true)]
    pub(super) struct Cli {
        #[command(subcommand)]
        verb: Option<Verb>,
        #[command(flatten)]
        run: Option<Run>,
    }

    #[derive(Debug, Args)]
    struct Run {
        /// The directory that stands for the mounted disk
        #[arg(long)]
        root: PathBuf,
        /// The unix socket that stands for the vsock port
        #[arg(long)]
        listen: PathBuf,
        /// The process id of the VM that this guest dies with: it must be the parent
        #[arg(long)]
        dies_with: Option<u32>,
    }

    #[derive(Debug, Subcommand)]
    enum Verb {
        /// Run a command that dies with the guest that started it
        #[command(hide = true)]
        Script {
            guest: u32,
            program: OsString,
            #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
            args: Vec<OsString>,
        },
        /// Say what the simulated disk would report, and what is to be mended before it is a golden
        Report {
            /// The directory that stands for the mounted disk
            #[arg(long)]
            root: PathBuf,
        },
    }

    pub(super) fn main(cli: Cli) -> io::Result<()> {
        match (cli.verb, cli.run) {
            (Some(Verb::Script { guest, program, args }), _) => {
                die_with(guest)?;
                Err(Command::new(program).args(args).exec())
            }
            (Some(Verb::Report { root }), _) => {
                let (session, facts) = SimulatedMac::look(&root)?;
                finish(&SelfCheck::look(&root, session, facts))
            }
            (None, Some(run)) => {
                tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(serve(run))
            }
            (None, None) => Err(io::Error::new(io::ErrorKind::InvalidInput, "--root and --listen are needed")),
        }
    }

    async fn serve(run: Run) -> io::Result<()> {
        if let Some(parent) = run.dies_with {
            die_with(parent)?;
        }
        let mac = Arc::new(SimulatedMac::boot(&run.root)?);
        let (guest, service) = Guest::new(mac.clone(), &run.root)?;
        match fs::remove_file(&run.listen) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&run.listen)?;
        tokio::spawn(macrack_wire::serve(listener, Arc::new(service), Limits::VM));
        tokio::select! {
            () = guest.run() => Ok(()),
            ended = mac.power_button() => ended,
        }
    }
}

#[cfg(target_os = "macos")]
mod macos {
    use std::io;
    use std::path::Path;
    use std::sync::Arc;

    use clap::{Parser, Subcommand};
    use macrack_guest::guest::Guest;
    use macrack_guest::macos::{HostOnly, Mac};
    use macrack_guest::self_check::SelfCheck;
    use macrack_wire::link::Limits;

    use super::finish;

    /// Answers the host of this guest. launchd starts it, as root and without arguments.
    #[derive(Debug, Parser)]
    #[command(version)]
    pub(super) struct Cli {
        #[command(subcommand)]
        verb: Option<Verb>,
    }

    #[derive(Debug, Subcommand)]
    enum Verb {
        /// Say what this machine would report as a guest, and what is to be mended before it is a golden
        Report,
    }

    pub(super) fn main(cli: Cli) -> io::Result<()> {
        if !rustix::process::geteuid().is_root() {
            let why = "only root can look at everything and start programs as the user: run it with sudo";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
            match cli.verb {
                Some(Verb::Report) => {
                    let (session, facts) = Mac::look().await;
                    finish(&SelfCheck::look(Path::new("/"), session, facts))
                }
                None => serve().await,
            }
        })
    }

    async fn serve() -> io::Result<()> {
        let (guest, service) = Guest::new(Arc::new(Mac::start()?), Path::new("/"))?;
        tokio::spawn(macrack_wire::serve(HostOnly::bind()?, Arc::new(service), Limits::VM));
        guest.run().await;
        Ok(())
    }
}

/// Shows what was found; an error when something is to be mended.
#[cfg(any(target_os = "linux", target_os = "macos"))]
fn finish(check: &macrack_guest::self_check::SelfCheck) -> std::io::Result<()> {
    print!("{check}");
    match check.findings().len() {
        0 => Ok(()),
        count => Err(std::io::Error::other(format!("{count} thing(s) are to be mended"))),
    }
}

fn main() -> ExitCode {
    if let Some(failed) = macrack_guest::exec::become_command() {
        return failed;
    }
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_target(false).init();
    #[cfg(target_os = "linux")]
    let ended = linux::main(clap::Parser::parse());
    #[cfg(target_os = "macos")]
    let ended = macos::main(clap::Parser::parse());
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "macrack-guest ends");
            ExitCode::FAILURE
        }
    }
}
