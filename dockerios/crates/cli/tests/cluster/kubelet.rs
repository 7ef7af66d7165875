//! A kubelet as far as the API server asks one for the log of a container.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

/// How a log is answered.
pub(crate) enum Log {
    Whole(String),
    /// The connection is cut behind it.
    Cut(String),
    /// The connection is cut before anything is answered.
    Nothing,
}

/// By the path that is asked for, and by how often any was asked for before.
pub(crate) type Logs = Arc<dyn Fn(&str, usize) -> Log + Send + Sync>;

pub(crate) struct Kubelet {
    pub(crate) port: u16,
    asked: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Kubelet {
    pub(crate) async fn start(logs: Logs) -> Result<Kubelet> {
        let own = rcgen::generate_simple_self_signed(["kubelet".to_owned()])?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(own.signing_key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![own.cert.der().clone()], key)?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, logs, count) = (acceptor.clone(), logs.clone(), count.clone());
                tokio::spawn(async move {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        // who asks sees what became of it
                        let _ = answer(stream, &logs, &count).await;
                    }
                });
            }
        });
        Ok(Kubelet { port, asked, task })
    }

    /// How many logs were asked for.
    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(mut stream: impl AsyncRead + AsyncWrite + Unpin, logs: &Logs, count: &AtomicUsize) -> Result<()> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        request.push(stream.read_u8().await?);
    }
    let request = String::from_utf8_lossy(&request).into_owned();
    let path = request.split(' ').nth(1).unwrap_or_default();
    let (text, cut) = match logs(path, count.fetch_add(1, Ordering::SeqCst)) {
        Log::Whole(text) => (text, false),
        Log::Cut(text) => (text, true),
        Log::Nothing => return Ok(()),
    };
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
    let body = format!("{head}{:x}\r\n{text}\r\n", text.len());
    stream.write_all(body.as_bytes()).await?;
    if !cut {
        stream.write_all(b"0\r\n\r\n").await?;
    }
    stream.shutdown().await?;
    Ok(())
}
