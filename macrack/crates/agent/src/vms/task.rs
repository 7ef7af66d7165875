//! One VM's task.
//!
//! ```text
//!   attached ──(connection ends)──▶ looking ──(no process)──▶ at rest
//!      ▲                              │ (answers)
//!      └──────────────────────────────┘
//! ```
//!
//! Invariants: while a process may live, the task is attached to it or looks for it, and nothing else
//! is done to its files; a process is ended by force only under an order to stop, and only after the
//! grace.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use macrack_wire::{VmDir, VmReport, VmWatch, WireError};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::make::{Making, make_files};
use super::record::Record;
use super::{Command, GRACE, Surroundings, process, rest, wipe};
use crate::backoff::Backoff;
use crate::images::copy::allocated;
use crate::images::room::growth;
use crate::life::{Facts, Life, REMAKE_WITHIN, Rest};

/// What stands in `Life::Unknown` until it is known for the first time.
pub const LOOKING: &str = "it was not looked for yet";
/// How long a live process may be silent before it is called Unknown.
const SILENCE: Duration = Duration::from_secs(5);
/// What a stop may take beyond its grace before the process is ended.
const SLACK: Duration = Duration::from_secs(20);
/// Between signs of life of an attached process.
const PING: Duration = Duration::from_secs(30);
/// How long a launcher may take: longer than launchd may before the launcher itself gives up.
const LAUNCH: Duration = Duration::from_secs(90);

struct Task {
    dir: VmDir,
    around: Surroundings,
    facts: Arc<watch::Sender<Facts>>,
    record: Record,
    link: Link,
    making: Option<(JoinHandle<Result<Record, String>>, CancellationToken)>,
    remake: Backoff,
    /// A stop was ordered: when the process is ended by force.
    stop_by: Option<Instant>,
    wipe: Option<Backoff>,
    wipe_at: Option<Instant>,
}

/// How the task stands to the VM's process.
enum Link {
    /// No process lives.
    None,
    /// Its reports arrive.
    Attached { reports: Box<VmWatch>, ping: Instant },
    /// It may live; when it is looked for next, since when it is silent.
    Looking { next: Instant, since: Instant, backoff: Backoff },
}

impl Link {
    fn looking() -> Link {
        let now = Instant::now();
        let backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(2));
        Link::Looking { next: now, since: now, backoff }
    }
}

/// Between tries to wipe.
fn wipe_backoff() -> Backoff {
    Backoff::new(Duration::from_secs(2), Duration::from_secs(60))
}

/// What happened.
enum Happened {
    Ordered(Command),
    Made(Result<Record, String>),
    Heard(Box<Result<Option<VmReport>, WireError>>),
    Time,
    /// Nobody asks any more: the agent ends, the VM does not.
    Over,
}

pub(super) async fn run(
    dir: VmDir,
    around: Surroundings,
    facts: Arc<watch::Sender<Facts>>,
    mut commands: mpsc::UnboundedReceiver<Command>,
    adopted: bool,
) {
    let mut task = Task {
        dir,
        around,
        facts,
        record: Record::default(),
        link: Link::None,
        making: None,
        remake: Backoff::new(Duration::from_secs(1), REMAKE_WITHIN.unsigned_abs()),
        stop_by: None,
        wipe: None,
        wipe_at: None,
    };
    if adopted {
        task.take_up();
    }
    loop {
        match task.next(&mut commands).await {
            Happened::Ordered(command) => task.obey(command).await,
            Happened::Made(made) => task.made(made).await,
            Happened::Heard(news) => task.heard(*news),
            Happened::Time => task.tick().await,
            Happened::Over => return,
        }
        task.around.bell.ring();
        if task.facts.borrow().gone {
            return;
        }
    }
}

impl Task {
    async fn next(&mut self, commands: &mut mpsc::UnboundedReceiver<Command>) -> Happened {
        let wake = self.wake();
        let heard = async {
            match &mut self.link {
                Link::Attached { reports, .. } => reports.next().await,
                _ => std::future::pending().await,
            }
        };
        let made = async {
            match &mut self.making {
                Some((job, _)) => job.await.unwrap_or_else(|ended| Err(ended.to_string())),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            command = commands.recv() => command.map_or(Happened::Over, Happened::Ordered),
            made = made => Happened::Made(made),
            report = heard => Happened::Heard(Box::new(report)),
            () = tokio::time::sleep_until(wake) => Happened::Time,
        }
    }

    fn wake(&self) -> Instant {
        let link = match &self.link {
            Link::None => None,
            Link::Attached { ping, .. } => Some(*ping),
            Link::Looking { next, .. } => Some(*next),
        };
        let due = [link, self.stop_by, self.wipe_at].into_iter().flatten().min();
        due.unwrap_or_else(|| Instant::now() + PING)
    }

    /// Reads what lies in the directory.
    fn take_up(&mut self) {
        match Record::read(&self.dir) {
            Ok(record) => self.record = record.unwrap_or_default(),
            Err(error) => {
                tracing::error!(dir = %self.dir.path().display(), %error, "the agent's record of a VM is unreadable");
                // as after an end of unknown cause: it is not started by itself
                self.record.starts = 1;
                self.record.boot_id = self.around.boot_id.clone();
            }
        }
        if wipe::is_unfinished(&self.dir) {
            // it is never taken back, and needs no order to go on
            tracing::info!(dir = %self.dir.path().display(), "a wipe that was begun goes on");
            self.wipe = Some(wipe_backoff());
        }
        self.describe_facts();
        self.link = Link::looking();
    }

    fn describe_facts(&self) {
        let description = self.dir.read_description().ok();
        let (record, growth) = (self.record.clone(), self.growth());
        self.facts.send_modify(|facts| {
            facts.golden = Some(record.golden).filter(|hex| !hex.is_empty());
            facts.starts = record.starts;
            facts.growth = growth;
            facts.cloned_by = record.cloned_by;
            facts.mac_address = description.map(|description| description.mac_address);
        });
    }

    fn growth(&self) -> u64 {
        let taken = allocated(&self.dir.path().join("disk.img")).unwrap_or(0);
        growth(self.record.disk_bytes, taken, self.record.shared_bytes)
    }

    fn enter(&self, life: Life) {
        let before = self.facts.borrow().life.clone();
        self.facts.send_modify(|facts| facts.enter(life, Timestamp::now()));
        self.log(&before);
    }

    async fn obey(&mut self, command: Command) {
        match command {
            Command::Make(making) => self.make(*making),
            Command::Start => self.start().await,
            Command::Stop => self.stop().await,
            Command::Pardon => self.enter(Life::AtRest(Rest::Ready)),
            Command::Forget => {
                self.remember(|record| record.stopped_by_order = true);
                self.enter(Life::AtRest(Rest::Ready));
            }
            Command::Wipe => {
                self.wipe.get_or_insert_with(wipe_backoff);
                match (&self.making, &self.link) {
                    (Some((_, cancel)), _) => cancel.cancel(),
                    (None, Link::None) => self.wipe_at = Some(Instant::now()),
                    (None, _) => self.stop().await,
                }
            }
        }
    }

    fn remember(&mut self, change: impl FnOnce(&mut Record)) {
        change(&mut self.record);
        if let Err(error) = self.record.write(&self.dir) {
            tracing::error!(dir = %self.dir.path().display(), %error, "the agent's record of a VM cannot be written");
        }
    }

    fn make(&mut self, mut making: Making) {
        self.enter(Life::Cloning);
        let golden = making.golden.clone();
        self.facts.send_modify(|facts| {
            facts.golden = Some(golden);
            facts.growth = making.disk_bytes;
            facts.mac_address = Some(making.description.mac_address);
        });
        let cancel = CancellationToken::new();
        let (dir, cancelled, script) = (self.dir.clone(), cancel.clone(), making.script.take());
        let job = tokio::spawn(async move {
            let script = match script {
                Some(script) => Some(script.await?),
                None => None,
            };
            let work = move || make_files(&dir, &making, script.as_deref(), &cancelled);
            let made = tokio::task::spawn_blocking(work).await;
            made.map_err(|ended| ended.to_string())?.map_err(|error| error.to_string())
        });
        self.making = Some((job, cancel));
    }

    async fn made(&mut self, made: Result<Record, String>) {
        self.making = None;
        match made {
            Ok(record) => {
                self.record = record;
                self.remake.reset();
                self.describe_facts();
                self.enter(Life::AtRest(Rest::Ready));
            }
            Err(why) => {
                let retry_at = Timestamp::now() + self.remake.next_delay();
                self.enter(Life::Partial { why: Some(why), retry_at: Some(retry_at) });
            }
        }
        if self.wipe.is_some() {
            self.wipe().await;
        }
    }

    async fn start(&mut self) {
        self.enter(Life::Starting);
        self.facts.send_modify(|facts| {
            facts.guest_ready = false;
            facts.report = None;
        });
        let boot_id = self.around.boot_id.clone();
        self.remember(|record| {
            record.starts += 1;
            record.boot_id = boot_id;
            record.pid = None;
            record.stopped_by_order = false;
        });
        self.describe_facts();
        let (binary, dir) = (self.around.vm_binary.clone(), self.dir.path().to_owned());
        let spawned = tokio::task::spawn_blocking(move || macrack_vm::spawn(&binary, &dir));
        let spawned = match tokio::time::timeout(LAUNCH, spawned).await {
            Ok(spawned) => spawned.unwrap_or_else(|ended| Err(io::Error::other(ended))),
            Err(_) => Err(io::Error::other(format!("macrack-vm launch has not ended within {LAUNCH:?}"))),
        };
        match spawned {
            Ok(pid) => {
                self.remember(|record| record.pid = Some(pid));
                self.link = Link::looking();
                self.look().await;
            }
            // a process of it lives already: it is taken up; if it is none of ours, the start has failed,
            // and what an earlier process wrote is not taken for its end
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                self.remember(|record| record.pid = Some(0));
                self.link = Link::looking();
            }
            Err(error) => self.not_launched(error.to_string()).await,
        }
    }

    /// The launcher says that there is no process, or nothing. One that came all the same, or that nobody can tell of,
    /// lives until it is seen to be gone: it counts towards the two.
    async fn not_launched(&mut self, why: String) {
        if let Ok(None) = process::find(self.around.host.clone(), self.dir.path()).await {
            return self.enter(Life::AtRest(Rest::Failed(why)));
        }
        tracing::error!(dir = %self.dir.path().display(), why, "a VM was not started well, and a process of it may live");
        self.remember(|record| record.pid = Some(0));
        self.link = Link::looking();
    }

    fn heard(&mut self, news: Result<Option<VmReport>, WireError>) {
        match news {
            Ok(Some(report)) => {
                if self.record.pid != Some(report.pid) {
                    let pid = report.pid;
                    self.remember(|record| record.pid = Some(pid));
                }
                let before = self.facts.borrow().life.clone();
                self.facts.send_modify(|facts| facts.hear(report, Timestamp::now()));
                self.log(&before);
            }
            Ok(None) | Err(_) => self.link = Link::looking(),
        }
    }

    /// Tells the log if the VM has moved on.
    fn log(&self, before: &Life) {
        let now = self.facts.borrow().life.clone();
        if now != *before {
            let vm = self.dir.path().file_name().unwrap_or_default().to_string_lossy();
            tracing::info!(%vm, "{now}");
        }
    }

    async fn tick(&mut self) {
        let now = Instant::now();
        match &mut self.link {
            Link::Looking { next, .. } if *next <= now => self.look().await,
            Link::Attached { ping, .. } if *ping <= now => {
                *ping = now + PING;
                if let Err(error) = process::describe(&self.dir).await {
                    tracing::warn!(dir = %self.dir.path().display(), %error, "a VM process has fallen silent");
                    self.link = Link::looking();
                }
                let growth = self.growth();
                self.facts.send_modify(|facts| facts.growth = growth);
            }
            _ => {}
        }
        if self.stop_by.is_some_and(|by| by <= now) {
            self.force().await;
        }
        if self.wipe_at.is_some_and(|at| at <= now) {
            self.wipe().await;
        }
    }

    /// Looks for the process.
    async fn look(&mut self) {
        let error = match process::reach(&self.dir).await {
            Ok(reports) => {
                self.link = Link::Attached { reports: Box::new(reports), ping: Instant::now() + PING };
                if self.stop_by.is_some() {
                    self.tell_to_stop().await;
                }
                return;
            }
            Err(error) => error,
        };
        let why = match process::find(self.around.host.clone(), self.dir.path()).await {
            Ok(None) => return self.ended().await,
            Ok(Some(pid)) => format!("its process {pid} lives and does not answer: {error}"),
            Err(unreadable) => format!("it cannot be told whether its process lives: {unreadable}"),
        };
        let Link::Looking { next, since, backoff } = &mut self.link else { return };
        *next = Instant::now() + backoff.next_delay();
        if since.elapsed() >= SILENCE {
            self.enter(Life::Unknown(why));
        }
    }

    /// No process of it lives.
    async fn ended(&mut self) {
        self.link = Link::None;
        self.stop_by = None;
        self.describe_facts();
        if let Some(life) = rest::without_disk(self.dir.description().try_exists()) {
            self.enter(life);
        } else {
            let last = self.dir.read_state();
            if let Ok(Some(last)) = &last {
                let report = last.report.clone();
                self.facts.send_modify(|facts| facts.report = Some(report));
            }
            self.enter(Life::AtRest(rest::of(&self.record, last, &self.around.boot_id)));
        }
        if self.wipe.is_some() {
            self.wipe().await;
        }
    }

    async fn stop(&mut self) {
        if matches!(self.link, Link::None) || self.stop_by.is_some() {
            return;
        }
        self.remember(|record| record.stopped_by_order = true);
        self.stop_by = Some(Instant::now() + Duration::from_secs(GRACE.into()) + SLACK);
        if !matches!(self.facts.borrow().life, Life::Unknown(_)) {
            self.enter(Life::Stopping);
        }
        self.tell_to_stop().await;
    }

    async fn tell_to_stop(&self) {
        if let Err(error) = process::tell_to_stop(&self.dir, GRACE).await {
            // it is told again when it is reached, and ended when the grace is over
            tracing::warn!(dir = %self.dir.path().display(), %error, "a VM process could not be told to stop");
        }
    }

    /// The grace is over and the process lives.
    async fn force(&mut self) {
        self.stop_by = Some(Instant::now() + SLACK);
        match process::find(self.around.host.clone(), self.dir.path()).await {
            Ok(Some(pid)) => process::end(pid),
            Ok(None) => {}
            Err(error) => tracing::error!(%error, "the processes of this Mac cannot be listed"),
        }
        self.link = Link::looking();
    }

    async fn wipe(&mut self) {
        self.wipe_at = None;
        self.enter(Life::Wiping);
        let found = process::find(self.around.host.clone(), self.dir.path()).await;
        let dir = self.dir.clone();
        let wiped = match found {
            Ok(None) => wipe::wipe(dir).await,
            // nobody here started it, or it came late: it counts, is stopped as any other, and then the wipe goes on
            Ok(Some(pid)) => {
                self.enter(Life::Unknown(format!("process {pid} holds it, which is to be wiped")));
                self.link = Link::looking();
                return self.stop().await;
            }
            Err(error) => Err(error),
        };
        match wiped {
            Ok(receipt) => {
                tracing::info!(dir = %self.dir.path().display(), "wiped");
                self.facts.send_modify(|facts| {
                    facts.receipt = Some(receipt);
                    facts.gone = true;
                });
            }
            Err(error) => {
                let delay = self.wipe.as_mut().map_or(SLACK, Backoff::next_delay);
                self.wipe_at = Some(Instant::now() + delay);
                self.enter(Life::WipeFailed(error.to_string()));
            }
        }
    }
}
