//! The answering side of a link.
//!
//! Invariant: requests on one connection are answered in the order they came, each exactly once; a
//! watch adds events between the answers. Nothing that a peer sends ends anything but its own
//! connection.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::WireError;
use crate::hello::{Role, greet};
use crate::link::{Limits, Link};
use crate::message::{Body, Refusal, RefusalKind, Reply, Request, read_request};
use crate::session::MAX_SESSIONS;

/// Connections served at once: the sessions that a guest takes, two for an agent, and some for accidents.
pub const MAX_CONNECTIONS: usize = MAX_SESSIONS + 16;
/// Unreadable requests that are answered on one connection before it is closed.
const MAX_MISTAKES: usize = 16;
/// How long accepting rests after the operating system refused it.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

/// How a service answers a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// With the present report.
    Report,
    /// With the present report and every later one.
    Watch,
}

/// What stands behind a socket.
pub trait Service: Send + Sync + 'static {
    /// Who this is.
    const ROLE: Role;
    /// Who may speak to it.
    const PEER: Role;
    /// What can be asked.
    type Verb: DeserializeOwned + Send;
    /// What is answered.
    type Report: Serialize + Clone + Send + Sync + 'static;

    /// The reports: the present one, and a wake-up for each change.
    fn reports(&self) -> watch::Receiver<Self::Report>;

    /// Carries out `verb`, or takes it on. The report is read after this returns.
    fn call(&self, verb: Self::Verb) -> impl Future<Output = Result<Answer, Refusal>> + Send;

    /// Whether `verb` asks for a session, which [`Service::session`] then serves instead of `call`.
    fn opens(_: &Self::Verb) -> bool {
        false
    }

    /// Serves the session that `opening` asks for: accepts it, or refuses it.
    fn session<S>(&self, opening: Opening<S, Self>) -> impl Future<Output = Result<(), WireError>> + Send
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        Self: Sized,
    {
        async { opening.refuse(Refusal::denied("there are no sessions here")).await }
    }
}

/// A request for a session, which is answered once.
pub struct Opening<S, V: Service> {
    /// What is asked for.
    pub verb: V::Verb,
    id: u64,
    link: Link<S>,
}

impl<S: AsyncRead + AsyncWrite + Unpin, V: Service> Opening<S, V> {
    /// Accepts it with `report`; the connection carries frames from here on.
    ///
    /// # Errors
    /// When the peer has gone.
    pub async fn accept(mut self, report: V::Report) -> Result<Link<S>, WireError> {
        self.link.send(&Reply { id: Some(self.id), body: Body::Report(report) }).await?;
        Ok(self.link)
    }

    /// Refuses it and ends the connection.
    ///
    /// # Errors
    /// When the peer has gone.
    pub async fn refuse(mut self, refusal: Refusal) -> Result<(), WireError> {
        refuse(&mut self.link, Some(self.id), refusal).await
    }
}

/// A way in for peers.
pub trait Listen: Send {
    /// One connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The next peer that may speak. Cancel-safe. One that may not is an error; the next is awaited then.
    fn accept(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

impl Listen for UnixListener {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<UnixStream> {
        Ok(UnixListener::accept(self).await?.0)
    }
}

/// Serves `listener` until the service's reports end (its sender is dropped); the open connections
/// then get what is left to say and are closed.
pub async fn serve<V: Service>(listener: impl Listen, service: Arc<V>, limits: Limits) {
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut open = JoinSet::new();
    let mut reports = service.reports();
    loop {
        tokio::select! {
            changed = reports.changed() => if changed.is_err() { break },
            Some(_) = open.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok(stream) => {
                    let (service, room) = (service.clone(), room.clone());
                    open.spawn(async move {
                        let Ok(_seat) = room.try_acquire() else { return };
                        if let Err(error) = serve_connection(stream, &*service, limits).await {
                            tracing::warn!(%error, "a connection was closed");
                        }
                    });
                }
                Err(error) => {
                    // out of descriptors, most likely, and nothing tells when there are some again
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_BACKOFF).await;
                }
            },
        }
    }
    drop(listener);
    while open.join_next().await.is_some() {}
}

/// Serves one connection until the peer or the service ends.
pub async fn serve_connection<S, V>(stream: S, service: &V, limits: Limits) -> Result<(), WireError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    V: Service,
{
    let mut link = Link::new(stream, limits);
    greet(&mut link, V::ROLE, V::PEER).await?;
    let mut reports = service.reports();
    let mut watched: Option<u64> = None;
    let mut mistakes = 0;
    loop {
        tokio::select! {
            changed = reports.changed() => {
                if changed.is_err() {
                    return Ok(());
                }
                let report = reports.borrow_and_update().clone();
                if let Some(id) = watched {
                    link.send(&Reply { id: Some(id), body: Body::Event(report) }).await?;
                }
            }
            frame = link.receive() => {
                let body = match frame {
                    Ok(Some(body)) => body,
                    Ok(None) => return Ok(()),
                    Err(error) => return farewell(&mut link, error).await,
                };
                let request = match read_request::<V::Verb>(&body) {
                    Ok(request) if V::opens(&request.verb) => {
                        // what a session still has to say does not outlive the service
                        return tokio::select! {
                            ended = service.session(Opening { verb: request.verb, id: request.id, link }) => ended,
                            () = over(&mut reports) => Ok(()),
                        };
                    }
                    other => other,
                };
                match answer(service, request).await {
                    Ok((id, Answer::Report)) => {
                        // not marked as seen: a watcher is owed its event all the same
                        let body = Body::Report(reports.borrow().clone());
                        link.send(&Reply { id: Some(id), body }).await?;
                    }
                    Ok((id, Answer::Watch)) => {
                        watched = Some(id);
                        let body = Body::Event(reports.borrow_and_update().clone());
                        link.send(&Reply { id: Some(id), body }).await?;
                    }
                    Err((id, refusal)) => {
                        mistakes += usize::from(!matches!(refusal.kind, RefusalKind::Denied | RefusalKind::Repeated));
                        refuse(&mut link, id, refusal).await?;
                        if mistakes > MAX_MISTAKES {
                            let message = format!("more than {MAX_MISTAKES} unreadable requests");
                            let refusal = Refusal::new(RefusalKind::TooMany, message);
                            return refuse(&mut link, None, refusal).await;
                        }
                    }
                }
            }
        }
    }
}

/// The reports have ended.
async fn over<R>(reports: &mut watch::Receiver<R>) {
    while reports.changed().await.is_ok() {}
}

type Asked<V> = Result<Request<V>, (Option<u64>, Refusal)>;

async fn answer<V: Service>(service: &V, request: Asked<V::Verb>) -> Result<(u64, Answer), (Option<u64>, Refusal)> {
    let request = request?;
    match service.call(request.verb).await {
        Ok(answer) => Ok((request.id, answer)),
        Err(refusal) => Err((Some(request.id), refusal)),
    }
}

async fn refuse<S>(link: &mut Link<S>, id: Option<u64>, refusal: Refusal) -> Result<(), WireError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let body = Body::Error(refusal);
    link.send(&Reply::<()> { id, body }).await
}

/// Tells the peer why its connection ends, and ends it.
async fn farewell<S>(link: &mut Link<S>, error: WireError) -> Result<(), WireError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let refusal = Refusal::new(RefusalKind::Malformed, error.to_string());
    if let Err(unsent) = refuse(link, None, refusal).await {
        tracing::debug!(error = %unsent, "the peer left before it was told why");
    }
    Err(error)
}
