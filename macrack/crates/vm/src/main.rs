//! `macrack-vm`: owns one VM.
//!
//! Exit codes of `run`: 0 the VM ended as asked or by itself; 1 it failed; 2 the command line is wrong;
//! 3 it had to be forced; 4 another process runs this VM, and nothing was touched. `state.json` says why.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use macrack_vm::launch::ALREADY_RUNNING;

mod install;
#[cfg(any(target_os = "macos", all(feature = "sim", target_os = "linux")))]
mod run;

/// Owns one virtual machine, from its start to its end.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run the VM of a directory until it ends
    Run(Run),
    /// Start `run` in a session of its own, print its process id, and end
    Launch {
        /// The VM's directory, vms/<uid>
        #[arg(long)]
        dir: PathBuf,
    },
    /// Install macOS from a restore image into the bundle of a new golden (on a Mac)
    Install(install::Install),
    /// Boot a bundle in a window, to finish it by hand; ends when the guest shuts down (on a Mac)
    Finish(install::Finish),
}

#[derive(Debug, clap::Args)]
struct Run {
    /// The VM's directory, vms/<uid>
    #[arg(long)]
    dir: PathBuf,
    /// The guest's program, for a simulated VM; by default the macrack-guest beside this program
    #[cfg(all(feature = "sim", target_os = "linux"))]
    #[arg(long, env = "MACRACK_GUEST")]
    guest: Option<PathBuf>,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_target(false).with_ansi(false).init();
    match cli.verb {
        Verb::Launch { dir } => match macrack_vm::launch::launch(&dir) {
            Ok(pid) => {
                println!("{pid}");
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("macrack-vm: {error}");
                match error.kind() {
                    io::ErrorKind::AlreadyExists => ExitCode::from(ALREADY_RUNNING),
                    _ => ExitCode::FAILURE,
                }
            }
        },
        Verb::Run(arguments) => run(arguments),
        Verb::Install(arguments) => install::main(arguments),
        Verb::Finish(arguments) => install::finish(&arguments),
    }
}

#[cfg(any(target_os = "macos", all(feature = "sim", target_os = "linux")))]
fn run(arguments: Run) -> ExitCode {
    run::main(&run::Options {
        dir: arguments.dir,
        #[cfg(all(feature = "sim", target_os = "linux"))]
        guest: arguments.guest,
    })
}

#[cfg(not(any(target_os = "macos", all(feature = "sim", target_os = "linux"))))]
fn run(arguments: Run) -> ExitCode {
    eprintln!(
        "macrack-vm: {} cannot be run: this build holds no hypervisor for {}. On Linux, a build with the \
         cargo feature `sim` simulates one.",
        arguments.dir.display(),
        std::env::consts::OS
    );
    ExitCode::FAILURE
}
