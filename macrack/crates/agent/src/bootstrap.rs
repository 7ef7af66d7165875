//! The bootstrap file: how a Mac finds its cluster, and the right to ask for its first token.

use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use kube::config::{Cluster, Context, KubeConfigOptions, Kubeconfig, NamedCluster, NamedContext};
use macrack_api::names;
use serde::Deserialize;

use crate::kubelet::Callers;

/// The longest bootstrap file that is read, in bytes.
const MAX_FILE: u64 = 256 * 1024;

/// What `kubectl macrack enroll <serial>` prints.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Bootstrap {
    /// URL of the API server.
    pub server: String,
    /// Its CA: PEM in base64.
    pub ca_data: String,
    /// The chassis' serial.
    pub serial: String,
    /// A token of ServiceAccount `macrack-enroll-<serial>`.
    pub token: String,
    /// The common name in the certificate that the API server shows to kubelets.
    #[serde(default = "kubelet_client_name")]
    pub kubelet_client_name: String,
    /// The CA of that certificate, PEM in base64, where it is not the one in `caData`.
    #[serde(default)]
    pub kubelet_client_ca_data: Option<String>,
}

/// What kubeadm, and most who follow it, have the API server show to kubelets.
fn kubelet_client_name() -> String {
    "kube-apiserver-kubelet-client".to_owned()
}

/// Why a bootstrap file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("bootstrap file {}: {why}; print a new one with `kubectl macrack enroll <serial>`", path.display())]
pub struct BootstrapError {
    path: PathBuf,
    why: String,
}

impl Bootstrap {
    /// Reads the file.
    ///
    /// # Errors
    /// When it cannot be read or is not whole.
    pub fn read(path: &Path) -> Result<Self, BootstrapError> {
        let wrong = |why: String| BootstrapError { path: path.to_owned(), why };
        let size = fs::metadata(path).map_err(|e| wrong(e.to_string()))?.len();
        if size > MAX_FILE {
            return Err(wrong(format!("{size} bytes long, at most {MAX_FILE} are read")));
        }
        let bytes = fs::read(path).map_err(|e| wrong(e.to_string()))?;
        let read: Bootstrap = serde_json::from_slice(&bytes).map_err(|e| wrong(e.to_string()))?;
        if read.serial.is_empty() || !read.serial.bytes().all(|b| b.is_ascii_alphanumeric()) {
            return Err(wrong(format!("serial {:?} is no serial", read.serial)));
        }
        Ok(read)
    }

    /// Who may call this Mac's kubelet port.
    ///
    /// # Errors
    /// When the client CA is not base64.
    pub fn callers(&self) -> Result<Callers, base64::DecodeError> {
        let ca = self.kubelet_client_ca_data.as_ref().unwrap_or(&self.ca_data);
        Ok(Callers { ca_pem: BASE64_STANDARD.decode(ca)?, name: self.kubelet_client_name.clone() })
    }

    /// Name of the chassis' MacNode.
    pub fn mac_node(&self) -> String {
        names::mac_node(&self.serial)
    }

    /// Name of its Node.
    pub fn node(&self) -> String {
        names::node(&self.mac_node())
    }

    /// How the API server is reached, without any credential.
    ///
    /// # Errors
    /// When `server` or `caData` is not of its form.
    pub async fn config(&self) -> Result<kube::Config, kube::config::KubeconfigError> {
        let name = "macrack".to_owned();
        let cluster = Cluster {
            server: Some(self.server.clone()),
            certificate_authority_data: Some(self.ca_data.clone()),
            ..Cluster::default()
        };
        let context = Context { cluster: name.clone(), ..Context::default() };
        let kubeconfig = Kubeconfig {
            clusters: vec![NamedCluster { name: name.clone(), cluster: Some(cluster), ..NamedCluster::default() }],
            contexts: vec![NamedContext { name: name.clone(), context: Some(context), ..NamedContext::default() }],
            current_context: Some(name),
            ..Kubeconfig::default()
        };
        let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        // every caller here has a policy of its own for trying again
        config.default_retry = false;
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_whole_is_refused_with_the_way_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bootstrap.json");
        let read = |text: &str| {
            fs::write(&path, text).unwrap();
            Bootstrap::read(&path)
        };
        let whole = r#"{"server":"https://127.0.0.1:6443","caData":"","serial":"ZZSERIAL01","token":"t"}"#;
        assert_eq!(read(whole).unwrap().node(), "macrack-zzserial01");
        for (text, why) in [
            ("", "EOF"),
            (r#"{"server":"x","caData":"","serial":"S"}"#, "missing field `token`"),
            (&whole.replace("ZZSERIAL01", "../x"), "no serial"),
        ] {
            let refused = read(text).unwrap_err().to_string();
            assert!(refused.contains(why) && refused.contains("macrack enroll"), "{refused}");
        }
        assert!(Bootstrap::read(&dir.path().join("absent")).is_err());
    }
}
