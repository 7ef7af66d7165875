//! What a test expects of the API, said so that a failure explains itself: who expected, what for, what was there.
//!
//! Waiting is a watch with a deadline, never a sleep. A refusal is judged by its status code *and* its words, so that
//! a test cannot pass because something else was wrong.

use std::fmt::Debug;
use std::panic::Location;
use std::pin::pin;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use futures::{StreamExt as _, TryFutureExt as _};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// How long [`until`] and [`gone`] wait: for a busy machine of two cores. An event ends the wait, so a test that
/// passes does not take longer for it.
pub const DEADLINE: Duration = Duration::from_secs(90);

/// Any object that can be watched and printed.
pub trait Object: Resource + Clone + Debug + DeserializeOwned + Serialize + Send + Sync + 'static {}
impl<K: Resource + Clone + Debug + DeserializeOwned + Serialize + Send + Sync + 'static> Object for K {}

/// Waits until the object `name` satisfies `holds`, and returns it as it then was. `what` completes the sentence
/// "there is no sign of …".
///
/// # Errors
/// After [`DEADLINE`]; with the object as last seen.
#[track_caller]
pub fn until<K: Object>(
    api: Api<K>,
    name: &str,
    what: &str,
    holds: impl FnMut(&K) -> bool,
) -> impl Future<Output = Result<K>> {
    until_within(api, name, what, DEADLINE, holds)
}

/// [`until`], with a deadline of its own.
///
/// # Errors
/// After `limit`; with the object as last seen.
#[track_caller]
pub fn until_within<K: Object>(
    api: Api<K>,
    name: &str,
    what: &str,
    limit: Duration,
    mut holds: impl FnMut(&K) -> bool,
) -> impl Future<Output = Result<K>> {
    let meets = move |seen: &Sight<K>| matches!(seen, Sight::There(object) if holds(object));
    let met = sight(api, name.to_owned(), what.to_owned(), limit, Location::caller(), meets);
    met.and_then(async |sight| match sight {
        Sight::There(object) => Ok(*object),
        _ => bail!("an object that is not there met an expectation"),
    })
}

/// Waits until there is no object `name`.
///
/// # Errors
/// After [`DEADLINE`]; with the object as last seen: its finalizers are what holds it.
#[track_caller]
pub fn gone<K: Object>(api: Api<K>, name: &str) -> impl Future<Output = Result<()>> {
    gone_within(api, name, DEADLINE)
}

/// [`gone`], with a deadline of its own.
///
/// # Errors
/// After `limit`; with the object as last seen.
#[track_caller]
pub fn gone_within<K: Object>(api: Api<K>, name: &str, limit: Duration) -> impl Future<Output = Result<()>> {
    let absent = |seen: &Sight<K>| matches!(seen, Sight::Absent);
    sight(
        api,
        name.to_owned(),
        "its end".to_owned(),
        limit,
        Location::caller(),
        absent,
    )
    .map_ok(drop)
}

/// Waits until the objects of `api`, taken together and in the order of their names, satisfy `holds`, and returns them as
/// they then were. `what` completes the sentence "there is no sign of …".
///
/// # Errors
/// After `limit`; with the names of those that are there.
#[track_caller]
pub fn all_within<K: Object>(
    api: Api<K>,
    what: &str,
    limit: Duration,
    mut holds: impl FnMut(&[K]) -> bool,
) -> impl Future<Output = Result<Vec<K>>> {
    let (caller, what) = (Location::caller(), what.to_owned());
    async move {
        let mut crowd = Crowd::default();
        let mut events = pin!(watcher::watcher(api.clone(), watcher::Config::default()));
        let met = async {
            loop {
                match events.next().await {
                    Some(Ok(event)) => crowd.take(event),
                    // the watcher tries again
                    Some(Err(error)) => {
                        crowd.trouble = Some(error.to_string());
                        tokio::time::sleep(Duration::from_millis(100)).await;
                        continue;
                    }
                    None => bail!("the watch of {} ended", api.resource_url()),
                }
                if crowd.listed && holds(&crowd.there) {
                    return Ok(());
                }
            }
        };
        match tokio::time::timeout(limit, met).await {
            Ok(met) => met.map(|()| crowd.there),
            Err(_) => bail!(
                "{caller}: {}: no sign of {what} in {limit:.1?}; {crowd}",
                api.resource_url()
            ),
        }
    }
}

/// Objects of a watch, in the order of namespace and name.
struct Crowd<K> {
    there: Vec<K>,
    /// Of a list that is not whole yet.
    coming: Vec<K>,
    /// Whether a first list was whole.
    listed: bool,
    trouble: Option<String>,
}

impl<K> Default for Crowd<K> {
    fn default() -> Self {
        Self {
            there: Vec::new(),
            coming: Vec::new(),
            listed: false,
            trouble: None,
        }
    }
}

fn place<K: Object>(object: &K) -> (Option<&str>, Option<&str>) {
    let meta = object.meta();
    (meta.namespace.as_deref(), meta.name.as_deref())
}

impl<K: Object> Crowd<K> {
    fn take(&mut self, event: Event<K>) {
        self.trouble = None;
        match event {
            Event::Apply(object) => match self.find(&object) {
                Ok(at) => self.there[at] = object,
                Err(at) => self.there.insert(at, object),
            },
            Event::Delete(object) => {
                if let Ok(at) = self.find(&object) {
                    self.there.remove(at);
                }
            }
            Event::Init => self.coming.clear(),
            Event::InitApply(object) => self.coming.push(object),
            Event::InitDone => {
                self.there = std::mem::take(&mut self.coming);
                self.there.sort_by(|one, other| place(one).cmp(&place(other)));
                self.listed = true;
            }
        }
    }

    /// Where it is, or would be.
    fn find(&self, object: &K) -> std::result::Result<usize, usize> {
        self.there.binary_search_by(|known| place(known).cmp(&place(object)))
    }
}

impl<K: Object> std::fmt::Display for Crowd<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> = self.there.iter().filter_map(|object| place(object).1).collect();
        match self.listed {
            true => write!(f, "there are {}: {names:?}", names.len())?,
            false => f.write_str("they could not be read")?,
        }
        for object in &self.there {
            if let Some(status) = status(object) {
                write!(f, "\n{}: {status}", place(object).1.unwrap_or_default())?;
            }
        }
        match &self.trouble {
            Some(error) => write!(f, "\nthe watch failed: {error}"),
            None => Ok(()),
        }
    }
}

/// What the object says of itself, as far as one of a hundred has room for it.
fn status(object: &impl Object) -> Option<String> {
    /// Characters.
    const ROOM: usize = 400;
    let status = serde_json::to_value(object).ok()?.get_mut("status")?.take();
    Some(status.to_string().chars().take(ROOM).collect())
}

/// What is known of an object.
enum Sight<K> {
    /// Nothing yet.
    Unknown,
    Absent,
    There(Box<K>),
}

async fn sight<K: Object>(
    api: Api<K>,
    name: String,
    what: String,
    limit: Duration,
    caller: &'static Location<'static>,
    mut meets: impl FnMut(&Sight<K>) -> bool,
) -> Result<Sight<K>> {
    let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut events = pin!(watcher::watcher(api.clone(), only));
    let mut last = Sight::Unknown;
    let mut trouble = None;
    let mut listed = false;
    let met = async {
        loop {
            match events.next().await {
                Some(Ok(Event::Apply(object))) => last = Sight::There(Box::new(object)),
                Some(Ok(Event::InitApply(object))) => {
                    listed = true;
                    last = Sight::There(Box::new(object));
                }
                Some(Ok(Event::Delete(_))) => last = Sight::Absent,
                Some(Ok(Event::Init)) => {
                    listed = false;
                    continue;
                }
                Some(Ok(Event::InitDone)) if listed => continue,
                Some(Ok(Event::InitDone)) => last = Sight::Absent,
                // the watcher tries again
                Some(Err(error)) => {
                    trouble = Some(error.to_string());
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
                None => bail!("the watch of {name:?} ended"),
            }
            trouble = None;
            if meets(&last) {
                return Ok(());
            }
        }
    };
    match tokio::time::timeout(limit, met).await {
        Ok(Ok(())) => Ok(last),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(unmet(&api, &name, &what, limit, caller, &last, trouble)),
    }
}

fn unmet<K: Object>(
    api: &Api<K>,
    name: &str,
    what: &str,
    limit: Duration,
    caller: &Location<'_>,
    last: &Sight<K>,
    trouble: Option<String>,
) -> anyhow::Error {
    let seen = match last {
        Sight::There(object) => format!("last seen:\n{}", shown(object.as_ref())),
        Sight::Absent => "there is no such object".to_owned(),
        Sight::Unknown => "it could not be read".to_owned(),
    };
    let trouble = trouble.map_or_else(String::new, |error| format!("\nthe watch failed: {error}"));
    anyhow!(
        "{caller}: {}/{name}: no sign of {what} in {limit:.1?}; {seen}{trouble}",
        api.resource_url()
    )
}

/// As YAML, without managedFields, which nobody reads.
fn shown<K: Object>(object: &K) -> String {
    let mut plain = object.clone();
    plain.meta_mut().managed_fields = None;
    serde_yaml::to_string(&plain).unwrap_or_else(|_| format!("{plain:?}"))
}

/// What an accepted request returned.
///
/// # Errors
/// When it was refused or never answered; with the API server's words.
#[track_caller]
pub fn accepted<T>(result: kube::Result<T>) -> Result<T> {
    let caller = Location::caller();
    result.map_err(|error| match error {
        kube::Error::Api(status) => {
            anyhow!(
                "{caller}: should be accepted, but: {} {}: {}",
                status.code,
                status.reason,
                status.message
            )
        }
        other => anyhow!("{caller}: should be accepted, but was not answered: {other}"),
    })
}

/// Makes a request again and again until it is [`refused`] as said, and returns the message: for an admission policy or
/// a webhook, of which no watch tells when it came into force. The request must be a dry run, or leave nothing that
/// disturbs the next.
///
/// # Errors
/// After [`DEADLINE`]; with what became of the last request.
#[track_caller]
pub fn until_refused<T: Debug, R: Future<Output = kube::Result<T>>>(
    mut request: impl FnMut() -> R,
    code: u16,
    fragments: &[&str],
) -> impl Future<Output = Result<String>> {
    let caller = Location::caller();
    async move {
        let deadline = tokio::time::Instant::now() + DEADLINE;
        loop {
            match refused_at(caller, request().await, code, fragments) {
                Err(error) if tokio::time::Instant::now() > deadline => {
                    return Err(error.context(format!("still so after {DEADLINE:.0?}")));
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                message => return message,
            }
        }
    }
}

/// Sends the request until it is accepted: for a right that was granted just now, of which the API server hears a moment
/// later.
///
/// # Errors
/// After [`DEADLINE`]; with what became of the last request.
#[track_caller]
pub fn until_accepted<T, R: Future<Output = kube::Result<T>>>(
    mut request: impl FnMut() -> R,
) -> impl Future<Output = Result<T>> {
    let caller = Location::caller();
    async move {
        let deadline = tokio::time::Instant::now() + DEADLINE;
        loop {
            match request().await {
                Err(error) if tokio::time::Instant::now() > deadline => {
                    return Err(anyhow::Error::from(error).context(format!("{caller}: still so after {DEADLINE:.0?}")));
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                Ok(answer) => return Ok(answer),
            }
        }
    }
}

/// The message of a refused request, once it has this status code and contains each of the fragments.
///
/// # Errors
/// When it was accepted, not answered, refused with another code or for another reason; or when no fragment is given.
#[track_caller]
pub fn refused<T: Debug>(result: kube::Result<T>, code: u16, fragments: &[&str]) -> Result<String> {
    refused_at(Location::caller(), result, code, fragments)
}

fn refused_at<T: Debug>(
    caller: &Location<'_>,
    result: kube::Result<T>,
    code: u16,
    fragments: &[&str],
) -> Result<String> {
    if fragments.is_empty() {
        bail!("{caller}: a refusal is expected for a reason: name what its message must contain");
    }
    let status = match result {
        Ok(object) => bail!(
            "{caller}: should be refused with {code} ({}), but was accepted: {object:?}",
            fragments.join(", ")
        ),
        Err(kube::Error::Api(status)) => status,
        Err(other) => bail!("{caller}: should be refused with {code}, but was not answered: {other}"),
    };
    let missing: Vec<&&str> = fragments
        .iter()
        .filter(|fragment| !status.message.contains(**fragment))
        .collect();
    if status.code != code || !missing.is_empty() {
        bail!(
            "{caller}: should be refused with {code} for {fragments:?}; missing: {missing:?}; \
             it was refused with {} {}: {}",
            status.code,
            status.reason,
            status.message
        );
    }
    Ok(status.message)
}
