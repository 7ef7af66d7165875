//! Finds the control plane's binaries, or has them built.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// A folder of ready binaries, as other projects' tools use it too.
pub const ASSETS: &str = "KUBEBUILDER_ASSETS";

const NEEDED: [&str; 5] = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"];

const WAYS_OUT: &str = "either set KUBEBUILDER_ASSETS to a folder with etcd, kube-apiserver, \
    kube-controller-manager, kube-scheduler and kubectl, or run from a checkout whose \
    controlplane/build.sh can build them (needs Go)";

/// The folder of the binaries: `KUBEBUILDER_ASSETS` when set, else `controlplane/bin` of the
/// checkout that this crate or the current folder lies in, built when it is out of date.
///
/// # Errors
/// When neither leads to a complete folder; the message names both ways out.
pub fn find() -> Result<PathBuf> {
    if let Some(dir) = std::env::var_os(ASSETS).filter(|d| !d.is_empty()) {
        let dir = PathBuf::from(dir);
        return complete(&dir).map(|()| dir).with_context(|| format!("{ASSETS} is set; {WAYS_OUT}"));
    }
    let from = [Some(PathBuf::from(env!("CARGO_MANIFEST_DIR"))), std::env::current_dir().ok()];
    let Some(home) = from.into_iter().flatten().find_map(|start| checkout_above(&start)) else {
        bail!("no control plane to start: {ASSETS} is not set and there is no controlplane/build.sh above; {WAYS_OUT}");
    };
    build(&home)?;
    let bin = home.join("bin");
    complete(&bin).context(WAYS_OUT)?;
    Ok(bin)
}

fn checkout_above(start: &Path) -> Option<PathBuf> {
    start.ancestors().map(|dir| dir.join("controlplane")).find(|dir| dir.join("build.sh").is_file())
}

/// Runs build.sh, which does nothing when its binaries are up to date and says on stderr what it
/// builds and for how long when they are not.
fn build(home: &Path) -> Result<()> {
    let script = home.join("build.sh");
    let status = Command::new("bash")
        .arg(&script)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .with_context(|| format!("run {}; {WAYS_OUT}", script.display()))?;
    if !status.success() {
        bail!("{} failed ({status}), its output is above; {WAYS_OUT}", script.display());
    }
    Ok(())
}

fn complete(dir: &Path) -> Result<()> {
    let missing: Vec<_> = NEEDED.into_iter().filter(|name| !dir.join(name).is_file()).collect();
    if !missing.is_empty() {
        bail!("{} lacks {}", dir.display(), missing.join(", "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_lacks_binaries_is_refused_by_name() {
        let error = complete(Path::new("/proc/self/fd")).unwrap_err().to_string();
        assert!(error.contains("lacks etcd, kube-apiserver"), "{error}");
    }

    #[test]
    fn the_checkout_is_found_from_any_depth_or_not_at_all() {
        assert_eq!(checkout_above(Path::new("/proc")), None);
    }
}
