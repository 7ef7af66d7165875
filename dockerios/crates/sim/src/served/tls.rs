//! A listener with a certificate of its own authority. Invariant: a peer that is slow to shake hands keeps nobody
//! else waiting.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Result;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::{
    ServerConfig,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc::{Receiver, channel},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

/// Service that the aggregated API is registered with; its name is in the certificate.
pub(crate) const SERVICE: &str = "dockerios-sim";
const HANDSHAKE: Duration = Duration::from_secs(5);

pub(super) struct Listener {
    ready: Receiver<(TlsStream<TcpStream>, SocketAddr)>,
    address: SocketAddr,
}

impl axum::serve::Listener for Listener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        match self.ready.recv().await {
            Some(ready) => ready,
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}

fn configuration() -> Result<(ServerConfig, String)> {
    let mut authority = CertificateParams::new(Vec::new())?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let authority_key = KeyPair::generate()?;
    let pem = authority.self_signed(&authority_key)?.pem();
    let issuer = Issuer::new(authority, authority_key);
    let names = [
        "127.0.0.1".to_owned(),
        "localhost".to_owned(),
        format!("{SERVICE}.{}.svc", crate::world::NAMESPACE),
    ];
    let key = KeyPair::generate()?;
    let leaf = CertificateParams::new(names)?.signed_by(&key, &issuer)?;
    let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut configuration = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![leaf.der().clone()], private)?;
    configuration.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok((configuration, pem))
}

/// Listens; gives back the address and the authority's certificate.
pub(super) async fn listen(address: SocketAddr) -> Result<(Listener, SocketAddr, String)> {
    let (configuration, pem) = configuration()?;
    let acceptor = TlsAcceptor::from(Arc::new(configuration));
    let socket = TcpListener::bind(address).await?;
    let address = socket.local_addr()?;
    let (sender, ready) = channel(16);
    tokio::spawn(async move {
        loop {
            let accepted = tokio::select! {
                accepted = socket.accept() => accepted,
                () = sender.closed() => return,
            };
            let Ok((stream, peer)) = accepted else {
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            let (acceptor, sender) = (acceptor.clone(), sender.clone());
            tokio::spawn(async move {
                if let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
                    let _ = sender.send((stream, peer)).await;
                }
            });
        }
    });
    Ok((Listener { ready, address }, address, pem))
}
