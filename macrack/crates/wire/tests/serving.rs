//! The server loop on a real socket.

#![allow(clippy::unwrap_used, reason = "a test ends where its premise fails")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use macrack_wire::link::Limits;
use macrack_wire::serve::{MAX_CONNECTIONS, Opening};
use macrack_wire::session::{Frame, split};
use macrack_wire::{Answer, Refusal, Role, Service, Session, VmClient, VmReport, VmState, VmVerb, WireError, serve};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

const PATIENCE: Duration = Duration::from_secs(10);

struct Vm {
    reports: watch::Receiver<VmReport>,
    stops: mpsc::UnboundedSender<u32>,
}

impl Service for Vm {
    const ROLE: Role = Role::Vm;
    const PEER: Role = Role::Agent;
    type Verb = VmVerb;
    type Report = VmReport;

    fn reports(&self) -> watch::Receiver<VmReport> {
        self.reports.clone()
    }

    async fn call(&self, verb: VmVerb) -> Result<Answer, Refusal> {
        match verb {
            VmVerb::Describe => Ok(Answer::Report),
            VmVerb::Watch => Ok(Answer::Watch),
            VmVerb::Stop { grace_seconds } => {
                self.stops.send(grace_seconds).map_err(|_| Refusal::denied("gone"))?;
                Ok(Answer::Report)
            }
            VmVerb::Open(_) | VmVerb::FollowJournal { .. } => unreachable!("a session"),
        }
    }

    fn opens(verb: &VmVerb) -> bool {
        matches!(verb, VmVerb::Open(_))
    }

    /// Echoes what it gets.
    async fn session<S>(&self, opening: Opening<S, Self>) -> Result<(), WireError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        if let VmVerb::Open(Session::Forward { port }) = opening.verb {
            return opening.refuse(Refusal::denied(format!("nobody listens on {port}"))).await;
        }
        let report = self.reports.borrow().clone();
        let (mut reader, mut writer) = split(opening.accept(report).await?);
        while let Some(frame) = reader.next().await? {
            let Frame::Input(bytes) = frame else { continue };
            writer.send(&Frame::Output(bytes)).await?;
        }
        Ok(())
    }
}

struct Served {
    directory: TempDir,
    reports: watch::Sender<VmReport>,
    stops: mpsc::UnboundedReceiver<u32>,
    server: JoinHandle<()>,
}

fn report(state: VmState) -> VmReport {
    VmReport {
        uid: "a".into(),
        pid: 7,
        state,
        error: None,
        started_at: "2026-11-30T01:00:00Z".parse().unwrap(),
        guest: None,
        guest_problem: None,
        stop_cause: None,
    }
}

impl Served {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (reports, seen) = watch::channel(report(VmState::Starting));
        let (sender, stops) = mpsc::unbounded_channel();
        let vm = Vm { reports: seen, stops: sender };
        let listener = UnixListener::bind(directory.path().join("vm.sock")).unwrap();
        let server = tokio::spawn(serve(listener, Arc::new(vm), Limits::VM));
        Served { directory, reports, stops, server }
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("vm.sock")
    }

    async fn client(&self) -> Result<VmClient, WireError> {
        VmClient::connect(&self.socket(), PATIENCE).await
    }
}

#[tokio::test]
async fn a_client_describes_stops_and_watches() {
    let mut served = Served::new();
    let mut client = served.client().await.unwrap();
    assert_eq!(client.peer().role, Role::Vm);
    assert_eq!(client.describe().await.unwrap(), report(VmState::Starting));
    assert_eq!(client.stop(30).await.unwrap(), report(VmState::Starting));
    assert_eq!(served.stops.recv().await, Some(30));
    let mut watch = client.watch().await.unwrap();
    assert_eq!(watch.next().await.unwrap(), Some(report(VmState::Starting)));
    served.reports.send_replace(report(VmState::Running));
    assert_eq!(watch.next().await.unwrap(), Some(report(VmState::Running)));
}

#[tokio::test]
async fn every_watcher_gets_the_last_report_and_then_the_end() {
    let served = Served::new();
    let mut watches = Vec::new();
    for _ in 0..3 {
        let mut watch = served.client().await.unwrap().watch().await.unwrap();
        watch.next().await.unwrap();
        watches.push(watch);
    }
    served.reports.send_replace(report(VmState::Stopped));
    drop(served.reports);
    for mut watch in watches {
        assert_eq!(watch.next().await.unwrap(), Some(report(VmState::Stopped)));
        assert_eq!(watch.next().await.unwrap(), None);
    }
    served.server.await.unwrap();
}

#[tokio::test]
async fn connections_beyond_the_bound_are_closed_and_room_comes_back() {
    let served = Served::new();
    let mut kept = Vec::new();
    for _ in 0..MAX_CONNECTIONS {
        kept.push(served.client().await.unwrap());
    }
    let mut refused = UnixStream::connect(served.socket()).await.unwrap();
    assert_eq!(refused.read(&mut [0; 64]).await.unwrap(), 0, "closed without a word");
    for client in &mut kept {
        client.describe().await.unwrap();
    }
    kept.pop();
    // the server sees the end of one connection when it sees it; then there is room for one
    while served.client().await.is_err() {}
}

#[tokio::test]
async fn a_socket_without_a_server_is_an_error_that_names_it() {
    let served = Served::new();
    served.server.abort();
    let _ = served.server.await;
    let path = served.directory.path().join("vm.sock");
    let error = VmClient::connect(&path, PATIENCE).await.unwrap_err();
    assert!(matches!(error, WireError::Connect { .. }), "{error}");
    assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
}

#[tokio::test]
async fn a_connection_becomes_a_session_or_is_refused_and_ends_with_its_service() {
    let served = Served::new();
    let connect = async || VmClient::connect(&served.socket(), PATIENCE).await.unwrap();
    let refused = connect().await.open(Session::Forward { port: 9 }).await.unwrap_err();
    assert!(refused.to_string().contains("nobody listens on 9"), "{refused}");

    let (mut reader, mut writer) = split(connect().await.open(Session::FirstBootLog).await.unwrap());
    let sent = tokio_util::bytes::Bytes::from_static(b"there and back");
    writer.send(&Frame::Input(sent.clone())).await.unwrap();
    assert_eq!(reader.next().await.unwrap(), Some(Frame::Output(sent)));

    let Served { reports, server, directory: _kept, .. } = served;
    drop(reports);
    assert_eq!(reader.next().await.unwrap(), None);
    server.await.unwrap();
}
