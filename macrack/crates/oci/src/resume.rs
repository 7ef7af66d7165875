//! What an answer to "the rest of this blob, please" means: pure.
//!
//! Invariant: bytes are only ever appended where they belong. An answer that starts elsewhere, or that
//! comes from a blob that has changed, is never added to what is there.

use http::{HeaderMap, StatusCode, header};

/// What is here of a blob, and what it should become.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Local {
    /// Bytes that are here.
    pub have: u64,
    /// Bytes of the whole blob, as the manifest says.
    pub total: u64,
    /// `ETag` of the answer that the bytes came from.
    pub etag: Option<String>,
}

/// What a registry answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The status.
    pub status: StatusCode,
    /// First byte and length of the whole, of `Content-Range`.
    pub range: Option<(u64, Option<u64>)>,
    /// `ETag`.
    pub etag: Option<String>,
}

impl Reply {
    /// Reads the head of an answer.
    pub fn read(status: StatusCode, headers: &HeaderMap) -> Reply {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        Reply {
            status,
            range: text(header::CONTENT_RANGE).and_then(content_range),
            etag: text(header::ETAG).map(str::to_owned),
        }
    }
}

/// `bytes 400-999/1000` → (400, 1000); `*` for an unknown whole (RFC 9110, 14.4).
fn content_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = text.trim().strip_prefix("bytes")?.trim().split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last): (u64, u64) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    let total = if total.trim() == "*" { None } else { Some(total.trim().parse().ok()?) };
    (first <= last && total.is_none_or(|total| last < total)).then_some((first, total))
}

/// What to do with an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Its body continues what is here.
    Append,
    /// Its body is the blob from the start: what is here is dropped first.
    FromStart,
    /// What is here may be the whole: its digest decides.
    Check,
    /// What is here is of no use, and neither is the body: ask anew from the start.
    Restart(&'static str),
    /// It will not come.
    Gone,
    /// We are not let.
    Refused,
}

/// Judges an answer to a request for everything from `local.have` on; it is no trouble that passes by itself, which
/// whoever sends a request waits out.
pub fn judge(local: &Local, reply: &Reply) -> Verdict {
    let changed = matches!((&local.etag, &reply.etag), (Some(old), Some(new)) if old != new && local.have > 0);
    match reply.status {
        StatusCode::OK => Verdict::FromStart,
        StatusCode::PARTIAL_CONTENT if changed => Verdict::Restart("the blob has changed since"),
        StatusCode::PARTIAL_CONTENT => match reply.range {
            Some((_, Some(total))) if total != local.total => {
                Verdict::Restart("its length is not the one that the manifest says")
            }
            Some((first, _)) if first == local.have => Verdict::Append,
            Some(_) => Verdict::Restart("another part came than was asked for"),
            None => Verdict::Restart("it does not say which part came"),
        },
        StatusCode::RANGE_NOT_SATISFIABLE if local.have == local.total => Verdict::Check,
        StatusCode::RANGE_NOT_SATISFIABLE => Verdict::Restart("there is no such part"),
        StatusCode::NOT_FOUND | StatusCode::GONE => Verdict::Gone,
        _ => Verdict::Refused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(status: u16, range: &str, etag: Option<&str>) -> Reply {
        let mut headers = HeaderMap::new();
        if !range.is_empty() {
            headers.insert(header::CONTENT_RANGE, format!("bytes {range}").parse().unwrap());
        }
        if let Some(etag) = etag {
            headers.insert(header::ETAG, etag.parse().unwrap());
        }
        Reply::read(StatusCode::from_u16(status).unwrap(), &headers)
    }

    #[test]
    fn bytes_are_appended_only_where_they_belong() {
        use Verdict::{Append, Check, FromStart, Gone, Refused};
        let restart = |verdict| matches!(verdict, Verdict::Restart(_));
        let of = |have, status, range: &str, etag| {
            let local = Local { have, total: 1000, etag: Some("\"one\"".to_owned()) };
            judge(&local, &reply(status, range, etag))
        };
        assert_eq!(of(0, 200, "", None), FromStart, "nothing is here yet");
        assert_eq!(of(400, 206, "400-999/1000", None), Append);
        assert_eq!(of(400, 206, "400-999/1000", Some("\"one\"")), Append);
        assert_eq!(of(400, 206, "400-999/*", None), Append, "the whole need not be named");
        assert_eq!(of(400, 200, "", None), FromStart, "the range was not heeded: not appended");
        assert_eq!(of(1000, 416, "", None), Check, "all of it is here: the digest decides");
        assert!(restart(of(1200, 416, "", None)), "more is here than there is");
        assert!(restart(of(400, 206, "0-999/1000", None)), "the wrong part is not appended");
        assert!(restart(of(400, 206, "400-899/900", None)), "the whole has another length");
        assert!(restart(of(400, 206, "400-999/1000", Some("\"two\""))), "it changed in between");
        assert!(restart(of(400, 206, "", None)), "no word on which part this is");
        assert!(restart(of(400, 206, "999-400/1000", None)), "a range that is none");
        assert_eq!(of(400, 404, "", None), Gone);
        assert_eq!(of(400, 403, "", None), Refused);
        assert_eq!(of(0, 206, "0-999/1000", Some("\"two\"")), Append, "nothing is here that could differ");
    }
}
