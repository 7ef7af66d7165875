//! `dockerios-bootdisk`: the builder as a program. Standard output holds the answer alone, and only of a success.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::anyhow;
use clap::{Parser, Subcommand};
use dockerios_bootdisk::build::{Order, build, demand_apart, demand_outside};
use dockerios_bootdisk::output::unfinished;
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
    ///
    /// The same release of this program gives the same digest for the same bootdisk; the compressor of another may not.
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

/// What is printed, and what is there already when nobody reads it.
struct Answer {
    text: String,
    written: Option<String>,
}

fn main() -> ExitCode {
    let answered = run(Arguments::parse().command).and_then(|answer| {
        let unheard = |error| match answer.written {
            Some(written) => anyhow!("standard output: {error}; {written}"),
            None => anyhow!("standard output: {error}"),
        };
        std::io::stdout().write_all(answer.text.as_bytes()).map_err(unheard)
    });
    match answered {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&error);
            ExitCode::FAILURE
        }
    }
}

fn say(what: &dyn std::fmt::Display) {
    // nobody may hear it: `2>&1 | head`
    let _ = writeln!(std::io::stderr(), "dockerios-bootdisk: {what}");
}

fn say_unfinished(output: &Path) {
    for path in unfinished(output) {
        say(&format_args!(
            "{path:?} is unfinished, of a run that was stopped or that goes on; remove it when none does"
        ));
    }
}

fn run(command: Command) -> anyhow::Result<Answer> {
    match command {
        Command::Build {
            template,
            template_sha256,
            identity,
            output,
            report,
        } => {
            if let Some(report) = &report {
                demand_outside(&template, "report", report)?;
                demand_apart("report", report, "output", &output)?;
                demand_apart("report", report, "identity", &identity)?;
            }
            say_unfinished(&output);
            let order = Order {
                template,
                template_sha256,
                identity,
                output,
            };
            let sha256 = build(&order)?;
            let text = format!("{sha256}\n");
            let written = format!("the image {:?} is written, its sha256 is {sha256}", order.output);
            if let Some(report) = report {
                std::fs::write(&report, &text).map_err(|error| {
                    anyhow!("report {report:?}: {error}; name a file that can be written; {written}")
                })?;
            }
            Ok(Answer {
                text,
                written: Some(written),
            })
        }
        Command::Pack { image, share, output } => {
            say_unfinished(&output);
            let order = pack::Order { image, share, output };
            let digest = pack(&order)?;
            Ok(Answer {
                text: format!("{digest}\n"),
                written: Some(format!(
                    "the layout {:?} is written, its digest is {digest}, which its index.json says too",
                    order.output
                )),
            })
        }
        Command::Manifest { template } => Ok(Answer {
            text: template::manifest(&template)?,
            written: None,
        }),
    }
}
