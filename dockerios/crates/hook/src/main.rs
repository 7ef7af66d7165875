//! `dockerios-domain-hook`: the sidecar in a launcher pod, and the same change as a filter.
//!
//! Invariant: standard output carries a whole changed domain or nothing; everything else is said on standard
//! error. Exit codes: 0 done, 1 refused, 2 could not begin (arguments, files, socket).

use std::{
    fs::File,
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use clap::{Parser, Subcommand};
use dockerios_domain_hook::{
    Osk, Vmi, bounded,
    serve::{LARGEST_MESSAGE, NAME, SOCKET_DIRECTORY, Signals, serve},
    text_of, transform,
};

/// Gives a macOS machine on KubeVirt its SMC and its system disk as NVMe.
///
/// Virtualising macOS off Apple hardware is outside Apple's agreement: for learning, and for Intel Macs while
/// they last.
#[derive(Parser)]
#[command(name = NAME, version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve KubeVirt's hook protocol: what the sidecar runs
    Serve {
        /// File with the key: 64 bytes, a newline at the end tolerated
        #[arg(long, value_name = "FILE")]
        osk_file: PathBuf,
        /// Where the launcher looks for sockets
        #[arg(long, value_name = "DIRECTORY", default_value = SOCKET_DIRECTORY)]
        socket_directory: PathBuf,
        /// Seconds to serve on after SIGTERM when no Shutdown comes: the machine's grace period and a little
        /// more, below the 30 s that KubeVirt adds for the pod
        #[arg(long, value_name = "SECONDS", default_value_t = 195, value_parser = clap::value_parser!(u64).range(..=86_400))]
        grace_seconds: u64,
    },
    /// Read a domain on standard input, write the changed one on standard output
    Filter {
        /// File with the VirtualMachineInstance as JSON
        #[arg(long, value_name = "FILE")]
        vmi: PathBuf,
        /// File with the key: 64 bytes, a newline at the end tolerated
        #[arg(long, value_name = "FILE")]
        osk_file: PathBuf,
    },
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Serve {
            osk_file,
            socket_directory,
            grace_seconds,
        } => run_server(&osk_file, &socket_directory, Duration::from_secs(grace_seconds)),
        Command::Filter { vmi, osk_file } => run_filter(&vmi, &osk_file),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err((code, message)) => {
            // nobody may hear it: `2>&1 | head`
            let _ = writeln!(io::stderr(), "{NAME}: {message}");
            ExitCode::from(code)
        }
    }
}

type Outcome = Result<(), (u8, String)>;

fn cannot_begin(what: &std::path::Path, error: impl std::fmt::Display) -> (u8, String) {
    (2, format!("{}: {error}", what.display()))
}

fn run_server(osk_file: &std::path::Path, directory: &std::path::Path, grace: Duration) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| (2, format!("no runtime: {error}")))?;
    runtime.block_on(async {
        let signals = Signals::take().map_err(|error| (2, format!("no signals: {error}")))?;
        let osk = Osk::read(osk_file).map_err(|error| cannot_begin(osk_file, error))?;
        serve(directory, osk, grace, signals)
            .await
            .map_err(|error| cannot_begin(directory, error))
    })
}

fn run_filter(vmi_file: &std::path::Path, osk_file: &std::path::Path) -> Outcome {
    let vmi = File::open(vmi_file)
        .and_then(|file| bounded(file, LARGEST_MESSAGE))
        .map_err(|error| cannot_begin(vmi_file, error))?;
    let osk = Osk::read(osk_file).map_err(|error| cannot_begin(osk_file, error))?;
    let domain = bounded(io::stdin(), LARGEST_MESSAGE).map_err(|error| (2, format!("standard input: {error}")))?;
    let changed = Vmi::from_json(&vmi)
        .and_then(|vmi| transform(text_of(&domain)?, &vmi, &osk))
        .map_err(|refusal| (1, format!("refused: {refusal}")))?;
    let mut out = io::stdout().lock();
    out.write_all(changed.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| (2, format!("standard output: {error}")))
}
