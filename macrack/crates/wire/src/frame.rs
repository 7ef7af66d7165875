//! Frames: a big-endian `u32` length, then that many bytes of JSON.
//!
//! Invariant: the length is judged before a byte of the body is awaited or allocated, so a peer that
//! announces four gigabytes costs four bytes.

use tokio_util::bytes::{Buf, BufMut, Bytes, BytesMut};

/// The longest frame on the control socket of a VM, in bytes of JSON (1 MiB).
pub const MAX_FRAME: usize = 1024 * 1024;

/// The longest frame that a guest may send (64 KiB): a guest is untrusted and has little to say.
pub const MAX_GUEST_FRAME: usize = 64 * 1024;

/// The length in front of every frame, in bytes.
pub const HEADER: usize = 4;

/// Why bytes are not a frame. After any of these the stream has lost its place and must be closed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The announced length is over the limit of this link.
    #[error("a frame of {announced} bytes was announced; at most {limit} are read on this link")]
    TooLong {
        /// Bytes announced by the peer, or bytes this side wanted to send.
        announced: usize,
        /// The limit of this link in bytes.
        limit: usize,
    },
    /// The stream ended inside a frame.
    #[error("the peer closed the connection inside a frame, {missing} bytes short")]
    Truncated {
        /// Bytes that the frame still lacked, as far as is known.
        missing: usize,
    },
}

/// Takes one frame off the front of `buffer`, or answers `None` when more bytes are needed.
pub fn decode(buffer: &mut BytesMut, limit: usize) -> Result<Option<Bytes>, FrameError> {
    let Some(announced) = announced(buffer) else {
        return Ok(None);
    };
    if announced > limit {
        return Err(FrameError::TooLong { announced, limit });
    }
    if buffer.len() < HEADER + announced {
        return Ok(None);
    }
    buffer.advance(HEADER);
    Ok(Some(buffer.split_to(announced).freeze()))
}

/// Appends one frame to `buffer`.
pub fn encode(body: &[u8], limit: usize, buffer: &mut BytesMut) -> Result<(), FrameError> {
    let too_long = FrameError::TooLong { announced: body.len(), limit };
    if body.len() > limit {
        return Err(too_long);
    }
    let length = u32::try_from(body.len()).map_err(|_| too_long)?;
    buffer.reserve(HEADER + body.len());
    buffer.put_u32(length);
    buffer.put_slice(body);
    Ok(())
}

/// The error for a stream that ended with `rest` still in its buffer; `None` at a frame's boundary.
pub fn truncation(rest: &BytesMut) -> Option<FrameError> {
    if rest.is_empty() {
        return None;
    }
    let missing = match announced(rest) {
        Some(announced) => (HEADER + announced).saturating_sub(rest.len()),
        None => HEADER - rest.len(),
    };
    Some(FrameError::Truncated { missing })
}

fn announced(buffer: &BytesMut) -> Option<usize> {
    let header: [u8; HEADER] = buffer.get(..HEADER)?.try_into().ok()?;
    Some(u32::from_be_bytes(header) as usize)
}
