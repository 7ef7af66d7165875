//! The one task that changes the cache: pulls what is asked for, evicts what nothing needs.
//!
//! Invariant: one pull at a time, whoever and however many ask; a pull that nothing asks for any more is ended. A pull
//! that was cut, by the network or by a crash, leaves what it has for the next one; one that must not go on, for want
//! of room or because what came is no golden, leaves nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::cache::{Cache, Golden};
use super::evict::{Keeping, overdue, unused};
use super::progress::{Account, Progress};
use super::room::{Disk, NoRoom, gigabytes, make_room, relieve};
use super::store::{ImageStore, Manifest, Source, StoreError, Watchdog};
use crate::backoff::Backoff;
use crate::bell::Bell;

/// Between two looks at how far a pull is; what of it is written is the writer's affair.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);
/// The longest that a registry's own wish puts a pull off.
const MOST_PATIENCE: Duration = Duration::from_secs(600);
/// Least time between two measurements of the free space during a pull.
const ROOM_EVERY: Duration = Duration::from_millis(250);
/// Least time between two looks for goldens that were not used for long.
const TIDY_EVERY: Duration = Duration::from_secs(60);
/// When a refused pull is judged again although nothing here has changed.
const ROOM_RETRY: Duration = Duration::from_secs(10);

/// A golden that something asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Want {
    /// The golden, and how it is asked for.
    pub source: Source,
    /// An instance waits for it; otherwise it is pulled ahead, and only where that costs nothing.
    pub for_instance: bool,
}

/// What is asked for, and what must be kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wishes {
    /// All of this is known: the settings, and what is asked for. Until then nothing is evicted, ended or removed for
    /// want of a wish.
    pub known: bool,
    /// Asked for, the most urgent first.
    pub wants: Vec<Want>,
    /// Hex of the goldens that have a clone on this chassis.
    pub cloned: BTreeSet<String>,
    /// Bytes that must stay free.
    pub reserve: u64,
    /// `RackConfig.spec.imageCache.maxGoldens`.
    pub max_goldens: usize,
    /// `RackConfig.spec.imageCache.evictAfter`.
    pub evict_after: SignedDuration,
}

impl Wishes {
    fn keeping(&self) -> Keeping {
        let asked_for = self.wants.iter().map(|want| want.source.reference.hex().to_owned());
        Keeping {
            in_use: asked_for.chain(self.cloned.iter().cloned()).collect(),
            max_goldens: self.max_goldens,
            evict_after: self.evict_after,
        }
    }

    fn wants(&self, hex: &str) -> bool {
        self.wants.iter().any(|want| want.source.reference.hex() == hex)
    }

    /// Nothing asks for it, for certain.
    fn rejects(&self, hex: &str) -> bool {
        self.known && !self.wants(hex)
    }

    /// Goldens that may go, the least recently used first: (hex, bytes).
    fn unused(&self, goldens: &BTreeMap<String, Golden>) -> Vec<(String, u64)> {
        if self.known { unused(goldens, &self.keeping()) } else { Vec::new() }
    }
}

/// How a golden that is asked for and not here stands, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It is being pulled; so far it is.
    Pulling(Account),
    /// It cannot be pulled now.
    Refused(String),
}

/// What is in the cache, and how the rest stands; by hex.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Situation {
    /// Whole goldens.
    pub goldens: BTreeMap<String, Golden>,
    /// What is asked for and not here.
    pub standings: BTreeMap<String, Standing>,
    /// The pull under way, and the last that ended well, by hex.
    pub pulls: BTreeMap<String, Pulled>,
    /// Bytes of the golden under way that are not on the disk yet: they are promised to it.
    pub coming: u64,
}

/// A pull for the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pulled {
    /// How far it is.
    pub account: Account,
    /// When it began.
    pub started_at: Timestamp,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
}

/// Pulls that ended and are remembered for those who look a little later.
const REMEMBERED: usize = 3;

/// Measures the free bytes of the disk.
pub type Measure = Arc<dyn Fn() -> io::Result<u64> + Send + Sync>;

/// The task.
pub struct Puller {
    cache: Cache,
    store: Arc<dyn ImageStore>,
    free: Measure,
    wishes: watch::Receiver<Wishes>,
    situation: watch::Sender<Situation>,
    bell: Bell,
    later: BTreeMap<String, Later>,
    /// Partial pulls that nothing asks for, and since when they have been seen so.
    unwanted: BTreeMap<String, Instant>,
}

impl Situation {
    /// Notes that a pull ended well after it `took` so long, and forgets the oldest of the others. The wall clock is not
    /// asked: it may be set meanwhile.
    fn end(&mut self, hex: &str, took: Duration) {
        let Some(pull) = self.pulls.get_mut(hex) else { return };
        let millis = u64::try_from(took.as_millis()).unwrap_or(u64::MAX).max(1);
        pull.account.bytes = pull.account.total_bytes;
        pull.account.bytes_per_second = Some(pull.account.total_bytes.saturating_mul(1000) / millis);
        pull.account.seconds_left = None;
        pull.finished_at = Some(Timestamp::now());
        while self.pulls.len() > REMEMBERED {
            let oldest = self.pulls.iter().min_by_key(|(_, pull)| pull.started_at).map(|(hex, _)| hex.clone());
            self.pulls.remove(&oldest.unwrap_or_default());
        }
    }
}

/// When a golden that could not be pulled is tried again.
struct Later {
    at: Instant,
    backoff: Backoff,
    /// Also as soon as the wishes change: room may have been made.
    for_room: bool,
}

impl Puller {
    /// A puller over `cache`, and what it reports.
    ///
    /// # Errors
    /// When the cache cannot be read.
    pub fn new(
        cache: Cache,
        store: Arc<dyn ImageStore>,
        free: Measure,
        wishes: watch::Receiver<Wishes>,
        bell: Bell,
    ) -> io::Result<(Self, watch::Receiver<Situation>)> {
        let present = Situation { goldens: cache.list()?, ..Situation::default() };
        let (situation, seen) = watch::channel(present);
        let puller =
            Puller { cache, store, free, wishes, situation, bell, later: BTreeMap::new(), unwanted: BTreeMap::new() };
        Ok((puller, seen))
    }

    /// Runs until nobody wishes any more.
    pub async fn run(mut self) {
        loop {
            let wishes = self.wishes.borrow_and_update().clone();
            self.forget(&wishes);
            self.tidy(&wishes, 0);
            if let Some(want) = self.next(&wishes) {
                self.pull(&want, &wishes).await;
                continue;
            }
            let due = self.later.values().map(|later| later.at).min();
            let wake = due.unwrap_or_else(|| Instant::now() + TIDY_EVERY).min(Instant::now() + TIDY_EVERY);
            tokio::select! {
                changed = self.wishes.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    for later in self.later.values_mut().filter(|later| later.for_room) {
                        later.at = Instant::now();
                    }
                }
                () = tokio::time::sleep_until(wake.into()) => {}
            }
        }
    }

    /// The most urgent golden that is not here and may be tried now.
    fn next(&self, wishes: &Wishes) -> Option<Want> {
        let now = Instant::now();
        let may = |want: &&Want| {
            let hex = want.source.reference.hex();
            !self.cache.has(hex) && self.later.get(hex).is_none_or(|later| later.at <= now)
        };
        wishes.wants.iter().find(may).cloned()
    }

    /// Drops what nothing asks for any more.
    fn forget(&mut self, wishes: &Wishes) {
        self.later.retain(|hex, _| !wishes.rejects(hex));
        if self.situation.borrow().standings.keys().any(|hex| wishes.rejects(hex)) {
            self.tell(|situation| situation.standings.retain(|hex, _| !wishes.rejects(hex)));
        }
        self.forget_partials(wishes);
    }

    /// Removes what an earlier agent has of a golden that nothing asks for. Not at once: after a start it takes a
    /// moment until it is known what is asked for.
    fn forget_partials(&mut self, wishes: &Wishes) {
        let partials = match self.cache.partials() {
            Ok(partials) => partials,
            Err(error) => return tracing::error!(%error, "the partial pulls cannot be listed"),
        };
        self.unwanted.retain(|hex, _| partials.contains(hex) && wishes.rejects(hex));
        for hex in partials.into_iter().filter(|hex| wishes.rejects(hex)) {
            let since = *self.unwanted.entry(hex.clone()).or_insert_with(Instant::now);
            if since.elapsed() >= TIDY_EVERY {
                tracing::info!(golden = %hex, "what was pulled of it is removed: nothing asks for it");
                self.discard(&hex);
            }
        }
    }

    fn discard(&self, hex: &str) {
        if let Err(error) = self.cache.discard(hex) {
            tracing::error!(golden = %hex, %error, "the partial pull cannot be removed");
        }
    }

    /// Evicts what is overdue when `coming` more goldens are about to come, and what must give way to disks that grow
    /// or are to be cloned.
    fn tidy(&mut self, wishes: &Wishes, coming: usize) {
        let goldens = self.situation.borrow().goldens.clone();
        // what was harmed by other hands is no golden any more
        if goldens.keys().any(|hex| !self.cache.has(hex)) {
            self.relist();
        }
        if wishes.known {
            let gone = overdue(&goldens, &wishes.keeping(), coming, Timestamp::now());
            self.evict(&gone);
        }
        let unused = wishes.unused(&self.situation.borrow().goldens.clone());
        if unused.is_empty() {
            return;
        }
        match (self.free)() {
            Ok(free) => self.evict(&relieve(&Disk { free: Some(free), reserve: wishes.reserve, unused: &unused })),
            Err(error) => tracing::error!(%error, "the free space cannot be measured"),
        }
    }

    fn evict(&mut self, hexes: &[String]) {
        for hex in hexes {
            match self.cache.evict(hex) {
                Ok(()) => tracing::info!(golden = %hex, "evicted"),
                Err(error) => tracing::error!(golden = %hex, %error, "cannot be evicted"),
            }
        }
        if !hexes.is_empty() {
            self.relist();
        }
    }

    fn relist(&mut self) {
        match self.cache.list() {
            Ok(goldens) => self.tell(|situation| situation.goldens = goldens),
            Err(error) => tracing::error!(%error, "the cache cannot be listed"),
        }
    }

    fn tell(&self, change: impl FnOnce(&mut Situation)) {
        self.situation.send_modify(change);
        self.bell.ring();
    }

    async fn pull(&mut self, want: &Want, wishes: &Wishes) {
        let hex = want.source.reference.hex().to_owned();
        let began = Instant::now();
        let pulled = self.try_pull(want, wishes).await;
        self.situation.send_if_modified(|situation| std::mem::take(&mut situation.coming) > 0);
        match pulled {
            Ok(()) => {
                tracing::info!(golden = %want.source.reference, seconds = began.elapsed().as_secs_f64(), "pulled");
                self.later.remove(&hex);
                self.relist();
                self.tell(|situation| {
                    situation.standings.remove(&hex);
                    situation.end(&hex, began.elapsed());
                });
            }
            Err(StoreError::Cancelled) => {
                tracing::info!(golden = %want.source.reference, "the pull was ended: nothing asks for it any more");
                self.discard(&hex);
                self.tell(|situation| {
                    situation.standings.remove(&hex);
                    situation.pulls.remove(&hex);
                });
            }
            Err(error) => self.failed(want, error),
        }
    }

    /// Says why a pull failed, and when it is tried again.
    fn failed(&mut self, want: &Want, error: StoreError) {
        let (hex, error) = (want.source.reference.hex().to_owned(), full(error));
        let why = error.to_string();
        tracing::warn!(golden = %want.source.reference, error = %why, "not pulled");
        let (for_room, after) = match &error {
            StoreError::NoRoom(_) => (true, None),
            StoreError::Transient { after, .. } => (false, *after),
            _ => (false, None),
        };
        // what came before a cut is of use to the next try
        if !matches!(error, StoreError::Transient { .. } | StoreError::Io { .. }) {
            self.discard(&hex);
        }
        let later = self.later.entry(hex.clone()).or_insert_with(|| Later {
            at: Instant::now(),
            backoff: Backoff::new(Duration::from_secs(2), Duration::from_secs(300)),
            for_room,
        });
        later.for_room = for_room;
        let pause = if for_room { ROOM_RETRY } else { later.backoff.next_delay() };
        // a registry may name an hour; a Mac looks a little earlier whether that was the last word
        later.at = Instant::now() + pause.max(after.unwrap_or_default().min(MOST_PATIENCE));
        self.tell(|situation| {
            situation.pulls.remove(&hex);
            situation.standings.insert(hex, Standing::Refused(why));
        });
    }

    async fn try_pull(&mut self, want: &Want, wishes: &Wishes) -> Result<(), StoreError> {
        let source = &want.source;
        let hex = source.reference.hex();
        let manifest = self.store.manifest(source).await?;
        // what the disk has of it already is not needed again
        let needed = manifest.disk_bytes.saturating_sub(self.cache.partial_bytes(hex)).max(1);
        self.admit(want, needed, wishes)?;
        let into = self.cache.begin(hex).map_err(StoreError::io("prepare the pull"))?;
        let watchdog = Watchdog {
            progress: Arc::new(Progress::default()),
            cancel: CancellationToken::new(),
            room: keeps_room(self.free.clone(), wishes.reserve),
        };
        watchdog.progress.expect(manifest.disk_bytes);
        let fetch = self.store.clone();
        let fetch = fetch.fetch(source, &manifest, &into, watchdog.clone());
        let manifest = self.attend(hex, fetch, &watchdog).await?;
        let bytes = serde_json::to_vec_pretty(&manifest).map_err(|e| StoreError::io("write its manifest")(e.into()))?;
        self.cache.publish(hex, &bytes, Timestamp::now()).map_err(StoreError::io("move the pulled golden to its place"))
    }

    /// Makes room for a golden, or says why there is none.
    fn admit(&mut self, want: &Want, size: u64, wishes: &Wishes) -> Result<(), StoreError> {
        let goldens = self.situation.borrow().goldens.clone();
        let unused = wishes.unused(&goldens);
        let spare = wishes.max_goldens.saturating_sub(goldens.len() - unused.len());
        if spare == 0 && !want.for_instance {
            return Err(StoreError::NoRoom(format!(
                "not pulled ahead: all {} goldens that this Mac keeps are in use; raise RackConfig spec.imageCache.maxGoldens",
                goldens.len()
            )));
        }
        let free = (self.free)().inspect_err(|error| tracing::error!(%error, "the free space cannot be measured")).ok();
        let disk = Disk { free, reserve: wishes.reserve, unused: &unused };
        let room = make_room(Some(size), &disk).map_err(|no: NoRoom| StoreError::NoRoom(no.to_string()))?;
        self.evict(&room);
        self.tidy(wishes, 1);
        Ok(())
    }

    /// Awaits a fetch, tells its progress, and ends it when nothing asks for it any more.
    async fn attend(
        &mut self,
        hex: &str,
        fetch: impl Future<Output = Result<Manifest, StoreError>>,
        watchdog: &Watchdog,
    ) -> Result<Manifest, StoreError> {
        let (began, started_at) = (Instant::now(), Timestamp::now());
        let mut fetch = std::pin::pin!(fetch);
        let mut tick = tokio::time::interval(PROGRESS_EVERY);
        loop {
            tokio::select! {
                ended = &mut fetch => return ended,
                _ = tick.tick() => {
                    let account = watchdog.progress.account(began.elapsed());
                    self.tell(|s| {
                        s.standings.insert(hex.to_owned(), Standing::Pulling(account));
                        s.pulls.insert(hex.to_owned(), Pulled { account, started_at, finished_at: None });
                        s.coming = watchdog.progress.left();
                    });
                }
                changed = self.wishes.changed() => {
                    if changed.is_err() || self.wishes.borrow_and_update().rejects(hex) {
                        watchdog.cancel.cancel();
                        return fetch.await;
                    }
                }
            }
        }
    }
}

/// A full disk is want of room, whoever met it.
fn full(error: StoreError) -> StoreError {
    match error {
        StoreError::Io { what, source } if source.raw_os_error() == Some(rustix::io::Errno::NOSPC.raw_os_error()) => {
            StoreError::NoRoom(format!(
                "{what}: no space is left on the disk (write error 28); delete an instance, or use a smaller image"
            ))
        }
        other => other,
    }
}

/// A check that `reserve` bytes are still free, measured not more often than is useful.
fn keeps_room(free: Measure, reserve: u64) -> Arc<dyn Fn() -> Result<(), String> + Send + Sync> {
    let last: Mutex<Option<Instant>> = Mutex::new(None);
    Arc::new(move || {
        let mut last = last.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if last.is_some_and(|at| at.elapsed() < ROOM_EVERY) {
            return Ok(());
        }
        *last = Some(Instant::now());
        let free = free().map_err(|e| format!("the free space can no longer be measured: {e}"))?;
        if free >= reserve {
            return Ok(());
        }
        Err(format!(
            "the pull was ended: {} is free, and {} must stay free for the instances' disks and the host; delete an instance, or use a smaller image",
            gigabytes(free),
            gigabytes(reserve)
        ))
    })
}

#[cfg(test)]
#[path = "pull_tests.rs"]
mod tests;
