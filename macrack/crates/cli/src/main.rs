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
    use std::path::{Path, PathBuf};

    use clap::{CommandFactory, Parser};

    use super::Cli;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    /// What follows `kubectl macrack` wherever a text shows it, up to the end of the command.
    fn shown(text: &str) -> Vec<Vec<String>> {
        let text = text.replace("\\\n", " ").replace("sha256:…", &format!("sha256:{}", "0".repeat(64)));
        let after = text.lines().filter_map(|line| line.split_once("kubectl macrack ")).map(|(_, after)| after);
        let command = |after: &str| {
            let ends = ["`", " #", " > ", " |", "; "].into_iter().filter_map(|end| after.find(end));
            let command = &after[..ends.min().unwrap_or(after.len())];
            command.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        after.map(command).filter(|words| !words.is_empty()).collect()
    }

    /// Whether somebody can type it as it stands, or it names a verb and nothing else.
    fn exists(words: &[String]) -> Result<(), String> {
        let mut verb = &Cli::command();
        let named = words.iter().all(|word| match verb.find_subcommand(word) {
            Some(next) => {
                verb = next;
                true
            }
            None => false,
        });
        if named {
            return Ok(());
        }
        let parsed = Cli::try_parse_from(std::iter::once("kubectl-macrack").chain(words.iter().map(String::as_str)));
        parsed.map(drop).map_err(|error| error.to_string())
    }

    #[test]
    fn every_command_that_a_page_shows_can_be_typed() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let in_folder = |folder: &str| -> Vec<PathBuf> {
            let entries = std::fs::read_dir(root.join(folder)).unwrap();
            entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()).collect()
        };
        let pages = [in_folder("docs"), in_folder("deploy/samples"), vec![root.join("README.md")]].concat();
        let mut seen = 0;
        for page in pages {
            for words in shown(&std::fs::read_to_string(&page).unwrap()) {
                seen += 1;
                let page = page.display();
                exists(&words).unwrap_or_else(|why| panic!("{page}: kubectl macrack {}: {why}", words.join(" ")));
            }
        }
        assert!(seen > 15, "only {seen} commands were found");
        for wrong in ["maintenance --off", "image shove", "enroll H4XK29Q0LW --duration 30d"] {
            let words: Vec<String> = wrong.split(' ').map(str::to_owned).collect();
            assert!(exists(&words).is_err(), "{wrong}");
        }
    }
}
