//! The listening side: TLS, time limits, and the end. Invariant: a connection that says nothing, or says it slowly,
//! costs a place for a bounded time only.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use dockerios_wire::LONGEST_POLL;
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::{ServerConfig, server::ResolvesServerCert};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    task::JoinSet,
    time::Instant,
};
use tokio_rustls::TlsAcceptor;

use crate::{counts::Counts, heard::Memory, key::ReportKey, machines::Machines, pace::Pace, service::Service};

/// What a collector needs.
pub struct Options {
    /// Address to listen on.
    pub listen: SocketAddr,
    /// Gives the certificate that is shown; asked anew for each connection, so it can be renewed while serving.
    pub tls: Arc<dyn ResolvesServerCert>,
    /// The key behind the guests' tokens.
    pub key: ReportKey,
    /// Where machines are looked up and reports are written.
    pub machines: Arc<dyn Machines>,
    /// Times and numbers; [`Limits::default`] unless there is a reason.
    pub limits: Limits,
}

/// How long and how much is waited for.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// For a TLS handshake.
    pub handshake: Duration,
    /// For the head of a request, also while a connection idles.
    pub head: Duration,
    /// For the body of a request.
    pub body: Duration,
    /// An answer is held back at most this long; cut to [`LONGEST_POLL`].
    pub hold: Duration,
    /// Connections at a time; each machine holds one.
    pub connections: usize,
    /// What is under way when the collector ends gets this long.
    pub farewell: Duration,
}

impl Default for Limits {
    /// 10 s for each part of a request, answers held for 25 s, 8192 connections, 5 s to end.
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(10),
            head: Duration::from_secs(10),
            body: Duration::from_secs(10),
            hold: Duration::from_secs(25),
            connections: 8192,
            farewell: Duration::from_secs(5),
        }
    }
}

/// Takes the reports of guests. Every replica of the operator runs one.
pub struct Collector {
    listener: TcpListener,
    address: SocketAddr,
    acceptor: TlsAcceptor,
    service: Arc<Service>,
    ends: watch::Sender<bool>,
    limits: Limits,
}

impl Collector {
    /// Begins to listen; connections wait until [`Collector::run`].
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub async fn bind(options: Options) -> io::Result<Self> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_no_client_auth()
            .with_cert_resolver(options.tls);
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        let listener = TcpListener::bind(options.listen).await?;
        let address = listener.local_addr()?;
        let mut limits = options.limits;
        limits.hold = limits.hold.min(LONGEST_POLL);
        let (ends, ending) = watch::channel(false);
        let service = Arc::new(Service {
            key: options.key,
            machines: options.machines,
            limits,
            counts: Arc::new(Counts::default()),
            memory: Memory::default(),
            courtesy: Mutex::new(Pace::new(10.0, 20.0, Instant::now())),
            ending,
        });
        Ok(Self {
            listener,
            address,
            acceptor: TlsAcceptor::from(Arc::new(tls)),
            service,
            ends,
            limits,
        })
    }

    /// Where it listens, with the port that the system chose.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it did so far; keeps counting.
    #[must_use]
    pub fn counts(&self) -> Arc<Counts> {
        Arc::clone(&self.service.counts)
    }

    /// Serves until `stop` is done; then gives the held answers and ends.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let places = Arc::new(Semaphore::new(self.limits.connections));
        let mut connections = JoinSet::new();
        tokio::pin!(stop);
        loop {
            let place = tokio::select! {
                place = Arc::clone(&places).acquire_owned() => place,
                () = &mut stop => break,
            };
            let Ok(place) = place else { break };
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = &mut stop => break,
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // out of file descriptors, or the peer left: neither ends the collector
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            let (acceptor, service) = (self.acceptor.clone(), Arc::clone(&self.service));
            connections.spawn(async move {
                serve(stream, acceptor, service).await;
                drop(place);
            });
            while connections.try_join_next().is_some() {}
        }
        drop(self.listener);
        self.ends.send_replace(true);
        let all = async { while connections.join_next().await.is_some() {} };
        if tokio::time::timeout(self.limits.farewell, all).await.is_err() {
            tracing::info!("connections that did not end in time are cut");
        }
    }
}

async fn serve(stream: TcpStream, acceptor: TlsAcceptor, service: Arc<Service>) {
    let shaken = tokio::time::timeout(service.limits.handshake, acceptor.accept(stream)).await;
    let Ok(Ok(stream)) = shaken else {
        service.counts.handshake.one();
        return;
    };
    let head = service.limits.head;
    let mut ending = service.ending.clone();
    let answer = service_fn(move |request| {
        let service = Arc::clone(&service);
        async move { Ok::<_, std::convert::Infallible>(service.answer(request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head)
        .serve_connection(TokioIo::new(stream), answer);
    tokio::pin!(connection);
    let mut told = false;
    loop {
        tokio::select! {
            done = &mut connection => {
                if let Err(error) = done {
                    tracing::debug!(%error, "a connection ended badly");
                }
                return;
            }
            _ = ending.wait_for(|ends| *ends), if !told => {
                told = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}
