//! One framed connection with deadlines.
//!
//! Invariant: a peer may be idle between frames for as long as it likes, but a frame once begun, an
//! answer once due, and a write once started each have a deadline. [`Link::receive`] is cancel-safe: a
//! half-read frame stays in the buffer.

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::bytes::{Bytes, BytesMut};

use crate::WireError;
use crate::frame;

/// The bounds of one link.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The longest frame that is read, in bytes. What is written is ours: up to [`frame::MAX_FRAME`].
    pub frame: usize,
    /// How long a begun frame, a due answer or a write may take.
    pub patience: Duration,
}

impl Limits {
    /// The bounds of what both ends of `vm.sock`, and a guest on its port, read from us: only accidents
    /// need catching.
    pub const VM: Limits = Limits { frame: frame::MAX_FRAME, patience: Duration::from_secs(10) };

    /// The bounds of what is read from a guest, which is untrusted.
    pub const GUEST: Limits = Limits { frame: frame::MAX_GUEST_FRAME, patience: Duration::from_secs(5) };

    /// The same bounds with another deadline.
    pub const fn patient(self, patience: Duration) -> Self {
        Limits { patience, ..self }
    }
}

/// A framed connection.
#[derive(Debug)]
pub struct Link<S> {
    stream: S,
    limits: Limits,
    incoming: BytesMut,
    outgoing: BytesMut,
    /// Set while a frame is half read.
    begun: Option<Instant>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Link<S> {
    /// Frames `stream` within `limits`.
    pub fn new(stream: S, limits: Limits) -> Self {
        Link { stream, limits, incoming: BytesMut::new(), outgoing: BytesMut::new(), begun: None }
    }

    /// Frames `stream`, of which `incoming` was read already.
    pub(crate) fn resume(stream: S, incoming: BytesMut, limits: Limits) -> Self {
        Link { incoming, ..Link::new(stream, limits) }
    }

    /// The stream, what was read of it and not used, and the bounds.
    pub(crate) fn into_parts(self) -> (S, BytesMut, Limits) {
        (self.stream, self.incoming, self.limits)
    }

    /// The stream.
    pub(crate) fn stream(&mut self) -> &mut S {
        &mut self.stream
    }

    /// Sends one frame of any bytes, without a deadline: its peer may take its time. Not cancel-safe.
    pub(crate) async fn send_body(&mut self, body: &[u8]) -> Result<(), WireError> {
        self.outgoing.clear();
        frame::encode(body, frame::MAX_FRAME, &mut self.outgoing)?;
        self.stream.write_all(&self.outgoing).await?;
        Ok(self.stream.flush().await?)
    }

    /// The bounds of this link.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Sends one frame. Not cancel-safe: a write that is dropped half way has broken the stream.
    pub async fn send<T: Serialize>(&mut self, message: &T) -> Result<(), WireError> {
        let body = serde_json::to_vec(message)
            .map_err(|error| WireError::Malformed { what: "a message of this side", why: error.to_string() })?;
        let after = self.limits.patience;
        timeout(after, self.send_body(&body))
            .await
            .map_err(|_| WireError::Timeout { what: "the peer does not read what is sent to it", after })?
    }

    /// The next frame, or `None` when the peer closed the connection between two frames. Waits for ever
    /// for a frame to begin, and `patience` for a begun one to be whole.
    pub async fn receive(&mut self) -> Result<Option<Bytes>, WireError> {
        loop {
            if let Some(body) = frame::decode(&mut self.incoming, self.limits.frame)? {
                self.begun = None;
                return Ok(Some(body));
            }
            if self.incoming.is_empty() {
                self.begun = None;
            } else if self.begun.is_none() {
                self.begun = Some(Instant::now());
            }
            let read = self.stream.read_buf(&mut self.incoming);
            let count = match self.begun {
                None => read.await?,
                Some(begun) => match timeout_at(begun + self.limits.patience, read).await {
                    Ok(count) => count?,
                    Err(_) => {
                        return Err(WireError::Timeout {
                            what: "the rest of a begun frame",
                            after: self.limits.patience,
                        });
                    }
                },
            };
            if count == 0 {
                return match frame::truncation(&self.incoming) {
                    Some(error) => Err(error.into()),
                    None => Ok(None),
                };
            }
        }
    }

    /// The next frame as `T`, where one is due within `patience`.
    pub async fn receive_due<T: DeserializeOwned>(&mut self, what: &'static str) -> Result<T, WireError> {
        let after = self.limits.patience;
        let body = timeout(after, self.receive())
            .await
            .map_err(|_| WireError::Timeout { what, after })??
            .ok_or(WireError::Closed(what))?;
        parse(&body, what)
    }
}

/// Reads one frame's body as `T`.
pub fn parse<T: DeserializeOwned>(body: &[u8], what: &'static str) -> Result<T, WireError> {
    serde_json::from_slice(body).map_err(|error| WireError::Malformed { what, why: error.to_string() })
}
