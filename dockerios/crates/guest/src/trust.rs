//! Whom the agent believes: the certificates of its config volume and no others. Invariant: chain, name and
//! signatures always have to hold; only the guest's clock is not asked, since a machine that just booted may have any.
//!
//! A certificate that the guest's clock finds too young or too old is judged once more at the nearest time at which
//! it is neither.

use std::sync::Arc;

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
};

/// A TLS configuration that believes only certificates under those of `ca` (PEM).
///
/// # Errors
/// When `ca` holds no certificate, or one that cannot be read.
pub fn pinned(ca: &str) -> Result<ClientConfig, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(ca.as_bytes()) {
        let certificate = certificate.map_err(|e| format!("ca.crt: not PEM: {e}"))?;
        roots
            .add(certificate)
            .map_err(|e| format!("ca.crt: a certificate in it is not one of an authority: {e}"))?;
    }
    if roots.is_empty() {
        return Err("ca.crt: no certificate in it".into());
    }
    let inner = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
        .build()
        .map_err(|e| format!("ca.crt: {e}"))?;
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Clockless(inner)))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

#[derive(Debug)]
struct Clockless(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for Clockless {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let mut at = now;
        // each certificate of the chain can move the time once; roots have no dates
        for _ in 0..=between.len() {
            match self.0.verify_server_cert(leaf, between, name, ocsp, at) {
                Err(Error::InvalidCertificate(CertificateError::NotValidYetContext { not_before, .. })) => {
                    at = not_before
                }
                Err(Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. })) => at = not_after,
                verdict => return verdict,
            }
        }
        self.0.verify_server_cert(leaf, between, name, ocsp, at)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
