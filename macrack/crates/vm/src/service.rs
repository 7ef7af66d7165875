//! What stands behind `vm.sock`.

use std::time::Duration;

use macrack_wire::{Answer, Refusal, Role, Service, VmReport, VmVerb};
use tokio::sync::{mpsc, oneshot, watch};

/// An order to stop, as the owner of the VM gets it.
#[derive(Debug)]
pub struct StopOrder {
    /// From now until force.
    pub grace: Duration,
    /// Whether it was taken on; the report was published before.
    pub taken: oneshot::Sender<Result<(), Refusal>>,
}

/// The way to the owner of the VM.
#[derive(Debug)]
pub struct VmService {
    /// What the owner publishes.
    pub reports: watch::Receiver<VmReport>,
    /// Orders to the owner.
    pub stops: mpsc::Sender<StopOrder>,
}

impl VmService {
    /// Orders a stop and returns when it was taken on.
    pub async fn stop(&self, grace: Duration) -> Result<(), Refusal> {
        let over = || Refusal::denied("the VM has ended already; its state.json says why");
        let (taken, answer) = oneshot::channel();
        let order = StopOrder { grace, taken };
        self.stops.send(order).await.map_err(|_| over())?;
        answer.await.map_err(|_| over())?
    }
}

impl Service for VmService {
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
        }
    }
}
