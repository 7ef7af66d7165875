//! Lists and watches one source, and says what came in.
//!
//! Objects are handled as raw JSON until they are on their shelf, for two reasons: one that cannot be decoded must not
//! end the watch for all, and the version of a list must be known (kube's own watcher hides it) to tell whether what
//! was written has been seen again. A list that fails changes nothing of what was seen before.

use std::time::{Duration, Instant};

use dockerios_pki::words;
use futures::TryStreamExt;
use kube::{
    Client,
    core::params::{ListParams, WatchParams},
    core::{Request, WatchEvent},
};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::{shelf::version_of, source::Source, world::Notice};

/// Objects per page of a list.
const PAGE: u32 = 500;
/// The API server ends a watch after that many seconds; below its own limit of 295 in client-go's convention.
const WATCH_SECONDS: u32 = 290;
/// First and longest pause after a failure.
const PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(15));
/// A trouble that lasts is told again after so long: often enough for a log that is kept for a day.
const REMINDER: Duration = Duration::from_hours(1);

#[derive(Deserialize)]
struct Page {
    metadata: PageMeta,
    /// `null` in an empty list of metadata.
    #[serde(default)]
    items: Option<Vec<Value>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct PageMeta {
    resource_version: String,
    r#continue: Option<String>,
}

/// Feeds one source for as long as somebody listens.
pub async fn feed(client: Client, source: Source, platform_namespace: String, out: mpsc::Sender<(Source, Notice)>) {
    let (kind, path) = source.path(&platform_namespace);
    let feed = Feed {
        client,
        source,
        kind,
        request: Request::new(path),
        out,
    };
    let mut pause = PAUSE.0;
    let mut trouble = Trouble::default();
    while !feed.out.is_closed() {
        match feed.list_then_watch(&mut trouble).await {
            Ok(()) => {
                pause = PAUSE.0;
                feed.well(&mut trouble);
            }
            Err(error) => {
                let why = words(&error);
                if trouble.is_news(&why, Instant::now()) {
                    tracing::warn!(
                        kind,
                        why,
                        "cannot be watched; what was seen before stays, and it is tried again"
                    );
                }
                if feed.say(Notice::Unreadable(why)).await.is_none() {
                    return;
                }
                tokio::time::sleep(pause.mul_f32(rand::random_range(0.75..1.25))).await;
                pause = (pause * 2).min(PAUSE.1);
            }
        }
    }
}

struct Feed {
    client: Client,
    source: Source,
    kind: &'static str,
    request: Request,
    out: mpsc::Sender<(Source, Notice)>,
}

impl Feed {
    /// One list, then watches from it until the API server no longer knows that far back.
    async fn list_then_watch(&self, trouble: &mut Trouble) -> kube::Result<()> {
        let (objects, mut version) = self.list().await?;
        if self
            .say(Notice::List(objects, version.parse().unwrap_or_default()))
            .await
            .is_none()
        {
            return Ok(());
        }
        loop {
            match self.watch(&mut version).await {
                Ok(Ended::ByTime) => self.well(trouble),
                Ok(Ended::TooOld | Ended::NobodyListens) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Every page of one consistent list.
    async fn list(&self) -> kube::Result<(Vec<Value>, String)> {
        let (mut objects, mut more) = (Vec::new(), None);
        loop {
            let mut params = ListParams::default().limit(PAGE);
            params.label_selector = self.source.labels();
            params.continue_token = more;
            let request = match self.source.metadata_only() {
                true => self.request.list_metadata(&params),
                false => self.request.list(&params),
            };
            let request = request.map_err(kube::Error::BuildRequest)?;
            let page: Page = match self.client.request(request).await {
                // a cluster without that kind has none of its objects
                Err(kube::Error::Api(status)) if status.code == 404 && self.source.optional() => {
                    return Ok((Vec::new(), String::new()));
                }
                answer => answer?,
            };
            objects.extend(page.items.into_iter().flatten().map(|object| self.named(object)));
            more = page.metadata.r#continue.filter(|token| !token.is_empty());
            if more.is_none() {
                return Ok((objects, page.metadata.resource_version));
            }
        }
    }

    async fn watch(&self, version: &mut String) -> kube::Result<Ended> {
        if version.is_empty() {
            // the kind is not installed: look again now and then
            tokio::time::sleep(PAUSE.1).await;
            return Ok(Ended::TooOld);
        }
        let mut params = WatchParams::default().timeout(WATCH_SECONDS);
        params.label_selector = self.source.labels();
        let request = self
            .request
            .watch(&params, version)
            .map_err(kube::Error::BuildRequest)?;
        let events = self.client.request_events::<Value>(request).await?;
        futures::pin_mut!(events);
        while let Some(event) = events.try_next().await? {
            let notice = match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    *version = text_version(&object).unwrap_or_else(|| version.clone());
                    Notice::Put(self.named(object))
                }
                WatchEvent::Deleted(object) => {
                    *version = text_version(&object).unwrap_or_else(|| version.clone());
                    Notice::Gone(self.named(object))
                }
                WatchEvent::Bookmark(bookmark) => {
                    version.clone_from(&bookmark.metadata.resource_version);
                    Notice::Bookmark(version.parse().unwrap_or_default())
                }
                WatchEvent::Error(status) if status.code == 410 => return Ok(Ended::TooOld),
                WatchEvent::Error(status) => return Err(kube::Error::Api(status)),
            };
            if self.say(notice).await.is_none() {
                return Ok(Ended::NobodyListens);
            }
        }
        Ok(Ended::ByTime)
    }

    /// Items of built-in kinds come without their kind.
    fn named(&self, mut object: Value) -> Value {
        object["kind"] = self.kind.into();
        object
    }

    fn well(&self, trouble: &mut Trouble) {
        if trouble.over() {
            tracing::info!(kind = self.kind, "is watched again");
        }
    }

    async fn say(&self, notice: Notice) -> Option<()> {
        self.out.send((self.source, notice)).await.ok()
    }
}

/// What a log was told last of why a kind cannot be watched. It is tried again every few seconds, and told once.
#[derive(Default)]
struct Trouble(Option<(String, Instant)>);

impl Trouble {
    /// Whether it is another trouble than before, or one that has lasted since it was told.
    fn is_news(&mut self, why: &str, now: Instant) -> bool {
        let told = self.0.as_ref();
        let stale = told.is_none_or(|(said, at)| said != why || now.duration_since(*at) >= REMINDER);
        if stale {
            self.0 = Some((why.to_owned(), now));
        }
        stale
    }

    /// Whether there was one, which is over.
    fn over(&mut self) -> bool {
        self.0.take().is_some()
    }
}

enum Ended {
    ByTime,
    TooOld,
    NobodyListens,
}

fn text_version(object: &Value) -> Option<String> {
    (version_of(object) > 0).then(|| {
        object["metadata"]["resourceVersion"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trouble_is_told_once_until_it_changes_ends_or_has_lasted_long() {
        let begin = Instant::now();
        let mut trouble = Trouble::default();
        assert!(!trouble.over(), "there was none");
        assert!(trouble.is_news("404", begin), "the first time");
        assert!(!trouble.is_news("404", begin + REMINDER / 2), "it is known");
        assert!(trouble.is_news("403", begin + REMINDER / 2), "another one");
        assert!(!trouble.is_news("403", begin + REMINDER), "told half that long ago");
        assert!(trouble.is_news("403", begin + REMINDER * 2), "it lasts");
        assert!(trouble.over(), "it ended");
        assert!(trouble.is_news("403", begin + REMINDER * 2), "it came back");
    }
}
