//! Waiting for objects by a watch that is taken up again when it is cut.
//!
//! Invariant: a watch that breaks ends nothing. An API server is restarted, a laptop changes its network: kube's watcher
//! lists again and goes on, ever more slowly. Only what asking again would not change (a right is missing, the kind is
//! not served) ends the wait. A person is told when it lasts, not of each cut.

use std::fmt::Debug;
use std::time::Duration;

use anyhow::{Result, bail};
use futures::{Stream, StreamExt as _, pin_mut};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

use crate::answer::{plain, words};
use crate::out;

/// So many failures in a row are told: with kube's pauses in between, several seconds without a watch.
const LASTS: u32 = 3;

/// How a wait came to its end.
#[derive(Debug)]
pub(crate) enum Met<T> {
    /// By what was waited for.
    Seen(T),
    /// By the clock; with what the watch lacked at the last, if it was cut.
    TooLate(String),
}

/// Follows the objects until `look` has what it waits for, `patience` at most.
///
/// # Errors
/// What `look` says, and when the watch cannot be had at all; `what` names it.
pub(crate) async fn until<K, T>(
    api: Api<K>,
    which: watcher::Config,
    what: &str,
    patience: Duration,
    look: impl FnMut(Event<K>) -> Result<Option<T>>,
) -> Result<Met<T>>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let mut trouble = Trouble::default();
    let followed = follow(watcher(api, which).default_backoff(), what, &mut trouble, look);
    match tokio::time::timeout(patience, followed).await {
        Ok(seen) => Ok(Met::Seen(seen?)),
        Err(_) => Ok(Met::TooLate(trouble.words())),
    }
}

async fn follow<K, T>(
    changes: impl Stream<Item = watcher::Result<Event<K>>>,
    what: &str,
    trouble: &mut Trouble,
    mut look: impl FnMut(Event<K>) -> Result<Option<T>>,
) -> Result<T> {
    pin_mut!(changes);
    while let Some(change) = changes.next().await {
        match change {
            Ok(event) => {
                // a list that begins was not answered yet
                if !matches!(event, Event::Init) && trouble.is_over() {
                    out::note(&format!("  {what} is seen again"));
                }
                if let Some(seen) = look(event)? {
                    return Ok(seen);
                }
            }
            Err(error) if is_final(&error) => bail!("{what} cannot be watched: {}", because(&error)),
            Err(error) => {
                if trouble.lasts(because(&error)) {
                    out::note(&format!(
                        "  {what} is not seen just now: {}; trying on",
                        because(&error)
                    ));
                }
            }
        }
    }
    bail!("the watch of {what} ended")
}

/// Failures since the watch was last answered.
#[derive(Debug, Default)]
struct Trouble {
    failures: u32,
    last: Option<String>,
}

impl Trouble {
    /// Takes another failure; whether it is to be told now.
    fn lasts(&mut self, why: String) -> bool {
        self.failures += 1;
        self.last = Some(why);
        self.failures == LASTS
    }

    /// The watch was answered; whether that is news to whoever reads.
    fn is_over(&mut self) -> bool {
        let told = self.failures >= LASTS;
        *self = Trouble::default();
        told
    }

    fn words(&self) -> String {
        let last = self.last.as_ref();
        last.map_or_else(String::new, |why| {
            format!(" (at the last it could not be watched: {why})")
        })
    }
}

/// Whether trying again would be answered the same: a right is missing, or the kind is not served.
fn is_final(error: &watcher::Error) -> bool {
    status(error).is_some_and(|status| matches!(status.code, 401 | 403 | 404))
}

fn status(error: &watcher::Error) -> Option<&kube::core::Status> {
    use watcher::Error::{InitialListFailed, WatchError, WatchFailed, WatchStartFailed};
    match error {
        InitialListFailed(kube::Error::Api(status))
        | WatchStartFailed(kube::Error::Api(status))
        | WatchFailed(kube::Error::Api(status))
        | WatchError(status) => Some(status),
        _ => None,
    }
}

fn because(error: &watcher::Error) -> String {
    use watcher::Error::{InitialListFailed, WatchError, WatchFailed, WatchStartFailed};
    match error {
        InitialListFailed(error) | WatchStartFailed(error) | WatchFailed(error) => words(error),
        WatchError(status) => plain(&status.message),
        other => plain(&other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::core::Status;

    use super::*;

    fn cut(code: u16) -> watcher::Error {
        watcher::Error::WatchError(Box::new(
            Status::failure("etcdserver: leader changed", "Internal").with_code(code),
        ))
    }

    async fn run(changes: Vec<watcher::Result<Event<ConfigMap>>>) -> Result<&'static str> {
        let mut trouble = Trouble::default();
        let look = |event| Ok(matches!(event, Event::Apply(_)).then_some("seen"));
        follow(stream::iter(changes), "the pod", &mut trouble, look).await
    }

    #[tokio::test]
    async fn a_watch_that_is_cut_again_and_again_is_taken_up_again() {
        let mut changes: Vec<_> = (0..20).map(|_| Err(cut(500))).collect();
        changes.push(Ok(Event::Init));
        changes.push(Err(cut(410)));
        changes.push(Ok(Event::Apply(ConfigMap::default())));
        assert_eq!(run(changes).await.unwrap(), "seen");
    }

    #[tokio::test]
    async fn what_asking_again_would_not_change_ends_the_wait() {
        for code in [401, 403, 404] {
            let refused = run(vec![Err(cut(code)), Ok(Event::Apply(ConfigMap::default()))]).await;
            let refused = refused.unwrap_err().to_string();
            assert_eq!(refused, "the pod cannot be watched: etcdserver: leader changed");
        }
    }

    #[test]
    fn a_cut_is_told_when_it_lasts_once_and_so_is_its_end() {
        let mut trouble = Trouble::default();
        let told: Vec<_> = (0..6).map(|_| trouble.lasts("refused".to_owned())).collect();
        assert_eq!(told, [false, false, true, false, false, false]);
        assert_eq!(trouble.words(), " (at the last it could not be watched: refused)");
        assert!(trouble.is_over());
        assert!(!trouble.is_over(), "told once");
        assert!(!trouble.lasts("again".to_owned()));
        assert!(!trouble.is_over(), "one cut is not told, nor is its end");
        assert_eq!(trouble.words(), "");
    }
}
