//! Listens, keeps its certificate fresh, and ends when it is told to.
//!
//! Invariant: the API server is told of us only when a connection would be answered with a certificate that it
//! trusts; a replaced CA is in its bundle before its leaf is shown.

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use futures::StreamExt;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use k8s_openapi::{api::core::v1::Secret, jiff::Timestamp};
use kube::{
    Api, Client,
    runtime::{WatchStreamExt, watcher},
};
use macrack_api::names::SYSTEM_NAMESPACE;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;

use crate::{
    Certificate, Error, FactSource, Reach, WebhookOptions,
    authority::{self, Authority, SECRET},
    install::{self, SERVICE, Trust},
    routes::{Context, router},
    tls::{Folder, Shown, server_config},
};

/// Connections at once; the API servers of a cluster need a handful.
const CONNECTIONS: usize = 512;
/// A peer that has not finished its handshake or its headers by then is dropped.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long requests under way have when we are told to end.
const GRACE: Duration = Duration::from_secs(5);
/// Clocks jump: the time of renewal is looked at again at least this often.
const LOOK: Duration = Duration::from_secs(3600);

/// A webhook that listens and is registered, but does not answer before [`Webhook::run`].
pub struct Webhook {
    listener: TcpListener,
    address: SocketAddr,
    router: axum::Router,
    source: Source,
    acceptor: TlsAcceptor,
}

enum Source {
    Own(Box<Keeper>),
    Folder(Folder),
}

/// [`bind`] and [`Webhook::run`].
///
/// # Errors
/// As those.
pub async fn serve<F: FactSource>(
    client: Client,
    facts: Arc<F>,
    options: WebhookOptions,
    shutdown: impl Future<Output = ()>,
) -> Result<(), Error> {
    bind(client, facts, options).await?.run(shutdown).await
}

/// Listens, makes or reads the certificate, and registers the webhook with the API server.
///
/// # Errors
/// When the address, the certificate or the API server does not let us.
pub async fn bind<F: FactSource>(client: Client, facts: Arc<F>, options: WebhookOptions) -> Result<Webhook, Error> {
    let listen = options.listen;
    let listener = TcpListener::bind(listen).await.map_err(|e| Error::Listen(listen, e))?;
    let address = listener.local_addr().map_err(|e| Error::Listen(listen, e))?;
    let reach = match options.reach {
        Reach::Url(url) => Reach::Url(url.replace("{port}", &address.port().to_string())),
        Reach::Service => Reach::Service,
    };
    let (source, shown) = match &options.certificate {
        Certificate::SelfMade => {
            let keeper = Keeper::start(client, reach).await?;
            let shown = keeper.shown.clone();
            (Source::Own(Box::new(keeper)), shown)
        }
        Certificate::Dir(dir) => {
            let folder = Folder::open(dir)?;
            install::register(&client, &reach, &Trust::Injected).await?;
            let shown = folder.shown.clone();
            (Source::Folder(folder), shown)
        }
    };
    let acceptor = TlsAcceptor::from(Arc::new(server_config(shown)?));
    let router = router(Context { facts, clock: options.clock, observer: options.observer });
    Ok(Webhook { listener, address, router, source, acceptor })
}

impl Webhook {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers until `shutdown`, then finishes what is under way.
    ///
    /// # Errors
    /// None at present: trouble with single connections is theirs, and trouble with a renewal is tried again.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), Error> {
        let Self { listener, router, source, acceptor, .. } = self;
        let (folder, keeper) = match source {
            Source::Folder(folder) => (Some(folder), None),
            Source::Own(keeper) => (None, Some(keeper)),
        };
        let keeping = async {
            match keeper {
                Some(keeper) => keeper.keep().await,
                None => std::future::pending().await,
            }
        };
        let mut connections = JoinSet::new();
        let room = Arc::new(Semaphore::new(CONNECTIONS));
        {
            let mut shutdown = std::pin::pin!(shutdown);
            let mut keeping = std::pin::pin!(keeping);
            loop {
                let accepted = async {
                    let permit = room.clone().acquire_owned().await;
                    (listener.accept().await, permit)
                };
                tokio::select! {
                    () = &mut shutdown => break,
                    never = &mut keeping => match never {},
                    Some(_) = connections.join_next() => {}
                    (accepted, permit) = accepted => match accepted {
                        Ok((stream, _)) => {
                            if let Some(folder) = &folder {
                                folder.refresh();
                            }
                            let (acceptor, router) = (acceptor.clone(), router.clone());
                            connections.spawn(async move {
                                answer(stream, acceptor, router).await;
                                drop(permit);
                            });
                        }
                        Err(e) => {
                            // out of file descriptors: others must end before another accept succeeds
                            tracing::warn!(error = %e, "a connection could not be accepted");
                            tokio::time::sleep(Duration::from_millis(100)).await;
                        }
                    }
                }
            }
        }
        drop(listener);
        let ended = async { while connections.join_next().await.is_some() {} };
        // idle connections of the API server never end by themselves
        let _ = tokio::time::timeout(GRACE, ended).await;
        Ok(())
    }
}

async fn answer(stream: TcpStream, acceptor: TlsAcceptor, router: axum::Router) {
    let stream = match tokio::time::timeout(PATIENCE, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(e)) => return tracing::debug!(error = %e, "a handshake failed"),
        Err(_) => return tracing::debug!("a handshake took too long"),
    };
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(PATIENCE * 12);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(PATIENCE * 6);
    if let Err(e) = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router)).await {
        tracing::debug!(error = %e, "a connection ended");
    }
}

/// Keeps the shown leaf, the CA in the Secret and the caBundle in step.
struct Keeper {
    client: Client,
    reach: Reach,
    names: Vec<String>,
    shown: Arc<Shown>,
    authority: Authority,
    renew_at: Timestamp,
}

impl Keeper {
    async fn start(client: Client, reach: Reach) -> Result<Self, Error> {
        let now = Timestamp::now();
        let names = names(&reach)?;
        let authority = authority::ensure(&secrets(&client), now, None).await?;
        let leaf = authority.leaf(&names, now)?;
        install::register(&client, &reach, &Trust::Bundle(authority.bundle(now))).await?;
        let shown = Shown::new(leaf.certified);
        Ok(Self { client, reach, names, shown, authority, renew_at: leaf.renew_at })
    }

    /// Wakes when the leaf is due and whenever the Secret changes.
    async fn keep(mut self) -> Infallible {
        let only = watcher::Config::default().fields(&format!("metadata.name={SECRET}"));
        let changes = watcher(secrets(&self.client), only).default_backoff();
        // a watcher does not end; if it did, the clock would still be looked at
        let mut changes = std::pin::pin!(changes.chain(futures::stream::pending()));
        loop {
            let left = self.renew_at.duration_since(Timestamp::now());
            let left = Duration::try_from(left).unwrap_or(Duration::ZERO).min(LOOK);
            tokio::select! {
                () = tokio::time::sleep(left) => {}
                change = changes.next() => if let Some(Err(e)) = change {
                    tracing::warn!(error = %e, "the webhook's Secret is not watched; the watch starts again");
                    continue;
                },
            }
            if let Err(e) = self.renew().await {
                tracing::warn!(error = %e, "the webhook's certificate was not renewed; it is tried again");
                tokio::time::sleep(PATIENCE).await;
            }
        }
    }

    async fn renew(&mut self) -> Result<(), Error> {
        let now = Timestamp::now();
        let authority = authority::ensure(&secrets(&self.client), now, Some(&self.authority)).await?;
        let replaced = authority != self.authority;
        if !replaced && now < self.renew_at {
            return Ok(());
        }
        let leaf = authority.leaf(&self.names, now)?;
        if replaced {
            install::register(&self.client, &self.reach, &Trust::Bundle(authority.bundle(now))).await?;
        }
        self.shown.swap(leaf.certified);
        (self.authority, self.renew_at) = (authority, leaf.renew_at);
        tracing::info!(replaced, renew_at = %self.renew_at, "the webhook shows a new certificate");
        Ok(())
    }
}

fn secrets(client: &Client) -> Api<Secret> {
    Api::namespaced(client.clone(), SYSTEM_NAMESPACE)
}

/// The names by which the API server calls us.
fn names(reach: &Reach) -> Result<Vec<String>, Error> {
    match reach {
        Reach::Service => {
            let service = format!("{SERVICE}.{SYSTEM_NAMESPACE}.svc");
            Ok(vec![format!("{service}.cluster.local"), service])
        }
        Reach::Url(url) => {
            let refused = || Error::Url(url.clone());
            let parsed: axum::http::Uri = url.parse().map_err(|_| refused())?;
            let host = parsed.host().filter(|_| parsed.scheme_str() == Some("https")).ok_or_else(refused)?;
            Ok(vec![host.trim_matches(['[', ']']).to_owned()])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_certificate_is_for_the_host_that_the_api_server_calls() {
        let of = |url: &str| names(&Reach::Url(url.into()));
        assert_eq!(of("https://10.0.0.7:8443").unwrap(), ["10.0.0.7"]);
        assert_eq!(of("https://[::1]:8443").unwrap(), ["::1"]);
        assert_eq!(of("https://mac.example.com").unwrap(), ["mac.example.com"]);
        for wrong in ["http://10.0.0.7", "10.0.0.7:8443", "", "https://"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
        assert!(names(&Reach::Service).unwrap().contains(&"macrack-webhook.macrack-system.svc".to_owned()));
    }
}
