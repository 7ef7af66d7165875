//! Requests and replies, the same on both links.
//!
//! ```text
//!   {"id": 7, "verb": "Stop", "graceSeconds": 30}   →   {"id": 7, "report": {…}}
//!   {"id": 8, "verb": "Watch"}                      →   {"id": 8, "event": {…}} …
//!   {"id": 9, "verb": "Fly"}                        →   {"id": 9, "error": {"kind": "UnknownVerb", …}}
//! ```
//!
//! Invariant: a reply carries the id of its request; an error about something that had no readable id
//! carries none.

use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::guest::unsayable;
use crate::link::parse;

/// The longest message of a refusal, in characters.
const MAX_REFUSAL: usize = 512;

/// A request: an id chosen by the asking side, and a verb with its arguments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request<V> {
    /// Echoed by every reply to this request.
    pub id: u64,
    /// What is asked.
    #[serde(flatten)]
    pub verb: V,
}

/// A reply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply<R> {
    /// The request that is answered; absent when it could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// The answer.
    #[serde(flatten)]
    pub body: Body<R>,
}

/// What a reply says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Body<R> {
    /// The request was carried out or taken on; this is the state after it.
    Report(R),
    /// One of the states that a watch shows: the present one at once, then one per change. States that
    /// a slow reader would have missed are skipped; the newest never is.
    Event(R),
    /// The request was refused.
    Error(Refusal),
}

/// Why a request was refused. One that a peer sent is bounded as one of ours is: it may be a guest's, and is shown to
/// people on their terminals.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Said")]
pub struct Refusal {
    /// The kind, for programs.
    pub kind: RefusalKind,
    /// What to do about it, for people: on one line, without control characters, at most 512 characters.
    pub message: String,
}

/// A refusal as it came.
#[derive(Deserialize)]
struct Said {
    kind: RefusalKind,
    message: String,
}

impl From<Said> for Refusal {
    fn from(said: Said) -> Self {
        Refusal::new(said.kind, said.message)
    }
}

/// The kinds of refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RefusalKind {
    /// The frame is not a JSON object with an id.
    Malformed,
    /// The verb is not known to this build, or its arguments do not fit.
    UnknownVerb,
    /// The request is understood and makes no sense now.
    Denied,
    /// The peer asks for more than it may (connections, mistakes).
    TooMany,
    /// It was done before and is not done twice.
    Repeated,
}

impl Refusal {
    /// A refusal; an overlong message is cut, what would move a terminal's cursor is left out.
    pub fn new(kind: RefusalKind, message: impl Into<String>) -> Self {
        let message: String = message.into();
        Refusal { kind, message: message.chars().filter(|c| !unsayable(*c)).take(MAX_REFUSAL).collect() }
    }

    /// A refusal of something understood.
    pub fn denied(message: impl Into<String>) -> Self {
        Refusal::new(RefusalKind::Denied, message)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

#[derive(Deserialize)]
struct Head {
    id: u64,
    verb: String,
}

/// Reads a request; on failure, the id it had (if any) and what to answer.
pub fn read_request<V: DeserializeOwned>(body: &[u8]) -> Result<Request<V>, (Option<u64>, Refusal)> {
    let head: Head =
        parse(body, "a request").map_err(|error| (None, Refusal::new(RefusalKind::Malformed, error.to_string())))?;
    parse(body, "a request").map_err(|error| {
        let verb: String = head.verb.chars().take(64).collect();
        let message = format!("verb {verb:?}: {error}");
        (Some(head.id), Refusal::new(RefusalKind::UnknownVerb, message))
    })
}
