//! What the API server last said, by name and by index.
//!
//! A cache is only read once its first list is whole. A list after an interruption is collected beside the old
//! contents and swapped in when it is whole: nothing is ever decided from half of it. An object that cannot be
//! decoded is kept as *unreadable*, which is not absent: what hangs on it stays as it is.

use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
    sync::{Arc, RwLock},
};

use kube::{
    core::{DeserializeGuard, error_boundary::InvalidObject},
    runtime::watcher::Event,
};
use macrack_core::seen::Seen;

/// Namespace (empty for the cluster's) and name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Empty for cluster-scoped objects.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl Key {
    /// An object of a namespace.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
    /// An object of the cluster.
    pub fn cluster(name: impl Into<String>) -> Self {
        Self::new("", name)
    }
    /// The key of an object.
    pub fn of(meta: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta) -> Self {
        Self::new(meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
    }
}

/// One cached object.
#[derive(Debug)]
pub enum Entry<K> {
    /// As decoded.
    Good(Arc<K>),
    /// It is there, and cannot be decoded.
    Bad(Arc<InvalidObject>),
}

impl<K> Clone for Entry<K> {
    fn clone(&self) -> Self {
        match self {
            Self::Good(object) => Self::Good(object.clone()),
            Self::Bad(invalid) => Self::Bad(invalid.clone()),
        }
    }
}

/// Names the index values of an object: (index, value).
pub type Index<K> = fn(&K) -> Vec<(&'static str, String)>;

struct Contents<K> {
    objects: HashMap<Key, Entry<K>>,
    index: HashMap<(&'static str, String), BTreeSet<Key>>,
    /// Which of them are [`Entry::Bad`]: they stand in no index.
    bad: BTreeSet<Key>,
}

impl<K> Contents<K> {
    fn empty() -> Self {
        Self { objects: HashMap::new(), index: HashMap::new(), bad: BTreeSet::new() }
    }

    fn put(&mut self, key: Key, entry: Entry<K>, index: Index<K>) -> Option<Entry<K>> {
        let old = self.take(&key, index);
        match &entry {
            Entry::Good(object) => {
                for slot in index(object) {
                    self.index.entry(slot).or_default().insert(key.clone());
                }
            }
            Entry::Bad(_) => {
                self.bad.insert(key.clone());
            }
        }
        self.objects.insert(key, entry);
        old
    }

    fn take(&mut self, key: &Key, index: Index<K>) -> Option<Entry<K>> {
        let old = self.objects.remove(key)?;
        self.bad.remove(key);
        if let Entry::Good(object) = &old {
            for slot in index(object) {
                if let Some(keys) = self.index.get_mut(&slot) {
                    keys.remove(key);
                    if keys.is_empty() {
                        self.index.remove(&slot);
                    }
                }
            }
        }
        Some(old)
    }
}

struct Inner<K> {
    live: Contents<K>,
    listing: Option<Contents<K>>,
    ready: bool,
}

/// A cache of one kind.
pub struct Cache<K> {
    inner: RwLock<Inner<K>>,
    index: Index<K>,
}

/// One change: the object before and after.
pub struct Change<K> {
    /// Which object.
    pub key: Key,
    /// Before, if it was decodable.
    pub old: Option<Arc<K>>,
    /// After, if it is there.
    pub new: Option<Entry<K>>,
}

impl<K: kube::Resource> Cache<K> {
    /// An empty cache with these indexes.
    pub fn new(index: Index<K>) -> Self {
        Self { inner: RwLock::new(Inner { live: Contents::empty(), listing: None, ready: false }), index }
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Inner<K>> {
        // a poisoned lock means a panic while writing a map: the contents are still whole entries
        self.inner.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Whether the first list is whole.
    pub fn is_ready(&self) -> bool {
        self.read().ready
    }

    /// The object of that name.
    pub fn get(&self, key: &Key) -> Seen<Arc<K>> {
        match self.read().live.objects.get(key) {
            Some(Entry::Good(object)) => Seen::Present(object.clone()),
            Some(Entry::Bad(invalid)) => Seen::Unknown(format!("stored object cannot be read: {}", invalid.error)),
            None => Seen::Absent,
        }
    }

    /// Every object under that index value, by name.
    pub fn by(&self, index: &'static str, value: &str) -> Vec<Arc<K>> {
        let inner = self.read();
        let Some(keys) = inner.live.index.get(&(index, value.to_owned())) else { return Vec::new() };
        keys.iter()
            .filter_map(|key| match inner.live.objects.get(key) {
                Some(Entry::Good(object)) => Some(object.clone()),
                _ => None,
            })
            .collect()
    }

    /// The one with that uid, if it is there and cannot be read: no index says what it is, so it is not absent from any.
    pub fn unreadable(&self, uid: &str) -> Option<Arc<InvalidObject>> {
        let inner = self.read();
        inner.live.bad.iter().find_map(|key| match inner.live.objects.get(key) {
            Some(Entry::Bad(invalid)) if invalid.metadata.uid.as_deref() == Some(uid) => Some(invalid.clone()),
            _ => None,
        })
    }

    /// Every readable object, in no order.
    pub fn all(&self) -> Vec<Arc<K>> {
        let inner = self.read();
        let good = |e: &Entry<K>| if let Entry::Good(object) = e { Some(object.clone()) } else { None };
        inner.live.objects.values().filter_map(good).collect()
    }

    /// Takes in one watch event and says what changed.
    pub fn take_in(&self, event: Event<DeserializeGuard<K>>) -> Vec<Change<K>> {
        let mut inner = self.inner.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        match event {
            Event::Init => {
                inner.listing = Some(Contents::empty());
                Vec::new()
            }
            Event::InitApply(object) => {
                let (key, entry) = split(object);
                if let Some(listing) = &mut inner.listing {
                    listing.put(key, entry, self.index);
                }
                Vec::new()
            }
            Event::InitDone => {
                let listing = inner.listing.take().unwrap_or_else(Contents::empty);
                let mut old = std::mem::replace(&mut inner.live, listing).objects;
                inner.ready = true;
                let mut changes: Vec<Change<K>> = inner
                    .live
                    .objects
                    .iter()
                    .map(|(key, entry)| Change {
                        key: key.clone(),
                        old: good(old.remove(key)),
                        new: Some(entry.clone()),
                    })
                    .collect();
                // gone while the watch was down
                changes.extend(old.into_iter().map(|(key, entry)| Change { key, old: good(Some(entry)), new: None }));
                changes
            }
            Event::Apply(object) => {
                let (key, entry) = split(object);
                let old = inner.live.put(key.clone(), entry.clone(), self.index);
                vec![Change { key, old: good(old), new: Some(entry) }]
            }
            Event::Delete(object) => {
                let (key, _) = split(object);
                let old = inner.live.take(&key, self.index);
                vec![Change { key, old: good(old), new: None }]
            }
        }
    }
}

fn good<K>(entry: Option<Entry<K>>) -> Option<Arc<K>> {
    match entry {
        Some(Entry::Good(object)) => Some(object),
        _ => None,
    }
}

fn split<K: kube::Resource>(object: DeserializeGuard<K>) -> (Key, Entry<K>) {
    match object.0 {
        Ok(mut object) => {
            object.meta_mut().managed_fields = None; // half the size, and nothing reads it
            (Key::of(object.meta()), Entry::Good(Arc::new(object)))
        }
        Err(invalid) => (Key::of(&invalid.metadata), Entry::Bad(Arc::new(invalid))),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{api::core::v1::Namespace, apimachinery::pkg::apis::meta::v1::ObjectMeta};

    use super::*;

    fn namespace(name: &str, team: &str) -> DeserializeGuard<Namespace> {
        let mut ns = Namespace::default();
        ns.metadata.name = Some(name.into());
        ns.metadata.labels = Some([("team".into(), team.into())].into());
        DeserializeGuard(Ok(ns))
    }

    fn by_team(ns: &Namespace) -> Vec<(&'static str, String)> {
        let labels = ns.metadata.labels.clone().unwrap_or_default();
        labels.get("team").map(|t| ("team", t.clone())).into_iter().collect()
    }

    #[test]
    fn a_half_finished_list_changes_nothing() {
        let cache = Cache::new(by_team);
        assert!(!cache.is_ready());
        cache.take_in(Event::Init);
        cache.take_in(Event::InitApply(namespace("a", "x")));
        assert_eq!(cache.take_in(Event::InitDone).len(), 1);
        assert!(cache.is_ready());
        cache.take_in(Event::Init);
        assert!(cache.get(&Key::cluster("a")).present().is_some(), "the old contents stand until the new are whole");
        cache.take_in(Event::InitApply(namespace("b", "y")));
        let changes = cache.take_in(Event::InitDone);
        let gone = changes.iter().find(|c| c.key.name == "a").unwrap();
        assert!(gone.new.is_none() && gone.old.is_some(), "what vanished in the gap is told");
    }

    #[test]
    fn an_object_that_cannot_be_read_is_not_absent() {
        let cache = Cache::new(by_team);
        cache.take_in(Event::Init);
        cache.take_in(Event::InitDone);
        cache.take_in(Event::Apply(namespace("a", "x")));
        let metadata = ObjectMeta { name: Some("a".into()), uid: Some("u".into()), ..ObjectMeta::default() };
        let bad = DeserializeGuard(Err(InvalidObject { error: "phase: unknown variant".into(), metadata }));
        cache.take_in(Event::Apply(bad));
        assert!(cache.get(&Key::cluster("a")).is_unknown());
        assert!(cache.by("team", "x").is_empty(), "its old index values are gone");
        assert!(cache.unreadable("u").is_some() && cache.unreadable("other").is_none());
        cache.take_in(Event::Apply(namespace("a", "x")));
        assert!(cache.unreadable("u").is_none(), "it was mended");
    }

    #[test]
    fn an_index_follows_the_object() {
        let cache = Cache::new(by_team);
        cache.take_in(Event::Apply(namespace("a", "x")));
        cache.take_in(Event::Apply(namespace("a", "y")));
        assert!(cache.by("team", "x").is_empty());
        assert_eq!(cache.by("team", "y").len(), 1);
        cache.take_in(Event::Delete(namespace("a", "y")));
        assert!(cache.by("team", "y").is_empty());
    }
}
