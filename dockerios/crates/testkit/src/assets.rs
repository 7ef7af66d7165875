//! Finds the binaries of a control plane. They are never built here: building takes minutes and belongs to
//! `controlplane/build.sh`; an absent one is refused with that way out.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Names the folder of the binaries; the same variable that other Kubernetes test tools read.
pub const ASSETS: &str = "KUBEBUILDER_ASSETS";

/// Where each binary lies.
#[derive(Clone, Debug)]
pub struct Assets {
    dir: PathBuf,
    etcd: PathBuf,
}

impl Assets {
    /// The folder that [`ASSETS`] names, or `controlplane/bin` in the present package's folder or one above it.
    ///
    /// # Errors
    /// When there is none or it lacks a binary; the message names the way out.
    pub fn find() -> Result<Assets> {
        match std::env::var_os(ASSETS) {
            Some(dir) => Assets::in_dir(Path::new(&dir)).with_context(|| format!("{ASSETS} is set")),
            None => Assets::near(&manifest_dir()),
        }
    }

    fn near(package: &Path) -> Result<Assets> {
        let Some(script) = package
            .ancestors()
            .map(|dir| dir.join("controlplane/build.sh"))
            .find(|script| script.is_file())
        else {
            bail!(
                "no binaries of a control plane: {ASSETS} is not set and no folder above {} has controlplane/build.sh; \
                 set {ASSETS} to a folder with etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kubectl",
                package.display()
            )
        };
        Assets::in_dir(&script.with_file_name("bin"))
            .with_context(|| format!("run {} once, or set {ASSETS}", script.display()))
    }

    fn in_dir(dir: &Path) -> Result<Assets> {
        // a plain `go build` of etcd names it `server`
        let etcd = ["etcd", "server"]
            .map(|name| dir.join(name))
            .into_iter()
            .find(|path| path.is_file());
        let rest = ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"];
        let missing: Vec<&str> = etcd
            .is_none()
            .then_some("etcd")
            .into_iter()
            .chain(rest.into_iter().filter(|n| !dir.join(n).is_file()))
            .collect();
        match etcd {
            Some(etcd) if missing.is_empty() => Ok(Assets {
                dir: dir.to_owned(),
                etcd,
            }),
            _ => bail!("{} lacks {}", dir.display(), missing.join(", ")),
        }
    }

    /// `etcd`, or `server`, as a plain `go build` names it.
    pub fn etcd(&self) -> &Path {
        &self.etcd
    }

    /// Another binary, by its Kubernetes name.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

/// The package whose test runs; this crate's own where cargo did not start the process.
pub(crate) fn manifest_dir() -> PathBuf {
    std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_binary_is_named_together_with_the_script_that_builds_it() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let plane = dir.path().join("controlplane");
        std::fs::create_dir_all(plane.join("bin")).expect("a folder");
        std::fs::write(plane.join("build.sh"), "").expect("a script");
        std::fs::write(plane.join("bin/server"), "").expect("an etcd");
        let package = dir.path().join("crates/some");
        let refusal = format!("{:#}", Assets::near(&package).expect_err("kube-apiserver is missing"));
        assert!(
            refusal.contains("lacks kube-apiserver, kube-controller-manager, kube-scheduler, kubectl"),
            "{refusal}"
        );
        assert!(refusal.contains("controlplane/build.sh once"), "{refusal}");
        for name in ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"] {
            std::fs::write(plane.join("bin").join(name), "").expect("a binary");
        }
        let found = Assets::near(&package).expect("all are there");
        assert!(found.etcd().ends_with("bin/server"), "{found:?}");
    }

    #[test]
    fn a_tree_without_the_script_says_which_variable_to_set() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let refusal = format!("{:#}", Assets::near(dir.path()).expect_err("nothing is there"));
        assert!(
            refusal.contains("set KUBEBUILDER_ASSETS to a folder with etcd"),
            "{refusal}"
        );
    }
}
