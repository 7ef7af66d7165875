//! Work by key: what every played controller is driven by.
//!
//! Invariant: one key is worked on once at a time; a key that is touched meanwhile is worked on again after; a key
//! whose work failed comes back by itself, later each time.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    fmt,
    future::Future,
    time::Duration,
};

use anyhow::Result;
use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    task::JoinSet,
    time::Instant,
};

/// An object of one kind. `namespace` is empty for cluster-wide kinds.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl Key {
    pub(crate) fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    /// The key of an object.
    pub(crate) fn of<K: kube::ResourceExt>(object: &K) -> Self {
        Self::new(object.namespace().unwrap_or_default(), object.name_any())
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            f.write_str(&self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}

/// When a key wants to be looked at again although nothing has touched it.
pub(crate) type Again = Option<Duration>;

/// Where keys go in.
#[derive(Clone, Debug)]
pub(crate) struct Queue(UnboundedSender<Key>);

impl Queue {
    pub(crate) fn new() -> (Self, UnboundedReceiver<Key>) {
        let (sender, receiver) = unbounded_channel();
        (Self(sender), receiver)
    }

    pub(crate) fn add(&self, key: Key) {
        // the other end is gone only while everything ends
        let _ = self.0.send(key);
    }
}

const FIRST_RETRY: Duration = Duration::from_millis(25);
const LONGEST_RETRY: Duration = Duration::from_secs(5);

#[derive(Default)]
struct Due {
    order: BTreeSet<(Instant, Key)>,
    at: HashMap<Key, Instant>,
}

impl Due {
    /// The earlier of two times holds.
    fn add(&mut self, key: Key, when: Instant) {
        if let Some(known) = self.at.get(&key) {
            if *known <= when {
                return;
            }
            self.order.remove(&(*known, key.clone()));
        }
        self.at.insert(key.clone(), when);
        self.order.insert((when, key));
    }

    fn take(&mut self, now: Instant, busy: &HashSet<Key>) -> Vec<Key> {
        let ready: Vec<_> = self
            .order
            .iter()
            .take_while(|(when, _)| *when <= now)
            .filter(|(_, key)| !busy.contains(key))
            .cloned()
            .collect();
        for entry in &ready {
            self.order.remove(entry);
            self.at.remove(&entry.1);
        }
        ready.into_iter().map(|(_, key)| key).collect()
    }

    fn next(&self, busy: &HashSet<Key>) -> Option<Instant> {
        self.order
            .iter()
            .find(|(_, key)| !busy.contains(key))
            .map(|(when, _)| *when)
    }
}

/// Works until every [`Queue`] of it is dropped.
pub(crate) async fn run<F, W>(what: &'static str, mut keys: UnboundedReceiver<Key>, work: F)
where
    F: Fn(Key) -> W,
    W: Future<Output = Result<Again>> + Send + 'static,
{
    let (mut due, mut busy, mut failures) = (Due::default(), HashSet::new(), HashMap::<Key, u32>::new());
    let mut running = JoinSet::new();
    loop {
        for key in due.take(Instant::now(), &busy) {
            busy.insert(key.clone());
            let working = work(key.clone());
            running.spawn(async move { (key, working.await) });
        }
        let next = due.next(&busy);
        tokio::select! {
            key = keys.recv() => match key {
                Some(key) => due.add(key, Instant::now()),
                None => return,
            },
            Some(done) = running.join_next() => {
                let Ok((key, result)) = done else {
                    tracing::error!("{what}: a worker ended without an answer");
                    continue;
                };
                busy.remove(&key);
                match result {
                    Ok(again) => {
                        failures.remove(&key);
                        if let Some(after) = again {
                            due.add(key, Instant::now() + after);
                        }
                    }
                    Err(error) => {
                        let count = failures.entry(key.clone()).or_default();
                        *count += 1;
                        let wait = FIRST_RETRY.saturating_mul(1 << (*count).min(8)).min(LONGEST_RETRY);
                        if *count > 2 {
                            tracing::warn!("{what} {key}: {error:#}");
                        }
                        due.add(key, Instant::now() + wait);
                    }
                }
            }
            () = tokio::time::sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[tokio::test]
    async fn a_key_touched_while_it_is_worked_on_is_worked_on_again_and_never_twice_at_once() {
        let (queue, keys) = Queue::new();
        let seen = Arc::new(Mutex::new((0_u32, 0_u32)));
        let (entered, mut enters) = unbounded_channel();
        let (release, gate) = tokio::sync::watch::channel(false);
        let counted = seen.clone();
        let task = tokio::spawn(run("test", keys, move |_| {
            let (counted, entered, mut gate) = (counted.clone(), entered.clone(), gate.clone());
            async move {
                {
                    let mut both = counted.lock().expect("no panic");
                    both.0 += 1;
                    both.1 += 1;
                    assert_eq!(both.0, 1, "two at once");
                }
                entered.send(()).expect("the test waits");
                gate.wait_for(|open| *open).await.expect("the test holds the gate");
                counted.lock().expect("no panic").0 -= 1;
                Ok(None)
            }
        }));
        queue.add(Key::new("a", "b"));
        enters.recv().await.expect("began");
        queue.add(Key::new("a", "b"));
        queue.add(Key::new("a", "b"));
        release.send(true).expect("someone waits");
        enters.recv().await.expect("began again");
        drop(queue);
        task.await.expect("ends when nobody can add any more");
        assert_eq!(seen.lock().expect("no panic").1, 2);
    }

    #[tokio::test]
    async fn a_key_whose_work_failed_comes_back_by_itself() {
        let (queue, keys) = Queue::new();
        let (tried, mut tries) = unbounded_channel();
        let _task = tokio::spawn(run("test", keys, move |key| {
            let tried = tried.clone();
            async move {
                tried.send(key).expect("the test waits");
                anyhow::bail!("not yet")
            }
        }));
        queue.add(Key::new("", "n"));
        for _ in 0..3 {
            assert_eq!(tries.recv().await.expect("tried").to_string(), "n");
        }
    }
}
