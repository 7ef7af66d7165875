//! Bytes of an answer, as they come.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;

use crate::error::Error;

/// How many times as long as a connection may be silent something small may take: with the default, two minutes for the
/// longest manifest.
const SMALL: u32 = 4;

/// The rest of an answer.
pub struct Body {
    inner: Incoming,
    stall: Duration,
}

impl Body {
    pub(crate) fn new(inner: Incoming, stall: Duration) -> Body {
        Body { inner, stall }
    }

    /// The next bytes; `None` at the end.
    ///
    /// # Errors
    /// When the connection breaks, or nothing comes for too long.
    pub async fn next(&mut self, what: &str) -> Result<Option<Bytes>, Error> {
        loop {
            let frame = match tokio::time::timeout(self.stall, self.inner.frame()).await {
                Ok(Some(Ok(frame))) => frame,
                Ok(Some(Err(error))) => return Err(Error::transient(what, format!("the connection broke: {error}"))),
                Ok(None) => return Ok(None),
                Err(_) => {
                    return Err(Error::transient(what, format!("nothing came for {} s", self.stall.as_secs())));
                }
            };
            // trailers are of no interest
            if let Ok(bytes) = frame.into_data()
                && !bytes.is_empty()
            {
                return Ok(Some(bytes));
            }
        }
    }

    /// All of it, at most `most` bytes. It is small, so it comes in [`SMALL`] times the patience with a silent connection,
    /// or not at all: one that gives a byte now and then is never silent.
    ///
    /// # Errors
    /// As [`Body::next`], when there is more, and when it does not come in time.
    pub async fn whole(mut self, what: &str, most: u64) -> Result<Vec<u8>, Error> {
        let patience = self.stall.saturating_mul(SMALL);
        let whole = async {
            let mut whole = Vec::new();
            while let Some(bytes) = self.next(what).await? {
                if (whole.len() + bytes.len()) as u64 > most {
                    return Err(Error::NotAGolden(format!("{what}: more than {most} bytes came")));
                }
                whole.extend_from_slice(&bytes);
            }
            Ok(whole)
        };
        let late = || Error::transient(what, format!("it did not come whole in {} s", patience.as_secs()));
        tokio::time::timeout(patience, whole).await.unwrap_or_else(|_| Err(late()))
    }
}
