//! Waiting, by watching: what is waited for, until when at the latest, and what there was instead.

use std::time::Duration;

use anyhow::{Result, anyhow};
use futures::{Stream, StreamExt};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// How long a step may take on a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(120);

/// An object that can be watched and shown.
pub(crate) trait Watched:
    Resource + Clone + DeserializeOwned + Serialize + std::fmt::Debug + Send + 'static
{
}
impl<K> Watched for K where K: Resource + Clone + DeserializeOwned + Serialize + std::fmt::Debug + Send + 'static {}

/// Watches the object until `look` is satisfied with it, and returns it. `look` sees every state that is told.
///
/// # Errors
/// When the deadline passes first; with the object as it then was.
pub(crate) async fn until<K: Watched>(api: &Api<K>, name: &str, what: &str, look: impl FnMut(&K) -> bool) -> Result<K> {
    let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let states = watcher(api.clone(), only).default_backoff().applied_objects();
    reached(states, &format!("{name} is {what}"), DEADLINE, look).await
}

/// Watches until the object is gone.
///
/// # Errors
/// When the deadline passes first; with the object as it then was.
pub(crate) async fn until_gone<K: Watched>(api: &Api<K>, name: &str) -> Result<()> {
    let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut states = std::pin::pin!(kube::runtime::watcher::watcher(api.clone(), only).default_backoff());
    let mut last = None;
    let gone = async {
        let mut listed = false;
        while let Some(event) = states.next().await {
            match event {
                Ok(watcher::Event::Init) => listed = false,
                Ok(watcher::Event::InitApply(object)) => (listed, last) = (true, Some(object)),
                Ok(watcher::Event::Apply(object)) => last = Some(object),
                Ok(watcher::Event::Delete(_)) => return,
                Ok(watcher::Event::InitDone) if !listed => return,
                Ok(watcher::Event::InitDone) | Err(_) => {}
            }
        }
    };
    let in_time = tokio::time::timeout(DEADLINE, gone).await;
    in_time.map_err(|_| overdue(&format!("{name} is gone"), DEADLINE, last.as_ref()))
}

async fn reached<K: Watched>(
    states: impl Stream<Item = Result<K, watcher::Error>>,
    what: &str,
    limit: Duration,
    mut look: impl FnMut(&K) -> bool,
) -> Result<K> {
    let mut last: Option<K> = None;
    let mut states = std::pin::pin!(states);
    let seen = async {
        while let Some(state) = states.next().await {
            // a watch that broke off goes on by itself; the deadline judges
            let Ok(object) = state else { continue };
            if look(&object) {
                return Some(object);
            }
            last = Some(object);
        }
        None
    };
    match tokio::time::timeout(limit, seen).await {
        Ok(Some(object)) => Ok(object),
        Ok(None) => Err(anyhow!("the watch for `{what}` ended")),
        Err(_) => Err(overdue(what, limit, last.as_ref())),
    }
}

fn overdue<K: Serialize>(what: &str, limit: Duration, last: Option<&K>) -> anyhow::Error {
    let shown = last.map_or_else(|| "it was never seen".to_owned(), |object| shown(object));
    anyhow!("after {} s it is not yet so that {what}; the object is:\n{shown}", limit.as_secs())
}

/// The object as kubectl shows it, without what nobody reads.
fn shown<K: Serialize>(object: &K) -> String {
    let mut value = serde_json::to_value(object).unwrap_or_default();
    if let Some(metadata) = value.get_mut("metadata").and_then(|m| m.as_object_mut()) {
        metadata.remove("managedFields");
    }
    serde_yaml::to_string(&value).unwrap_or_else(|_| value.to_string())
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::api::ObjectMeta;

    use super::*;

    #[tokio::test]
    async fn what_does_not_happen_is_named_with_the_object_as_it_was() {
        let object = ConfigMap {
            metadata: ObjectMeta { name: Some("build-1".into()), managed_fields: Some(vec![]), ..Default::default() },
            ..Default::default()
        };
        let states = stream::iter([Ok(object)]).chain(stream::pending());
        let late = reached(states, "build-1 is Ready", Duration::from_millis(10), |_: &ConfigMap| false).await;
        let said = late.unwrap_err().to_string();
        assert!(said.contains("not yet so that build-1 is Ready") && said.contains("name: build-1"), "{said}");
        assert!(!said.contains("managedFields"), "{said}");
    }
}
