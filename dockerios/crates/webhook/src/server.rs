//! Listens with the installation's own certificate and ends when it is told to.
//!
//! Invariant: the API server is told of us only once a connection would be answered, under an authority that it is told
//! of at the same time; an authority that is added is told to it long before anything is shown that needs it; and what it
//! was told is looked after, since whoever installs the manifest anew takes it away.

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use dockerios_pki::Authority;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto, graceful::GracefulShutdown},
    service::TowerToHyperService,
};
use kube::Client;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    task::JoinSet,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use crate::{
    Error, Options, Reach,
    facts::Eyes,
    registration::{names, register},
    review::{Desk, PATIENCE, router},
};

/// A peer that has found no room, or not finished its handshake, by then is dropped.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Between the bytes of a request's head.
const HEAD: Duration = Duration::from_secs(30);
/// How long what is under way has when we are told to end.
const FAREWELL: Duration = Duration::from_secs(5);
/// Before a failed registration or a failed accept is tried again.
const PAUSE: Duration = Duration::from_secs(2);
/// The registration is applied again so often, which writes nothing while it stands. It is not watched: that would take
/// one more right, for something that an admin does at an upgrade.
const LOOK: Duration = Duration::from_secs(30);
/// Connections at once. API servers keep a handful.
const ROOM: usize = 256;

/// A webhook that is registered and accepts connections, but answers none before [`Bound::run`].
pub struct Bound {
    listener: TcpListener,
    address: SocketAddr,
    acceptor: TlsAcceptor,
    router: axum::Router,
    client: Client,
    reach: Reach,
    bundle: watch::Receiver<String>,
}

/// Listens, has a certificate made, and tells the API server of it.
///
/// # Errors
/// When the address, the certificate or the API server does not let us.
pub async fn bind(options: Options, client: Client, authority: &Authority) -> Result<Bound, Error> {
    let refused = |error| Error::Listen(options.listen, error);
    let listener = TcpListener::bind(options.listen).await.map_err(refused)?;
    let address = listener.local_addr().map_err(refused)?;
    let reach = options.reach.at(address.port());
    let acceptor = acceptor(authority, &reach)?;
    let mut bundle = authority.bundle();
    let known = bundle.borrow_and_update().clone();
    register(&client, &reach, &known).await?;
    tracing::info!(?reach, "the webhook is registered");
    let desk = Desk {
        eyes: Eyes::new(client.clone()),
        observe: options.observe,
        patience: PATIENCE,
    };
    Ok(Bound {
        listener,
        address,
        acceptor,
        router: router(desk),
        client,
        reach,
        bundle,
    })
}

fn acceptor(authority: &Authority, reach: &Reach) -> Result<TlsAcceptor, Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(authority.leaf(names(reach)?)?);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

impl Bound {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers until `shutdown`, then finishes what is under way.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let Self {
            listener,
            acceptor,
            router,
            client,
            reach,
            bundle,
            ..
        } = self;
        let graceful = GracefulShutdown::new();
        let room = Arc::new(Semaphore::new(ROOM));
        let mut handshakes = JoinSet::new();
        {
            let mut shutdown = std::pin::pin!(shutdown);
            let mut telling = std::pin::pin!(keep_registered(client, reach, bundle, LOOK));
            loop {
                tokio::select! {
                    () = &mut shutdown => break,
                    never = &mut telling => match never {},
                    accepted = listener.accept() => match accepted {
                        Ok((stream, _)) => {
                            let (acceptor, room) = (acceptor.clone(), Arc::clone(&room));
                            handshakes.spawn(tokio::time::timeout(HANDSHAKE, async move {
                                let permit = room.acquire_owned().await.ok()?;
                                Some((greet(&acceptor, stream).await?, permit))
                            }));
                        }
                        Err(error) => {
                            // out of file descriptors: others have to end before another accept succeeds
                            tracing::warn!(%error, "a connection could not be accepted");
                            tokio::time::sleep(PAUSE).await;
                        }
                    },
                    Some(greeted) = handshakes.join_next() => if let Ok(Ok(Some((stream, permit)))) = greeted {
                        let service = TowerToHyperService::new(router.clone());
                        let connection = builder().serve_connection(TokioIo::new(stream), service).into_owned();
                        let connection = graceful.watch(connection);
                        tokio::spawn(async move {
                            if let Err(error) = connection.await {
                                tracing::debug!(%error, "a connection ended");
                            }
                            drop(permit);
                        });
                    },
                }
            }
        }
        drop(listener);
        let _ = tokio::time::timeout(FAREWELL, graceful.shutdown()).await;
    }
}

fn builder() -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(HEAD);
    builder
}

async fn greet(acceptor: &TlsAcceptor, stream: TcpStream) -> Option<TlsStream<TcpStream>> {
    acceptor
        .accept(stream)
        .await
        .inspect_err(|error| tracing::debug!(%error, "a handshake failed"))
        .ok()
}

/// Tells the API server of each change of the authorities, and again what it no longer knows.
async fn keep_registered(
    client: Client,
    reach: Reach,
    mut bundle: watch::Receiver<String>,
    look: Duration,
) -> Infallible {
    let mut changes = true;
    loop {
        tokio::select! {
            // an error: the authority is gone, and with it all change
            changed = bundle.changed(), if changes => changes = changed.is_ok(),
            () = tokio::time::sleep(look) => {}
        }
        loop {
            let known = bundle.borrow_and_update().clone();
            match register(&client, &reach, &known).await {
                Ok(()) => break,
                Err(error) => tracing::error!(%error, "the API server may not know the authorities"),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use dockerios_testkit::{ControlPlane, Options as Plane, apply_file, expect};
    use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
    use kube::{Api, api::PostParams};

    use super::*;
    use crate::CONFIGURATION;

    /// Whether every webhook trusts somebody.
    fn trusting(configuration: &ValidatingWebhookConfiguration) -> bool {
        let mut webhooks = configuration.webhooks.iter().flatten();
        webhooks.all(|webhook| webhook.client_config.ca_bundle.is_some())
    }

    #[tokio::test]
    async fn whoever_installs_the_manifest_anew_has_the_authorities_told_again() -> anyhow::Result<()> {
        let plane = ControlPlane::start(Plane::default()).await?;
        let client = plane.client().await?;
        let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/webhook/configuration.yaml");
        apply_file(&client, manifest).await?;
        let authority = Authority::open(client.clone(), "default", "keys").await?;
        register(&client, &Reach::Service, &authority.ca_pem()).await?;
        let api: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
        let mut bare = api.get(CONFIGURATION).await?;
        assert!(trusting(&bare));

        for webhook in bare.webhooks.iter_mut().flatten() {
            webhook.client_config.ca_bundle = None;
        }
        bare = api.replace(CONFIGURATION, &PostParams::default(), &bare).await?;
        assert!(!trusting(&bare), "as a manifest that is installed anew");
        let look = Duration::from_millis(100);
        let keeping = tokio::spawn(keep_registered(client, Reach::Service, authority.bundle(), look));
        expect::until(api, CONFIGURATION, "the authorities again", trusting).await?;
        keeping.abort();
        Ok(())
    }
}
