//! The one task that owns what this guest says, and the service through which its host hears it.
//!
//! Invariant: the stage is derived from facts (the session, the script's state) and never stored; a
//! report is published only when it differs from the last one.

use std::future::pending;
use std::io;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::Arc;

use macrack_wire::guest::{MAX_ADDRESSES, MAX_VERSION, printable};
use macrack_wire::{
    Answer, FirstBoot, GuestReport, GuestStage, GuestVerb, Readiness, ReadinessState, Refusal, Role, Service,
};
use tokio::process::Child;
use tokio::sync::{mpsc, oneshot, watch};

use crate::exec::Sessions;
use crate::first_boot::Script;
use crate::probe::{Probe, Session};
use crate::readiness::{Gate, Pace};

/// Requests that wait for the task; one host asks one thing at a time.
const QUEUE: usize = 8;

type Request = (GuestVerb, oneshot::Sender<Result<(), Refusal>>);

/// What the host reaches.
#[derive(Debug)]
pub struct GuestService {
    reports: watch::Receiver<GuestReport>,
    requests: mpsc::Sender<Request>,
    sessions: Sessions,
}

/// The task behind it.
#[derive(Debug)]
pub struct Guest<P> {
    probe: Arc<P>,
    script: Script,
    running: Option<Child>,
    gate: Gate,
    reports: watch::Sender<GuestReport>,
    requests: mpsc::Receiver<Request>,
}

/// The stage that follows from who sits at the machine, what became of the script, and what the golden's
/// own command says (`None`: the golden has none).
pub fn stage(session: Session, first_boot: &FirstBoot, readiness: Option<&Readiness>) -> GuestStage {
    let agrees = readiness.is_none_or(|readiness| readiness.state == ReadinessState::Ready);
    match session {
        Session::None => GuestStage::AgentStarting,
        Session::LoginWindow => GuestStage::LoginWindow,
        Session::User if first_boot.is_satisfied() && agrees => GuestStage::Ready,
        Session::User => GuestStage::UserSession,
    }
}

impl<P: Probe> Guest<P> {
    /// The guest whose disk is mounted at `root`, and its service.
    pub fn new(probe: Arc<P>, root: &Path) -> io::Result<(Self, GuestService)> {
        let script = Script::load(root, probe.machine())?;
        let gate = Gate::new(root, Pace::NORMAL);
        let (reports, seen) = watch::channel(report(&*probe, script.state(), gate.said()));
        let (asked, requests) = mpsc::channel(QUEUE);
        let sessions = Sessions::new(probe.clone(), script.log());
        let guest = Guest { probe, script, running: None, gate, reports, requests };
        let service = GuestService { reports: seen, requests: asked, sessions };
        Ok((guest, service))
    }

    /// Runs until the machine goes down or nobody can ask any more.
    pub async fn run(mut self) {
        let mut sessions = self.probe.sessions();
        loop {
            let user = *sessions.borrow_and_update() == Session::User;
            if user && self.running.is_none() {
                self.running = self.script.begin(&*self.probe);
            }
            self.gate.tend(user && self.script.state().is_satisfied(), &*self.probe);
            self.publish();
            tokio::select! {
                changed = sessions.changed() => if changed.is_err() { return },
                ended = ended(&mut self.running) => {
                    self.running = None;
                    self.script.finish(ended);
                }
                () = self.gate.progress() => {}
                request = self.requests.recv() => match request {
                    Some((verb, reply)) => self.take(verb, reply),
                    None => return,
                },
            }
        }
    }

    fn take(&mut self, verb: GuestVerb, reply: oneshot::Sender<Result<(), Refusal>>) {
        let taken = match verb {
            // fresh facts are all that these two ask for
            GuestVerb::Describe | GuestVerb::Watch => Ok(()),
            GuestVerb::Open(_) => Err(Refusal::denied("a session is not asked of the task that answers questions")),
            GuestVerb::RunFirstBoot { script } => self.script.accept(&script),
            GuestVerb::NoFirstBoot => {
                self.script.decline();
                Ok(())
            }
            GuestVerb::Shutdown => {
                self.probe.shut_down().map_err(|error| Refusal::denied(format!("the guest cannot shut down: {error}")))
            }
        };
        self.publish();
        if reply.send(taken).is_err() {
            tracing::debug!("the host left before it was answered");
        }
    }

    fn publish(&self) {
        let fresh = report(&*self.probe, self.script.state(), self.gate.said());
        self.reports.send_if_modified(|last| {
            let changed = *last != fresh;
            *last = fresh;
            changed
        });
    }
}

fn report(probe: &impl Probe, first_boot: &FirstBoot, readiness: Option<&Readiness>) -> GuestReport {
    let facts = probe.facts();
    GuestReport {
        agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        stage: stage(*probe.sessions().borrow(), first_boot, readiness),
        os_version: facts.os_version.filter(|version| is_version("macOS", version)),
        xcode_version: facts.xcode_version.filter(|version| is_version("Xcode", version)),
        disk_free_bytes: facts.disk_free_bytes,
        addresses: facts.addresses.into_iter().take(MAX_ADDRESSES).collect(),
        first_boot: first_boot.clone(),
        readiness: readiness.cloned(),
        first_launch_accepted: facts.first_launch_accepted,
        system_sealed: facts.system_sealed,
    }
}

/// Whether the host would believe it: a golden's odd plist must not cost the whole report.
fn is_version(of: &str, version: &str) -> bool {
    let fits = version.len() <= MAX_VERSION && printable(version) == version;
    if !fits {
        tracing::warn!(of, ?version, "this is no version, and is not reported");
    }
    fits
}

async fn ended(running: &mut Option<Child>) -> io::Result<ExitStatus> {
    match running {
        Some(child) => child.wait().await,
        None => pending().await,
    }
}

impl Service for GuestService {
    const ROLE: Role = Role::Guest;
    const PEER: Role = Role::Vm;
    type Verb = GuestVerb;
    type Report = GuestReport;

    fn reports(&self) -> watch::Receiver<GuestReport> {
        self.reports.clone()
    }

    async fn call(&self, verb: GuestVerb) -> Result<Answer, Refusal> {
        let answer = match verb {
            GuestVerb::Watch => Answer::Watch,
            _ => Answer::Report,
        };
        let down = |_| Refusal::denied("the guest is going down");
        let (reply, taken) = oneshot::channel();
        self.requests.send((verb, reply)).await.map_err(|_| Refusal::denied("the guest is going down"))?;
        taken.await.map_err(down)??;
        Ok(answer)
    }

    fn opens(verb: &GuestVerb) -> bool {
        matches!(verb, GuestVerb::Open(_))
    }

    async fn session<S>(&self, opening: macrack_wire::serve::Opening<S, Self>) -> Result<(), macrack_wire::WireError>
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    {
        let report = self.reports.borrow().clone();
        self.sessions.serve(opening, report).await
    }
}
