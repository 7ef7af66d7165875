//! Every version of the objects of a kind, in order, so that what must hold at all times is judged over a whole run
//! and not at the moments at which a test happened to look.

use std::collections::HashMap;
use std::fmt::Debug;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use futures::StreamExt as _;
use kube::api::ListParams;
use kube::runtime::watcher::{self, Event};
use kube::{Api, ResourceExt as _};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::expect::{DEADLINE, Object};

/// One version of one object.
#[derive(Clone, Debug)]
pub struct Version<K> {
    /// The object as it was written; for an end, as it was last.
    pub object: K,
    /// True when this is its end.
    pub deleted: bool,
}

struct Record<K> {
    versions: Vec<Version<K>>,
    /// Times at which the watch had to begin again with a list: versions in between are not known.
    gaps: usize,
    synced: bool,
    trouble: Option<String>,
}

/// A watch in the background that keeps every version. Dropped, it ends.
pub struct History<K> {
    api: Api<K>,
    record: Arc<Mutex<Record<K>>>,
    changed: watch::Receiver<()>,
    task: JoinHandle<()>,
}

impl<K: Object> History<K> {
    /// Begins to watch, and returns when the present objects are known.
    ///
    /// # Errors
    /// When they cannot be read for [`DEADLINE`].
    pub async fn start(api: Api<K>) -> Result<History<K>> {
        let record = Arc::new(Mutex::new(Record {
            versions: Vec::new(),
            gaps: 0,
            synced: false,
            trouble: None,
        }));
        let (tell, changed) = watch::channel(());
        let task = tokio::spawn(keep(api.clone(), record.clone(), tell));
        let history = History {
            api,
            record,
            changed,
            task,
        };
        history.until("the first list", |record| record.synced).await?;
        Ok(history)
    }

    /// All versions so far, in the order in which they were written.
    pub fn versions(&self) -> Vec<Version<K>> {
        self.lock().versions.clone()
    }

    /// All versions of one object so far, by name.
    pub fn versions_of(&self, name: &str) -> Vec<Version<K>> {
        self.versions()
            .into_iter()
            .filter(|version| version.object.name_any() == name)
            .collect()
    }

    /// Waits until everything that is in the cluster at the time of this call was recorded.
    ///
    /// # Errors
    /// After [`DEADLINE`].
    pub async fn catch_up(&self) -> Result<()> {
        let now = self.api.list(&ListParams::default()).await?;
        let horizon = number(now.metadata.resource_version.as_deref());
        let there: HashMap<_, _> = now
            .items
            .iter()
            .map(|object| (object.uid(), number(object.resource_version().as_deref())))
            .collect();
        self.until("the present state", |record| {
            let mut last = HashMap::new();
            for version in &record.versions {
                last.insert(version.object.uid(), version);
            }
            let seen = |uid: &Option<String>, wanted: u64| {
                last.get(uid)
                    .is_some_and(|v| number(v.object.resource_version().as_deref()) >= wanted)
            };
            let all_seen = there.iter().all(|(uid, version)| seen(uid, *version));
            // what the list lacks must have ended, or have been made after it
            let none_more = last.iter().all(|(uid, version)| {
                version.deleted
                    || there.contains_key(uid)
                    || number(version.object.resource_version().as_deref()) > horizon
            });
            all_seen && none_more
        })
        .await
    }

    /// Fails when versions were missed, though none of them may be known.
    ///
    /// # Errors
    /// With how often the watch had to begin again.
    pub fn assert_whole(&self) -> Result<()> {
        let gaps = self.lock().gaps;
        if gaps > 0 {
            bail!(
                "the history of {} has gaps: the watch began again {gaps} times and may have missed versions",
                self.api.resource_url()
            );
        }
        Ok(())
    }

    /// Holds `holds` against every version up to now; an end is judged as the object last was.
    ///
    /// # Errors
    /// With the first version that breaks it and the one before; when versions were missed; when there were none, since
    /// nothing was shown then.
    pub async fn assert_always(&self, what: &str, mut holds: impl FnMut(&K) -> bool) -> Result<()> {
        self.catch_up().await?;
        self.assert_whole().with_context(|| format!("{what}: not known"))?;
        let record = self.lock();
        if record.versions.is_empty() {
            bail!(
                "{what}: nothing shown: there was no object at {}",
                self.api.resource_url()
            );
        }
        for (index, version) in record.versions.iter().enumerate() {
            if holds(&version.object) {
                continue;
            }
            let same = |earlier: &&Version<K>| earlier.object.uid() == version.object.uid();
            let before = record.versions[..index].iter().rev().find(same);
            bail!(
                "{what}: broken by version {} of {} (number {index} of {}):\n{}\nbefore it: {}",
                version.object.resource_version().unwrap_or_default(),
                version.object.name_any(),
                record.versions.len(),
                shown(&version.object),
                before.map_or_else(|| "nothing".to_owned(), |earlier| shown(&earlier.object))
            );
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Record<K>> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn until(&self, what: &str, mut holds: impl FnMut(&Record<K>) -> bool) -> Result<()> {
        // a clone knows which events it has not seen: none falls between a look and a wait
        let mut changed = self.changed.clone();
        let reached = async {
            while !holds(&self.lock()) {
                if changed.changed().await.is_err() {
                    return false;
                }
            }
            true
        };
        if !matches!(tokio::time::timeout(DEADLINE, reached).await, Ok(true)) {
            let trouble = self
                .lock()
                .trouble
                .clone()
                .unwrap_or_else(|| "no error was reported".to_owned());
            bail!(
                "the history of {} did not reach {what} in {DEADLINE:.0?}: {trouble}",
                self.api.resource_url()
            );
        }
        Ok(())
    }
}

impl<K> Drop for History<K> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn keep<K: Object>(api: Api<K>, record: Arc<Mutex<Record<K>>>, changed: watch::Sender<()>) {
    let mut events = pin!(watcher::watcher(api, watcher::Config::default()));
    while let Some(event) = events.next().await {
        let failed = event.is_err();
        {
            let mut record = record.lock().unwrap_or_else(PoisonError::into_inner);
            match event {
                Ok(Event::Apply(object) | Event::InitApply(object)) => {
                    record.versions.push(Version { object, deleted: false });
                }
                Ok(Event::Delete(object)) => record.versions.push(Version { object, deleted: true }),
                Ok(Event::Init) if record.synced => record.gaps += 1,
                Ok(Event::Init) => {}
                Ok(Event::InitDone) => record.synced = true,
                Err(error) => record.trouble = Some(error.to_string()),
            }
        }
        changed.send_replace(());
        if failed {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Kubernetes orders the versions of one kind as numbers.
fn number(version: Option<&str>) -> u64 {
    version.and_then(|version| version.parse().ok()).unwrap_or(0)
}

fn shown<K: Object>(object: &K) -> String {
    serde_json::to_string(object).unwrap_or_else(|_| format!("{object:?}"))
}
