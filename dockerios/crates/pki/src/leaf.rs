//! Certificates of servers, made where they are shown and kept in memory only. Invariant: a certificate that cannot
//! be made never takes the place of one that serves; one that is shown is valid under an authority of the bundle.

use std::{
    fmt,
    sync::{Arc, Mutex, TryLockError},
};

use arc_swap::ArcSwap;
use jiff::{SignedDuration, Timestamp};
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose};
use rustls::{
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};

use crate::{
    Error,
    authority::Shared,
    generation::{BACKDATE, Generation, moment},
};

/// How long a server's certificate is valid.
const LIFETIME: SignedDuration = SignedDuration::from_hours(24 * 90);
/// How long before its end it is replaced.
const RENEW: SignedDuration = SignedDuration::from_hours(24 * 30);

/// What a server shows; renewed by the handshake that finds it due, so it needs no task of its own.
pub(crate) struct Leaf {
    names: Vec<String>,
    shared: Arc<Shared>,
    shown: ArcSwap<Shown>,
    /// Held by the one handshake that renews; the others show what there is.
    renewing: Mutex<()>,
}

struct Shown {
    certified: Arc<CertifiedKey>,
    /// The number of the authority that signed it.
    signer: u32,
    renew_at: Timestamp,
}

impl Leaf {
    /// A certificate for these DNS names and IP addresses.
    pub(crate) fn new(names: Vec<String>, shared: Arc<Shared>) -> Result<Self, Error> {
        let shown = show(&names, &shared)?;
        Ok(Self {
            names,
            shared,
            shown: ArcSwap::from_pointee(shown),
            renewing: Mutex::new(()),
        })
    }

    /// The certificate to be shown at this moment.
    pub(crate) fn current(&self) -> Arc<CertifiedKey> {
        let shown = self.shown.load();
        let now = self.shared.now();
        let signer = self.shared.keyring().signer(now).map(|one| one.number);
        if now < shown.renew_at && signer == Some(shown.signer) {
            return Arc::clone(&shown.certified);
        }
        let _held = match self.renewing.try_lock() {
            Ok(held) => held,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Arc::clone(&shown.certified),
        };
        match show(&self.names, &self.shared) {
            Ok(fresh) => {
                let certified = Arc::clone(&fresh.certified);
                tracing::info!(names = ?self.names, renew_at = %fresh.renew_at, "a new certificate is shown");
                self.shown.store(Arc::new(fresh));
                certified
            }
            Err(error) => {
                tracing::warn!(%error, "the certificate was not renewed; the earlier one is shown on");
                Arc::clone(&shown.certified)
            }
        }
    }
}

impl fmt::Debug for Leaf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leaf")
            .field("names", &self.names)
            .finish_non_exhaustive()
    }
}

impl ResolvesServerCert for Leaf {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current())
    }
}

fn show(names: &[String], shared: &Shared) -> Result<Shown, Error> {
    let refused = |why: String| Error::Leaf {
        names: names.join(", "),
        why,
    };
    if names.is_empty() {
        return Err(refused("no name was given".to_owned()));
    }
    let now = shared.now();
    let keyring = shared.keyring();
    let signer = keyring
        .signer(now)
        .ok_or_else(|| refused("there is no authority".to_owned()))?;
    let (certified, until) = sign(names, signer, now).map_err(refused)?;
    Ok(Shown {
        certified: Arc::new(certified),
        signer: signer.number,
        renew_at: until - RENEW,
    })
}

fn sign(names: &[String], signer: &Generation, now: Timestamp) -> Result<(CertifiedKey, Timestamp), String> {
    let until = (now + LIFETIME).min(signer.not_after());
    if until <= now {
        return Err(format!("the authority expired at {}", signer.not_after()));
    }
    let mut params = CertificateParams::new(names).map_err(|e| e.to_string())?;
    params.distinguished_name.push(DnType::CommonName, "DockerIOS");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    params.not_before = moment(now - BACKDATE)?;
    params.not_after = moment(until)?;
    let key = KeyPair::generate().map_err(|e| e.to_string())?;
    let certificate = params.signed_by(&key, &signer.issuer()?).map_err(|e| e.to_string())?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let key = rustls::crypto::ring::sign::any_supported_type(&key).map_err(|e| e.to_string())?;
    Ok((CertifiedKey::new(vec![certificate.der().clone()], key), until))
}
