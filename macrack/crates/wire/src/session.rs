//! Sessions: bytes in both directions between whoever sits at a client and one thing inside a guest.
//!
//! ```text
//!   agent ──vm.sock──▶ macrack-vm ──vsock──▶ macrack-guest ──▶ a command, a port, a log
//!     Open {…}           Open {…}
//!     ◀── report ───     ◀── report ──      (or an error, and nothing follows)
//!     ◀══ frames ══▶     ◀══ frames ══▶     until Ended, or until either side closes
//! ```
//!
//! A session has a connection of its own, which begins like any other; once its `Open` is answered with a
//! report, both sides send [`Frame`]s and nothing else.
//!
//! Invariants: a frame holds at most [`MAX_CHUNK`] bytes. What a client sends is out for at most [`WINDOW`]
//! bytes that the guest has not taken, so a command that does not read its input never keeps the guest from
//! seeing a resize or the client's end. What a guest sends waits in the connection until the client reads.

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, Empty, Join, ReadHalf, Sink, WriteHalf};
use tokio_util::bytes::{BufMut, Bytes, BytesMut};

use crate::WireError;
use crate::guest::unsayable;
use crate::link::{Link, parse};

/// The most bytes of input or output in one frame.
pub const MAX_CHUNK: usize = 32 * 1024;
/// Bytes of input that may be out before the guest has taken any.
pub const WINDOW: u32 = 256 * 1024;
/// Sessions at once in one guest.
pub const MAX_SESSIONS: usize = 16;
/// The most arguments of a command.
const MAX_ARGUMENTS: usize = 1024;
/// The most bytes that a command's arguments take together.
const MAX_COMMAND: usize = 64 * 1024;
/// The longest explanation of an end, in bytes.
const MAX_REASON: usize = 512;

/// What a session is with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "session", rename_all_fields = "camelCase")]
pub enum Session {
    /// A command, run as the user who is logged in.
    Exec {
        /// The program and its arguments; never empty.
        command: Vec<String>,
        /// Whether it gets input; without, its input is at its end from the start.
        stdin: bool,
        /// Whether it runs on a terminal, whose output is all standard output.
        tty: bool,
    },
    /// A TCP port on the guest's own loopback address.
    Forward {
        /// The port.
        port: u16,
    },
    /// What the first-boot script has written and still writes; ends when the script has.
    FirstBootLog,
}

impl Session {
    /// The session, if it keeps within bounds.
    ///
    /// # Errors
    /// With what goes past them.
    pub fn bounded(self) -> Result<Self, String> {
        match &self {
            Session::Exec { command, .. } if command.first().is_none_or(String::is_empty) => {
                Err("exec: no command is named; give one after --".to_owned())
            }
            Session::Exec { command, .. } if command.len() > MAX_ARGUMENTS => Err(format!(
                "exec: {} arguments, at most {MAX_ARGUMENTS} are taken; put them into a file",
                command.len()
            )),
            Session::Exec { command, .. } if command.iter().map(String::len).sum::<usize>() > MAX_COMMAND => {
                Err(format!("exec: the command is longer than {MAX_COMMAND} bytes; send it on standard input"))
            }
            Session::Exec { command, .. } if command.iter().any(|argument| argument.contains('\0')) => {
                Err("exec: an argument holds a NUL, which no program can be given".to_owned())
            }
            Session::Forward { port: 0 } => Err("forward: 0 is no port; name one from 1 to 65535".to_owned()),
            _ => Ok(self),
        }
    }
}

/// The size of a terminal, in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminalSize {
    /// Characters in a line.
    pub columns: u16,
    /// Lines.
    pub rows: u16,
}

/// How a session ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "end", rename_all_fields = "camelCase")]
pub enum Ended {
    /// The command ended; 128 + n stands for signal n, as in a shell.
    Exit {
        /// 0 is success.
        code: i32,
    },
    /// The port or the log has nothing more to say.
    Over,
    /// It could not begin or go on.
    Failed {
        /// Why.
        message: String,
    },
}

impl Ended {
    /// A failure; an overlong reason is cut, control characters are left out.
    pub fn failed(why: impl std::fmt::Display) -> Self {
        let mut message: String = why.to_string().chars().filter(|c| !unsayable(*c)).collect();
        message.truncate(message.floor_char_boundary(MAX_REASON));
        Ended::Failed { message }
    }

    /// The end as it may be passed on, if a guest has said it.
    fn bounded(self) -> Self {
        match self {
            Ended::Failed { message } => Ended::failed(message),
            other => other,
        }
    }
}

/// What is said in a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// Input, by the client.
    Input(Bytes),
    /// The end of input, by the client.
    EndOfInput,
    /// The client's terminal has this size.
    Resize(TerminalSize),
    /// So many bytes of input were taken, by the guest: the client may send as many more.
    Taken(u32),
    /// Output, by the guest.
    Output(Bytes),
    /// Output on the second channel, by the guest.
    Errors(Bytes),
    /// The end, by the guest; nothing follows.
    Ended(Ended),
}

impl Frame {
    fn encode(&self) -> Result<BytesMut, WireError> {
        let tagged = |tag: u8, bytes: &[u8]| {
            let mut body = BytesMut::with_capacity(bytes.len() + 1);
            body.put_u8(tag);
            body.put_slice(bytes);
            body
        };
        Ok(match self {
            Frame::Input(bytes) => tagged(0, bytes),
            Frame::Output(bytes) => tagged(1, bytes),
            Frame::Errors(bytes) => tagged(2, bytes),
            Frame::Ended(ended) => {
                let json = serde_json::to_vec(ended)
                    .map_err(|error| WireError::Malformed { what: "an end of this side", why: error.to_string() })?;
                tagged(3, &json)
            }
            Frame::Resize(size) => {
                let mut body = tagged(4, &size.columns.to_be_bytes());
                body.put_u16(size.rows);
                body
            }
            Frame::Taken(count) => tagged(5, &count.to_be_bytes()),
            Frame::EndOfInput => tagged(6, &[]),
        })
    }

    fn decode(mut body: Bytes) -> Result<Frame, WireError> {
        let malformed = |why: &str| WireError::Malformed { what: "a frame of a session", why: why.to_owned() };
        if body.is_empty() {
            return Err(malformed("it is empty"));
        }
        let rest = body.split_off(1);
        let number = |bytes: &[u8]| <[u8; 4]>::try_from(bytes).map_err(|_| malformed("4 bytes were due"));
        Ok(match body[0] {
            0 => Frame::Input(rest),
            1 => Frame::Output(rest),
            2 => Frame::Errors(rest),
            3 => Frame::Ended(parse::<Ended>(&rest, "the end of a session")?.bounded()),
            4 => {
                let [a, b, c, d] = number(&rest)?;
                Frame::Resize(TerminalSize { columns: u16::from_be_bytes([a, b]), rows: u16::from_be_bytes([c, d]) })
            }
            5 => Frame::Taken(u32::from_be_bytes(number(&rest)?)),
            6 if rest.is_empty() => Frame::EndOfInput,
            6 => return Err(malformed("an end of input carries nothing")),
            tag => return Err(malformed(&format!("{tag} is no kind of frame"))),
        })
    }
}

/// The reading half of a session.
#[derive(Debug)]
pub struct Reader<S>(Link<Join<ReadHalf<S>, Sink>>);

/// The writing half of a session.
#[derive(Debug)]
pub struct Writer<S>(Link<Join<Empty, WriteHalf<S>>>);

/// Both halves of a session, once its `Open` was answered.
pub fn split<S: AsyncRead + AsyncWrite + Unpin>(link: Link<S>) -> (Reader<S>, Writer<S>) {
    let (stream, incoming, limits) = link.into_parts();
    let (read, write) = tokio::io::split(stream);
    // a chunk and its tag; an end is far shorter
    let limits = crate::link::Limits { frame: MAX_CHUNK + 1, ..limits };
    let reader = Link::resume(tokio::io::join(read, tokio::io::sink()), incoming, limits);
    let writer = Link::new(tokio::io::join(tokio::io::empty(), write), limits);
    (Reader(reader), Writer(writer))
}

impl<S: AsyncRead + AsyncWrite + Unpin> Reader<S> {
    /// The next frame; `None` when the peer closed the connection. Cancel-safe.
    ///
    /// # Errors
    /// When it is no frame, too long, or begun and not finished in time.
    pub async fn next(&mut self) -> Result<Option<Frame>, WireError> {
        match self.0.receive().await? {
            Some(body) => Frame::decode(body).map(Some),
            None => Ok(None),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Writer<S> {
    /// Sends one frame; waits for as long as the peer does not read. Not cancel-safe: a frame that is dropped
    /// half way has broken the stream.
    ///
    /// # Errors
    /// When the connection fails.
    pub async fn send(&mut self, frame: &Frame) -> Result<(), WireError> {
        self.0.send_body(&frame.encode()?).await
    }

    /// Closes this direction; the peer sees the end after the last frame.
    ///
    /// # Errors
    /// When the connection fails.
    pub async fn close(mut self) -> Result<(), WireError> {
        Ok(self.0.stream().shutdown().await?)
    }
}

/// What of the window is left to send.
#[derive(Debug)]
pub struct Credit(u32);

impl Default for Credit {
    fn default() -> Self {
        Credit(WINDOW)
    }
}

impl Credit {
    /// Bytes that may be sent now, at most one chunk.
    pub fn chunk(&self) -> usize {
        MAX_CHUNK.min(self.0 as usize)
    }

    /// So many are sent, or arrive.
    ///
    /// # Errors
    /// When that is more than the window holds.
    pub fn spend(&mut self, bytes: usize) -> Result<(), WireError> {
        let left = u32::try_from(bytes).ok().and_then(|bytes| self.0.checked_sub(bytes));
        self.0 =
            left.ok_or_else(|| WireError::OutOfBounds(format!("{bytes} bytes of input where {} may be out", self.0)))?;
        Ok(())
    }

    /// So many were taken.
    ///
    /// # Errors
    /// When that is more than was sent.
    pub fn earn(&mut self, bytes: u32) -> Result<(), WireError> {
        let sum = self.0.checked_add(bytes).filter(|sum| *sum <= WINDOW);
        self.0 =
            sum.ok_or_else(|| WireError::OutOfBounds(format!("{bytes} bytes of input were taken, fewer were sent")))?;
        Ok(())
    }
}

/// Carries frames between the two connections of one session until either side ends; each frame is bounded on
/// its way, and neither side sees more of the other than frames.
///
/// # Errors
/// As the halves.
pub async fn relay<A, B>(near: Link<A>, far: Link<B>) -> Result<(), WireError>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let ((from_near, to_near), (from_far, to_far)) = (split(near), split(far));
    tokio::select! {
        ended = carry(from_near, to_far) => {
            // the client has gone, and with it whoever would read the rest
            ended
        }
        ended = carry(from_far, to_near) => ended,
    }
}

async fn carry<A, B>(mut from: Reader<A>, mut to: Writer<B>) -> Result<(), WireError>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    while let Some(frame) = from.next().await? {
        to.send(&frame).await?;
    }
    to.close().await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Limits;

    #[tokio::test]
    async fn every_frame_arrives_as_it_was_sent() {
        let (near, far) = tokio::io::duplex(64 * 1024);
        let (_reader, mut writer) = split(Link::new(near, Limits::VM));
        let (mut reader, _writer) = split(Link::new(far, Limits::GUEST));
        let frames = [
            Frame::Input(Bytes::from_static(b"in")),
            Frame::EndOfInput,
            Frame::Resize(TerminalSize { columns: 200, rows: 50 }),
            Frame::Taken(WINDOW),
            Frame::Output(Bytes::from(vec![7; MAX_CHUNK])),
            Frame::Errors(Bytes::new()),
            Frame::Ended(Ended::Exit { code: 130 }),
            Frame::Ended(Ended::failed("no\nsuch program")),
        ];
        for frame in &frames {
            writer.send(frame).await.unwrap();
            assert_eq!(reader.next().await.unwrap().as_ref(), Some(frame));
        }
        writer.close().await.unwrap();
        assert_eq!(reader.next().await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_frame_that_is_too_long_or_none_ends_the_session() {
        for (body, why) in [
            (vec![0_u8; MAX_CHUNK + 2], "at most"),
            (vec![], "empty"),
            (vec![9], "9 is no kind"),
            (vec![5, 0], "4 bytes"),
            (vec![6, 1], "carries nothing"),
            (b"\x03{}".to_vec(), "the end of a session"),
        ] {
            let (near, far) = tokio::io::duplex(256 * 1024);
            let (mut reader, _writer) = split(Link::new(far, Limits::GUEST));
            let mut near = Link::new(near, Limits::VM);
            near.send_body(&body).await.unwrap();
            let error = reader.next().await.unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[tokio::test]
    async fn how_a_session_ended_is_bounded_when_it_is_read_whatever_the_guest_says() {
        let (near, far) = tokio::io::duplex(256 * 1024);
        let (mut reader, _writer) = split(Link::new(far, Limits::GUEST));
        let mut near = Link::new(near, Limits::VM);
        let said = serde_json::json!({"end": "failed", "message": format!("\u{1b}[2Jno\u{202e}{}", "x".repeat(9_000))});
        near.send_body(format!("\u{3}{said}").as_bytes()).await.unwrap();
        let Some(Frame::Ended(Ended::Failed { message })) = reader.next().await.unwrap() else { panic!("no end") };
        assert!(message.starts_with("[2Jnoxx") && message.len() == MAX_REASON, "{message:?}");
    }

    #[test]
    fn a_client_cannot_send_more_than_the_window_nor_a_guest_take_more_than_was_sent() {
        let mut credit = Credit::default();
        credit.spend(WINDOW as usize).unwrap();
        assert_eq!(credit.chunk(), 0);
        assert!(credit.spend(1).unwrap_err().to_string().contains("1 bytes of input where 0"));
        credit.earn(10).unwrap();
        assert_eq!(credit.chunk(), 10);
        assert!(credit.earn(WINDOW).unwrap_err().to_string().contains("fewer were sent"));
    }

    #[test]
    fn a_session_past_its_bounds_is_refused_with_the_way_out() {
        let exec = |command: &[&str]| {
            let command = command.iter().map(|argument| (*argument).to_owned()).collect();
            Session::Exec { command, stdin: false, tty: false }.bounded()
        };
        assert!(exec(&["sw_vers"]).is_ok());
        assert!(exec(&[]).unwrap_err().contains("after --"));
        assert!(exec(&["", "x"]).unwrap_err().contains("no command"));
        assert!(exec(&["a\0b"]).unwrap_err().contains("NUL"));
        assert!(exec(&[&"x".repeat(MAX_COMMAND + 1)]).unwrap_err().contains("standard input"));
        assert!(exec(&["x"; MAX_ARGUMENTS + 1]).unwrap_err().contains("arguments"));
        assert!(Session::Forward { port: 0 }.bounded().unwrap_err().contains("no port"));
    }

    #[tokio::test]
    async fn what_a_slow_reader_leaves_waits_and_nothing_is_lost() {
        let (near, far) = tokio::io::duplex(1024);
        let (mut reader, _writer) = split(Link::new(near, Limits::GUEST));
        let (_reader, mut writer) = split(Link::new(far, Limits::VM));
        let sender = tokio::spawn(async move {
            for n in 0..64_u8 {
                writer.send(&Frame::Output(Bytes::from(vec![n; MAX_CHUNK]))).await.unwrap();
            }
            writer.close().await.unwrap();
        });
        let mut seen = 0_u8;
        while let Some(frame) = reader.next().await.unwrap() {
            assert_eq!(frame, Frame::Output(Bytes::from(vec![seen; MAX_CHUNK])));
            seen += 1;
        }
        assert_eq!(seen, 64);
        sender.await.unwrap();
    }
}
