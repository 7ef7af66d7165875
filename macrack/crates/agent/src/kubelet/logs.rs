//! `kubectl logs` of a placeholder: the journal of its VM.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::stream;
use jiff::Timestamp;
use macrack_wire::journal::{self, Wanted};
use macrack_wire::session::{Frame, Reader, Writer, split};
use macrack_wire::{VmClient, VmDir};
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Target;
use super::routes::{Query, refusal};

/// How long a VM process may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// What is wanted of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Request {
    wanted: Wanted,
    follow: bool,
}

/// Reads a request's query.
pub(super) fn parse(query: &Query, now: Timestamp) -> Result<Request, String> {
    let number = |key: &str| -> Result<Option<i64>, String> {
        match query.one(key) {
            None => Ok(None),
            Some(text) => match text.parse::<i64>() {
                Ok(n) if n >= 0 => Ok(Some(n)),
                _ => Err(format!("logs: {key}={text} is no number of 0 or more")),
            },
        }
    };
    if query.flag("previous") {
        return Err("logs: there is no log of an earlier container: one journal spans all starts of the VM; leave --previous out".to_owned());
    }
    let since_time = match query.one("sinceTime") {
        None => None,
        Some(text) => {
            Some(text.parse::<Timestamp>().map_err(|_| format!("logs: sinceTime={text} is no RFC 3339 time"))?)
        }
    };
    let since_seconds = number("sinceSeconds")?.map(|seconds| Wanted::last_seconds(now, seconds));
    let size = |n: i64| usize::try_from(n).unwrap_or(usize::MAX);
    Ok(Request {
        wanted: Wanted {
            tail: number("tailLines")?.map(size),
            since: since_time.max(since_seconds),
            limit: number("limitBytes")?.map(size),
            timestamps: query.flag("timestamps"),
        },
        follow: query.flag("follow"),
    })
}

/// Answers with the log.
pub(super) async fn answer(target: &Target, request: Request, room: &Arc<Semaphore>) -> Response {
    let known = match journal::read(&target.dir.journal()) {
        Ok(bytes) => bytes,
        Err(error) => {
            tracing::warn!(%error, "a journal cannot be read");
            return refusal(StatusCode::INTERNAL_SERVER_ERROR, "logs: the VM's journal cannot be read".to_owned());
        }
    };
    let shown = request.wanted.select(&known);
    let follow = request.follow && target.alive;
    let body = if follow {
        let Ok(seat) = room.clone().try_acquire_owned() else {
            return refusal(
                StatusCode::TOO_MANY_REQUESTS,
                "logs: too many logs of this Mac are followed; end one, or leave --follow out".to_owned(),
            );
        };
        let wanted = Wanted {
            tail: None,
            limit: request.wanted.limit.map(|most| most - shown.len().min(most)),
            ..request.wanted
        };
        let from = known.len() as u64;
        let follower = Follower {
            dir: target.dir.clone(),
            from,
            wanted,
            first: Some(shown),
            link: None,
            over: false,
            _seat: seat,
        };
        Body::from_stream(stream::unfold(follower, Follower::next))
    } else {
        Body::from(shown)
    };
    ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], body).into_response()
}

/// A log that is followed; dropped with its reader.
struct Follower {
    dir: VmDir,
    from: u64,
    wanted: Wanted,
    first: Option<Vec<u8>>,
    link: Option<(Reader<UnixStream>, Writer<UnixStream>)>,
    over: bool,
    _seat: OwnedSemaphorePermit,
}

impl Follower {
    async fn next(mut self) -> Option<(Result<Bytes, io::Error>, Self)> {
        if let Some(first) = self.first.take() {
            return Some((Ok(first.into()), self));
        }
        loop {
            if self.over || self.wanted.limit == Some(0) {
                return None;
            }
            let bytes = match self.more().await {
                Some(bytes) => bytes,
                None => {
                    self.over = true;
                    // what was added between the last word of the process and its end
                    let rest = journal::read_from(&self.dir.journal(), self.from, usize::MAX >> 1);
                    rest.map(|(_, bytes)| bytes).unwrap_or_default()
                }
            };
            self.from += bytes.len() as u64;
            let shown = self.wanted.select(&bytes);
            if let Some(left) = &mut self.wanted.limit {
                *left -= shown.len().min(*left);
            }
            if !shown.is_empty() {
                return Some((Ok(shown.into()), self));
            }
        }
    }

    /// What the VM's process adds; `None` when it has ended.
    async fn more(&mut self) -> Option<Vec<u8>> {
        if self.link.is_none() {
            let client = VmClient::connect(&self.dir.socket(), PATIENCE).await.ok()?;
            self.link = Some(split(client.follow_journal(self.from).await.ok()?));
        }
        match self.link.as_mut()?.0.next().await {
            Ok(Some(Frame::Output(bytes))) => Some(bytes.to_vec()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_read_or_refused_with_its_field() {
        let now = Timestamp::from_second(1000).unwrap();
        let read = |text: &str| parse(&Query::read(Some(text)), now);
        let request = read("follow=true&tailLines=3&sinceSeconds=10&limitBytes=7&timestamps=true").unwrap();
        assert!(request.follow && request.wanted.timestamps);
        assert_eq!((request.wanted.tail, request.wanted.limit), (Some(3), Some(7)));
        assert_eq!(request.wanted.since, Some(Timestamp::from_second(990).unwrap()));
        assert_eq!(read("").unwrap().wanted, Wanted::default());
        for (text, why) in [
            ("tailLines=-1", "tailLines=-1"),
            ("limitBytes=many", "limitBytes=many"),
            ("sinceTime=yesterday", "RFC 3339"),
            ("previous=true", "one journal"),
        ] {
            let refused = read(text).unwrap_err();
            assert!(refused.contains(why), "{refused}");
        }
    }
}
