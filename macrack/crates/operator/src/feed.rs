//! The tasks that fill the caches; each change puts in line what depends on it.

use std::{fmt::Debug, sync::Arc};

use futures::StreamExt;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Api, Client, Resource,
    core::{DeserializeGuard, error_boundary::InvalidObject},
    runtime::{
        WatchStreamExt,
        events::{self, EventType, Recorder},
        watcher,
        watcher::Event,
    },
};
use macrack_api::{condition, names::LABEL_SERIAL};
use macrack_core::render::access::MANAGED_BY;
use serde::de::DeserializeOwned;

use crate::{
    act::resource,
    cache::{Cache, Change, Entry},
    queue::Queue,
    route::{self, Work},
    run::recorder,
    world::{Meta, World},
};

/// Feeds every cache for as long as the future is polled; each change puts in line what depends on it.
pub async fn feed(client: Client, world: Arc<World>, queue: Arc<Queue<Work>>) {
    let ours = watcher::Config::default().labels(&format!("{}={}", MANAGED_BY.0, MANAGED_BY.1));
    let macs = watcher::Config::default().labels(LABEL_SERIAL);
    let any = watcher::Config::default;
    macro_rules! feeds {
        ($($field:ident, $config:expr, $route:path;)+) => {
            futures::join!($(one(&client, $config, &world, |w| &w.$field, $route, &queue),)+ kept(&client, &ours, &world, &queue))
        };
    }
    feeds! {
        node_classes, any(), route::node_class;
        nodes, any(), route::node;
        leases, any(), route::lease;
        sizes, any(), route::size;
        instances, any(), route::instance;
        images, any(), route::image;
        configs, any(), route::config;
        kube_nodes, macs.clone(), route::kube_node;
        pods, ours.clone(), route::pod;
        namespaces, any(), route::namespace;
    };
}

type Route<K> = fn(&World, &Change<K>) -> Vec<Work>;

async fn one<K>(
    client: &Client,
    config: watcher::Config,
    world: &World,
    pick: fn(&World) -> &Cache<K>,
    route: Route<K>,
    queue: &Queue<Work>,
) where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    let api: Api<DeserializeGuard<K>> = Api::all(client.clone());
    let teller = recorder(client.clone());
    let stream = watcher(api, config).default_backoff();
    futures::pin_mut!(stream);
    while let Some(event) = stream.next().await {
        match event {
            Ok(event) => {
                let whole = matches!(event, Event::InitDone);
                for change in pick(world).take_in(event) {
                    if let Some(Entry::Bad(invalid)) = &change.new {
                        unreadable::<K>(&teller, invalid).await;
                    }
                    for work in route(world, &change) {
                        queue.add(work);
                    }
                }
                if whole {
                    world.filled.notify_waiters();
                }
                world.changed.notify_waiters();
            }
            Err(error) => tracing::warn!(kind = %K::kind(&()), %error, "watch interrupted; resumed with backoff"),
        }
    }
}

/// Says of a stored object that it cannot be read: a person must mend it, and until then what hangs on it stays.
async fn unreadable<K: Resource<DynamicType = ()>>(recorder: &Recorder, invalid: &InvalidObject) {
    let (kind, meta) = (K::kind(&()), &invalid.metadata);
    tracing::error!(%kind, namespace = meta.namespace, name = meta.name, error = invalid.error,
        "stored object cannot be read; what hangs on it stays as it is");
    let reference = ObjectReference {
        api_version: Some(K::api_version(&()).into_owned()),
        kind: Some(kind.into_owned()),
        name: meta.name.clone(),
        namespace: meta.namespace.clone(),
        uid: meta.uid.clone(),
        ..ObjectReference::default()
    };
    let event = events::Event {
        type_: EventType::Warning,
        reason: "Unreadable".into(),
        note: Some(condition::bounded(&format!(
            "the stored object cannot be read ({}); what hangs on it stays as it is until it is mended",
            invalid.error
        ))),
        action: "Watch".into(),
        secondary: None,
    };
    if let Err(error) = recorder.publish(&event, &reference).await {
        tracing::debug!(%error, "event not told");
    }
}

async fn kept(client: &Client, config: &watcher::Config, world: &World, queue: &Queue<Work>) {
    let feeds = world.kept.iter().map(|(kind, cache)| async move {
        let api: Api<Meta> = Api::all_with(client.clone(), &resource(*kind));
        let stream = watcher(api, config.clone()).default_backoff();
        futures::pin_mut!(stream);
        while let Some(event) = stream.next().await {
            match event {
                Ok(event) => {
                    let whole = matches!(event, Event::InitDone);
                    for change in cache.take_in(guarded(event)) {
                        for work in route::kept(&change) {
                            queue.add(work);
                        }
                    }
                    if whole {
                        world.filled.notify_waiters();
                    }
                }
                Err(error) => tracing::warn!(?kind, %error, "watch interrupted; resumed with backoff"),
            }
        }
    });
    futures::future::join_all(feeds).await;
}

fn guarded(event: Event<Meta>) -> Event<DeserializeGuard<Meta>> {
    let ok = |object| DeserializeGuard(Ok(object));
    match event {
        Event::Apply(object) => Event::Apply(ok(object)),
        Event::Delete(object) => Event::Delete(ok(object)),
        Event::InitApply(object) => Event::InitApply(ok(object)),
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
    }
}
