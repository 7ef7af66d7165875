//! What the operator tells a Prometheus. `docs/metrics.md` has every metric; a test holds page and code together.
//!
//! Three kinds of numbers, each with one source:
//!
//! | Module | Told by | From |
//! |---|---|---|
//! | [`fleet`] | the leader | counted at each scrape off what it watches; nothing is remembered |
//! | [`acts`] | the leader | what was done, by the status that was written for it ([`measure`]) |
//! | [`served`] | every replica | what this very process does |
//!
//! Invariants: a replica that does not lead tells nothing about the fleet, so that sums over replicas are right; what
//! is not known is left out and never 0; no label holds what a tenant or a guest may choose without bound.

pub mod acts;
pub mod fleet;
pub mod measure;
pub mod serve;
pub mod served;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use dockerios_collector::Counts;
use prometheus_client::{encoding::text, registry::Registry};
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};

use self::{acts::Acts, fleet::Fleet};

/// Prefix of every metric's name.
pub const PREFIX: &str = "dockerios";
/// The deciding task never waits, so a longer silence is a defect: the scrape then fails, which is seen.
const PATIENCE: Duration = Duration::from_secs(5);
/// Scrapes that wait for the deciding task.
const WAITING: usize = 8;

/// One scrape asks; nothing is answered while nothing is known of the fleet.
pub type Question = oneshot::Sender<Option<Fleet>>;

/// The metrics of this process; all copies are one.
#[derive(Clone, Debug)]
pub struct Metrics {
    acts: Acts,
    counts: Arc<Counts>,
    leads: Arc<AtomicBool>,
    ask: mpsc::Sender<Question>,
}

/// Why a scrape is answered with a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unanswered {
    /// The task that decides is stuck or has ended.
    #[error("the task that decides did not answer within {} s", PATIENCE.as_secs())]
    Stuck,
    /// Cannot be: text is written into memory.
    #[error("the metrics could not be written down")]
    Encoding,
}

impl Metrics {
    /// Of a process whose collector counts there; and where scrapes ask once it leads.
    pub fn new(counts: Arc<Counts>) -> (Self, mpsc::Receiver<Question>) {
        let (ask, questions) = mpsc::channel(WAITING);
        let metrics = Self {
            acts: Acts::default(),
            counts,
            leads: Arc::default(),
            ask,
        };
        (metrics, questions)
    }

    /// From now on somebody answers for the fleet.
    pub fn elected(&self) {
        self.leads.store(true, Ordering::Relaxed);
    }

    /// Where acts are counted.
    pub fn acts(&self) -> &Acts {
        &self.acts
    }

    /// All of it as OpenMetrics text.
    ///
    /// # Errors
    /// When the deciding task does not answer: better no scrape than one that shows an empty fleet.
    pub async fn render(&self) -> Result<String, Unanswered> {
        let leads = self.leads.load(Ordering::Relaxed);
        let fleet = if leads { self.fleet().await? } else { None };
        let mut registry = Registry::with_prefix(PREFIX);
        served::register(&mut registry, leads, &self.counts);
        if leads {
            self.acts.register(&mut registry);
        }
        if let Some(fleet) = &fleet {
            fleet.register(&mut registry);
        }
        let mut out = String::new();
        text::encode(&mut out, &registry).map_err(|_| Unanswered::Encoding)?;
        Ok(out)
    }

    async fn fleet(&self) -> Result<Option<Fleet>, Unanswered> {
        let asked = async {
            let (tell, told) = oneshot::channel();
            self.ask.send(tell).await.ok()?;
            told.await.ok()
        };
        let answer = tokio::time::timeout(PATIENCE, asked).await;
        answer.ok().flatten().ok_or(Unanswered::Stuck)
    }
}

/// A word of the API as it stands in an object.
pub(crate) fn word(value: &impl Serialize) -> String {
    let value = serde_json::to_value(value).unwrap_or_default();
    value.as_str().unwrap_or_default().to_owned()
}
