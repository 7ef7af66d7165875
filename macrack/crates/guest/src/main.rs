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
    use macrack_guest::simulated::{SimulatedMac, die_with};
    use macrack_wire::link::Limits;
    use tokio::net::UnixListener;

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
    }

    pub(super) fn main(cli: Cli) -> io::Result<()> {
        match (cli.verb, cli.run) {
            (Some(Verb::Script { guest, program, args }), _) => {
                die_with(guest)?;
                Err(Command::new(program).args(args).exec())
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
            ended = guest.run() => ended,
            ended = mac.power_button() => ended,
        }
    }
}

fn main() -> ExitCode {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_target(false).init();
    #[cfg(target_os = "linux")]
    let ended = linux::main(clap::Parser::parse());
    #[cfg(not(target_os = "linux"))]
    let ended: std::io::Result<()> = Err(std::io::Error::new(
        std::io::ErrorKind::Unsupported,
        "this build holds no probes for the machine that it runs on",
    ));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "macrack-guest ends");
            ExitCode::FAILURE
        }
    }
}
