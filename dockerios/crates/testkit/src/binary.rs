//! This workspace's own binaries, fresh.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::assets::manifest_dir;

/// The path of a binary of this workspace, for instance `dockerios-operator`: where cargo gave it to the test
/// (`CARGO_BIN_EXE_…`), otherwise built, once for each test process, with the features that CI tests with.
///
/// # Errors
/// When cargo cannot build it; with its words and the command.
pub fn bin(name: &str) -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(format!("CARGO_BIN_EXE_{name}")) {
        return Ok(path.into());
    }
    static BUILT: Mutex<Vec<(String, PathBuf)>> = Mutex::new(Vec::new());
    // held while cargo builds: a second caller finds it done
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, path)) = built.iter().find(|(done, _)| done == name) {
        return Ok(path.clone());
    }
    let path = build(name)?;
    built.push((name.to_owned(), path.clone()));
    Ok(path)
}

fn build(name: &str) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut arguments = vec!["build", "--workspace", "--all-features", "--bin", name];
    if !cfg!(debug_assertions) {
        arguments.push("--release");
    }
    let shown = format!("cargo {}", arguments.join(" "));
    let output = Command::new(cargo)
        .args(&arguments)
        .args(["--quiet", "--message-format", "json-render-diagnostics"])
        .current_dir(manifest_dir())
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("run `{shown}`"))?;
    if !output.status.success() {
        bail!("`{shown}` failed:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    let built = executable(&String::from_utf8_lossy(&output.stdout), name);
    built.with_context(|| format!("`{shown}` succeeded and did not say where {name} is"))
}

/// Where cargo's messages say that the binary lies.
fn executable(messages: &str, name: &str) -> Option<PathBuf> {
    let messages = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut artifacts = messages.filter(|message| message["target"]["name"] == name);
    artifacts.find_map(|message| message["executable"].as_str().map(PathBuf::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_is_that_of_the_binary_not_of_a_library_of_the_same_name() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","target":{"name":"x","kind":["lib"]},"executable":null}"#,
            "\nnot a message\n",
            r#"{"reason":"compiler-artifact","target":{"name":"y"},"executable":"/t/y"}"#,
            "\n",
            r#"{"reason":"compiler-artifact","target":{"name":"x"},"executable":"/t/x"}"#,
        );
        assert_eq!(executable(messages, "x"), Some(PathBuf::from("/t/x")));
        assert_eq!(executable(messages, "z"), None);
    }
}
