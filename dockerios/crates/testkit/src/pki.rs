//! The certificates of one control plane, made anew for each start and signed by one CA, as kubeadm does it.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use base64::Engine as _;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType,
};

use crate::der;
use crate::kubeconfig::write_private;

const CA_NAME: &str = "dockerios-testkit-ca";

/// The name under which the API server speaks to aggregated API servers.
pub(crate) const AGGREGATOR: &str = "front-proxy-client";

/// Paths of a certificate and its key, PEM.
#[derive(Clone, Debug)]
pub(crate) struct Pair {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}

/// One CA, and the files that the components read.
pub(crate) struct Pki {
    dir: PathBuf,
    issuer: CertifiedIssuer<'static, KeyPair>,
    serial: AtomicU64,
    pub(crate) ca: Pair,
    pub(crate) api_server: Pair,
    pub(crate) aggregator: Pair,
    /// `cert` is the bare public key.
    pub(crate) tokens: Pair,
}

impl Pki {
    pub(crate) fn create(dir: &Path) -> Result<Pki> {
        std::fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, CA_NAME);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?).context("make a CA")?;
        let ca = store(dir, "ca", &issuer.pem(), issuer.key())?;
        let tokens = KeyPair::generate()?;
        let mut pki = Pki {
            dir: dir.to_owned(),
            tokens: store(dir, "tokens", &tokens.public_key_pem(), &tokens)?,
            api_server: serving(dir, &issuer)?,
            aggregator: ca.clone(),
            serial: AtomicU64::new(1),
            issuer,
            ca,
        };
        pki.aggregator = pki.client(AGGREGATOR, &[])?;
        Ok(pki)
    }

    /// A client certificate for a user in groups.
    pub(crate) fn client(&self, user: &str, groups: &[&str]) -> Result<Pair> {
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let key = KeyPair::generate()?;
        let cert = der::client_certificate(CA_NAME, self.issuer.key(), serial, user, groups, &key)?;
        store(&self.dir, &format!("client-{serial}"), &pem("CERTIFICATE", &cert), &key)
    }
}

fn serving(dir: &Path, issuer: &CertifiedIssuer<'_, KeyPair>) -> Result<Pair> {
    let names = [
        "localhost",
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
    ];
    let mut params = CertificateParams::new(names.map(str::to_owned))?;
    params
        .subject_alt_names
        .push(SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST)));
    params.distinguished_name.push(DnType::CommonName, "kube-apiserver");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let key = KeyPair::generate()?;
    let cert = params
        .signed_by(&key, issuer)
        .context("sign the API server's certificate")?;
    store(dir, "api-server", &cert.pem(), &key)
}

fn store(dir: &Path, name: &str, cert: &str, key: &KeyPair) -> Result<Pair> {
    let pair = Pair {
        cert: dir.join(format!("{name}.crt")),
        key: dir.join(format!("{name}.key")),
    };
    std::fs::write(&pair.cert, cert).with_context(|| format!("write {}", pair.cert.display()))?;
    write_private(&pair.key, &key.serialize_pem())?;
    Ok(pair)
}

fn pem(label: &str, der: &[u8]) -> String {
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let lines: Vec<&str> = text
        .as_bytes()
        .chunks(64)
        .filter_map(|line| std::str::from_utf8(line).ok())
        .collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}
