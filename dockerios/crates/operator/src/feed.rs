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

use crate::{api::PATIENCE, shelf::version_of, source::Source, world::Notice};

/// Objects per page of a list.
const PAGE: u32 = 500;
/// The API server ends a watch after that many seconds; below its own limit of 295 in client-go's convention.
const WATCH_SECONDS: u32 = 290;
/// A watch that says nothing for longer than the API server keeps one has lost its server (kube's own watcher waits as
/// long).
const SILENCE: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 15);
/// A watch that ends sooner by itself did not end by its time.
const SHORT: Duration = Duration::from_secs(1);
/// First and longest pause before a kind is listed again.
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
        answer: PATIENCE,
        silence: SILENCE,
    };
    let mut pause = None;
    let mut trouble = Trouble::default();
    while !feed.out.is_closed() {
        let began = Instant::now();
        let ended = feed.list_then_watch(&mut trouble).await;
        let next = pause_after(pause, began.elapsed());
        pause = Some(next);
        match ended {
            Ok(()) => feed.well(&mut trouble),
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
            }
        }
        tokio::time::sleep(next.mul_f32(rand::random_range(0.75..1.25))).await;
    }
}

/// The pause after a round that lasted so long: it doubles, and begins anew after a round that went well for a while.
fn pause_after(last: Option<Duration>, lasted: Duration) -> Duration {
    match last {
        Some(last) if lasted < PAUSE.1 => (last * 2).min(PAUSE.1),
        _ => PAUSE.0,
    }
}

/// What comes within that time.
async fn in_time<T>(patience: Duration, answer: impl Future<Output = kube::Result<T>>) -> kube::Result<T> {
    let given_up = |_| {
        let why = format!("the API server said nothing for {patience:?}");
        Err(kube::Error::Service(why.into()))
    };
    tokio::time::timeout(patience, answer).await.unwrap_or_else(given_up)
}

struct Feed {
    client: Client,
    source: Source,
    kind: &'static str,
    request: Request,
    out: mpsc::Sender<(Source, Notice)>,
    /// How long an answer may take to begin, and a page to come.
    answer: Duration,
    /// How long a watch may say nothing.
    silence: Duration,
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
            let began = Instant::now();
            match self.watch(&mut version).await {
                // closed as soon as it was open: listed again after a pause, not opened again without one
                Ok(Ended::ByTime) if began.elapsed() < SHORT => return Ok(()),
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
            let page: Page = match in_time(self.answer, self.client.request(request)).await {
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
        let events = in_time(self.answer, self.client.request_events::<Value>(request)).await?;
        futures::pin_mut!(events);
        while let Some(event) = in_time(self.silence, events.try_next()).await? {
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
    use serde_json::json;

    use super::*;
    use crate::peer::{Answer, answering};

    fn feed(client: Client, out: mpsc::Sender<(Source, Notice)>) -> Feed {
        let (kind, path) = Source::Machines.path("dockerios-system");
        Feed {
            client,
            source: Source::Machines,
            kind,
            request: Request::new(path),
            out,
            answer: Duration::from_secs(30),
            silence: Duration::from_secs(30),
        }
    }

    async fn ended(feed: &Feed) -> String {
        let round = async { feed.list_then_watch(&mut Trouble::default()).await };
        let ended = tokio::time::timeout(Duration::from_secs(60), round).await;
        words(&ended.expect("it does not wait without end").expect_err("nothing came"))
    }

    #[tokio::test]
    async fn a_list_that_is_never_answered_ends() {
        let (out, _notices) = mpsc::channel(8);
        let mut feed = feed(answering(|_| Answer::Never).await, out);
        feed.answer = Duration::from_millis(50);
        let why = ended(&feed).await;
        assert!(why.contains("said nothing for 50ms"), "{why}");
    }

    #[tokio::test]
    async fn a_watch_whose_server_was_lost_without_a_word_ends_after_what_came_was_told() {
        let (out, mut notices) = mpsc::channel(8);
        let client = answering(|request| {
            if request.contains("watch=true") {
                let event = r#"{"type":"ADDED","object":{"metadata":{"name":"m","namespace":"n","resourceVersion":"8"}}}
"#;
                return Answer::Begin(event);
            }
            Answer::Json(json!({"metadata": {"resourceVersion": "7"}, "items": []}))
        });
        let mut feed = feed(client.await, out);
        feed.silence = Duration::from_millis(200);
        let why = ended(&feed).await;
        assert!(why.contains("said nothing for 200ms"), "{why}");
        assert!(matches!(notices.recv().await, Some((_, Notice::List(_, 7)))));
        assert!(matches!(notices.recv().await, Some((_, Notice::Put(_)))));
    }

    #[test]
    fn pauses_grow_while_nothing_goes_well_and_are_short_again_after_a_while_that_did() {
        let moment = Duration::from_millis(1);
        assert_eq!(pause_after(None, moment), PAUSE.0);
        assert_eq!(pause_after(Some(PAUSE.0), moment), PAUSE.0 * 2);
        assert_eq!(pause_after(Some(PAUSE.1), moment), PAUSE.1);
        assert_eq!(pause_after(Some(PAUSE.1), Duration::from_secs(290)), PAUSE.0);
    }

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
