//! `kubectl exec` over WebSocket: subprotocol `v5.channel.k8s.io` (or `v4`, which cannot end its input).
//!
//! The first byte of a message is its channel: 0 input, 1 output, 2 errors, 3 the end as JSON, 4 the terminal's
//! size as JSON; `255 0` ends the input. (Kubernetes: `remotecommand`, `websocket` stream protocol.)
//!
//! Invariant: what goes wrong before and within a session is said on channel 3, where kubectl prints it: of an HTTP
//! status it shows the client's own guess instead.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::http::StatusCode;
use axum::response::Response;
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use macrack_wire::session::{Credit, Ended, Frame, MAX_SESSIONS, Reader, Session, TerminalSize, Writer, split};
use macrack_wire::{VmClient, VmDir, WireError};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::Target;
use super::routes::{Query, refusal};

const PROTOCOLS: [&str; 2] = ["v5.channel.k8s.io", "v4.channel.k8s.io"];
/// How long a VM process and its guest may take to begin.
const PATIENCE: Duration = Duration::from_secs(15);
/// Between signs of life that are asked of a client: one that has gone without a word is seen by the second.
const PING: Duration = Duration::from_secs(15);
/// How long a client may take to close a session that has ended.
const FAREWELL: Duration = Duration::from_secs(5);
/// The longest message of a client.
const MAX_MESSAGE: usize = 1024 * 1024;
/// Input that waits for the guest beyond the window; then no more is read of the client.
const MAX_PENDING: usize = 1024 * 1024;
/// Messages of input that may wait so: each costs more than the bytes in it, and a client may send one for each key.
const MAX_WAITING: usize = 4096;

/// Which of the guest's streams the client asked for.
#[derive(Debug, Clone, Copy)]
struct Streams {
    output: bool,
    errors: bool,
}

/// Upgrades, and serves the session.
pub(super) fn answer(
    target: Result<Target, String>,
    query: &Query,
    upgrade: WebSocketUpgrade,
    room: Arc<Semaphore>,
) -> Response {
    let upgrade = upgrade.max_message_size(MAX_MESSAGE).max_frame_size(MAX_MESSAGE).protocols(PROTOCOLS);
    if upgrade.selected_protocol().is_none() {
        let why = format!("exec: none of the subprotocols {} was offered", PROTOCOLS.join(", "));
        return refusal(StatusCode::BAD_REQUEST, why);
    }
    let tty = query.flag("tty");
    let session = Session::Exec { command: query.all("command"), stdin: query.flag("input"), tty };
    let streams = Streams { output: query.flag("output"), errors: query.flag("error") && !tty };
    upgrade.on_upgrade(move |socket| async move {
        let (mut to_client, from_client) = socket.split();
        match begin(target, session, room).await {
            Ok((_seat, reader, writer)) => run(from_client, to_client, reader, writer, streams).await,
            Err(why) => {
                // a client that has gone needs no words
                let _gone = end(&mut to_client, &failure(&why)).await;
            }
        }
    })
}

type Begun = (OwnedSemaphorePermit, Reader<UnixStream>, Writer<UnixStream>);

async fn begin(target: Result<Target, String>, session: Session, room: Arc<Semaphore>) -> Result<Begun, String> {
    let target = target?;
    let session = session.bounded()?;
    let seat = room
        .try_acquire_owned()
        .map_err(|_| format!("{MAX_SESSIONS} sessions are open on this Mac; end one of them first"))?;
    let opened = tokio::time::timeout(PATIENCE, open(&target.dir, session)).await;
    let (reader, writer) = opened
        .map_err(|_| "the guest does not answer; wait until status.guest.stage is UserSession".to_owned())?
        .map_err(|error| match error {
            WireError::Refused(refusal) => refusal.message,
            WireError::Connect { .. } => "the VM does not run; wait until the instance is Ready".to_owned(),
            other => {
                tracing::warn!(error = %other, "a session could not begin");
                "the VM's process does not answer as it should; the agent's log says more".to_owned()
            }
        })?;
    Ok((seat, reader, writer))
}

async fn open(dir: &VmDir, session: Session) -> Result<(Reader<UnixStream>, Writer<UnixStream>), WireError> {
    Ok(split(VmClient::connect(&dir.socket(), PATIENCE).await?.open(session).await?))
}

/// Both directions, until either ends; the guest sees the end of the connection and kills the command.
async fn run(
    mut from_client: SplitStream<WebSocket>,
    to_client: SplitSink<WebSocket, Message>,
    reader: Reader<UnixStream>,
    writer: Writer<UnixStream>,
    streams: Streams,
) {
    let (took, taken) = mpsc::unbounded_channel();
    let mut outward = pin!(outward(to_client, reader, streams, took));
    let ended = tokio::select! {
        ended = &mut outward => ended,
        left = inward(&mut from_client, writer, taken) => match left {
            // a command that has ended takes no input; that it has, and how, is still on its way to the client
            Err(Left::Guest(error)) => {
                tracing::debug!(%error, "a guest takes no more input");
                outward.await
            }
            Err(Left::Client(error)) => return tracing::debug!(%error, "a client's part of a session ended"),
            Ok(()) => return,
        }
    };
    match ended {
        Ok(()) => farewell(&mut from_client).await,
        Err(error) => tracing::debug!(%error, "a session ended"),
    }
}

/// Waits for the client to close too. A connection that is closed while something of the client's is unread is reset, and
/// with it goes what the client has not read yet: how the command ended.
async fn farewell(from_client: &mut SplitStream<WebSocket>) {
    let closed = async {
        while let Some(Ok(message)) = from_client.next().await
            && !matches!(message, Message::Close(_))
        {}
    };
    if tokio::time::timeout(FAREWELL, closed).await.is_err() {
        tracing::debug!("a client did not close its session");
    }
}

/// What a client's part of a session ended with.
enum Left {
    /// Its messages, or its guest's accounts of them, make no sense.
    Client(String),
    /// Nothing can be sent to the guest.
    Guest(WireError),
}

async fn outward(
    mut to: SplitSink<WebSocket, Message>,
    mut reader: Reader<UnixStream>,
    streams: Streams,
    took: mpsc::UnboundedSender<u32>,
) -> Result<(), axum::Error> {
    let mut ping = tokio::time::interval(PING);
    loop {
        let frame = tokio::select! {
            frame = reader.next() => frame,
            _ = ping.tick() => {
                to.send(Message::Ping(Bytes::new())).await?;
                continue;
            }
        };
        let (channel, bytes, wanted) = match frame {
            Ok(Some(Frame::Output(bytes))) => (1, bytes, streams.output),
            Ok(Some(Frame::Errors(bytes))) => (2, bytes, streams.errors),
            Ok(Some(Frame::Taken(count))) => {
                // the other direction has ended, and with it the session in a moment
                let _over = took.send(count);
                continue;
            }
            Ok(Some(Frame::Ended(ended))) => return end(&mut to, &status(&ended)).await,
            Ok(Some(_)) | Err(_) => return end(&mut to, &failure("the guest is not understood any more")).await,
            Ok(None) => return end(&mut to, &failure("the guest went down, or its VM was stopped")).await,
        };
        if wanted {
            let mut message = Vec::with_capacity(bytes.len() + 1);
            message.push(channel);
            message.extend_from_slice(&bytes);
            to.send(Message::Binary(message.into())).await?;
        }
    }
}

/// What a message of a client asks for.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Input(Bytes),
    EndOfInput,
    Resize(TerminalSize),
    /// It has nothing to say here.
    Nothing,
    /// It has gone.
    Gone,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Size {
    width: u16,
    height: u16,
}

fn asked(message: Message) -> Result<Asked, String> {
    let mut bytes = match message {
        Message::Binary(bytes) => bytes,
        Message::Close(_) => return Ok(Asked::Gone),
        Message::Ping(_) | Message::Pong(_) => return Ok(Asked::Nothing),
        Message::Text(_) => return Err("a text message came, where every message is binary".to_owned()),
    };
    if bytes.is_empty() {
        return Ok(Asked::Nothing);
    }
    let rest = bytes.split_off(1);
    match bytes[0] {
        0 if rest.is_empty() => Ok(Asked::Nothing),
        0 => Ok(Asked::Input(rest)),
        4 => {
            let size: Size = serde_json::from_slice(&rest).map_err(|error| format!("a terminal's size: {error}"))?;
            Ok(Asked::Resize(TerminalSize { columns: size.width, rows: size.height }))
        }
        255 if rest[..] == [0] => Ok(Asked::EndOfInput),
        channel => Err(format!("{channel} is no channel of a client")),
    }
}

async fn inward(
    from: &mut SplitStream<WebSocket>,
    mut writer: Writer<UnixStream>,
    mut taken: mpsc::UnboundedReceiver<u32>,
) -> Result<(), Left> {
    let wrong = |error: WireError| Left::Client(error.to_string());
    let (mut pending, mut waiting) = (VecDeque::<Bytes>::new(), 0_usize);
    let (mut credit, mut ends) = (Credit::default(), false);
    loop {
        tokio::select! {
            message = from.next(), if waiting < MAX_PENDING && pending.len() < MAX_WAITING => {
                let Some(message) = message else { return Ok(()) };
                let message = message.map_err(|error| Left::Client(error.to_string()))?;
                match asked(message).map_err(Left::Client)? {
                    Asked::Input(bytes) if !ends => {
                        waiting += bytes.len();
                        pending.push_back(bytes);
                    }
                    Asked::Input(_) | Asked::Nothing => {}
                    Asked::EndOfInput => {
                        ends = true;
                        if pending.is_empty() {
                            writer.send(&Frame::EndOfInput).await.map_err(Left::Guest)?;
                        }
                    }
                    Asked::Resize(size) => writer.send(&Frame::Resize(size)).await.map_err(Left::Guest)?,
                    Asked::Gone => return Ok(()),
                }
            }
            Some(count) = taken.recv() => credit.earn(count).map_err(wrong)?,
        }
        let had = !pending.is_empty();
        while let Some(mut bytes) = pending.pop_front() {
            let most = credit.chunk();
            if most == 0 && !bytes.is_empty() {
                pending.push_front(bytes);
                break;
            }
            let chunk = bytes.split_to(bytes.len().min(most));
            waiting -= chunk.len();
            credit.spend(chunk.len()).map_err(wrong)?;
            if !bytes.is_empty() {
                pending.push_front(bytes);
            }
            if !chunk.is_empty() {
                writer.send(&Frame::Input(chunk)).await.map_err(Left::Guest)?;
            }
        }
        if had && pending.is_empty() && ends {
            writer.send(&Frame::EndOfInput).await.map_err(Left::Guest)?;
        }
    }
}

async fn end(to: &mut SplitSink<WebSocket, Message>, status: &Value) -> Result<(), axum::Error> {
    let mut message = vec![3];
    message.extend_from_slice(status.to_string().as_bytes());
    to.send(Message::Binary(message.into())).await?;
    // without a code a client takes it for an accident
    to.send(Message::Close(Some(CloseFrame { code: close_code::NORMAL, reason: "".into() }))).await
}

/// The end as kubectl understands it.
fn status(ended: &Ended) -> Value {
    match ended {
        Ended::Exit { code: 0 } | Ended::Over => json!({ "metadata": {}, "status": "Success" }),
        Ended::Exit { code } => json!({
            "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
            "message": format!("command terminated with exit code {code}"),
            "details": { "causes": [{ "reason": "ExitCode", "message": code.to_string() }] },
        }),
        Ended::Failed { message } => failure(message),
    }
}

fn failure(why: &str) -> Value {
    json!({ "metadata": {}, "status": "Failure", "reason": "InternalError", "message": why, "code": 500 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_by_their_channel_and_others_are_refused() {
        let read = |bytes: &'static [u8]| asked(Message::Binary(Bytes::from_static(bytes)));
        assert_eq!(read(b"\x00hi"), Ok(Asked::Input(Bytes::from_static(b"hi"))));
        assert_eq!(read(b"\x00"), Ok(Asked::Nothing), "without a byte it would be counted as none, and kept");
        assert_eq!(read(b"\xff\x00"), Ok(Asked::EndOfInput));
        let size = TerminalSize { columns: 120, rows: 40 };
        assert_eq!(read(br#"{"Width":120,"Height":40}"#).unwrap_err(), "123 is no channel of a client");
        assert_eq!(read(b"\x04{\"Width\":120,\"Height\":40}"), Ok(Asked::Resize(size)));
        assert!(read(b"\x04{\"Width\":-1}").unwrap_err().contains("terminal's size"));
        assert!(read(b"\xff\x01").is_err());
        assert_eq!(asked(Message::Close(None)), Ok(Asked::Gone));
        assert!(asked(Message::Text("hi".into())).is_err());
    }

    #[test]
    fn an_exit_code_is_a_cause_and_success_has_none() {
        let three = status(&Ended::Exit { code: 3 });
        assert_eq!(three["details"]["causes"][0]["message"], "3");
        assert_eq!(status(&Ended::Exit { code: 0 })["status"], "Success");
        assert_eq!(status(&Ended::failed("no shell"))["message"], "no shell");
    }
}
