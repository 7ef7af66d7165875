//! The serving certificate: asked for with a CertificateSigningRequest of signer `kubernetes.io/kubelet-serving`,
//! approved by the operator, renewed before it ends.
//!
//! Invariants: the key never leaves the state directory; a certificate that is good is shown until a newer one is
//! there, whatever becomes of the request for that.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use kube::api::{DeleteParams, ObjectMeta, PostParams};
use kube::runtime::wait::await_condition;
use kube::{Api, Client};
use macrack_api::names;
use macrack_wire::layout::write_whole;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use tokio::sync::watch;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::server::Certificate;
use crate::backoff::Backoff;
use crate::gather::words;

/// Seconds that a certificate is asked for: 30 days. The signer may grant less.
const SECONDS: i32 = 30 * 86_400;
/// The longest that an approval and a signature are waited for before it is asked anew.
const PATIENCE: Duration = Duration::from_secs(600);
/// A clock that jumps is noticed by then.
const LOOK: Duration = Duration::from_secs(3600);

/// What a certificate must name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Names {
    /// The Node.
    pub node: String,
    /// The addresses that the Node's status names.
    pub addresses: Vec<IpAddr>,
}

/// What is asked for, and where it is kept.
#[derive(Debug, Clone)]
pub struct Wish {
    /// Name of the MacNode.
    pub mac_node: String,
    /// Where certificate and key are kept, PEM, mode 0600.
    pub file: PathBuf,
}

/// Why there is no new certificate.
#[derive(Debug, thiserror::Error)]
enum NoCertificate {
    #[error("{}", words(.0))]
    Api(#[from] kube::Error),
    #[error("the request {0} is not watched: {1}")]
    Watch(String, kube::runtime::wait::Error),
    #[error(
        "the request {0} was not signed within {PATIENCE:?}: does the operator run, and kube-controller-manager's signer? (kubectl describe csr {0})"
    )]
    Silence(String),
    #[error("the request {0} was refused: {1}")]
    Refused(String, String),
    #[error("a request cannot be made: {0}")]
    Request(#[from] rcgen::Error),
    #[error("the certificate that was granted is of no use: {0}")]
    Useless(String),
    #[error("the certificate cannot be kept: {0}")]
    Kept(#[from] io::Error),
}

/// A certificate with its key.
struct Pair {
    certified: CertifiedKey,
    from: Timestamp,
    until: Timestamp,
}

/// When a certificate that is good from `from` to `until` is renewed: at three quarters of its life, so that a week
/// without an API server is survived by one of thirty days.
fn renewal(from: Timestamp, until: Timestamp) -> Timestamp {
    let quarter = until.duration_since(from) / 4;
    until.checked_sub(quarter).unwrap_or(from)
}

/// Keeps a good certificate shown, for as long as it is polled. `wanted` are the names of the moment.
pub(super) async fn keep(client: Client, wish: Wish, mut wanted: watch::Receiver<Names>, shown: Arc<Certificate>) {
    let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(300));
    let mut kept = std::fs::read(&wish.file).ok();
    loop {
        let names = wanted.borrow_and_update().clone();
        if names.addresses.is_empty() {
            // a Mac without an address is reached by nobody
            if wanted.changed().await.is_err() {
                return;
            }
            continue;
        }
        let good = kept.as_deref().and_then(|pem| read(pem, &names).ok()).filter(|pair| pair.until > Timestamp::now());
        let mut renew_at = None;
        if let Some(pair) = good {
            renew_at = Some(renewal(pair.from, pair.until));
            shown.show(pair.certified);
        }
        let due = renew_at.is_none_or(|at| at <= Timestamp::now());
        let pause = if due {
            match ask(&client, &wish, &names).await {
                Ok(pem) => {
                    tracing::info!("has a serving certificate of the cluster");
                    kept = Some(pem);
                    backoff.reset();
                    continue;
                }
                Err(error) => {
                    tracing::warn!(%error, "no serving certificate: kubectl exec and logs do not reach this Mac");
                    backoff.next_delay()
                }
            }
        } else {
            let left = renew_at.map(|at| at.duration_since(Timestamp::now())).unwrap_or(SignedDuration::ZERO);
            Duration::try_from(left).unwrap_or_default().min(LOOK)
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            changed = wanted.changed() => if changed.is_err() { return },
        }
    }
}

/// A new key and a certificate for it, as one PEM, kept.
async fn ask(client: &Client, wish: &Wish, names: &Names) -> Result<Vec<u8>, NoCertificate> {
    let (key, request) = request(names)?;
    let api: Api<CertificateSigningRequest> = Api::all(client.clone());
    let name = names::serving_request(&wish.mac_node);
    // the one of an earlier key is of no use to anybody
    match api.delete(&name, &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        other => drop(other?),
    }
    let csr = CertificateSigningRequest {
        metadata: ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() },
        spec: CertificateSigningRequestSpec {
            request: ByteString(request.into_bytes()),
            signer_name: "kubernetes.io/kubelet-serving".to_owned(),
            usages: Some(vec!["digital signature".to_owned(), "server auth".to_owned()]),
            expiration_seconds: Some(SECONDS),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    };
    let made = api.create(&PostParams::default(), &csr).await?;
    let uid = made.metadata.uid;
    let settled = |csr: Option<&CertificateSigningRequest>| {
        csr.is_none_or(|csr| csr.metadata.uid != uid || verdict(csr).is_some())
    };
    let awaited = tokio::time::timeout(PATIENCE, await_condition(api, &name, settled)).await;
    let csr = awaited.map_err(|_| NoCertificate::Silence(name.clone()))?;
    let csr = csr.map_err(|error| NoCertificate::Watch(name.clone(), error))?;
    match csr.as_ref().filter(|csr| csr.metadata.uid == uid).and_then(verdict) {
        Some(Ok(mut pem)) => {
            pem.extend_from_slice(b"\n");
            pem.extend_from_slice(key.serialize_pem().as_bytes());
            read(&pem, names).map_err(NoCertificate::Useless)?;
            write_whole(&wish.file, &pem)?;
            Ok(pem)
        }
        Some(Err(why)) => Err(NoCertificate::Refused(name, why)),
        None => Err(NoCertificate::Refused(name, "it was taken away".to_owned())),
    }
}

/// What became of a request; `None` while nothing did.
fn verdict(csr: &CertificateSigningRequest) -> Option<Result<Vec<u8>, String>> {
    let status = csr.status.as_ref()?;
    if let Some(certificate) = &status.certificate {
        return Some(Ok(certificate.0.clone()));
    }
    let refused = |condition: &&k8s_openapi::api::certificates::v1::CertificateSigningRequestCondition| {
        condition.type_ == "Denied" || condition.type_ == "Failed"
    };
    let condition = status.conditions.as_ref()?.iter().find(refused)?;
    Some(Err(condition.message.clone().unwrap_or_else(|| condition.type_.clone())))
}

/// A key and the PEM of a request for `names`, as the signer wants it.
fn request(names: &Names) -> Result<(KeyPair, String), rcgen::Error> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new([names.node.clone()])?;
    params.subject_alt_names.extend(names.addresses.iter().map(|address| SanType::IpAddress(*address)));
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
    params.distinguished_name.push(DnType::CommonName, format!("system:node:{}", names.node));
    let request = params.serialize_request(&key)?.pem()?;
    Ok((key, request))
}

/// A certificate and its key, checked to belong together and to name what it must.
fn read(pem: &[u8], names: &Names) -> Result<Pair, String> {
    let chain: Vec<_> =
        CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(|error| error.to_string())?;
    let leaf = chain.first().ok_or("it holds no certificate")?.clone();
    let (_, parsed) = X509Certificate::from_der(&leaf).map_err(|error| error.to_string())?;
    let named = parsed.subject_alternative_name().map_err(|error| error.to_string())?;
    let named = named.map(|names| names.value.general_names.clone()).unwrap_or_default();
    for address in &names.addresses {
        let bytes = match address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        if !named.contains(&GeneralName::IPAddress(&bytes)) {
            return Err(format!("it is not for {address}"));
        }
    }
    let moment = |seconds| Timestamp::from_second(seconds).map_err(|error| error.to_string());
    let (from, until) =
        (moment(parsed.validity().not_before.timestamp())?, moment(parsed.validity().not_after.timestamp())?);
    let key = PrivateKeyDer::from_pem_slice(pem).map_err(|error| error.to_string())?;
    let key = rustls::crypto::ring::sign::any_supported_type(&key).map_err(|error| error.to_string())?;
    let certified = CertifiedKey::new(chain, key);
    certified.keys_match().map_err(|error| error.to_string())?;
    Ok(Pair { certified, from, until })
}

/// Where the certificate is kept.
impl Wish {
    /// For the Mac `mac_node`, kept in `dir`.
    pub fn new(mac_node: &str, dir: &Path) -> Wish {
        Wish { mac_node: mac_node.to_owned(), file: dir.join("serving.pem") }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn names(address: &str) -> Names {
        Names { node: "macrack-x".to_owned(), addresses: vec![address.parse().unwrap()] }
    }

    #[test]
    fn a_certificate_is_renewed_at_three_quarters_of_its_life() {
        let at = |seconds| Timestamp::from_second(seconds).unwrap();
        assert_eq!(renewal(at(0), at(4000)), at(3000));
    }

    #[test]
    fn a_certificate_counts_only_for_the_addresses_that_it_names_and_with_its_own_key() {
        let (key, _) = request(&names("10.0.0.7")).unwrap();
        let mut params = CertificateParams::default();
        params.subject_alt_names.push(SanType::IpAddress("10.0.0.7".parse().unwrap()));
        let certificate = params.self_signed(&key).unwrap().pem();
        let pem = |key: &KeyPair| format!("{certificate}\n{}", key.serialize_pem()).into_bytes();
        assert!(read(&pem(&key), &names("10.0.0.7")).is_ok());
        assert_eq!(read(&pem(&key), &names("10.0.0.8")).err().unwrap(), "it is not for 10.0.0.8");
        assert!(read(&pem(&KeyPair::generate().unwrap()), &names("10.0.0.7")).is_err());
        assert!(read(b"", &names("10.0.0.7")).is_err());
    }

    #[test]
    fn a_denied_or_failed_request_says_why() {
        let csr = |status: serde_json::Value| -> CertificateSigningRequest {
            serde_json::from_value(
                json!({ "metadata": {}, "spec": { "request": "", "signerName": "s" }, "status": status }),
            )
            .unwrap()
        };
        assert_eq!(verdict(&csr(json!({}))), None);
        let denied = json!({ "conditions": [{ "type": "Denied", "status": "True", "message": "not your Node" }] });
        assert_eq!(verdict(&csr(denied)), Some(Err("not your Node".to_owned())));
        assert_eq!(verdict(&csr(json!({ "certificate": "Yg==" }))), Some(Ok(b"b".to_vec())));
    }
}
