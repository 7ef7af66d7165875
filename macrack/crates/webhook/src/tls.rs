//! The certificate that is shown: swapped in place when it is renewed, so that nothing restarts.
//!
//! Invariant: a certificate that cannot be read or made never replaces one that serves.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::SystemTime,
};

use arc_swap::ArcSwap;
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};

use crate::Error;

/// What a TLS server shows; the next handshake after [`Shown::swap`] sees the new one.
#[derive(Debug)]
pub struct Shown(ArcSwap<CertifiedKey>);

impl Shown {
    /// Shows this one.
    pub fn new(certificate: CertifiedKey) -> Arc<Self> {
        Arc::new(Self(ArcSwap::from_pointee(certificate)))
    }

    /// Shows this one from now on.
    pub fn swap(&self, certificate: CertifiedKey) {
        self.0.store(Arc::new(certificate));
    }

    /// The chain that is shown now.
    pub fn chain(&self) -> Vec<CertificateDer<'static>> {
        self.0.load().cert.clone()
    }
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}

/// A server's side of TLS 1.2 and 1.3 with the certificate that is shown at the time.
///
/// # Errors
/// When the cryptography lacks what those versions need; a defect of the build.
pub fn server_config(shown: Arc<Shown>) -> Result<ServerConfig, Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| unusable("TLS", e))?
        .with_no_client_auth()
        .with_cert_resolver(shown);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// A chain and its key from PEM, checked to belong together.
///
/// # Errors
/// When either is unreadable or they do not match; `what` names where they come from.
pub fn certified(what: &str, chain: &[u8], key: &[u8]) -> Result<CertifiedKey, Error> {
    let chain: Vec<_> =
        CertificateDer::pem_slice_iter(chain).collect::<Result<_, _>>().map_err(|e| unusable(what, e))?;
    if chain.is_empty() {
        return Err(unusable(what, "it holds no certificate"));
    }
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|e| unusable(what, e))?;
    let key = rustls::crypto::ring::sign::any_supported_type(&key).map_err(|e| unusable(what, e))?;
    let certified = CertifiedKey::new(chain, key);
    certified.keys_match().map_err(|e| unusable(what, e))?;
    Ok(certified)
}

fn unusable(what: &str, why: impl ToString) -> Error {
    Error::Certificate { what: what.to_owned(), why: why.to_string() }
}

/// `tls.crt` and `tls.key` of a folder, as cert-manager's Secret is mounted.
///
/// Looked at again at each connection, of which there are few since the API server keeps them: no watch is missed,
/// and a kubelet's swap of symbolic links is seen like any other change.
pub(crate) struct Folder {
    dir: PathBuf,
    read: Mutex<[Option<SystemTime>; 2]>,
    pub(crate) shown: Arc<Shown>,
}

impl Folder {
    pub(crate) fn open(dir: &Path) -> Result<Self, Error> {
        let stamps = stamps(dir);
        let shown = Shown::new(read(dir)?);
        Ok(Self { dir: dir.to_owned(), read: Mutex::new(stamps), shown })
    }

    /// Shows what the folder holds now. A pair that does not read is left for the next connection.
    pub(crate) fn refresh(&self) {
        let now = stamps(&self.dir);
        let mut last = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if *last == now {
            return;
        }
        match read(&self.dir) {
            Ok(certificate) => {
                self.shown.swap(certificate);
                *last = now;
                tracing::info!(dir = %self.dir.display(), "the webhook's certificate was read again");
            }
            Err(e) => {
                tracing::warn!(error = %e, "the changed certificate is not usable; the earlier one is shown on")
            }
        }
    }
}

fn stamps(dir: &Path) -> [Option<SystemTime>; 2] {
    ["tls.crt", "tls.key"].map(|file| std::fs::metadata(dir.join(file)).and_then(|m| m.modified()).ok())
}

fn read(dir: &Path) -> Result<CertifiedKey, Error> {
    let file = |name: &str| {
        let path = dir.join(name);
        std::fs::read(&path).map_err(|e| unusable(&path.display().to_string(), e))
    };
    certified(&dir.display().to_string(), &file("tls.crt")?, &file("tls.key")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (String, String) {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    fn put(dir: &Path, (certificate, key): &(String, String), age: u64) {
        for (name, text) in [("tls.crt", certificate), ("tls.key", key)] {
            std::fs::write(dir.join(name), text).unwrap();
            let file = std::fs::File::options().append(true).open(dir.join(name)).unwrap();
            // two writes within a tick of the file system's clock must still differ
            file.set_modified(SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(age)).unwrap();
        }
    }

    #[test]
    fn a_changed_pair_is_shown_and_a_broken_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), &pair(), 1);
        let folder = Folder::open(dir.path()).unwrap();
        let first = folder.shown.chain();
        folder.refresh();
        assert_eq!(folder.shown.chain(), first);

        let other = pair();
        put(dir.path(), &(other.0.clone(), pair().1), 2);
        folder.refresh();
        assert_eq!(folder.shown.chain(), first, "a key that does not belong to the certificate");

        std::fs::write(dir.path().join("tls.crt"), "garbage").unwrap();
        folder.refresh();
        assert_eq!(folder.shown.chain(), first);

        put(dir.path(), &other, 3);
        folder.refresh();
        assert_ne!(folder.shown.chain(), first);
    }

    #[test]
    fn a_folder_without_a_pair_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let error = Folder::open(dir.path()).err().unwrap().to_string();
        assert!(error.contains("tls.crt") && error.starts_with("cannot use"), "{error}");
    }
}
