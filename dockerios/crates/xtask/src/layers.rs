//! Which crate may see which. Dependencies point one way: `api ← core ← {webhook, operator, cli}`; what runs in a guest,
//! in a launcher pod or in a builder's Job sees its own words only; what tests use is in nothing that is shipped.

use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use crate::root;

/// A crate's folder, and the crates of this workspace that it may depend on (tests may use any).
const MAY_SEE: &[(&str, &[&str])] = &[
    ("api", &[]),
    ("identity", &[]),
    ("kubevirt", &[]),
    ("wire", &[]),
    ("hook", &[]),
    ("pki", &[]),
    ("bootdisk", &["identity"]),
    ("guest", &["wire"]),
    ("collector", &["api", "wire"]),
    ("core", &["api", "identity", "kubevirt"]),
    ("webhook", &["api", "core", "identity", "pki"]),
    (
        "operator",
        &[
            "api",
            "collector",
            "core",
            "identity",
            "kubevirt",
            "pki",
            "webhook",
            "wire",
        ],
    ),
    ("cli", &["api", "core", "kubevirt"]),
    ("xtask", &["api"]),
];

/// Development only: these may see anything, and nothing that is shipped may see them.
const DEVELOPMENT: &[&str] = &["testkit", "sim", "substrate", "acceptance", "demo"];

/// What `core` may not be built with: it thinks, and does nothing.
const NOT_IN_CORE: &[&str] = &[
    "tokio",
    "kube-client",
    "kube-runtime",
    "rand",
    "hyper",
    "axum",
    "tracing",
    "chrono",
];

#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Debug, Deserialize)]
struct Package {
    manifest_path: String,
    dependencies: Vec<Dependency>,
}

impl Package {
    fn folder(&self) -> &str {
        folder(self.manifest_path.trim_end_matches("/Cargo.toml"))
    }
}

#[derive(Debug, Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
    path: Option<String>,
}

pub(crate) fn findings() -> Result<Vec<String>> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(root());
    let output = command.output().context("run cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    }
    let metadata: Metadata = serde_json::from_slice(&output.stdout).context("read cargo's metadata")?;
    let mut findings = judge(&metadata);
    findings.extend(placed_and_gone(&metadata));
    Ok(findings)
}

/// A place that outlives its crate would be given unseen to another of that name.
fn placed_and_gone(metadata: &Metadata) -> Vec<String> {
    let there: Vec<_> = metadata.packages.iter().map(Package::folder).collect();
    let placed = MAY_SEE
        .iter()
        .map(|(krate, _)| *krate)
        .chain(DEVELOPMENT.iter().copied());
    placed
        .filter(|krate| !there.contains(krate))
        .map(|krate| format!("crates/{krate} is not there: take it out of crates/xtask/src/layers.rs"))
        .collect()
}

fn judge(metadata: &Metadata) -> Vec<String> {
    let mut findings = Vec::new();
    for package in &metadata.packages {
        let own = package.folder();
        // what tests use is not shipped
        let shipped = || {
            package
                .dependencies
                .iter()
                .filter(|dependency| dependency.kind.as_deref() != Some("dev"))
        };
        if own == "core" {
            for dependency in shipped().filter(|dependency| NOT_IN_CORE.contains(&dependency.name.as_str())) {
                findings.push(format!(
                    "crates/core depends on {}; it is pure, time arrives as `now`",
                    dependency.name
                ));
            }
        }
        if DEVELOPMENT.contains(&own) {
            continue;
        }
        let Some((_, allowed)) = MAY_SEE.iter().find(|(krate, _)| *krate == own) else {
            findings.push(format!(
                "crates/{own} is new: say in crates/xtask/src/layers.rs what it may see"
            ));
            continue;
        };
        for seen in shipped()
            .filter_map(|dependency| dependency.path.as_deref())
            .map(folder)
        {
            if !allowed.contains(&seen) {
                findings.push(format!(
                    "crates/{own} depends on crates/{seen}; dependencies point one way"
                ));
            }
        }
    }
    findings
}

fn folder(path: &str) -> &str {
    path.rsplit(['/', '\\']).next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(own: &str, dependencies: &[(&str, Option<&str>, Option<&str>)]) -> Package {
        let one = |(name, kind, path): &(&str, Option<&str>, Option<&str>)| Dependency {
            name: (*name).to_owned(),
            kind: kind.map(str::to_owned),
            path: path.map(str::to_owned),
        };
        Package {
            manifest_path: format!("/w/crates/{own}/Cargo.toml"),
            dependencies: dependencies.iter().map(one).collect(),
        }
    }

    fn found(own: &str, dependencies: &[(&str, Option<&str>, Option<&str>)]) -> Vec<String> {
        judge(&Metadata {
            packages: vec![package(own, dependencies)],
        })
    }

    #[test]
    fn a_dependency_that_points_the_other_way_is_found_and_one_of_tests_is_not() {
        let wrong = found("api", &[("dockerios-core", None, Some("/w/crates/core"))]);
        assert_eq!(wrong, ["crates/api depends on crates/core; dependencies point one way"]);
        let guest = found("guest", &[("dockerios-api", None, Some("/w/crates/api"))]);
        assert!(guest[0].contains("crates/guest depends on crates/api"), "{guest:?}");
        assert!(found("guest", &[("dockerios-api", Some("dev"), Some("/w/crates/api"))]).is_empty());
        assert!(found("core", &[("dockerios-api", None, Some("/w/crates/api"))]).is_empty());
        let shipped = found("operator", &[("dockerios-testkit", None, Some("/w/crates/testkit"))]);
        assert_eq!(shipped.len(), 1, "{shipped:?}");
    }

    #[test]
    fn a_runtime_or_randomness_in_core_is_found() {
        for name in ["tokio", "rand", "kube-client"] {
            let wrong = found("core", &[(name, None, None)]);
            assert!(wrong[0].contains(name) && wrong[0].contains("pure"), "{wrong:?}");
        }
        assert!(found("core", &[("tokio", Some("dev"), None)]).is_empty());
    }

    #[test]
    fn a_place_whose_crate_is_gone_is_found() {
        let kept = MAY_SEE
            .iter()
            .map(|(krate, _)| *krate)
            .chain(DEVELOPMENT.iter().copied());
        let mut packages: Vec<_> = kept.map(|krate| package(krate, &[])).collect();
        let gone = packages.pop().expect("a crate");
        let all = |packages| placed_and_gone(&Metadata { packages });
        let said = all(packages);
        assert!(
            said.len() == 1 && said[0].starts_with(&format!("crates/{} is not there", gone.folder())),
            "{said:?}"
        );
    }

    #[test]
    fn a_crate_that_nobody_placed_is_found() {
        assert!(found("utils", &[])[0].contains("crates/utils is new"));
        assert!(found("sim", &[("dockerios-guest", None, Some("/w/crates/guest"))]).is_empty());
    }
}
