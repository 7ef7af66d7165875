//! What tests expect of a cluster, in words that demand the reason and watch instead of sleeping.
//!
//! These panic, as assertions do, with everything that a reader of the failure needs.

use std::collections::BTreeMap;
use std::fmt::{Debug, Write};
use std::time::{Duration, Instant};

use futures::StreamExt;
use kube::api::ListParams;
use kube::core::Status;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Api, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// An object that can be watched and shown.
pub trait Watched: Resource + Clone + DeserializeOwned + Serialize + Debug + Send + 'static {}
impl<K> Watched for K where K: Resource + Clone + DeserializeOwned + Serialize + Debug + Send + 'static {}

/// Parts of a message that must all be in it: one `&str`, or several.
pub trait Fragments {
    /// The parts.
    fn fragments(&self) -> Vec<&str>;
}

impl Fragments for &str {
    fn fragments(&self) -> Vec<&str> {
        vec![self]
    }
}

impl<const N: usize> Fragments for [&str; N] {
    fn fragments(&self) -> Vec<&str> {
        self.to_vec()
    }
}

impl Fragments for &[&str] {
    fn fragments(&self) -> Vec<&str> {
        self.to_vec()
    }
}

/// The value of a request that must have been accepted.
///
/// # Panics
/// When it was refused, with the whole refusal.
#[track_caller]
pub fn accepts<T>(result: kube::Result<T>) -> T {
    match result {
        Ok(value) => value,
        Err(kube::Error::Api(status)) => {
            panic!("must be accepted, but was refused {}", said(&status))
        }
        Err(e) => panic!("must be accepted, but there was no answer: {e}"),
    }
}

/// The refusal of a request that must have been refused **for this reason**: a 4xx answer of the
/// API server whose message contains every one of the `fragments`.
///
/// # Panics
/// When it was accepted, refused for another reason, or not answered; with the whole message.
#[track_caller]
pub fn rejects<T: Debug>(result: kube::Result<T>, fragments: impl Fragments) -> Status {
    let fragments = fragments.fragments();
    assert!(fragments.iter().any(|f| !f.trim().is_empty()), "a test must say for which reason it expects a refusal");
    let status = match result {
        Ok(value) => panic!("must be refused with {fragments:?}, but was accepted: {value:#?}"),
        Err(kube::Error::Api(status)) => *status,
        Err(e) => panic!("must be refused with {fragments:?}, but there was no answer: {e}"),
    };
    let missing: Vec<_> = fragments.iter().filter(|f| !status.message.contains(**f)).collect();
    assert!(
        (400..500).contains(&status.code),
        "must be refused with {fragments:?}, but the server failed {}",
        said(&status)
    );
    assert!(
        missing.is_empty(),
        "must be refused with {fragments:?}; without {missing:?} it was refused {}",
        said(&status)
    );
    status
}

fn said(status: &Status) -> String {
    format!("({} {}):\n    {}", status.code, status.reason, status.message)
}

/// Watches the object `name` until `holds`, and returns it as it then was (`None`: it was absent).
/// `holds` sees every state from the present one on.
///
/// # Panics
/// When `deadline` passes first: with what was waited for, and the last state as YAML.
pub async fn until<K: Watched>(
    api: &Api<K>,
    name: &str,
    what: &str,
    deadline: Duration,
    mut holds: impl FnMut(Option<&K>) -> bool,
) -> Option<K>
where
    K::DynamicType: Default,
{
    let began = Instant::now();
    let mut last: Option<K> = None;
    let mut trouble = None;
    let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let watched = async {
        let mut events = std::pin::pin!(watch(api.clone(), only).default_backoff());
        while let Some(event) = events.next().await {
            // between Init and InitDone nothing is known yet
            let settled = !matches!(event, Ok(Event::Init | Event::InitApply(_)));
            match event {
                Ok(Event::Init) => last = None,
                Ok(Event::InitApply(object)) => last = Some(object),
                Ok(Event::InitDone) => {}
                Ok(Event::Apply(object)) => last = Some(object),
                Ok(Event::Delete(_)) => last = None,
                Err(e) => {
                    trouble = Some(e.to_string());
                    continue;
                }
            }
            if settled && holds(last.as_ref()) {
                return;
            }
        }
    };
    if tokio::time::timeout(deadline, watched).await.is_ok() {
        return last;
    }
    let kind = K::kind(&K::DynamicType::default()).into_owned();
    let mut report = format!("after {:.1?} {kind} {name} is still not {what}; ", began.elapsed());
    match &last {
        Some(object) => {
            let _ = write!(report, "it is:\n{}", as_yaml(object));
        }
        None => report.push_str("it does not exist"),
    }
    if let Some(trouble) = trouble {
        let _ = write!(report, "\nthe watch had trouble: {trouble}");
    }
    panic!("{report}");
}

/// Like [`until`], for a state in which the object exists.
///
/// # Panics
/// As [`until`].
pub async fn until_seen<K: Watched>(
    api: &Api<K>,
    name: &str,
    what: &str,
    deadline: Duration,
    mut holds: impl FnMut(&K) -> bool,
) -> K
where
    K::DynamicType: Default,
{
    match until(api, name, what, deadline, |object| object.is_some_and(&mut holds)).await {
        Some(object) => object,
        None => unreachable!("`until` returned an absent object, for which the condition is false"),
    }
}

/// Watches the object `name` until it is gone.
///
/// # Panics
/// As [`until`].
pub async fn until_gone<K: Watched>(api: &Api<K>, name: &str, deadline: Duration)
where
    K::DynamicType: Default,
{
    until(api, name, "gone", deadline, |object| object.is_none()).await;
}

/// Asks until the answer is yes. Only for what the API server answers from caches of its own that
/// show nobody when they have caught up - RBAC, admission policies, webhook configurations; for
/// everything else there is [`until`].
///
/// # Panics
/// When `deadline` passes first.
pub async fn until_effective(what: &str, deadline: Duration, mut ask: impl AsyncFnMut() -> bool) {
    let asked = async {
        while !ask().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    if tokio::time::timeout(deadline, asked).await.is_err() {
        panic!("{what} has no effect after {deadline:.1?}");
    }
}

/// The objects of a watch, by `namespace/name` (or `name` where there is no namespace).
pub type Objects<K> = BTreeMap<String, K>;

/// Runs `during` and holds **every** state of the objects that `config` selects, from before its
/// start to after its end, against `invariant`; returns what `during` returns.
///
/// # Panics
/// At the first state that violates the invariant, with its reason and the objects; and when the
/// watch had to start again, since states may then have gone unseen.
pub async fn always<K: Watched, T>(
    api: &Api<K>,
    config: watcher::Config,
    what: &str,
    mut invariant: impl FnMut(&Objects<K>) -> Result<(), String>,
    during: impl Future<Output = T>,
) -> T {
    let list = ListParams {
        label_selector: config.label_selector.clone(),
        field_selector: config.field_selector.clone(),
        ..ListParams::default()
    };
    let mut events = std::pin::pin!(watch(api.clone(), config));
    let mut objects = Objects::new();
    let mut complete = false;
    let mut take = |event: Option<Result<Event<K>, watcher::Error>>| {
        let event = match event {
            Some(Ok(event)) => event,
            Some(Err(e)) => panic!("cannot tell whether always {what}: the watch failed: {e}"),
            None => panic!("cannot tell whether always {what}: the watch ended"),
        };
        match event {
            Event::Init if complete => {
                panic!("cannot tell whether always {what}: the watch had to start again")
            }
            Event::Init => {}
            Event::InitDone => complete = true,
            Event::InitApply(object) | Event::Apply(object) => {
                objects.insert(key(&object), object);
            }
            Event::Delete(object) => {
                objects.remove(&key(&object));
            }
        }
        if complete && let Err(why) = invariant(&objects) {
            let shown: String = objects.values().map(|o| format!("---\n{}", as_yaml(o))).collect();
            panic!("not always {what}: {why}\n{shown}");
        }
        complete.then(|| versions(objects.values()))
    };
    while take(events.next().await).is_none() {}

    let mut during = std::pin::pin!(during);
    let mut seen = BTreeMap::new();
    let outcome = loop {
        tokio::select! {
            event = events.next() => seen = take(event).unwrap_or_default(),
            outcome = &mut during => break outcome,
        }
    };
    // what `during` wrote last may still be under way: read on until the watch shows what a list,
    // read after its end, does
    let catching_up = async {
        loop {
            let now = match api.list(&list).await {
                Ok(now) => versions(now.items.iter()),
                Err(e) => panic!("cannot tell whether always {what}: {e}"),
            };
            while seen != now {
                match tokio::time::timeout(Duration::from_millis(500), events.next()).await {
                    Ok(event) => seen = take(event).unwrap_or_default(),
                    // the watch has already moved past the list: read it again
                    Err(_) => break,
                }
            }
            if seen == now {
                break;
            }
        }
    };
    if tokio::time::timeout(Duration::from_secs(30), catching_up).await.is_err() {
        panic!("cannot tell whether always {what}: the objects do not come to rest");
    }
    outcome
}

fn key<K: Resource>(object: &K) -> String {
    match object.namespace() {
        Some(namespace) => format!("{namespace}/{}", object.name_any()),
        None => object.name_any(),
    }
}

fn versions<'a, K: Resource + 'a>(objects: impl Iterator<Item = &'a K>) -> BTreeMap<String, Option<String>> {
    objects.map(|object| (key(object), object.resource_version())).collect()
}

fn as_yaml<K: Watched>(object: &K) -> String {
    let mut object = object.clone();
    object.meta_mut().managed_fields = None;
    serde_yaml::to_string(&object).unwrap_or_else(|_| format!("{object:#?}"))
}
