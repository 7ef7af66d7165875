//! `kubectl dockerios`: what kubectl alone cannot do for DockerIOS.
//!
//! Invariant: the plugin decides nothing and knows nothing that is not in the API. It asks with the rights of whoever
//! runs it and says in words what it was answered; what it could not see, it says too.
//!
//! | Module | Duty |
//! |---|---|
//! | [`access`] | the way into the cluster, as kubectl finds it |
//! | [`target`] | `macs/b-6` and its like |
//! | [`why`], [`words`] | what an object waits for, as sentences |
//! | [`status`] | the platform on one screen |
//! | [`claim`] | asks for a machine and waits for it |
//! | [`identities`] | lists, releases and imports identities |
//! | [`screenshot`], [`snapshot`] | a machine's screen; its state at a point in time |
//! | [`doctor`] | what this cluster lacks for macOS machines |
//! | [`bench`] | NVMe against SATA on your own storage |

mod access;
mod bench;
mod claim;
mod doctor;
mod identities;
mod screenshot;
mod snapshot;
mod status;
mod table;
mod target;
mod times;
mod why;
mod words;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Claims macOS machines on KubeVirt, and says why something waits.
///
/// Apple's licence does not cover macOS on hardware that is not Apple's: DockerIOS is for learning, and for Intel Macs
/// while they last. macOS 26 is the last release for Intel.
#[derive(Parser)]
#[command(name = "kubectl-dockerios", bin_name = "kubectl dockerios", version)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    access: access::Access,
}

#[derive(Subcommand)]
enum Verb {
    Status(status::Status),
    Why(why::Why),
    Claim(claim::Claim),
    Identities(identities::Identities),
    Screenshot(screenshot::Screenshot),
    Snapshot(snapshot::Snapshot),
    Doctor(doctor::Doctor),
    Bench(bench::Bench),
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    let access = &cli.access;
    let done = match cli.verb {
        Verb::Status(verb) => verb.run(access).await,
        Verb::Why(verb) => verb.run(access).await,
        Verb::Claim(verb) => verb.run(access).await,
        Verb::Identities(verb) => verb.run(access).await,
        Verb::Screenshot(verb) => verb.run(access).await,
        Verb::Snapshot(verb) => verb.run(access).await,
        Verb::Doctor(verb) => verb.run(access).await,
        Verb::Bench(verb) => verb.run(access).await,
    };
    match done {
        Ok(code) => code,
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
