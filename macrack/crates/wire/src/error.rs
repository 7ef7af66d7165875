//! Everything that can go wrong on a link, in the words of the person who must act.

use std::path::PathBuf;
use std::time::Duration;

use crate::frame::FrameError;
use crate::hello::{Hello, Role};
use crate::message::Refusal;

/// Why a conversation failed. Every one of them leaves the connection unusable except
/// [`WireError::Refused`], after which the next request may be sent.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// Nobody listens on the socket: the process behind it has ended, or has not got that far.
    #[error("cannot connect to {}: {source}", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The answer of the operating system.
        source: std::io::Error,
    },
    /// The peer did not do its part in time.
    #[error("{what}: nothing within {after:?}")]
    Timeout {
        /// What was awaited.
        what: &'static str,
        /// For how long.
        after: Duration,
    },
    /// The peer sent something that is not a frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The operating system reported a failure of the connection.
    #[error("the connection failed: {0}")]
    Io(#[from] std::io::Error),
    /// The peer closed the connection where an answer was due.
    #[error("the peer closed the connection while {0} was awaited")]
    Closed(&'static str),
    /// The frame is not the JSON that was due.
    #[error("{what} is not understood: {why}")]
    Malformed {
        /// What was awaited.
        what: &'static str,
        /// The parser's words, which hold no more than a position and a field name.
        why: String,
    },
    /// The peer speaks another major protocol. Names both sides, so that it is known which to upgrade.
    #[error("{ours} and {theirs} do not understand each other: upgrade the one with the lower protocol")]
    Protocol {
        /// This side.
        ours: Hello,
        /// The peer.
        theirs: Hello,
    },
    /// The peer is not what should stand at the other end of this socket.
    #[error("a {expected} was expected at the other end, {found} answered")]
    WrongRole {
        /// Who should be there.
        expected: Role,
        /// Who is.
        found: Hello,
    },
    /// The peer turned this side away before any request, with these words.
    #[error("turned away: {0}")]
    TurnedAway(String),
    /// The peer understood the request and refused it.
    #[error("refused: {0}")]
    Refused(Refusal),
    /// An answer came to a question that was not asked: repeated, reordered, or made up.
    #[error("an answer to request {found:?} came while {expected} was awaited")]
    OutOfOrder {
        /// The id that was awaited.
        expected: u64,
        /// The id that came.
        found: Option<u64>,
    },
    /// The peer said something well-formed that goes past the bounds of this link.
    #[error("the peer is not believed: {0}")]
    OutOfBounds(String),
}
