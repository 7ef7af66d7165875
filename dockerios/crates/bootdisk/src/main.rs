//! `dockerios-bootdisk`: the builder as a program. Standard output holds the answer alone, and only of a success.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::anyhow;
use clap::{Parser, Subcommand};
use dockerios_bootdisk::build::{Order, build};
use dockerios_bootdisk::pack::{self, pack};
use dockerios_bootdisk::template;

/// Writes the OpenCore bootdisk of one identity from a checksummed template, reproducibly, and packs one that is shared.
///
/// Apple's licence does not cover macOS on hardware that is not Apple's.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Write the image and print its sha256
    Build {
        /// Folder with the OpenCore template and its MANIFEST.sha256
        #[arg(long, value_name = "DIR")]
        template: PathBuf,
        /// The sha256 of MANIFEST.sha256
        #[arg(long, value_name = "HEX")]
        template_sha256: String,
        /// JSON file: model, serial, mlb, rom, systemUUID, macAddress
        #[arg(long, value_name = "FILE")]
        identity: PathBuf,
        /// The image: a file, which is replaced as a whole, or a block device
        #[arg(long, value_name = "FILE")]
        output: PathBuf,
        /// A file that gets the sha256 too, such as the /dev/termination-log of a container
        #[arg(long, value_name = "FILE")]
        report: Option<PathBuf>,
    },
    /// Pack a bootdisk that many machines share as a containerDisk (an OCI image), and print its digest
    Pack {
        /// The bootdisk, a file that `build` wrote
        #[arg(long, value_name = "FILE")]
        image: PathBuf,
        /// The serial in it: says that all machines, and whoever pulls the image, are to have that identity
        #[arg(long, value_name = "SERIAL")]
        share: Option<String>,
        /// The layout: a new folder, or a new file when the name ends in .tar
        #[arg(long, value_name = "PATH")]
        output: PathBuf,
    },
    /// Print the manifest of a template, to be saved as its MANIFEST.sha256
    Manifest {
        /// Folder with the OpenCore template
        #[arg(long, value_name = "DIR")]
        template: PathBuf,
    },
}

fn main() -> ExitCode {
    let answered = run(Arguments::parse().command).and_then(|answer| {
        std::io::stdout()
            .write_all(answer.as_bytes())
            .map_err(|error| anyhow!("standard output: {error}"))
    });
    match answered {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // nobody may hear it: `2>&1 | head`
            let _ = writeln!(std::io::stderr(), "dockerios-bootdisk: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<String> {
    match command {
        Command::Build {
            template,
            template_sha256,
            identity,
            output,
            report,
        } => {
            let order = Order {
                template,
                template_sha256,
                identity,
                output,
            };
            let answer = format!("{}\n", build(&order)?);
            if let Some(report) = report {
                std::fs::write(&report, &answer)
                    .map_err(|error| anyhow!("report {report:?}: {error}; name a file that can be written"))?;
            }
            Ok(answer)
        }
        Command::Pack { image, share, output } => Ok(format!("{}\n", pack(&pack::Order { image, share, output })?)),
        Command::Manifest { template } => Ok(template::manifest(&template)?),
    }
}
