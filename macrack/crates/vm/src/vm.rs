//! The one task that owns a VM.
//!
//! Invariant: the phase changes only by [`arbiter::decide`]; each change is in `state.json` before it
//! is published, and published before it is acknowledged.

use std::fs;
use std::future::pending;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use macrack_wire::classify::MACRACK_DOMAIN;
use macrack_wire::{GuestReport, LastState, Refusal, StopCause, VmDescription, VmDir, VmError, VmReport, VmState};
use tokio::sync::{mpsc, watch};
use tokio::time::error::Elapsed;
use tokio::time::{Instant, sleep_until, timeout};

use crate::arbiter::{Action, Input, Phase, Verdict, decide};
use crate::guest_link::{FirstBootOrder, GuestLink, News};
use crate::hypervisor::{Event, Hypervisor};
use crate::notes::Notes;
use crate::service::{StopOrder, VmService};

/// How long the hypervisor may take to press a button or pull a plug.
const HYPERVISOR_PATIENCE: Duration = Duration::from_secs(10);
/// How long a start may take. A VM of Virtualization.framework runs within seconds; one that has not by now never will,
/// and whoever waits for it is to hear so. It ends with this process.
const START_PATIENCE: Duration = Duration::from_secs(300);
/// Orders and news that wait for the task.
const QUEUE: usize = 16;

/// The owner.
#[derive(Debug)]
pub struct Vm<H> {
    dir: VmDir,
    hypervisor: Arc<H>,
    phase: Phase,
    /// When the power button is pressed, while the guest is being asked.
    half_grace: Option<Instant>,
    /// When the plug is pulled.
    grace: Option<Instant>,
    error: Option<VmError>,
    guest: Option<GuestReport>,
    guest_problem: Option<String>,
    /// Why the guest has not taken its script. It stays until it has, whatever else the guest says.
    script_problem: Option<String>,
    first_boot_handed: bool,
    first: VmReport,
    reports: watch::Sender<VmReport>,
    stops: mpsc::Receiver<StopOrder>,
    shutdowns: Option<mpsc::Sender<()>>,
    notes: Arc<Notes>,
}

/// The first report of this process, before anything has happened.
pub fn first_report(uid: &str, now: Timestamp) -> VmReport {
    VmReport {
        uid: uid.to_owned(),
        pid: std::process::id(),
        state: VmState::Starting,
        error: None,
        started_at: now,
        guest: None,
        guest_problem: None,
        stop_cause: None,
    }
}

/// Writes that the VM never ran.
pub fn write_start_failure(dir: &VmDir, first: VmReport, error: VmError, first_boot_handed: bool) -> io::Result<()> {
    dir.write_state(&LastState {
        report: VmReport {
            state: VmState::Failed,
            error: Some(error),
            stop_cause: Some(StopCause::StartFailed),
            ..first
        },
        first_boot_handed,
    })
}

impl<H: Hypervisor> Vm<H> {
    /// The owner of a VM whose hypervisor has validated it, and the service through which it is asked.
    pub fn new(dir: VmDir, hypervisor: H, first: VmReport, first_boot_handed: bool) -> (Self, VmService<H::Port>) {
        let (reports, seen) = watch::channel(first.clone());
        let (orders, stops) = mpsc::channel(QUEUE);
        let notes = Notes::open(&dir);
        let port = hypervisor.guest_port();
        let vm = Vm {
            dir,
            hypervisor: Arc::new(hypervisor),
            phase: Phase::Starting,
            half_grace: None,
            grace: None,
            error: None,
            guest: None,
            guest_problem: None,
            script_problem: None,
            first_boot_handed,
            first,
            reports,
            stops,
            shutdowns: None,
            notes: notes.clone(),
        };
        let service = VmService { reports: seen, stops: orders, port, notes };
        (vm, service)
    }

    /// The hypervisor, for whoever must hold the VM's directory for longer than [`Vm::run`] does: with the last of it goes
    /// the lock.
    pub fn hypervisor(&self) -> Arc<H> {
        self.hypervisor.clone()
    }

    /// Runs the VM from start to end. When this returns, `state.json` is final, the last report is
    /// published, and the VM ends with this process at the latest.
    pub async fn run(mut self, description: &VmDescription) -> StopCause {
        let (news_sender, mut news) = mpsc::channel(QUEUE);
        let hypervisor = self.hypervisor.clone();
        let mut start = pin!(timeout(START_PATIENCE, hypervisor.start()));
        let mut starting = true;
        self.notes.say("the VM starts");
        self.record();
        loop {
            if let Phase::Ended(cause) = self.phase {
                return cause;
            }
            let input = tokio::select! {
                started = &mut start, if starting => {
                    starting = false;
                    match failure(started, START_PATIENCE) {
                        None => {
                            self.attach_guest(description, news_sender.clone());
                            Input::Started
                        }
                        error => {
                            self.error = error;
                            Input::StartFailed
                        }
                    }
                }
                event = hypervisor.next_event() => match event {
                    Event::GuestStopped => Input::GuestStopped,
                    Event::Crashed(error) => {
                        self.error = Some(error);
                        Input::Crashed
                    }
                    Event::NetworkLost { error, replugged } => {
                        self.network_lost(&error, replugged);
                        continue;
                    }
                },
                Some(order) = self.stops.recv() => {
                    self.order(order).await;
                    continue;
                }
                Some(news) = news.recv() => match self.hear(news) {
                    Some(input) => input,
                    None => continue,
                },
                () = at(self.half_grace) => {
                    self.half_grace = None;
                    Input::HalfGraceOver
                }
                () = at(self.grace) => {
                    self.grace = None;
                    Input::GraceOver
                }
            };
            if let Err(denied) = self.admit(input, None).await {
                tracing::warn!(?input, %denied, "an event was denied");
            }
        }
    }

    fn attach_guest(&mut self, description: &VmDescription, news: mpsc::Sender<News>) {
        let (orders, shutdowns) = mpsc::channel(1);
        self.shutdowns = Some(orders);
        let first_boot = match (description.first_boot, self.first_boot_handed) {
            (false, _) => FirstBootOrder::None,
            (true, false) => FirstBootOrder::Script(self.dir.first_boot()),
            (true, true) => FirstBootOrder::Handed,
        };
        let link = GuestLink { port: self.hypervisor.guest_port(), first_boot, news, shutdowns };
        tokio::spawn(link.run());
    }

    /// The VM runs on; its tenant is told, and what the hypervisor said stays on the Mac.
    fn network_lost(&self, error: &VmError, replugged: bool) {
        tracing::error!(%error, replugged, "the network card lost what it was plugged into");
        self.notes.say(match replugged {
            true => "the VM lost its network for a moment; it was plugged in again",
            false => "the VM lost its network; restart the instance to have it back",
        });
    }

    async fn order(&mut self, order: StopOrder) {
        let answer = self.admit(Input::Stop, Some(order.grace)).await;
        if order.taken.send(answer).is_err() {
            tracing::debug!("whoever ordered the stop has gone");
        }
    }

    /// Lets the arbiter judge `input` and what follows from it.
    async fn admit(&mut self, input: Input, grace: Option<Duration>) -> Result<(), Refusal> {
        let mut next = Some(input);
        while let Some(input) = next.take() {
            match decide(self.phase, input) {
                Verdict::Ignore => tracing::debug!(phase = ?self.phase, ?input, "ignored"),
                Verdict::Deny(why) => return Err(Refusal::denied(why)),
                Verdict::Admit(phase, action) => {
                    tracing::info!(from = ?self.phase, ?input, to = ?phase, ?action, "admitted");
                    let changed = phase != self.phase;
                    self.phase = phase;
                    if changed {
                        self.notes.say(&words(phase, self.error.as_ref()));
                        self.record();
                    }
                    next = self.act(action, grace).await;
                }
            }
        }
        Ok(())
    }

    async fn act(&mut self, action: Action, grace: Option<Duration>) -> Option<Input> {
        if let Some(grace) = grace {
            let end = Instant::now() + grace;
            self.grace = Some(self.grace.map_or(end, |earlier| earlier.min(end)));
        }
        match action {
            Action::Nothing => None,
            Action::SetDeadline => {
                self.halve_grace();
                None
            }
            Action::AskGuest | Action::SetDeadlineAndAskGuest => {
                self.halve_grace();
                let asked = self.shutdowns.as_ref().map(|orders| orders.try_send(()));
                (!matches!(asked, Some(Ok(())))).then_some(Input::GuestUnasked)
            }
            Action::PressPowerButton => {
                let pressed = timeout(HYPERVISOR_PATIENCE, self.hypervisor.request_stop()).await;
                // the plug follows at the end of the grace, whatever became of the button
                if let Some(error) = failure(pressed, HYPERVISOR_PATIENCE) {
                    tracing::warn!(%error, "the power button could not be pressed");
                }
                None
            }
            Action::PullPlug => {
                let pulled = timeout(HYPERVISOR_PATIENCE, self.hypervisor.force_stop()).await;
                let error = failure(pulled, HYPERVISOR_PATIENCE)?;
                tracing::error!(%error, "the plug could not be pulled: this process ends instead");
                Some(Input::ForceFailed)
            }
        }
    }

    fn halve_grace(&mut self) {
        let now = Instant::now();
        self.half_grace = self.grace.map(|grace| now + grace.saturating_duration_since(now) / 2);
    }

    fn hear(&mut self, news: News) -> Option<Input> {
        match news {
            News::Heard(report) => {
                if self.guest.as_ref().map(|guest| guest.stage) != Some(report.stage) {
                    self.notes.say(&format!("the guest is at {:?}", report.stage));
                }
                self.guest = Some(report);
                self.guest_problem = None;
            }
            News::NotHeard(why) => {
                self.guest = None;
                self.guest_problem = Some(why);
            }
            News::FirstBootNotHanded(why) => {
                self.script_problem = Some(format!("the first-boot script was not taken: {why}"));
            }
            News::FirstBootHanded => self.first_boot_was_handed(),
            News::ShutdownAsked(true) => {}
            News::ShutdownAsked(false) => return Some(Input::GuestUnasked),
        }
        self.publish();
        None
    }

    /// First it is put down that the guest has the script, then the script goes: after a crash between
    /// the two it is merely deleted later.
    fn first_boot_was_handed(&mut self) {
        self.first_boot_handed = true;
        self.script_problem = None;
        self.notes.say("the guest has its first-boot script");
        tokio::spawn(self.notes.clone().follow_first_boot(self.hypervisor.guest_port()));
        if self.record()
            && let Err(error) = forget_first_boot(&self.dir)
        {
            tracing::error!(%error, "the first-boot script cannot be deleted");
        }
    }

    /// Writes `state.json`, then publishes. A disk that is full must not take the VM down with it.
    fn record(&self) -> bool {
        let state = LastState { report: self.report(), first_boot_handed: self.first_boot_handed };
        let written = self.dir.write_state(&state);
        if let Err(error) = &written {
            tracing::error!(%error, "the state cannot be written");
        }
        self.publish();
        written.is_ok()
    }

    fn publish(&self) {
        let fresh = self.report();
        self.reports.send_if_modified(|last| {
            let changed = *last != fresh;
            *last = fresh;
            changed
        });
    }

    fn report(&self) -> VmReport {
        let over = matches!(self.phase, Phase::Ended(_));
        VmReport {
            state: self.phase.state(),
            error: self.error.clone(),
            guest: self.guest.clone().filter(|_| !over),
            guest_problem: self.guest_problem.clone().or_else(|| self.script_problem.clone()).filter(|_| !over),
            stop_cause: self.phase.stop_cause(),
            ..self.first.clone()
        }
    }
}

/// What its tenant reads about a phase; nothing of the host is in it.
fn words(phase: Phase, error: Option<&VmError>) -> String {
    let why = error.map(|error| format!(": {} code {}", error.domain, error.code)).unwrap_or_default();
    match phase.stop_cause() {
        None => match phase.state() {
            VmState::Running => "the VM runs".to_owned(),
            VmState::Stopping => "the VM is told to stop".to_owned(),
            state => format!("the VM is {state:?}"),
        },
        Some(StopCause::GuestShutdown) => "the guest shut itself down".to_owned(),
        Some(StopCause::Requested) => "the VM has stopped as it was told to".to_owned(),
        Some(StopCause::Forced) => "the VM was ended by force, for its guest did not shut down in time".to_owned(),
        Some(StopCause::Crashed) => format!("the VM broke{why}"),
        Some(StopCause::StartFailed) => format!("the VM could not start{why}"),
    }
}

/// Deletes a first-boot script that the guest has acknowledged.
pub fn forget_first_boot(dir: &VmDir) -> io::Result<()> {
    match fs::remove_file(dir.first_boot()) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn failure(outcome: Result<Result<(), VmError>, Elapsed>, patience: Duration) -> Option<VmError> {
    match outcome {
        Ok(outcome) => outcome.err(),
        Err(_) => {
            let words = format!("the hypervisor did not answer within {} s", patience.as_secs());
            Some(VmError::new(MACRACK_DOMAIN, 0, words))
        }
    }
}

async fn at(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => pending().await,
    }
}
