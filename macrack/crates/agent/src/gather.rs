//! What is seen of the API: one watch per object that concerns this chassis.
//!
//! Invariant: absent is not unreadable. What cannot be read says so ([`Seen::Unknown`]) and decides
//! nothing; a connection that is cut keeps what was seen last.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::StreamExt;
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use macrack_api::{InstanceClass, MacOSImage, RackConfig};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::backoff::Backoff;
use crate::bell::Bell;

/// What is seen of one object.
#[derive(Debug, Clone, PartialEq)]
pub enum Seen<K> {
    /// It cannot be read, in words.
    Unknown(String),
    /// It does not exist.
    Absent,
    /// It is this.
    Present(Arc<K>),
}

impl<K> Seen<K> {
    /// The object, if it is there.
    pub fn present(&self) -> Option<&Arc<K>> {
        match self {
            Seen::Present(object) => Some(object),
            _ => None,
        }
    }
}

impl<K> Default for Seen<K> {
    fn default() -> Self {
        Seen::Unknown("not looked at yet".to_owned())
    }
}

/// Kinds that can be watched.
pub trait Kind: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static {}
impl<K> Kind for K where K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static {}

/// Follows the object `name` for ever.
pub async fn follow<K: Kind>(api: Api<K>, name: String, seen: watch::Sender<Seen<K>>, bell: Bell) {
    let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let events = watcher(api, only).backoff(Backoff::for_api());
    let mut events = std::pin::pin!(events);
    // what a list has shown so far
    let mut listed = Seen::Absent;
    while let Some(event) = events.next().await {
        let now = match event {
            Ok(Event::Init) => {
                listed = Seen::Absent;
                continue;
            }
            Ok(Event::InitApply(object)) => {
                listed = Seen::Present(Arc::new(slim(object)));
                continue;
            }
            Ok(Event::InitDone) => std::mem::replace(&mut listed, Seen::Absent),
            Ok(Event::Apply(object)) => Seen::Present(Arc::new(slim(object))),
            Ok(Event::Delete(_)) => Seen::Absent,
            Err(error) => {
                let (code, why) = refusal(&error);
                tracing::debug!(kind = %K::kind(&()), name, error = why, "a watch has trouble");
                let never_seen = matches!(*seen.borrow(), Seen::Unknown(_));
                match code {
                    // the usual case for a moment after a slot was given: the words of RBAC would frighten a tenant
                    Some(403) => Seen::Unknown("the operator grants that with the slot and has not yet".to_owned()),
                    Some(404) => Seen::Unknown(why),
                    _ if never_seen => Seen::Unknown(why),
                    // a cut connection: what was seen holds
                    _ => continue,
                }
            }
        };
        seen.send_replace(now);
        bell.ring();
    }
}

fn slim<K: Resource>(mut object: K) -> K {
    object.managed_fields_mut().clear();
    object
}

/// What the API server said, without the names of types.
pub fn words(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

/// The HTTP status of the API server's refusal, if it was one, and its words.
fn refusal(error: &watcher::Error) -> (Option<u16>, String) {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => {
            let code = if let kube::Error::Api(status) = error { Some(status.code) } else { None };
            (code, words(error))
        }
        watcher::Error::WatchError(status) => (Some(status.code), status.message.clone()),
        watcher::Error::NoResourceVersion => (None, error.to_string()),
    }
}

/// The catalogue and the settings.
#[derive(Clone)]
pub struct Catalogue {
    classes: Store<InstanceClass>,
    images: Store<MacOSImage>,
    configs: Store<RackConfig>,
    /// Of each kind: it was listed to its end.
    listed: [Arc<AtomicBool>; 3],
}

impl Catalogue {
    /// Follows the catalogue once there is a token, for as long as `tasks` live.
    pub fn follow(
        client: &Client,
        has_token: &watch::Receiver<bool>,
        bell: &Bell,
        tasks: &mut JoinSet<()>,
    ) -> Catalogue {
        let listed: [Arc<AtomicBool>; 3] = Default::default();
        let [classes, images, configs] = listed.clone();
        Catalogue {
            classes: follow_all(client, has_token, bell, classes, tasks),
            images: follow_all(client, has_token, bell, images, tasks),
            configs: follow_all(client, has_token, bell, configs, tasks),
            listed,
        }
    }

    /// Whether all of it was seen: what is not in it then does not exist. Before that nobody can tell.
    pub fn is_known(&self) -> bool {
        self.listed.iter().all(|listed| listed.load(Ordering::Relaxed))
    }

    /// The InstanceClass of that name.
    pub fn class(&self, name: &str) -> Option<Arc<InstanceClass>> {
        self.classes.get(&ObjectRef::new(name))
    }

    /// The MacOSImage of that name.
    pub fn image(&self, name: &str) -> Option<Arc<MacOSImage>> {
        self.images.get(&ObjectRef::new(name))
    }

    /// The settings; the defaults where there are none, or none is known ([`Catalogue::is_known`]).
    pub fn config(&self) -> macrack_api::RackConfigSpec {
        self.configs.get(&ObjectRef::new("default")).map(|config| config.spec.clone()).unwrap_or_default()
    }
}

fn follow_all<K>(
    client: &Client,
    has_token: &watch::Receiver<bool>,
    bell: &Bell,
    listed: Arc<AtomicBool>,
    tasks: &mut JoinSet<()>,
) -> Store<K>
where
    K: Kind + Resource<Scope = kube::core::ClusterResourceScope>,
{
    let (store, writer) = reflector::store();
    let events = watcher(Api::<K>::all(client.clone()), watcher::Config::default()).backoff(Backoff::for_api());
    let events = reflector::reflector(writer, events.modify(|object| object.managed_fields_mut().clear()));
    let (mut has_token, bell) = (has_token.clone(), bell.clone());
    tasks.spawn(async move {
        if has_token.wait_for(|has| *has).await.is_err() {
            return;
        }
        let mut events = std::pin::pin!(events);
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Init | Event::InitApply(_)) => {}
                Ok(event) => {
                    if matches!(event, Event::InitDone) {
                        listed.store(true, Ordering::Relaxed);
                    }
                    bell.ring();
                }
                Err(error) => {
                    tracing::debug!(kind = %K::kind(&()), error = refusal(&error).1, "a watch has trouble");
                }
            }
        }
    });
    store
}
