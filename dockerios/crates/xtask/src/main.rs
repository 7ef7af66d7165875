//! `cargo run -p xtask -- generate` writes what is generated: `deploy/crds/*.yaml` and `docs/conditions.md`.
//! `cargo run -p xtask -- check` fails when those differ from what the code says, or when a rule of the code base is
//! broken, and says every finding at once.

mod conditions;
mod generated;
mod layers;
mod pages;
mod sources;

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;

/// The workspace.
fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn main() -> ExitCode {
    let asked = std::env::args().nth(1);
    let done = match asked.as_deref() {
        Some("generate") => generated::write(),
        Some("check") => check(),
        _ => {
            eprintln!("usage: cargo run -p xtask -- generate | check");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn check() -> Result<()> {
    let mut findings = generated::drift()?;
    findings.extend(layers::findings()?);
    findings.extend(pages::findings()?);
    findings.extend(sources::findings()?);
    anyhow::ensure!(
        findings.is_empty(),
        "{} findings\n  {}",
        findings.len(),
        findings.join("\n  ")
    );
    println!("generated files, layers, pages and sources are as they should be");
    Ok(())
}
