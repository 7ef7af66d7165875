//! `kubectl dockerios`: what kubectl alone cannot do for DockerIOS.
//!
//! Invariant: the plugin decides nothing and knows nothing that is not in the API. It asks with the rights of whoever
//! runs it and says in words what it was answered; what it could not see, it says too.
//!
//! | Module | Duty |
//! |---|---|
//! | [`access`] | the way into the cluster, as kubectl finds it |
//! | [`answer`], [`out`] | what was answered, in words; how words are printed |
//! | [`follow`], [`interrupt`] | waiting by a watch that outlives its cuts; being ended by somebody |
//! | [`target`] | `macs/b-6` and its like |
//! | [`why`], [`words`] | what an object waits for, as sentences |
//! | [`room`] | what could be let go where storage is short |
//! | [`status`] | the platform on one screen |
//! | [`claim`] | asks for a machine and waits for it |
//! | [`identities`] | lists, releases and imports identities |
//! | [`screenshot`], [`snapshot`] | a machine's screen; its state at a point in time |
//! | [`doctor`] | what this cluster lacks for macOS machines |
//! | [`complete`] | what a shell offers |
//! | [`bench`] | NVMe against SATA on your own storage |

mod access;
mod answer;
mod bench;
mod claim;
mod complete;
mod doctor;
mod follow;
mod identities;
mod interrupt;
mod out;
mod room;
mod screenshot;
mod snapshot;
mod status;
mod table;
mod target;
mod times;
mod why;
mod words;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

/// Claims macOS machines on KubeVirt, and says why something waits.
///
/// Apple's licence does not cover macOS on hardware that is not Apple's: DockerIOS is for learning, and for Intel Macs
/// while they last. macOS 26 is the last release for Intel.
#[derive(Parser)]
#[command(name = "kubectl-dockerios", bin_name = "kubectl dockerios", version, after_help = EXIT_CODES)]
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
    #[command(name = "__complete", hide = true)]
    Complete(complete::Complete),
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
        Verb::Complete(verb) => verb.run(&mut Cli::command()).await,
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            // one line, whatever a server put into a name
            out::note(&answer::plain(&format!("error: {error:#}")));
            exit_code(&error)
        }
    }
}

/// Told by `--help` and docs/plugin.md.
const EXIT_CODES: &str = "Ends with 0 when it is done; 1 when the cluster refused, the object is not there, or doctor \
found something missing; 2 when it could not begin or could not see: wrong words, no kubeconfig, nobody answers, nothing \
may be read; 130 when it was interrupted.";

fn exit_code(error: &anyhow::Error) -> ExitCode {
    if error.is::<interrupt::Interrupted>() {
        ExitCode::from(130)
    } else if error.is::<answer::CannotBegin>() {
        ExitCode::from(2)
    } else {
        ExitCode::FAILURE
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    #[test]
    fn what_went_wrong_decides_the_exit_code_whatever_is_said_around_it() {
        let code = |error: anyhow::Error| format!("{:?}", exit_code(&error.context("the sata run")));
        let is = |number: u8| format!("{:?}", ExitCode::from(number));
        assert_eq!(code(anyhow::anyhow!("refused")), is(1));
        assert_eq!(code(answer::CannotBegin("nobody answers".to_owned()).into()), is(2));
        assert_eq!(code(interrupt::Interrupted.into()), is(130));
        let deeper = Err::<(), _>(interrupt::Interrupted).context("one").unwrap_err();
        assert_eq!(code(deeper), is(130));
    }

    #[test]
    fn wrong_words_are_refused_with_all_that_would_be_right() {
        let refused = |words: &str| {
            let words = std::iter::once("kubectl-dockerios").chain(words.split_whitespace());
            Cli::try_parse_from(words).err().map(|error| error.to_string())
        };
        assert_eq!(refused("claim --pool ci"), None);
        assert_eq!(refused("claim --class ci"), None);
        let bare = refused("claim").unwrap();
        assert!(bare.contains("<--pool <NAME>|--class <NAME>>"), "{bare}");
        let both = refused("claim --pool ci --class ci").unwrap();
        assert!(both.contains("cannot be used with"), "{both}");

        assert_eq!(refused("why macs/b-6"), None);
        assert_eq!(refused("why macs b-6"), None);
        for words in ["why", "why macs b-6 b-7"] {
            let usage = refused(words).unwrap();
            assert!(
                usage.contains("why [OPTIONS] KIND/NAME\n") && usage.contains("why [OPTIONS] KIND NAME\n"),
                "{usage}"
            );
        }
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}
