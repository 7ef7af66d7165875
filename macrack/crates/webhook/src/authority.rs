//! The CA behind the webhook's certificate, kept in Secret `macrack-webhook-tls` of `macrack-system`, so that two
//! replicas and every restart have the same one.
//!
//! Each replica makes its own leaf and keeps it in memory. Invariant: the caBundle holds every CA under which a
//! leaf may still be shown: when a CA is replaced, its predecessor stays in the bundle until it expires.

use std::collections::BTreeMap;

use k8s_openapi::{
    ByteString,
    api::core::v1::Secret,
    jiff::{SignedDuration, Timestamp, tz::TimeZone},
};
use kube::{
    Api,
    api::{ObjectMeta, PostParams},
};
use macrack_api::names::SYSTEM_NAMESPACE;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use rustls::sign::CertifiedKey;

use crate::{Error, options::api, tls};

/// The Secret that keeps the CA.
pub const SECRET: &str = "macrack-webhook-tls";

const DAY: SignedDuration = SignedDuration::from_hours(24);
/// How long a CA is valid, and how long before its end it is replaced.
const CA_DAYS: i32 = 3650;
const CA_RENEW_DAYS: i32 = 730;
/// How long a leaf is valid, and how long before its end it is replaced.
const LEAF_DAYS: i32 = 90;
const LEAF_RENEW_DAYS: i32 = 30;

/// A CA that can sign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authority {
    name: String,
    certificate: String,
    key: String,
    until: Timestamp,
    /// The one before it, and until when it is valid.
    previous: Option<(String, Timestamp)>,
}

/// A certificate for the server.
#[derive(Debug)]
pub struct Leaf {
    /// To be shown.
    pub certified: CertifiedKey,
    /// When another is to be made.
    pub renew_at: Timestamp,
}

impl Authority {
    /// A new one; `previous` stays in the bundle.
    ///
    /// # Errors
    /// When no key can be made.
    pub fn fresh(now: Timestamp, previous: Option<&Authority>) -> Result<Self, Error> {
        let name = format!("macrack webhook CA {}", now.strftime("%Y-%m-%dT%H:%M:%S%.fZ"));
        let key = KeyPair::generate()?;
        let until = days_after(now, CA_DAYS);
        let mut params = ca_params(&name);
        valid(&mut params, now, until);
        let certificate = params.self_signed(&key)?.pem();
        let previous = previous.filter(|p| p.until > now).map(|p| (p.certificate.clone(), p.until));
        Ok(Self { name, certificate, key: key.serialize_pem(), until, previous })
    }

    /// Whether it is to be replaced.
    pub fn is_due(&self, now: Timestamp) -> bool {
        now >= days_after(self.until, -CA_RENEW_DAYS)
    }

    /// What the API server is to trust, PEM.
    pub fn bundle(&self, now: Timestamp) -> String {
        let previous = self.previous.as_ref().filter(|(_, until)| *until > now).map(|(pem, _)| pem.as_str());
        format!("{}{}", self.certificate, previous.unwrap_or_default())
    }

    /// A certificate for a server of these names and addresses.
    ///
    /// # Errors
    /// When a name is no DNS name or the stored key is unusable.
    pub fn leaf(&self, names: &[String], now: Timestamp) -> Result<Leaf, Error> {
        let issuer = Issuer::new(ca_params(&self.name), KeyPair::from_pem(&self.key)?);
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name = distinguished("macrack-webhook");
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let until = days_after(now, LEAF_DAYS);
        valid(&mut params, now, until);
        let certificate = params.signed_by(&key, &issuer)?;
        let certified = tls::certified(
            "the webhook's own certificate",
            certificate.pem().as_bytes(),
            key.serialize_pem().as_bytes(),
        )?;
        Ok(Leaf { certified, renew_at: days_after(until, -LEAF_RENEW_DAYS) })
    }

    /// From the Secret; None when that is not what [`Authority::data`] wrote.
    fn read(secret: &Secret) -> Option<Self> {
        let data = secret.data.as_ref()?;
        let text = |key: &str| String::from_utf8(data.get(key)?.0.clone()).ok();
        let moment = |key: &str| text(key)?.parse().ok();
        let read = Self {
            name: text("ca.name")?,
            certificate: text("ca.crt")?,
            key: text("ca.key")?,
            until: moment("ca.until")?,
            previous: text("previous.crt").zip(moment("previous.until")),
        };
        // a CA that signs nothing usable is as good as none
        read.leaf(&["localhost".to_owned()], Timestamp::UNIX_EPOCH).ok()?;
        Some(read)
    }

    fn data(&self) -> BTreeMap<String, ByteString> {
        let mut data = vec![
            ("ca.name", self.name.clone()),
            ("ca.crt", self.certificate.clone()),
            ("ca.key", self.key.clone()),
            ("ca.until", self.until.to_string()),
        ];
        if let Some((pem, until)) = &self.previous {
            data.extend([("previous.crt", pem.clone()), ("previous.until", until.to_string())]);
        }
        data.into_iter().map(|(key, text)| (key.to_owned(), ByteString(text.into_bytes()))).collect()
    }
}

/// The CA of the Secret; made when there is none, replaced when it is due or unreadable. Of several replicas that
/// do so at once one wins, and the others take its CA. `mine` is the one whose leaf is shown now: it stays in the
/// bundle when the Secret was lost.
///
/// # Errors
/// When the API server does not let us.
pub async fn ensure(secrets: &Api<Secret>, now: Timestamp, mine: Option<&Authority>) -> Result<Authority, Error> {
    // each round ends, or another writer has won one meanwhile
    for _ in 0..8 {
        let stored = secrets.get_opt(SECRET).await.map_err(api("read Secret macrack-system/macrack-webhook-tls"))?;
        let held = stored.as_ref().and_then(Authority::read);
        if let Some(held) = &held
            && !held.is_due(now)
        {
            return Ok(held.clone());
        }
        let fresh = Authority::fresh(now, held.as_ref().or(mine))?;
        let params = PostParams::default();
        let written = match stored {
            None => {
                let metadata = ObjectMeta {
                    name: Some(SECRET.into()),
                    namespace: Some(SYSTEM_NAMESPACE.into()),
                    ..Default::default()
                };
                secrets.create(&params, &Secret { metadata, data: Some(fresh.data()), ..Default::default() }).await
            }
            // with the resourceVersion that was read
            Some(mut secret) => {
                secret.data = Some(fresh.data());
                secrets.replace(SECRET, &params, &secret).await
            }
        };
        match written {
            Ok(_) => return Ok(fresh),
            // 409 AlreadyExists or Conflict: somebody was faster; 404: it was deleted meanwhile
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
            Err(e) => return Err(api("write Secret macrack-system/macrack-webhook-tls")(e)),
        }
    }
    Err(Error::Contested("macrack-system/macrack-webhook-tls"))
}

fn ca_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = distinguished(name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    params
}

fn distinguished(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

fn days_after(moment: Timestamp, days: i32) -> Timestamp {
    moment.checked_add(DAY * days).unwrap_or(if days < 0 { Timestamp::MIN } else { Timestamp::MAX })
}

/// From a day before `now` (clocks differ) to `until`. Certificates are dated by the day.
fn valid(params: &mut CertificateParams, now: Timestamp, until: Timestamp) {
    let day = |moment: Timestamp| {
        let date = moment.to_zoned(TimeZone::UTC).date();
        date_time_ymd(date.year().into(), date.month().unsigned_abs(), date.day().unsigned_abs())
    };
    params.not_before = day(days_after(now, -1));
    params.not_after = day(until);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn stored(authority: &Authority) -> Secret {
        Secret { data: Some(authority.data()), ..Default::default() }
    }

    #[test]
    fn a_stored_authority_is_the_same_one_again_and_garbage_is_none() {
        let made = Authority::fresh(at("2026-03-02T09:00:00Z"), None).unwrap();
        assert_eq!(Authority::read(&stored(&made)), Some(made.clone()));
        let successor = Authority::fresh(at("2034-06-02T09:00:00Z"), Some(&made)).unwrap();
        assert_eq!(Authority::read(&stored(&successor)), Some(successor));
        for key in ["ca.name", "ca.crt", "ca.key", "ca.until"] {
            let mut broken = stored(&made);
            broken.data.as_mut().unwrap().insert(key.into(), ByteString(vec![0xff]));
            assert_eq!(Authority::read(&broken), None, "{key}");
            broken.data.as_mut().unwrap().remove(key);
            assert_eq!(Authority::read(&broken), None, "{key}");
        }
        assert_eq!(Authority::read(&Secret::default()), None);
    }

    #[test]
    fn an_authority_is_replaced_two_years_before_its_end_and_trusted_to_its_end() {
        let born = at("2026-03-02T09:00:00Z");
        let old = Authority::fresh(born, None).unwrap();
        assert!(!old.is_due(days_after(born, 2919)));
        let due = days_after(born, 2920);
        assert!(old.is_due(due));
        let new = Authority::fresh(due, Some(&old)).unwrap();
        assert!(!new.is_due(due));
        let bundle = new.bundle(due);
        assert!(bundle.contains(&new.certificate) && bundle.contains(&old.certificate), "{bundle}");
        assert_eq!(new.bundle(days_after(born, 3650)), new.certificate, "an expired one is dropped");
    }

    #[test]
    fn a_leaf_is_renewed_a_month_before_its_end() {
        let now = at("2026-03-02T09:00:00Z");
        let leaf = Authority::fresh(now, None).unwrap().leaf(&["127.0.0.1".into()], now).unwrap();
        assert_eq!(leaf.renew_at, days_after(now, 60));
    }
}
