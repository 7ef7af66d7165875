//! A shelf holds all objects of one kind as they were last seen.
//!
//! Invariant: an object that is there but cannot be read is never taken for absent; a list that failed changes nothing.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use dockerios_core::Seen;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::index::{Index, IndexKey};

/// Namespace (empty for cluster-scoped kinds) and name.
pub type Place = (String, String);

/// All objects of one kind.
#[derive(Debug)]
pub struct Shelf<K> {
    kind: &'static str,
    /// `Err`: no list has arrived yet, and why.
    state: Result<(), String>,
    entries: HashMap<Place, Entry<K>>,
    indexed: HashMap<IndexKey, BTreeSet<Place>>,
    /// Objects that are there and cannot be read.
    unreadable: HashSet<Place>,
    /// Newest resourceVersion that was seen of the kind.
    seen_up_to: u64,
}

#[derive(Debug)]
struct Entry<K> {
    object: Result<Arc<K>, String>,
    keys: Vec<IndexKey>,
    version: u64,
}

impl<K: DeserializeOwned> Shelf<K> {
    /// Empty, and nothing known.
    pub fn new(kind: &'static str) -> Self {
        Self {
            kind,
            state: Err(format!("the list of {kind} has not arrived yet")),
            entries: HashMap::new(),
            indexed: HashMap::new(),
            unreadable: HashSet::new(),
            seen_up_to: 0,
        }
    }

    /// The object of that name.
    pub fn get(&self, namespace: &str, name: &str) -> Seen<Arc<K>> {
        if let Err(why) = &self.state {
            return Seen::Unknown(why.clone());
        }
        match self.entries.get(&(namespace.to_owned(), name.to_owned())) {
            None => Seen::Absent,
            Some(entry) => entry.look(),
        }
    }

    /// All of them, by namespace and name. Unknown when one of them cannot be read.
    pub fn all(&self) -> Seen<Vec<Arc<K>>> {
        let mut places: Vec<&Place> = self.entries.keys().collect();
        places.sort_unstable();
        self.read(places.into_iter())
    }

    /// All that can be read, by namespace and name: where one that cannot takes nothing from the others.
    pub fn readable(&self) -> Seen<Vec<Arc<K>>> {
        let mut places: Vec<&Place> = self
            .entries
            .keys()
            .filter(|at| !self.unreadable.contains(*at))
            .collect();
        places.sort_unstable();
        self.read(places.into_iter())
    }

    /// Those with that key, by namespace and name. Unknown when one of *them* cannot be read.
    pub fn by(&self, index: Index, value: &str) -> Seen<Vec<Arc<K>>> {
        let found = self.indexed.get(&(index, value.to_owned()));
        self.read(found.into_iter().flatten())
    }

    fn read<'a>(&self, places: impl Iterator<Item = &'a Place>) -> Seen<Vec<Arc<K>>> {
        if let Err(why) = &self.state {
            return Seen::Unknown(why.clone());
        }
        let read = places
            .filter_map(|place| self.entries.get(place))
            .map(|entry| entry.object.clone());
        match read.collect::<Result<_, String>>() {
            Ok(objects) => Seen::Present(objects),
            Err(why) => Seen::Unknown(why),
        }
    }

    /// Places of those with that key; for routing, so readable or not.
    pub fn places(&self, index: Index, value: &str) -> Vec<Place> {
        self.indexed
            .get(&(index, value.to_owned()))
            .into_iter()
            .flatten()
            .cloned()
            .collect()
    }

    /// Places of all; for routing.
    pub fn every_place(&self) -> Vec<Place> {
        self.entries.keys().cloned().collect()
    }

    /// What it holds.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// How many are there and cannot be read.
    pub fn unreadable(&self) -> usize {
        self.unreadable.len()
    }

    /// Whether everything up to that resourceVersion has been seen.
    pub fn caught_up(&self, version: u64) -> bool {
        self.seen_up_to >= version
    }

    /// Whether a first list has arrived.
    pub fn listed(&self) -> bool {
        self.state.is_ok()
    }

    /// Why nothing is known, while that is so. What was seen before stays.
    pub fn cannot_list(&mut self, why: &str) {
        if self.state.is_err() {
            self.state = Err(format!("{} cannot be listed: {why}", self.kind));
        }
    }

    /// A whole consistent list. Gives what became of whom: every place with its keys before and after.
    pub fn replace(&mut self, objects: Vec<Value>, version: u64) -> Vec<Change> {
        let listed: HashSet<Place> = objects.iter().map(place).collect();
        let gone: Vec<Place> = self
            .entries
            .keys()
            .filter(|at| !listed.contains(*at))
            .cloned()
            .collect();
        let mut changes: Vec<Change> = gone.iter().map(|at| self.remove(at)).collect();
        changes.extend(objects.into_iter().filter_map(|object| self.put(object)));
        self.state = Ok(());
        self.seen_up_to = self.seen_up_to.max(version);
        changes
    }

    /// An object as it is now; `None` when this version or a newer one was there already.
    pub fn put(&mut self, mut object: Value) -> Option<Change> {
        let at = place(&object);
        let version = version_of(&object);
        self.seen_up_to = self.seen_up_to.max(version);
        let before = match self.entries.get(&at) {
            Some(entry) if entry.version >= version && version > 0 => return None,
            Some(_) => self.remove(&at).before,
            None => Vec::new(),
        };
        let keys = crate::index::keys_of(&object);
        for key in &keys {
            self.indexed.entry(key.clone()).or_default().insert(at.clone());
        }
        let object = self.decode(&mut object, &at);
        if object.is_err() {
            self.unreadable.insert(at.clone());
        }
        self.entries.insert(
            at.clone(),
            Entry {
                object,
                keys: keys.clone(),
                version,
            },
        );
        Some(Change {
            at,
            before,
            after: keys,
        })
    }

    /// An object that is gone.
    pub fn delete(&mut self, object: &Value) -> Option<Change> {
        self.seen_up_to = self.seen_up_to.max(version_of(object));
        let at = place(object);
        self.entries.contains_key(&at).then(|| self.remove(&at))
    }

    /// Nothing changed up to that version.
    pub fn bookmark(&mut self, version: u64) {
        self.seen_up_to = self.seen_up_to.max(version);
    }

    fn remove(&mut self, at: &Place) -> Change {
        self.unreadable.remove(at);
        let keys = self.entries.remove(at).map(|entry| entry.keys).unwrap_or_default();
        for key in &keys {
            if let Some(places) = self.indexed.get_mut(key) {
                places.remove(at);
                if places.is_empty() {
                    self.indexed.remove(key);
                }
            }
        }
        Change {
            at: at.clone(),
            before: keys,
            after: Vec::new(),
        }
    }

    fn decode(&self, object: &mut Value, (namespace, name): &Place) -> Result<Arc<K>, String> {
        thin(object);
        serde_json::from_value(object.take()).map(Arc::new).map_err(|error| {
            let at = if namespace.is_empty() { name.clone() } else { format!("{namespace}/{name}") };
            tracing::warn!(kind = self.kind, object = at, %error, "an object cannot be read; nothing is decided about it");
            format!("{} {at} cannot be read: {error}", self.kind)
        })
    }
}

impl<K> Entry<K> {
    fn look(&self) -> Seen<Arc<K>> {
        match &self.object {
            Ok(object) => Seen::Present(object.clone()),
            Err(why) => Seen::Unknown(why.clone()),
        }
    }
}

/// What became of one object: its index keys before and after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Which.
    pub at: Place,
    /// Its keys before; empty when it is new.
    pub before: Vec<IndexKey>,
    /// Its keys now; empty when it is gone.
    pub after: Vec<IndexKey>,
}

/// Takes out what is never read and can poison a whole list: the API server keeps times in `managedFields` that no
/// type of ours can hold, and anybody who may write an object may write them.
pub fn thin(object: &mut Value) {
    if let Some(meta) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        meta.remove("managedFields");
    }
}

/// Namespace and name of an object.
pub fn place(object: &Value) -> Place {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    (text("namespace"), text("name"))
}

/// resourceVersions of one kind can be compared as numbers; 0 when it has none.
pub fn version_of(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"]
        .as_str()
        .and_then(|version| version.parse().ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use dockerios_api::MacOSMachine;
    use serde_json::json;

    use super::*;

    fn machine(name: &str, version: u64, class: &str) -> Value {
        json!({"apiVersion": "machine.dockerios.io/v1alpha1", "kind": "MacOSMachine",
            "metadata": {"name": name, "namespace": "n", "uid": name, "resourceVersion": version.to_string()},
            "spec": {"machineClassName": class}})
    }

    #[test]
    fn before_the_first_list_nothing_is_absent() {
        let mut shelf = Shelf::<MacOSMachine>::new("MacOSMachine");
        assert!(
            shelf
                .get("n", "a")
                .unreadable()
                .is_some_and(|why| why.contains("not arrived"))
        );
        shelf.replace(vec![], 1);
        assert!(shelf.get("n", "a").absent());
    }

    #[test]
    fn one_object_that_cannot_be_read_hides_itself_and_nobody_else() {
        let mut shelf = Shelf::<MacOSMachine>::new("MacOSMachine");
        let mut bad = machine("bad", 3, "small");
        bad["spec"]["powerState"] = json!(7);
        shelf.replace(vec![machine("good", 2, "big"), bad], 3);
        assert!(shelf.get("n", "good").present().is_some());
        assert!(
            shelf
                .get("n", "bad")
                .unreadable()
                .is_some_and(|why| why.contains("n/bad cannot be read"))
        );
        assert_eq!(shelf.by(Index::Class, "big").present().map(Vec::len), Some(1));
        assert!(shelf.by(Index::Class, "small").unreadable().is_some());
    }

    #[test]
    fn times_that_nobody_can_hold_in_managed_fields_do_no_harm() {
        let mut shelf = Shelf::<MacOSMachine>::new("MacOSMachine");
        let mut poisoned = machine("m", 2, "small");
        poisoned["metadata"]["managedFields"] = json!([{"manager": "x", "time": "9999-12-31T23:59:59Z"}]);
        shelf.replace(vec![poisoned], 2);
        assert!(shelf.get("n", "m").present().is_some());
    }

    #[test]
    fn an_older_version_changes_nothing_and_a_list_removes_what_it_does_not_name() {
        let mut shelf = Shelf::<MacOSMachine>::new("MacOSMachine");
        shelf.replace(vec![machine("a", 5, "old"), machine("b", 6, "old")], 6);
        assert_eq!(shelf.put(machine("a", 4, "older")), None);
        let change = shelf.put(machine("a", 7, "new")).expect("a newer version is news");
        assert!(change.before.contains(&(Index::Class, "old".into())), "{change:?}");
        assert!(shelf.caught_up(7) && !shelf.caught_up(8));
        let changes = shelf.replace(vec![machine("a", 7, "new")], 9);
        assert_eq!(changes.iter().map(|c| c.at.1.as_str()).collect::<Vec<_>>(), ["b"]);
        assert!(shelf.places(Index::Class, "old").is_empty());
    }
}
