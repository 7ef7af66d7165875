//! The listener: TLS, who calls, how many at once.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use axum::Router;
use axum::http::StatusCode;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::Targets;
use super::routes::{self, Kubelet};

/// Connections at once: sessions, followers of logs, and the API servers' idle ones.
const CONNECTIONS: usize = 128;
/// A peer that has not finished its handshake by then is dropped; ten times that for its headers. One that is turned
/// away has as long to hear it: it must not keep the place of the API server.
const PATIENCE: Duration = Duration::from_secs(5);

/// Who may call.
#[derive(Debug, Clone)]
pub struct Callers {
    /// The cluster's client CA, PEM.
    pub ca_pem: Vec<u8>,
    /// The common name that the API server shows to kubelets.
    pub name: String,
}

/// The serving certificate, once there is one; swapped when it is renewed.
#[derive(Debug, Default)]
pub(super) struct Certificate(ArcSwapOption<CertifiedKey>);

impl Certificate {
    /// Shows this one from now on.
    pub(super) fn show(&self, certificate: CertifiedKey) {
        self.0.store(Some(Arc::new(certificate)));
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.load_full()
    }
}

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
pub enum KubeletError {
    /// The address is taken, or not this Mac's.
    #[error("cannot listen on {0}: {1}; end what has the port, or give another with --kubelet-port")]
    Listen(SocketAddr, std::io::Error),
    /// The client CA is unusable.
    #[error(
        "the cluster's client CA in the bootstrap file is of no use: {0}; print a new file with `kubectl macrack enroll`"
    )]
    ClientCa(String),
    /// A defect of the build.
    #[error("TLS cannot be set up: {0}")]
    Tls(#[from] rustls::Error),
}

/// A server that listens and answers nobody yet.
pub(super) struct Server {
    listener: TcpListener,
    port: u16,
    acceptor: TlsAcceptor,
    name: String,
}

impl Server {
    /// Listens on `address`; port 0 takes a free one.
    ///
    /// # Errors
    /// When the address or the client CA is of no use.
    pub(super) async fn bind(
        address: SocketAddr,
        callers: Callers,
        certificate: Arc<Certificate>,
    ) -> Result<Server, KubeletError> {
        let listener = TcpListener::bind(address).await.map_err(|error| KubeletError::Listen(address, error))?;
        let port = listener.local_addr().map_err(|error| KubeletError::Listen(address, error))?.port();
        let config = config(&callers.ca_pem, certificate)?;
        Ok(Server { listener, port, acceptor: TlsAcceptor::from(Arc::new(config)), name: callers.name })
    }

    /// The port.
    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Answers, for ever.
    pub(super) async fn run(self, targets: watch::Receiver<Targets>) {
        let router = routes::router(Kubelet::new(targets));
        let room = Arc::new(Semaphore::new(CONNECTIONS));
        let mut open = JoinSet::new();
        loop {
            tokio::select! {
                Some(_) = open.join_next() => {}
                accepted = async { (room.clone().acquire_owned().await, self.listener.accept().await) } => {
                    let (seat, accepted) = accepted;
                    match accepted {
                        Ok((stream, from)) => {
                            let (acceptor, router, name) = (self.acceptor.clone(), router.clone(), self.name.clone());
                            open.spawn(async move {
                                answer(stream, from, acceptor, router, &name).await;
                                drop(seat);
                            });
                        }
                        Err(error) => {
                            // out of descriptors, most likely, and nothing tells when there are some again
                            tracing::warn!(%error, "a connection could not be accepted");
                            tokio::time::sleep(Duration::from_millis(100)).await;
                        }
                    }
                }
            }
        }
    }
}

fn config(ca_pem: &[u8], certificate: Arc<Certificate>) -> Result<ServerConfig, KubeletError> {
    let unusable = |why: String| KubeletError::ClientCa(why);
    let mut roots = RootCertStore::empty();
    for ca in CertificateDer::pem_slice_iter(ca_pem) {
        roots.add(ca.map_err(|error| unusable(error.to_string()))?).map_err(|error| unusable(error.to_string()))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        // who shows none is told so, instead of being left with a broken handshake
        .allow_unauthenticated()
        .build()
        .map_err(|error| unusable(error.to_string()))?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(certificate);
    // WebSocket needs it
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

async fn answer(stream: TcpStream, from: SocketAddr, acceptor: TlsAcceptor, router: Router, name: &str) {
    let stream = match tokio::time::timeout(PATIENCE, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%from, %error, "a handshake failed"),
        Err(_) => return tracing::debug!(%from, "a handshake took too long"),
    };
    let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first()).map(|leaf| leaf.as_ref());
    let (router, known) = match judge(shown, name) {
        Ok(()) => (router, true),
        Err((status, why)) => {
            tracing::warn!(%from, why, "a caller is turned away");
            (Router::new().fallback(move || async move { (status, why + "\n") }), false)
        }
    };
    // HTTP/1 alone: to find out which HTTP a peer speaks, its first bytes would be waited for without end
    let mut builder = auto::Builder::new(TokioExecutor::new()).http1_only();
    builder.http1().timer(TokioTimer::new()).header_read_timeout(PATIENCE * 10).keep_alive(known);
    let served = builder.serve_connection_with_upgrades(TokioIo::new(stream), TowerToHyperService::new(router));
    let ended = if known { served.await } else { tokio::time::timeout(PATIENCE, served).await.unwrap_or(Ok(())) };
    if let Err(error) = ended {
        tracing::debug!(%from, %error, "a connection ended");
    }
}

/// Whether the certificate that was shown, whose chain is good, is the API server's.
fn judge(shown: Option<&[u8]>, name: &str) -> Result<(), (StatusCode, String)> {
    let Some(shown) = shown else {
        let why = "no client certificate was shown: this port answers the cluster's API server alone; use kubectl";
        return Err((StatusCode::UNAUTHORIZED, why.to_owned()));
    };
    let (_, leaf) = X509Certificate::from_der(shown)
        .map_err(|error| (StatusCode::UNAUTHORIZED, format!("the client certificate cannot be read: {error}")))?;
    let names: Vec<&str> = leaf.subject().iter_common_name().filter_map(|name| name.as_str().ok()).collect();
    if names != [name] {
        let why = format!(
            "the client certificate is for {names:?}, not for {name:?}, the name by which the bootstrap file knows the API server; if that has changed, enroll again with --kubelet-client-name"
        );
        return Err((StatusCode::FORBIDDEN, why));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(names: &[&str]) -> Vec<u8> {
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        for name in names {
            params.distinguished_name.push(rcgen::DnType::CommonName, *name);
        }
        let key = rcgen::KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().to_vec()
    }

    #[test]
    fn only_the_api_servers_own_name_is_let_in() {
        let verdict =
            |shown: Option<&[u8]>| judge(shown, "kube-apiserver-kubelet-client").map_err(|(status, _)| status);
        assert_eq!(verdict(Some(&certificate(&["kube-apiserver-kubelet-client"]))), Ok(()));
        assert_eq!(verdict(Some(&certificate(&["kubernetes-admin"]))), Err(StatusCode::FORBIDDEN));
        assert_eq!(verdict(Some(&certificate(&[]))), Err(StatusCode::FORBIDDEN));
        assert_eq!(verdict(Some(b"no certificate")), Err(StatusCode::UNAUTHORIZED));
        assert_eq!(verdict(None), Err(StatusCode::UNAUTHORIZED));
    }

    #[test]
    fn a_bootstrap_file_without_a_usable_ca_serves_nobody() {
        let refused = config(b"nothing", Arc::default()).err().unwrap().to_string();
        assert!(refused.contains("client CA"), "{refused}");
    }

    #[tokio::test]
    async fn a_stranger_that_says_nothing_does_not_keep_a_place() {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let key = rcgen::KeyPair::generate().unwrap();
        let own = rcgen::CertificateParams::new(["mac".to_owned()]).unwrap().self_signed(&key).unwrap();
        let signing = rustls::pki_types::PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let shown = Arc::new(Certificate::default());
        let signing = rustls::crypto::ring::sign::any_supported_type(&signing).unwrap();
        shown.show(CertifiedKey::new(vec![own.der().clone()], signing));
        let ca_pem = own.pem().into_bytes();
        let address = "127.0.0.1:0".parse().unwrap();
        let server = Server::bind(address, Callers { ca_pem, name: "api".to_owned() }, shown).await.unwrap();
        let port = server.port();
        let (_targets, seen) = watch::channel(Targets::new());
        let serving = tokio::spawn(server.run(seen));
        let mut roots = RootCertStore::empty();
        roots.add(own.der().clone()).unwrap();
        let config = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.unwrap().with_root_certificates(roots).with_no_client_auth();
        let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        let mut stream = connector.connect("mac".try_into().unwrap(), stream).await.unwrap();
        let mut word = [0; 64];
        let end = tokio::io::AsyncReadExt::read(&mut stream, &mut word);
        let ended = tokio::time::timeout(PATIENCE * 3, end).await;
        assert!(ended.is_ok(), "it holds its place for as long as it likes");
        serving.abort();
    }
}
