//! `macrack-vm install`: from a restore image to the bundle of a golden. What can be refused is refused before the
//! framework is asked, on every system.

use std::path::PathBuf;
use std::process::ExitCode;

use macrack_vz::files::temporary_directories;
use macrack_vz::install::{Request, RestoreImage, explain, parse_size};
use macrack_wire::{BundleDir, VmError};

#[derive(Debug, clap::Args)]
pub(crate) struct Install {
    /// A restore image of macOS for Apple silicon, or `latest` for Apple's newest that this Mac supports
    #[arg(long, value_name = "FILE|latest")]
    ipsw: RestoreImage,
    /// The folder of the bundle; it is made, or must be empty
    #[arg(long, value_name = "BUNDLE")]
    into: PathBuf,
    /// Length of its disk, as in 120G; a clone never has more
    #[arg(long, value_parser = parse_size, value_name = "SIZE")]
    disk_size: u64,
}

pub(crate) fn main(arguments: Install) -> ExitCode {
    let request = match std::path::absolute(&arguments.into) {
        Ok(into) => Request { from: arguments.ipsw, into, disk_bytes: arguments.disk_size },
        Err(error) => {
            eprintln!("macrack-vm: --into {}: {error}", arguments.into.display());
            return ExitCode::FAILURE;
        }
    };
    told(install(&request))
}

#[derive(Debug, clap::Args)]
pub(crate) struct Finish {
    /// The folder of the bundle
    #[arg(long, value_name = "BUNDLE")]
    bundle: PathBuf,
}

pub(crate) fn finish(arguments: &Finish) -> ExitCode {
    // the framework follows no symbolic links
    let bundle = arguments
        .bundle
        .canonicalize()
        .map_err(|error| VmError::invalid(format!("--bundle {}: {error}", arguments.bundle.display())));
    told(bundle.and_then(|path| show(&BundleDir::new(path))))
}

fn told(outcome: Result<(), VmError>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("macrack-vm: {}", explain(&error));
            ExitCode::FAILURE
        }
    }
}

#[cfg(target_os = "macos")]
fn show(bundle: &BundleDir) -> Result<(), VmError> {
    let host = macrack_vz::host_limits()?;
    let configuration = macrack_vz::install::finishing(bundle, &host)?;
    macrack_vz::files::check(&configuration, &temporary_directories())?;
    macrack_vz::show(&configuration, &bundle.path().display().to_string())
}

#[cfg(not(target_os = "macos"))]
fn show(bundle: &BundleDir) -> Result<(), VmError> {
    bundle.read().map_err(|error| VmError::invalid(error.to_string()))?;
    Err(elsewhere(bundle.path()))
}

#[cfg(target_os = "macos")]
fn install(request: &Request) -> Result<(), VmError> {
    use std::io::{self, Read};

    use macrack_wire::classify::MACRACK_DOMAIN;

    let failed = |error: io::Error| VmError::new(MACRACK_DOMAIN, 1, error.to_string());
    // the bundle is its user's alone, until it is pushed
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let mut random = [0; 6];
    std::fs::File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut random)).map_err(failed)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let mut tell = |progress| eprintln!("{progress}");
    runtime.block_on(macrack_vz::install_macos(request, random, &mut tell))?;
    Ok(())
}

#[cfg(not(target_os = "macos"))]
fn install(request: &Request) -> Result<(), VmError> {
    request.check(&temporary_directories())?;
    Err(elsewhere(&request.into))
}

#[cfg(not(target_os = "macos"))]
fn elsewhere(bundle: &std::path::Path) -> VmError {
    let words = format!(
        "{}: macOS runs in Virtualization.framework, which {} has not; do this on a Mac",
        bundle.display(),
        std::env::consts::OS
    );
    VmError::invalid(words)
}
