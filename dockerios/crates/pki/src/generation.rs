//! One certificate authority: certificate, key, and the span in which it is valid. Invariant: the key belongs to the
//! certificate, and the certificate is one that may sign others.

use jiff::{SignedDuration, Timestamp};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKeyData as _};
use x509_parser::{parse_x509_certificate, pem::parse_x509_pem};
use zeroize::Zeroizing;

/// How long an authority is valid.
pub(crate) const LIFETIME: SignedDuration = SignedDuration::from_hours(24 * 3650);
/// How long before its end a successor is published, so that whoever is told of authorities learns of it.
pub(crate) const PUBLISH_AHEAD: SignedDuration = SignedDuration::from_hours(24 * 730);
/// How long before its end it stops signing: guests keep the authorities that they were started with.
pub(crate) const STOP_SIGNING: SignedDuration = SignedDuration::from_hours(24 * 365);
/// Certificates start that much before they were made, since clocks of guests and API servers differ.
pub(crate) const BACKDATE: SignedDuration = SignedDuration::from_hours(24);

/// A certificate authority that can sign.
#[derive(Clone)]
pub(crate) struct Generation {
    /// Its place in the order of succession.
    pub(crate) number: u32,
    certificate: String,
    key: Zeroizing<String>,
    not_after: Timestamp,
}

impl Generation {
    /// A new one.
    pub(crate) fn make(number: u32, now: Timestamp) -> Result<Self, String> {
        let key = KeyPair::generate().map_err(|e| e.to_string())?;
        let mut params = CertificateParams::default();
        params
            .distinguished_name
            .push(DnType::CommonName, format!("DockerIOS authority {number} of {now}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.not_before = moment(now - BACKDATE)?;
        params.not_after = moment(now + LIFETIME)?;
        let certificate = params.self_signed(&key).map_err(|e| e.to_string())?.pem();
        let key = Zeroizing::new(key.serialize_pem());
        Self::read(number, certificate, key)
    }

    /// From PEM texts; says which of the two is wrong.
    pub(crate) fn read(number: u32, certificate: String, key: Zeroizing<String>) -> Result<Self, String> {
        let crt = format!("ca-{number}.crt");
        let (rest, pem) = parse_x509_pem(certificate.as_bytes()).map_err(|e| format!("{crt} is no PEM: {e}"))?;
        if !rest.trim_ascii().is_empty() {
            return Err(format!("{crt} holds more than one certificate"));
        }
        let (_, parsed) =
            parse_x509_certificate(&pem.contents).map_err(|e| format!("{crt} is no X.509 certificate: {e}"))?;
        if !parsed.is_ca() {
            return Err(format!("{crt} is the certificate of a server, not of an authority"));
        }
        let not_after = Timestamp::from_second(parsed.validity().not_after.timestamp())
            .map_err(|e| format!("{crt} ends at an impossible time: {e}"))?;
        let pair = KeyPair::from_pem(&key).map_err(|e| format!("ca-{number}.key is no private key: {e}"))?;
        if pair.subject_public_key_info() != parsed.public_key().raw {
            return Err(format!("ca-{number}.key does not belong to {crt}"));
        }
        Ok(Self {
            number,
            certificate,
            key,
            not_after,
        })
    }

    /// What others are told to trust, PEM.
    pub(crate) fn certificate(&self) -> &str {
        &self.certificate
    }

    /// The private key, PEM.
    pub(crate) fn key(&self) -> &Zeroizing<String> {
        &self.key
    }

    /// The last moment at which anything signed by it is valid.
    pub(crate) fn not_after(&self) -> Timestamp {
        self.not_after
    }

    /// Whether more than `left` of its life is left at `now`.
    pub(crate) fn has(&self, left: SignedDuration, now: Timestamp) -> bool {
        self.not_after.duration_since(now) > left
    }

    /// What signs in its name.
    pub(crate) fn issuer(&self) -> Result<Issuer<'static, KeyPair>, String> {
        let key = KeyPair::from_pem(&self.key).map_err(|e| e.to_string())?;
        Issuer::from_ca_cert_pem(&self.certificate, key).map_err(|e| e.to_string())
    }
}

/// As certificates write times.
pub(crate) fn moment(at: Timestamp) -> Result<time::OffsetDateTime, String> {
    time::OffsetDateTime::from_unix_timestamp(at.as_second()).map_err(|e| e.to_string())
}
