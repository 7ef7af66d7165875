use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use futures::future::BoxFuture;
use tokio::sync::Notify;

use super::super::reference::Reference;
use super::super::store::{DirectoryStore, Manifest, Spec, publish};
use super::*;

const PATIENCE: Duration = Duration::from_secs(20);

/// A directory store that counts and can be held.
struct Counting {
    inner: DirectoryStore,
    fetches: AtomicUsize,
    begun: Notify,
    gate: Option<Arc<Notify>>,
}

impl ImageStore for Counting {
    fn manifest<'a>(&'a self, r: &'a Source) -> BoxFuture<'a, Result<Manifest, StoreError>> {
        self.inner.manifest(r)
    }
    fn fetch<'a>(
        &'a self,
        r: &'a Source,
        m: &'a Manifest,
        into: &'a Path,
        watchdog: Watchdog,
    ) -> BoxFuture<'a, Result<Manifest, StoreError>> {
        Box::pin(async move {
            self.fetches.fetch_add(1, Ordering::SeqCst);
            self.begun.notify_one();
            if let Some(gate) = &self.gate {
                tokio::select! {
                    () = gate.notified() => {}
                    () = watchdog.cancel.cancelled() => {}
                }
            }
            self.inner.fetch(r, m, into, watchdog).await
        })
    }
}

struct Bench {
    dir: tempfile::TempDir,
    store: Arc<Counting>,
    free: Arc<AtomicU64>,
    wishes: watch::Sender<Wishes>,
    seen: watch::Receiver<Situation>,
    references: Vec<Reference>,
}

impl Bench {
    /// A chassis with `goldens` in the store, each of 2 MiB.
    fn new(goldens: usize, free: u64, gate: Option<Arc<Notify>>) -> Bench {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("store");
        let references = (0..goldens)
            .map(|n| {
                let spec = Spec { disk_bytes: 2 << 20, os_version: format!("26.{n}"), ..Spec::default() };
                publish(&root, "registry.example/macos/tahoe", &spec).unwrap()
            })
            .collect();
        let store = Arc::new(Counting {
            inner: DirectoryStore::new(&root),
            fetches: AtomicUsize::new(0),
            begun: Notify::new(),
            gate,
        });
        let (wishes, heard) = watch::channel(Wishes {
            known: true,
            wants: Vec::new(),
            cloned: BTreeSet::new(),
            reserve: 0,
            max_goldens: 2,
            evict_after: SignedDuration::from_hours(168),
        });
        let free = Arc::new(AtomicU64::new(free));
        let measured = free.clone();
        let measure: Measure = Arc::new(move || Ok(measured.load(Ordering::SeqCst)));
        let cache = Cache::open(dir.path().join("images")).unwrap();
        let (puller, seen) = Puller::new(cache, store.clone(), measure, heard, Bell::default()).unwrap();
        tokio::spawn(puller.run());
        Bench { dir, store, free, wishes, seen, references }
    }

    fn want(&self, n: usize, for_instance: bool) -> Want {
        Want { source: Source { reference: self.references[n].clone(), pull_secret: None }, for_instance }
    }

    fn wish(&self, wants: Vec<Want>) {
        self.wishes.send_modify(|wishes| wishes.wants = wants);
    }

    async fn until(&mut self, what: &str, mut holds: impl FnMut(&Situation) -> bool) -> Situation {
        let seen = tokio::time::timeout(PATIENCE, self.seen.wait_for(|s| holds(s))).await;
        let seen = seen.map(|seen| seen.unwrap().clone());
        seen.unwrap_or_else(|_| panic!("still not {what}: {:?}", self.seen.borrow()))
    }

    async fn until_cached(&mut self, n: usize) -> Situation {
        let hex = self.references[n].hex().to_owned();
        self.until("cached", |s| s.goldens.contains_key(&hex) && !s.standings.contains_key(&hex)).await
    }

    async fn until_refused(&mut self, n: usize) -> String {
        let hex = self.references[n].hex().to_owned();
        let refused = |s: &Situation| match s.standings.get(&hex) {
            Some(Standing::Refused(why)) => Some(why.clone()),
            _ => None,
        };
        let seen = self.until("refused", |s| refused(s).is_some()).await;
        refused(&seen).unwrap()
    }

    fn leftovers(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir.path().join("images")).unwrap();
        let names = entries.map(|e| e.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with('.')).collect()
    }
}

#[tokio::test]
async fn two_instances_and_a_prefetch_of_one_golden_are_one_pull() {
    let gate = Arc::new(Notify::new());
    let mut bench = Bench::new(1, u64::MAX, Some(gate.clone()));
    bench.wish(vec![bench.want(0, true), bench.want(0, true)]);
    bench.store.begun.notified().await;
    bench.wish(vec![bench.want(0, true), bench.want(0, true), bench.want(0, false)]);
    gate.notify_one();
    bench.until_cached(0).await;
    assert_eq!(bench.store.fetches.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn without_room_nothing_is_pulled_and_the_refusal_has_the_numbers() {
    let mut bench = Bench::new(1, 1 << 20, None);
    bench.wish(vec![bench.want(0, true)]);
    let why = bench.until_refused(0).await;
    assert!(why.contains("no room for the golden") && why.contains("GB is free"), "{why}");
    assert_eq!(bench.store.fetches.load(Ordering::SeqCst), 0);

    // an instance was wiped: its clone is gone, and there is room
    bench.free.store(1 << 40, Ordering::SeqCst);
    bench.wishes.send_modify(|wishes| wishes.reserve = 1);
    bench.until_cached(0).await;
}

#[tokio::test]
async fn a_pull_that_meets_the_reserve_on_its_way_ends_and_leaves_nothing() {
    let gate = Arc::new(Notify::new());
    let mut bench = Bench::new(1, 300 << 20, Some(gate.clone()));
    bench.wishes.send_modify(|wishes| wishes.reserve = 100 << 20);
    bench.wish(vec![bench.want(0, true)]);
    bench.store.begun.notified().await;
    bench.free.store(99 << 20, Ordering::SeqCst);
    gate.notify_one();
    let why = bench.until_refused(0).await;
    assert!(why.contains("the pull was ended") && why.contains("must stay free"), "{why}");
    assert!(bench.leftovers().is_empty(), "{:?}", bench.leftovers());
    assert!(bench.seen.borrow().goldens.is_empty(), "a half golden is reported");
}

#[tokio::test]
async fn a_pull_that_nothing_asks_for_any_more_is_ended() {
    let mut bench = Bench::new(1, u64::MAX, Some(Arc::new(Notify::new())));
    bench.wish(vec![bench.want(0, true)]);
    bench.store.begun.notified().await;
    bench.until("pulling", |s| !s.standings.is_empty()).await;
    bench.wish(Vec::new());
    bench.until("ended", |s| s.standings.is_empty()).await;
    assert!(bench.seen.borrow().goldens.is_empty());
}

#[tokio::test]
async fn a_third_golden_evicts_the_least_recently_used_but_never_one_with_a_clone() {
    let mut bench = Bench::new(3, u64::MAX, None);
    for n in [0, 1] {
        bench.wish(vec![bench.want(n, true)]);
        bench.until_cached(n).await;
    }
    // the older of the two has a clone
    let [first, second] = [0, 1].map(|n| bench.references[n].hex().to_owned());
    bench.wishes.send_modify(|wishes| wishes.cloned.extend([first.clone()]));
    bench.wish(vec![bench.want(2, true)]);
    let seen = bench.until_cached(2).await;
    assert!(seen.goldens.contains_key(&first), "a golden with a clone was evicted");
    assert!(!seen.goldens.contains_key(&second), "more goldens are kept than RackConfig says");
}

#[tokio::test]
async fn nothing_is_pulled_ahead_where_every_kept_golden_is_in_use() {
    let mut bench = Bench::new(2, u64::MAX, None);
    bench.wish(vec![bench.want(0, true)]);
    bench.until_cached(0).await;
    let first = bench.references[0].hex().to_owned();
    bench.wishes.send_modify(|wishes| {
        wishes.max_goldens = 1;
        wishes.cloned.insert(first);
    });
    bench.wish(vec![bench.want(1, false)]);
    let why = bench.until_refused(1).await;
    assert!(why.contains("maxGoldens"), "{why}");
}

#[tokio::test]
async fn a_golden_that_the_store_lacks_is_refused_with_the_way_out() {
    let mut bench = Bench::new(1, u64::MAX, None);
    fs::remove_dir_all(bench.dir.path().join("store")).unwrap();
    bench.wish(vec![bench.want(0, true)]);
    let why = bench.until_refused(0).await;
    assert!(why.contains("push it"), "{why}");
}

#[tokio::test]
async fn until_it_is_known_what_is_asked_for_nothing_is_evicted_ended_or_removed() {
    let gate = Arc::new(Notify::new());
    let mut bench = Bench::new(4, u64::MAX, Some(gate.clone()));
    bench.wishes.send_modify(|wishes| wishes.max_goldens = 3);
    for n in [0, 1, 2] {
        bench.wish(vec![bench.want(n, true)]);
        gate.notify_one();
        bench.until_cached(n).await;
    }
    // an agent that has just started, or whose cluster is away: the defaults stand where the settings would
    bench.wishes.send_modify(|wishes| (wishes.known, wishes.max_goldens, wishes.reserve) = (false, 1, u64::MAX));
    bench.free.store(1 << 40, Ordering::SeqCst);
    bench.wish(vec![bench.want(3, false)]);
    assert!(bench.until_refused(3).await.contains("maxGoldens"), "it comes only where that costs nothing");
    bench.wish(vec![bench.want(3, true)]);
    let why = bench
        .until("refused for room", |s| {
            s.standings.values().any(|s| matches!(s, Standing::Refused(why) if why.contains("no room")))
        })
        .await;
    assert_eq!(why.goldens.len(), 3, "a golden that may be asked for was evicted");
    // a pull under way goes on when the wish for it cannot be read any more
    bench.wishes.send_modify(|wishes| (wishes.known, wishes.max_goldens, wishes.reserve) = (true, 4, 0));
    bench.until("pulling", |s| s.standings.values().any(|s| matches!(s, Standing::Pulling(_)))).await;
    bench.wishes.send_modify(|wishes| (wishes.known, wishes.wants) = (false, Vec::new()));
    gate.notify_one();
    bench.until("whole", |s| s.goldens.len() == 4).await;
    // once it is known that nothing asks for them, they go as the settings say
    bench.wishes.send_modify(|wishes| (wishes.known, wishes.max_goldens) = (true, 1));
    bench.until("evicted", |s| s.goldens.len() == 1).await;
}

#[test]
fn the_rate_of_a_pull_is_not_that_of_a_clock_which_was_set_meanwhile() {
    let mut situation = Situation::default();
    let account = Account { bytes: 1, total_bytes: 6_000, ..Account::default() };
    let started_at = Timestamp::now() + SignedDuration::from_hours(1);
    situation.pulls.insert("a".to_owned(), Pulled { account, started_at, finished_at: None });
    situation.end("a", Duration::from_secs(3));
    assert_eq!(situation.pulls["a"].account.bytes_per_second, Some(2_000));
}
