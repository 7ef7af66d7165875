//! The conversation with the collector. Invariants: one report is under way at a time, and news replaces it at once;
//! the collector hears of the shutdown before the system goes down; nothing of the guest's clock is sent. Whatever goes
//! wrong, the waits grow until the collector takes a report, and the log holds each trouble once.

use std::{path::PathBuf, time::Duration};

use dockerios_wire::{Order, Reply, Report, Stage, Volume};
use tokio::{sync::watch, time::Instant};

use crate::{
    chance::Backoff,
    client::{Client, Failure},
    facts::Facts,
    runs::Runs,
    shutdown::{Command, Down},
};

/// The shutdown goes ahead when the collector has not heard of it by then.
const ANNOUNCEMENT: Duration = Duration::from_secs(5);
/// A shutdown command that failed is run again after this, while the order stands.
const RETRY_SHUTDOWN: Duration = Duration::from_secs(5);
/// The config volume is looked for this often while it is not there.
const RETRY_VOLUME: Duration = Duration::from_secs(2);
/// The collector may ask for a wait of this at most.
const LONGEST_ASKED: Duration = Duration::from_secs(60);
/// Two reports are at least this far apart, however fast the news come.
const SPACING: Duration = Duration::from_millis(200);

/// What the agent is told at its start.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where the config volume is mounted, or will be.
    pub config: PathBuf,
    /// How the system is brought down.
    pub shutdown: Command,
    /// Called while the config volume is not there: on macOS asks the system to mount it.
    pub mount: Option<Command>,
    /// Names this start of the agent.
    pub run: String,
    /// What is known of the runs before.
    pub runs: Runs,
}

/// The agent.
pub struct Agent {
    options: Options,
    facts: watch::Receiver<Facts>,
    sequence: u64,
    seen: Option<String>,
    down: Down,
    last_sent: Option<Instant>,
    /// Uid of the machine, once the config volume told it.
    machine: String,
    /// The boot that was noted.
    noted: Option<String>,
    /// How the run before ended.
    before: Option<bool>,
    /// Outlives a reading of the config volume: a fleet that is refused must not come twice a second.
    backoff: Backoff,
    /// The trouble that the log has already.
    told: String,
    /// Machine and collector that the log has already.
    known: Option<(String, String)>,
}

impl Agent {
    /// Reports what arrives in `facts`.
    #[must_use]
    pub fn new(options: Options, facts: watch::Receiver<Facts>) -> Self {
        Self {
            options,
            facts,
            sequence: 0,
            seen: None,
            down: Down::Up,
            last_sent: None,
            machine: String::new(),
            noted: None,
            before: None,
            backoff: Backoff::default(),
            told: String::new(),
            known: None,
        }
    }

    /// Talks until the future is dropped.
    pub async fn run(mut self) {
        loop {
            let mut client = self.introduced().await;
            self.talk(&mut client).await;
        }
    }

    /// Waits for a config volume that can be used.
    async fn introduced(&mut self) -> Client {
        let mut said = String::new();
        loop {
            let made = Volume::read(&self.options.config).map_err(|refusal| refusal.to_string());
            let why = match made.and_then(|volume| {
                let known = (volume.machine_id.clone(), volume.collector.to_string());
                Client::new(volume).map(|client| (client, known))
            }) {
                Ok((client, known)) => {
                    self.meet(known);
                    return client;
                }
                Err(why) => why,
            };
            if why != said {
                tracing::warn!("waiting for the config volume: {why}");
                said = why;
            }
            if let Some(mount) = &self.options.mount
                && let Err(why) = mount.run().await
            {
                tracing::debug!("{why}");
            }
            tokio::time::sleep(RETRY_VOLUME).await;
        }
    }

    /// Takes in what the config volume says.
    fn meet(&mut self, known: (String, String)) {
        if self.known.as_ref() != Some(&known) {
            tracing::info!(machine = %known.0, collector = %known.1, "config volume read");
        }
        if self.machine != known.0 {
            (self.machine, self.noted, self.before) = (known.0.clone(), None, None);
        }
        self.known = Some(known);
    }

    /// Reports until the collector refuses this guest: then the config volume is read again.
    async fn talk(&mut self, client: &mut Client) {
        loop {
            self.space_out().await;
            let facts = self.facts.borrow_and_update().clone();
            self.note(facts.boot_id.as_deref());
            let report = self.report(&facts);
            let sent = tokio::select! {
                sent = client.send(&report) => sent,
                () = self.news_since(&facts) => continue,
            };
            match sent {
                Ok(reply) => {
                    self.taken();
                    self.obey(reply, client).await;
                }
                Err(failure) => {
                    tokio::time::sleep(self.not_taken(&failure)).await;
                    if matches!(failure, Failure::Refused { .. } | Failure::Untrusted(..)) {
                        return;
                    }
                }
            }
        }
    }

    /// The collector took a report.
    fn taken(&mut self) {
        self.backoff.reset();
        if !std::mem::take(&mut self.told).is_empty() {
            tracing::info!("the collector takes reports again");
        }
    }

    /// It did not; how long to wait now.
    fn not_taken(&mut self, failure: &Failure) -> Duration {
        let asked = match failure {
            Failure::Later { wait, .. } => wait.unwrap_or_default(),
            _ => Duration::ZERO,
        };
        let wait = self.backoff.wait().max(asked.min(LONGEST_ASKED));
        let (why, seconds) = (failure.to_string(), wait.as_secs_f64());
        if why == self.told {
            tracing::debug!("{why}; trying again in {seconds:.1} s");
        } else {
            tracing::warn!("{why}; trying again in {seconds:.1} s");
            self.told = why;
        }
        wait
    }

    /// Notes, once, that this boot of the machine runs, and learns how the one before ended.
    fn note(&mut self, boot: Option<&str>) {
        let Some(boot) = boot.filter(|boot| self.noted.as_deref() != Some(*boot)) else {
            return;
        };
        self.noted = Some(boot.to_owned());
        self.before = self.options.runs.began(&self.machine, boot).unwrap_or_else(|why| {
            tracing::warn!("how a run ends will not be known after the next boot: {why}");
            None
        });
    }

    async fn space_out(&mut self) {
        if let Some(last) = self.last_sent {
            tokio::time::sleep_until(last + SPACING).await;
        }
        self.last_sent = Some(Instant::now());
    }

    async fn news_since(&self, told: &Facts) {
        let mut facts = self.facts.clone();
        // without anyone who looks there is no news, and reports go on as they are
        if facts.wait_for(|now| now.news_since(told)).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    async fn obey(&mut self, reply: Reply, client: &mut Client) {
        self.seen = Some(reply.revision);
        match (reply.order, self.down) {
            (Order::Run, Down::Refused) => self.down = Down::Up,
            (Order::Run, Down::Up | Down::Accepted) | (Order::Shutdown, Down::Accepted) => {}
            (Order::Shutdown, Down::Up) => self.go_down(client).await,
            (Order::Shutdown, Down::Refused) => {
                tokio::time::sleep(RETRY_SHUTDOWN).await;
                self.go_down(client).await;
            }
        }
    }

    async fn go_down(&mut self, client: &mut Client) {
        tracing::info!("asked to shut the system down");
        if self.down == Down::Up {
            self.down = Down::Accepted;
            self.announce(client).await;
        }
        self.down = match self.options.shutdown.run().await {
            Ok(()) => Down::Accepted,
            Err(why) => {
                tracing::error!("the system does not go down: {why}");
                Down::Refused
            }
        };
    }

    /// Says that the system goes down, while there still is a network to say it over.
    async fn announce(&mut self, client: &mut Client) {
        let facts = self.facts.borrow().clone();
        let mut announcement = self.report(&facts);
        // an answer that does not wait for the next order
        announcement.seen_revision = None;
        match tokio::time::timeout(ANNOUNCEMENT, client.send(&announcement)).await {
            Ok(Ok(_)) => {}
            Ok(Err(failure)) => tracing::warn!("shutting down without having said so: {failure}"),
            Err(_) => tracing::warn!("shutting down without having said so: no answer"),
        }
    }

    fn report(&mut self, facts: &Facts) -> Report {
        self.sequence += 1;
        let stage = if self.down == Down::Up {
            facts.stage
        } else {
            Stage::ShuttingDown
        };
        Report {
            stage,
            ready: stage == Stage::Ready,
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            run: self.options.run.clone(),
            sequence: self.sequence,
            os_version: facts.os_version.clone(),
            software: facts.software.clone(),
            disk_free: facts.disk_free,
            disk_total: facts.disk_total,
            serial: facts.serial.clone(),
            system_uuid: facts.system_uuid.clone(),
            clean_shutdown: match self.down {
                Down::Up => self.before,
                Down::Accepted => Some(true),
                Down::Refused => Some(false),
            },
            boot_id: facts.boot_id.clone(),
            // a refused shutdown asks at once whether the order still stands
            seen_revision: self.seen.clone().filter(|_| self.down != Down::Refused),
        }
    }
}
