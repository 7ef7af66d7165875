//! A control plane and the ways to speak to it.
//!
//! Invariant: a [`ControlPlane`] answers as admin, decides by RBAC (never AlwaysAllow), and its controllers run. With
//! [`KUBECONFIG`] set it is the cluster of that file: nothing is started, nothing is ended, and what a test makes
//! cluster-wide is the test's to remove.

use std::path::{Path, PathBuf};

use anyhow::Result;
use tokio::sync::OnceCell;

use crate::access::Access;
use crate::process::Proc;

/// Names a kubeconfig file of a cluster to use instead of starting one.
pub const KUBECONFIG: &str = "DOCKERIOS_TEST_KUBECONFIG";

/// What to start.
#[derive(Clone, Debug)]
pub struct Options {
    /// Feature gates of all components.
    pub feature_gates: Vec<(String, bool)>,
    /// `--runtime-config` of kube-apiserver, for instance `resource.k8s.io/v1beta2=true`.
    pub runtime_config: Vec<String>,
    /// Further arguments of kube-apiserver, whole: `--audit-log-path=…`.
    pub api_server_args: Vec<String>,
    /// Start kube-controller-manager. Without it no namespace gets its ServiceAccount and nothing is collected.
    pub controller_manager: bool,
    /// Start kube-scheduler.
    pub scheduler: bool,
    /// Where certificates, data and logs go; emptied of an earlier plane's data. By default a folder of its own,
    /// which goes with the plane unless the test panics.
    pub dir: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            feature_gates: Vec::new(),
            runtime_config: Vec::new(),
            api_server_args: Vec::new(),
            controller_manager: true,
            scheduler: true,
            dir: None,
        }
    }
}

/// A control plane that answers. Dropped, it ends.
pub struct ControlPlane {
    pub(crate) access: Access,
    /// In the order in which they end: etcd last.
    pub(crate) parts: Vec<Proc>,
    pub(crate) dir: PathBuf,
    pub(crate) temporary: bool,
    /// Locked as long as the plane uses its folder.
    pub(crate) _lock: Option<std::fs::File>,
}

impl ControlPlane {
    /// Starts a control plane, or takes the cluster that [`KUBECONFIG`] names; returns when it answers and its
    /// controllers work.
    ///
    /// # Errors
    /// When binaries are missing or a component fails; with the end of its log.
    pub async fn start(options: Options) -> Result<ControlPlane> {
        match std::env::var_os(KUBECONFIG) {
            Some(path) => crate::start::existing(Path::new(&path)).await,
            None => crate::start::own(options).await,
        }
    }

    /// True when the cluster was there before the test, and stays.
    pub fn is_existing(&self) -> bool {
        self.parts.is_empty()
    }

    /// Certificates, logs and kubeconfig files.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The components that were started; none in an existing cluster.
    pub fn parts(&self) -> &[Proc] {
        &self.parts
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        while !self.parts.is_empty() {
            self.parts.remove(0);
        }
        if self.temporary && !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}

/// One control plane with the default options for all tests of a binary; ends with the process.
///
/// # Errors
/// As [`ControlPlane::start`]; the first failure is told to all.
pub async fn shared() -> Result<&'static ControlPlane> {
    static SHARED: OnceCell<Result<ControlPlane, String>> = OnceCell::const_new();
    let start = || async {
        ControlPlane::start(Options::default())
            .await
            .map_err(|e| format!("{e:#}"))
    };
    SHARED
        .get_or_init(start)
        .await
        .as_ref()
        .map_err(|e| anyhow::anyhow!("{e}"))
}
