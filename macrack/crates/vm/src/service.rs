//! What stands behind `vm.sock`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use macrack_wire::link::Link;
use macrack_wire::serve::Opening;
use macrack_wire::session::{Session, relay};
use macrack_wire::{Answer, Refusal, Role, Service, VmReport, VmState, VmVerb, WireError};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, oneshot, watch};

use crate::hypervisor::{GuestPort, begin, reach};
use crate::notes::Notes;

/// An order to stop, as the owner of the VM gets it.
#[derive(Debug)]
pub struct StopOrder {
    /// From now until force.
    pub grace: Duration,
    /// Whether it was taken on; the report was published before.
    pub taken: oneshot::Sender<Result<(), Refusal>>,
}

/// The way to the owner of the VM, and to its guest.
pub struct VmService<P> {
    /// What the owner publishes.
    pub reports: watch::Receiver<VmReport>,
    /// Orders to the owner.
    pub stops: mpsc::Sender<StopOrder>,
    /// The way to the guest.
    pub port: P,
    /// What the tenant may read.
    pub notes: Arc<Notes>,
}

impl<P> fmt::Debug for VmService<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VmService").field("reports", &self.reports).finish_non_exhaustive()
    }
}

impl<P: GuestPort> VmService<P> {
    /// Orders a stop and returns when it was taken on.
    pub async fn stop(&self, grace: Duration) -> Result<(), Refusal> {
        let over = || Refusal::denied("the VM has ended already; its state.json says why");
        let (taken, answer) = oneshot::channel();
        let order = StopOrder { grace, taken };
        self.stops.send(order).await.map_err(|_| over())?;
        answer.await.map_err(|_| over())?
    }

    /// A connection to the guest on which `session` has begun.
    async fn open(&self, session: Session) -> Result<Link<P::Stream>, Refusal> {
        let state = self.reports.borrow().state;
        if state != VmState::Running {
            return Err(Refusal::denied(format!("the VM does not run ({state:?}); wait until it does")));
        }
        let silent = || Refusal::denied("the guest does not answer; wait until status.guest.stage is UserSession");
        let stream = reach(&self.port).await.map_err(|_| silent())?;
        begin(stream, session).await.map_err(|error| match error {
            WireError::Refused(refusal) => refusal,
            other => Refusal::denied(format!("the guest is not understood: {other}")),
        })
    }
}

impl<P: GuestPort> Service for VmService<P> {
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
                self.stop(Duration::from_secs(grace_seconds.into())).await?;
                Ok(Answer::Report)
            }
            VmVerb::Open(_) | VmVerb::FollowJournal { .. } => Err(Refusal::denied("a session is opened, not called")),
        }
    }

    fn opens(verb: &VmVerb) -> bool {
        matches!(verb, VmVerb::Open(_) | VmVerb::FollowJournal { .. })
    }

    async fn session<S>(&self, opening: Opening<S, Self>) -> Result<(), WireError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let report = self.reports.borrow().clone();
        match opening.verb.clone() {
            VmVerb::FollowJournal { from } => self.notes.send(opening.accept(report).await?, from).await,
            VmVerb::Open(session) => match self.open(session).await {
                Ok(guest) => relay(opening.accept(report).await?, guest).await,
                Err(refusal) => opening.refuse(refusal).await,
            },
            _ => opening.refuse(Refusal::denied("this is no session")).await,
        }
    }
}
