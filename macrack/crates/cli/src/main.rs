//! `kubectl macrack`: what kubectl alone cannot do for MacRack.
//!
//! Invariant: the plugin decides nothing and knows nothing that is not in the API: it asks with the rights of whoever
//! runs it, and says in words what it was answered.
//!
//! | module | duty |
//! |---|---|
//! | [`cluster`] | the way in, as kubectl finds it |
//! | [`enroll`] | a bootstrap file for a Mac |
//! | [`image`] | goldens into a registry |
//! | [`why`] | what an object waits for, as a sentence (pure text: [`sentence`], [`times`]) |
//! | [`reboot`] | shows the pending reboot of a Mac, and approves it |
//! | [`maintenance`] | takes a Mac out of use for work on it, and back |
//! | [`target`] | `mnl/ios-ci` and its like |

mod cluster;
mod enroll;
mod image;
mod maintenance;
mod reboot;
mod sentence;
mod target;
mod times;
mod why;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Enrols Macs, and says why something waits.
///
/// MacRack leases dedicated Macs: macOS runs on Apple hardware only, two VMs a Mac; a lease is to one legal entity for
/// at least 24 consecutive hours. Whether your use is one that Apple's licence permits is yours to judge.
#[derive(Parser)]
#[command(name = "kubectl-macrack", bin_name = "kubectl macrack", version)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    access: cluster::Access,
}

#[derive(Subcommand)]
enum Verb {
    Enroll(enroll::Enroll),
    Image(image::Image),
    Why(why::Why),
    Reboot(reboot::Reboot),
    Maintenance(maintenance::Maintenance),
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.verb {
        Verb::Enroll(enroll) => enroll.run(&cli.access).await,
        Verb::Image(image) => image.run().await,
        Verb::Why(why) => why.run(&cli.access).await,
        Verb::Reboot(reboot) => reboot.run(&cli.access).await,
        Verb::Maintenance(maintenance) => maintenance.run(&cli.access).await,
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        super::Cli::command().debug_assert();
    }
}
