//! The certificates of one control plane, made anew for each start. One CA signs everything, as
//! kubeadm's does, so that a client certificate, a kubelet's serving certificate signed through a
//! CertificateSigningRequest, and the API server's own are judged as in a real cluster.

use std::fs;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, SanType,
};

/// The name that the API server shows to kubelets, as kubeadm sets it.
pub const KUBELET_CLIENT: &str = "kube-apiserver-kubelet-client";

/// Paths of a certificate and its key, both PEM.
pub(crate) struct Pair {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}

pub(crate) struct Pki {
    pub(crate) ca: Pair,
    pub(crate) apiserver: Pair,
    pub(crate) kubelet_client: Pair,
    pub(crate) admin: Pair,
    pub(crate) controller_manager: Pair,
    pub(crate) scheduler: Pair,
    /// `cert` is the bare public key here.
    pub(crate) service_accounts: Pair,
}

impl Pki {
    /// Makes all of it under `dir`.
    pub(crate) fn make(dir: &Path) -> Result<Pki> {
        fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
        let mut params = CertificateParams::default();
        params.distinguished_name = subject("macrack-testkit-ca", None);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?).context("make the cluster's CA")?;
        let ca = write_pair(dir, "ca", &issuer.pem(), issuer.key())?;
        let client = |file: &str, name: &str, group: Option<&str>| {
            let mut params = CertificateParams::default();
            params.distinguished_name = subject(name, group);
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
            leaf(dir, file, params, &issuer)
        };
        let service_accounts = KeyPair::generate()?;
        Ok(Pki {
            apiserver: {
                let mut params = CertificateParams::new([
                    "localhost".to_owned(),
                    "kubernetes".to_owned(),
                    "kubernetes.default".to_owned(),
                    "kubernetes.default.svc".to_owned(),
                ])?;
                params.subject_alt_names.push(SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST)));
                params.distinguished_name = subject("kube-apiserver", None);
                params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
                leaf(dir, "apiserver", params, &issuer)?
            },
            // the group lets it reach every kubelet endpoint, were a kubelet to ask for a review
            kubelet_client: client("kubelet-client", KUBELET_CLIENT, Some("system:masters"))?,
            admin: client("admin", "kubernetes-admin", Some("system:masters"))?,
            controller_manager: client("controller-manager", "system:kube-controller-manager", None)?,
            scheduler: client("scheduler", "system:kube-scheduler", None)?,
            service_accounts: write_pair(
                dir,
                "service-accounts",
                &service_accounts.public_key_pem(),
                &service_accounts,
            )?,
            ca,
        })
    }
}

fn subject(name: &str, group: Option<&str>) -> DistinguishedName {
    let mut dn = DistinguishedName::new();
    dn.push(DnType::CommonName, name);
    if let Some(group) = group {
        dn.push(DnType::OrganizationName, group);
    }
    dn
}

fn leaf(dir: &Path, file: &str, mut params: CertificateParams, issuer: &CertifiedIssuer<'_, KeyPair>) -> Result<Pair> {
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate()?;
    let cert = params.signed_by(&key, issuer).with_context(|| format!("sign the certificate {file}"))?;
    write_pair(dir, file, &cert.pem(), &key)
}

fn write_pair(dir: &Path, file: &str, cert: &str, key: &KeyPair) -> Result<Pair> {
    let pair = Pair { cert: dir.join(format!("{file}.crt")), key: dir.join(format!("{file}.key")) };
    fs::write(&pair.cert, cert).with_context(|| format!("write {}", pair.cert.display()))?;
    write_private(&pair.key, key.serialize_pem().as_bytes())?;
    Ok(pair)
}

/// Writes a file that only this user can read.
pub(crate) fn write_private(path: &Path, content: &[u8]) -> Result<()> {
    fs::File::options()
        .create(true)
        .write(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| file.write_all(content))
        .with_context(|| format!("write {}", path.display()))
}
