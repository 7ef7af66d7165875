//! The asking side of a link.
//!
//! Invariant: one question is out at a time, and an answer that carries another id ends the
//! conversation: on a stream there is no honest way for it to come.

use std::marker::PhantomData;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::WireError;
use crate::hello::{Hello, Role, greet};
use crate::link::{Limits, Link, parse};
use crate::message::{Body, Reply, Request};
use crate::session::Session;
use crate::vm::{VmReport, VmVerb};

/// The asking side, for verbs `V` that are answered with reports `R`.
#[derive(Debug)]
pub struct Client<S, V, R> {
    link: Link<S>,
    peer: Hello,
    last_id: u64,
    speaks: PhantomData<fn(V) -> R>,
}

impl<S, V, R> Client<S, V, R>
where
    S: AsyncRead + AsyncWrite + Unpin,
    V: Serialize,
    R: DeserializeOwned,
{
    /// Greets the peer over `stream`; `limits.patience` is also how long every answer may take.
    pub async fn greet(stream: S, limits: Limits, ours: Role, expected: Role) -> Result<Self, WireError> {
        let mut link = Link::new(stream, limits);
        let peer = greet(&mut link, ours, expected).await?;
        Ok(Client { link, peer, last_id: 0, speaks: PhantomData })
    }

    /// Who answered.
    pub fn peer(&self) -> &Hello {
        &self.peer
    }

    /// Opens a session with `verb`: its report, and the connection, which carries frames from here on.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub async fn open(mut self, verb: V) -> Result<(R, Link<S>), WireError> {
        let report = self.ask(verb).await?;
        Ok((report, self.link))
    }

    /// Sends `verb` and returns its id; the answer is the caller's to read with [`Client::next`].
    pub async fn send(&mut self, verb: V) -> Result<u64, WireError> {
        self.last_id += 1;
        let id = self.last_id;
        self.link.send(&Request { id, verb }).await?;
        Ok(id)
    }

    /// The next reply, or `None` when the peer closed the connection. Cancel-safe.
    pub async fn next(&mut self) -> Result<Option<Reply<R>>, WireError> {
        match self.link.receive().await? {
            Some(body) => Ok(Some(parse(&body, "a reply")?)),
            None => Ok(None),
        }
    }

    /// Sends `verb` and awaits its report.
    pub async fn ask(&mut self, verb: V) -> Result<R, WireError> {
        let id = self.send(verb).await?;
        let reply: Reply<R> = self.link.receive_due("a reply").await?;
        settle(reply, id)
    }
}

/// The report in a reply to request `id`.
fn settle<R>(reply: Reply<R>, id: u64) -> Result<R, WireError> {
    match reply.body {
        // a refusal without an id is about the connection, so about the only request on it
        Body::Error(refusal) if reply.id.is_none_or(|found| found == id) => Err(WireError::Refused(refusal)),
        Body::Report(report) | Body::Event(report) if reply.id == Some(id) => Ok(report),
        _ => Err(WireError::OutOfOrder { expected: id, found: reply.id }),
    }
}

/// The agent's side of `vm.sock`.
#[derive(Debug)]
pub struct VmClient {
    client: Client<UnixStream, VmVerb, VmReport>,
}

impl VmClient {
    /// Connects and greets. `patience` bounds the connect, and every answer later.
    pub async fn connect(path: &Path, patience: Duration) -> Result<Self, WireError> {
        let stream = connect(path, patience).await?;
        let limits = Limits::VM.patient(patience);
        let client = Client::greet(stream, limits, Role::Agent, Role::Vm).await?;
        Ok(VmClient { client })
    }

    /// Who answered: its version tells a VM process that is older than the agent.
    pub fn peer(&self) -> &Hello {
        self.client.peer()
    }

    /// The present report.
    pub async fn describe(&mut self) -> Result<VmReport, WireError> {
        self.client.ask(VmVerb::Describe).await
    }

    /// Orders a stop; see [`VmVerb::Stop`]. Returns when it was taken on, not when it is done.
    pub async fn stop(&mut self, grace_seconds: u32) -> Result<VmReport, WireError> {
        self.client.ask(VmVerb::Stop { grace_seconds }).await
    }

    /// Turns this connection into a session with the guest.
    ///
    /// # Errors
    /// As [`Client::ask`]; a guest that refuses says so with [`WireError::Refused`].
    pub async fn open(self, session: Session) -> Result<Link<UnixStream>, WireError> {
        Ok(self.client.open(VmVerb::Open(session)).await?.1)
    }

    /// Turns this connection into a session whose output is the journal from byte `from` on.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub async fn follow_journal(self, from: u64) -> Result<Link<UnixStream>, WireError> {
        Ok(self.client.open(VmVerb::FollowJournal { from }).await?.1)
    }

    /// Turns this connection into a stream of reports.
    pub async fn watch(mut self) -> Result<VmWatch, WireError> {
        let id = self.client.send(VmVerb::Watch).await?;
        Ok(VmWatch { client: self.client, id })
    }
}

/// The reports of one VM, the present one first.
#[derive(Debug)]
pub struct VmWatch {
    client: Client<UnixStream, VmVerb, VmReport>,
    id: u64,
}

impl VmWatch {
    /// The next report; `None` when the process has closed the connection, which it does when it ends
    /// (after its final report, unless it was killed). Cancel-safe.
    pub async fn next(&mut self) -> Result<Option<VmReport>, WireError> {
        match self.client.next().await? {
            Some(reply) => settle(reply, self.id).map(Some),
            None => Ok(None),
        }
    }
}

/// Connects to a unix socket within `patience`.
pub async fn connect(path: &Path, patience: Duration) -> Result<UnixStream, WireError> {
    match timeout(patience, UnixStream::connect(path)).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(source)) => Err(WireError::Connect { path: path.to_owned(), source }),
        Err(_) => Err(WireError::Timeout { what: "a connection to the socket", after: patience }),
    }
}
