//! Rules of the code base that no compiler checks: layering, the clock ban in `core`, file sizes, and
//! (`limit.rs`) the names of what MacRack never does: raise the kernel's VM limit.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result, bail};

use crate::{generate::root, walk::files};

/// Crates that a crate may not depend on. Dependencies point one way: `api ← core ← {operator, model}`.
const FORBIDDEN: &[(&str, &[&str])] = &[
    ("api", &["macrack-core", "macrack-operator", "macrack-agent", "macrack-wire", "macrack-testkit"]),
    ("core", &["macrack-operator", "macrack-agent", "macrack-wire", "macrack-testkit", "tokio", "kube-client"]),
    ("oci", &["macrack-api", "macrack-core", "macrack-operator", "macrack-agent", "macrack-wire", "kube"]),
    ("wire", &["macrack-core", "macrack-operator", "macrack-agent", "kube"]),
    ("agent", &["macrack-operator", "macrack-core"]),
    ("thin", &["macrack-api", "macrack-core", "macrack-operator", "macrack-agent", "macrack-wire", "macrack-testkit"]),
    ("vm", &["macrack-operator", "macrack-core", "macrack-agent"]),
    ("vz", &["macrack-operator", "macrack-core", "macrack-agent", "macrack-api", "macrack-vm", "kube"]),
    ("guest", &["macrack-operator", "macrack-core", "macrack-agent", "kube"]),
    ("hostd", &["macrack-operator", "macrack-core", "macrack-agent", "macrack-api", "kube", "k8s-openapi"]),
];

/// What `core` may not say: time arrives as `now`, and there is no I/O.
const CORE_BAN: &[&str] =
    &["Timestamp::now", "SystemTime::now", "Instant::now", "kube::Client", "tokio::", "std::fs", "std::net", "rand::"];

/// Longest file, in lines.
const MAX_LINES: usize = 600;

/// Every rule; all findings are reported at once.
pub(crate) fn check() -> Result<()> {
    let mut findings = Vec::new();
    let rust = |file: &PathBuf| file.extension().is_some_and(|extension| extension == "rs");
    for file in files(&root().join("crates"), &|_| Ok(true))?.into_iter().filter(rust) {
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let name = file.strip_prefix(root()).unwrap_or(&file).display().to_string();
        judge(&name, &text, &mut findings);
    }
    for (krate, forbidden) in FORBIDDEN {
        let manifest = root().join("crates").join(krate).join("Cargo.toml");
        let Ok(text) = fs::read_to_string(&manifest) else {
            continue;
        };
        findings.extend(layering(krate, forbidden, &text));
    }
    findings.extend(crate::limit::check(&root())?);
    findings.extend(crate::marks::check(&root())?);
    if findings.is_empty() {
        return Ok(());
    }
    bail!("rules broken:\n  {}", findings.join("\n  "))
}

fn judge(name: &str, text: &str, findings: &mut Vec<String>) {
    let lines = text.lines().count();
    if lines > MAX_LINES {
        findings.push(format!("{name}: {lines} lines, at most {MAX_LINES}; split it by duty"));
    }
    if name.starts_with("crates/core/src") {
        let production = text.split("#[cfg(test)]").next().unwrap_or(text);
        for word in CORE_BAN.iter().filter(|w| production.contains(**w)) {
            findings.push(format!("{name}: says {word}; core is pure, time arrives as `now`"));
        }
    }
}

fn layering(krate: &str, forbidden: &[&str], manifest: &str) -> Vec<String> {
    let runtime = manifest.split("[dev-dependencies]").next().unwrap_or(manifest);
    forbidden
        .iter()
        .filter(|dep| {
            runtime.lines().any(|l| {
                l.trim_start().starts_with(&format!("{dep}.")) || l.trim_start().starts_with(&format!("{dep} "))
            })
        })
        .map(|dep| format!("crates/{krate} depends on {dep}; dependencies point one way"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_sees_a_planted_fault() {
        let mut findings = Vec::new();
        judge("crates/core/src/x.rs", "let now = jiff::Timestamp::now();", &mut findings);
        assert!(findings[0].contains("core is pure"), "{findings:?}");
        findings.clear();
        judge("crates/agent/src/x.rs", &("x\n".repeat(601)), &mut findings);
        assert!(findings[0].contains("at most 600"), "{findings:?}");
        let planted = layering("core", &["tokio"], "[dependencies]\ntokio.workspace = true\n");
        assert!(planted[0].contains("depends on tokio"), "{planted:?}");
        assert!(layering("core", &["tokio"], "[dev-dependencies]\ntokio.workspace = true\n").is_empty());
    }
}
