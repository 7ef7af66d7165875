//! A work queue: each key at most once in line, never twice at work, again later when asked.

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    hash::Hash,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

struct State<K> {
    ready: VecDeque<K>,
    queued: HashSet<K>,
    working: HashSet<K>,
    again: HashSet<K>,
    timers: BTreeSet<(Instant, u64)>,
    due: HashMap<u64, K>,
    timer_of: HashMap<K, (Instant, u64)>,
    failures: HashMap<K, u32>,
    next: u64,
}

/// See the module.
pub struct Queue<K> {
    state: Mutex<State<K>>,
    changed: Notify,
}

/// Backoff after failures: doubling from 50 ms to 30 s.
fn backoff(failures: u32) -> Duration {
    Duration::from_millis(50u64 << failures.min(10)).min(Duration::from_secs(30))
}

impl<K: Clone + Eq + Hash> Default for Queue<K> {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                ready: VecDeque::new(),
                queued: HashSet::new(),
                working: HashSet::new(),
                again: HashSet::new(),
                timers: BTreeSet::new(),
                due: HashMap::new(),
                timer_of: HashMap::new(),
                failures: HashMap::new(),
                next: 0,
            }),
            changed: Notify::new(),
        }
    }
}

impl<K: Clone + Eq + Hash> Queue<K> {
    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a key in line now.
    pub fn add(&self, key: K) {
        let mut state = self.lock();
        if state.working.contains(&key) {
            state.again.insert(key);
        } else if state.queued.insert(key.clone()) {
            state.ready.push_back(key);
            drop(state);
            self.changed.notify_one();
        }
    }

    /// Puts a key in line after a while; the earliest of several wishes holds.
    pub fn add_after(&self, key: K, wait: Duration) {
        let at = Instant::now() + wait;
        let mut state = self.lock();
        if let Some(timer) = state.timer_of.get(&key).copied() {
            if timer.0 <= at {
                return;
            }
            state.timers.remove(&timer);
            state.due.remove(&timer.1);
        }
        let id = state.next;
        state.next += 1;
        state.timers.insert((at, id));
        state.due.insert(id, key.clone());
        state.timer_of.insert(key, (at, id));
        drop(state);
        self.changed.notify_one();
    }

    /// The next key to work on. It must be given back with [`Self::done`].
    pub async fn next(&self) -> K {
        loop {
            let wait = {
                let mut state = self.lock();
                let now = Instant::now();
                while let Some(timer) = state.timers.first().copied().filter(|t| t.0 <= now) {
                    state.timers.remove(&timer);
                    if let Some(key) = state.due.remove(&timer.1) {
                        state.timer_of.remove(&key);
                        if state.working.contains(&key) {
                            state.again.insert(key);
                        } else if state.queued.insert(key.clone()) {
                            state.ready.push_back(key);
                        }
                    }
                }
                if let Some(key) = state.ready.pop_front() {
                    state.queued.remove(&key);
                    state.working.insert(key.clone());
                    if !state.ready.is_empty() {
                        self.changed.notify_one(); // another worker may take the next
                    }
                    return key;
                }
                state.timers.first().map(|t| t.0)
            };
            let changed = self.changed.notified();
            match wait {
                Some(at) => {
                    tokio::select! { () = changed => {}, () = tokio::time::sleep_until(at) => {} }
                }
                None => changed.await,
            }
        }
    }

    /// Ends the work on a key that went well.
    pub fn done(&self, key: &K) {
        self.lock().failures.remove(key);
        self.finish(key);
    }

    /// Ends the work on a key that failed; it comes again, ever later. Says after how long.
    pub fn failed(&self, key: &K) -> Duration {
        let wait = {
            let mut state = self.lock();
            let failures = state.failures.entry(key.clone()).or_default();
            *failures += 1;
            backoff(*failures - 1)
        };
        self.finish(key);
        self.add_after(key.clone(), wait);
        wait
    }

    fn finish(&self, key: &K) {
        let mut state = self.lock();
        state.working.remove(key);
        if state.again.remove(key) && state.queued.insert(key.clone()) {
            state.ready.push_back(key.clone());
            drop(state);
            self.changed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_key_is_in_line_once_and_never_twice_at_work() {
        let queue = Queue::default();
        queue.add("a");
        queue.add("a");
        assert_eq!(queue.next().await, "a");
        queue.add("a"); // while at work
        let second = tokio::time::timeout(Duration::from_secs(1), queue.next()).await;
        assert!(second.is_err(), "not twice at work");
        queue.done(&"a");
        assert_eq!(queue.next().await, "a", "what came meanwhile is looked at again");
        queue.done(&"a");
        assert!(tokio::time::timeout(Duration::from_secs(1), queue.next()).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn the_earliest_wish_holds_and_failures_come_ever_later() {
        let queue = Queue::default();
        queue.add_after("a", Duration::from_secs(60));
        queue.add_after("a", Duration::from_secs(5));
        queue.add_after("a", Duration::from_secs(90));
        let before = Instant::now();
        assert_eq!(queue.next().await, "a");
        assert_eq!(before.elapsed().as_secs(), 5);
        let first = queue.failed(&"a");
        queue.next().await;
        assert!(queue.failed(&"a") > first);
        queue.next().await;
        queue.done(&"a");
    }
}
