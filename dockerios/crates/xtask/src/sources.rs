//! Rules of the sources: files that fit into a head, and a core without clock, client, files or chance.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use crate::root;

/// Lines of the longest file.
const LONGEST: usize = 600;

/// What `core` may not say.
const NOT_IN_CORE: &[&str] = &[
    "Timestamp::now",
    "SystemTime",
    "Instant::now",
    "Zoned::now",
    "kube::Client",
    "kube::Api",
    "kube::client",
    "kube::runtime",
    "tokio::",
    "std::fs",
    "std::net",
    "std::env",
    "std::process",
    "std::thread",
    "rand::",
];

pub(crate) fn findings() -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for file in rust_files(&root().join("crates"))? {
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let name = file.strip_prefix(root()).unwrap_or(&file).display().to_string();
        findings.extend(judge(&name, &text));
    }
    Ok(findings)
}

fn judge(name: &str, text: &str) -> Vec<String> {
    let mut findings = Vec::new();
    let lines = text.lines().count();
    if lines > LONGEST {
        findings.push(format!("{name}: {lines} lines, at most {LONGEST}; split it by duty"));
    }
    // tests stand last in a file, or in a file of their own
    let shipped = text.split("#[cfg(test)]").next().unwrap_or(text);
    if name.starts_with("crates/core/src/") && !name.ends_with("tests.rs") && !name.contains("/tests/") {
        for (at, line) in shipped.lines().enumerate() {
            // in kube::{Client, …}, too
            let code = line.split("//").next().unwrap_or(line);
            let grouped = code.contains("use kube::{") && (code.contains("Client") || code.contains(" Api"));
            for word in NOT_IN_CORE
                .iter()
                .filter(|word| code.contains(**word))
                .copied()
                .chain(grouped.then_some("kube's client"))
            {
                findings.push(format!(
                    "{name}:{}: says {word}; core is pure, time arrives as `now`",
                    at + 1
                ));
            }
        }
    }
    findings
}

/// Every Rust source below a folder, in order.
pub(crate) fn rust_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(rust_files(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_past_the_limit_is_found() {
        assert!(judge("crates/api/src/a.rs", &"x\n".repeat(600)).is_empty());
        let found = judge("crates/api/src/a.rs", &"x\n".repeat(601));
        assert!(found[0].contains("601 lines, at most 600"), "{found:?}");
    }

    #[test]
    fn a_clock_a_client_or_chance_in_core_is_found_by_its_line() {
        for bad in [
            "let now = jiff::Timestamp::now();",
            "fn f(client: kube::Client) {}",
            "use kube::{Api, Client};",
            "let x = rand::random();",
            "let x = std::env::var(\"X\");",
        ] {
            let found = judge("crates/core/src/decide/a.rs", &format!("//! doc\n{bad}\n"));
            assert!(
                found.len() == 1 && found[0].contains("a.rs:2: says"),
                "{bad}: {found:?}"
            );
        }
        for good in [
            "// Timestamp::now",
            "#[cfg(test)]\nmod tests { use std::fs; }",
            "use kube::{Resource, ResourceExt};",
        ] {
            assert!(judge("crates/core/src/decide/a.rs", good).is_empty(), "{good}");
        }
        assert!(judge("crates/operator/src/a.rs", "Timestamp::now()").is_empty());
    }
}
