//! What the API server reaches on this Mac: `kubectl exec` and `kubectl logs` of placeholders.
//!
//! ```text
//!   kubectl ──▶ API server (who may what) ──TLS, client certificate──▶ here ──vm.sock──▶ VM ──▶ guest
//! ```
//!
//! Invariants: nothing is answered to a caller that does not show a certificate of the cluster's client CA with
//! the one name that the bootstrap file says; a session reaches the guest of the placeholder that it names and
//! nothing else on this Mac; sessions and followers are counted and bounded.

mod certificate;
mod exec;
mod logs;
mod routes;
mod server;

pub use certificate::{Names, Wish, keep as keep_certificate, renewal};
pub use server::{Callers, Certificate, KubeletError, Server};

use std::collections::BTreeMap;

use macrack_wire::VmDir;

/// A placeholder whose VM is on this Mac.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The VM's directory.
    pub dir: VmDir,
    /// Names of the pod's containers; all of them are the VM.
    pub containers: Vec<String>,
    /// Whether a process of the VM lives.
    pub alive: bool,
}

/// Placeholders by namespace and name.
pub type Targets = BTreeMap<(String, String), Target>;

/// Port of kubelets everywhere.
pub const PORT: u16 = 10_250;
