//! Sessions of the host with this guest: a command of the user's, a port, the first boot's output.
//!
//! Invariants: a command dies with its session, whichever side ends it or drops it, and so does whatever it started in
//! its own process group; nobody gets a session before somebody is logged in, as whom it would run.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use macrack_wire::serve::Opening;
use macrack_wire::session::{Credit, Ended, Frame, MAX_CHUNK, MAX_SESSIONS, Reader, Session, Writer, split};
use macrack_wire::{GuestReport, GuestVerb, Refusal, RefusalKind, Service, WireError};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::bytes::Bytes;
use tokio_util::task::AbortOnDropHandle;

use crate::boot_log::BootLog;
use crate::bounded::exit_code;
use crate::probe::{Probe, Session as Seat};
use crate::terminal::Terminal;

/// How long output may be quiet after the command has ended before it counts as complete: what the command
/// started may hold the pipe open for ever.
const QUIET: Duration = Duration::from_secs(1);
/// How long a port on this machine may take to answer.
const CONNECT: Duration = Duration::from_secs(5);
/// Chunks of output that wait for the connection.
const QUEUE: usize = 4;

/// What opens sessions.
#[derive(Clone)]
pub struct Sessions {
    probe: Arc<dyn Probe>,
    log: Arc<BootLog>,
    room: Arc<Semaphore>,
}

impl std::fmt::Debug for Sessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sessions").field("room", &self.room).finish_non_exhaustive()
    }
}

impl Sessions {
    /// Sessions on the machine behind `probe`.
    pub fn new(probe: Arc<dyn Probe>, log: Arc<BootLog>) -> Self {
        Sessions { probe, log, room: Arc::new(Semaphore::new(MAX_SESSIONS)) }
    }

    /// Serves one, from its opening to its end.
    ///
    /// # Errors
    /// When the connection fails.
    pub async fn serve<S, V>(&self, opening: Opening<S, V>, report: GuestReport) -> Result<(), WireError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        V: Service<Verb = GuestVerb, Report = GuestReport>,
    {
        let GuestVerb::Open(session) = opening.verb.clone() else {
            return opening.refuse(Refusal::denied("this is no session")).await;
        };
        let Ok(_seat) = self.room.try_acquire() else {
            let words = format!("{MAX_SESSIONS} sessions are open in this guest; end one of them first");
            return opening.refuse(Refusal::new(RefusalKind::TooMany, words)).await;
        };
        match self.begin(session).await {
            Err(refusal) => opening.refuse(refusal).await,
            Ok(Begun::Log) => {
                let (_reader, mut writer) = split(opening.accept(report).await?);
                let ended = self.log.send(&mut writer).await?;
                finish(writer, ended).await
            }
            Ok(Begun::Command(running)) => {
                let (reader, writer) = split(opening.accept(report).await?);
                running.run(reader, writer).await
            }
            Ok(Begun::Port(stream)) => {
                let (reader, writer) = split(opening.accept(report).await?);
                forward(stream, reader, writer).await
            }
        }
    }

    async fn begin(&self, session: Session) -> Result<Begun, Refusal> {
        match session.bounded().map_err(Refusal::denied)? {
            Session::FirstBootLog => Ok(Begun::Log),
            Session::Forward { port } => {
                let connect = TcpStream::connect(("127.0.0.1", port));
                match tokio::time::timeout(CONNECT, connect).await {
                    Ok(Ok(stream)) => Ok(Begun::Port(stream)),
                    Ok(Err(error)) => Err(Refusal::denied(format!("port {port} of the guest: {error}"))),
                    Err(_) => Err(Refusal::denied(format!("port {port} of the guest does not answer"))),
                }
            }
            Session::Exec { command, stdin, tty } => {
                if *self.probe.sessions().borrow() != Seat::User {
                    return Err(Refusal::denied(
                        "nobody is logged in to the guest yet, as whom the command would run; wait until status.guest.stage is UserSession",
                    ));
                }
                Running::start(&*self.probe, &command, stdin, tty)
                    .map(|running| Begun::Command(Box::new(running)))
                    .map_err(|error| Refusal::denied(format!("exec: {error}")))
            }
        }
    }
}

enum Begun {
    Log,
    Command(Box<Running>),
    Port(TcpStream),
}

/// A command and the ends of what it reads and writes.
struct Running {
    // the group goes before the child does, which alone is all that tokio would end
    group: Group,
    child: Child,
    input: Option<Input>,
    terminal: Option<Arc<Terminal>>,
}

enum Input {
    Pipe(tokio::process::ChildStdin),
    Terminal(Arc<Terminal>),
}

impl Running {
    fn start(probe: &dyn Probe, arguments: &[String], stdin: bool, tty: bool) -> io::Result<Running> {
        let mut command = led(probe, arguments)?;
        let terminal = if tty {
            let (terminal, seat) = Terminal::open()?;
            command.stdin(seat.try_clone()?).stdout(seat.try_clone()?).stderr(seat).env("TERM", "xterm-256color");
            Some(Arc::new(terminal))
        } else {
            let input = if stdin { Stdio::piped() } else { Stdio::null() };
            command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped());
            None
        };
        let mut child = Command::from(command).kill_on_drop(true).spawn()?;
        let input = match &terminal {
            Some(terminal) => stdin.then(|| Input::Terminal(terminal.clone())),
            None => child.stdin.take().map(Input::Pipe),
        };
        Ok(Running { group: Group::of(&child), child, input, terminal })
    }

    async fn run<S>(mut self, reader: Reader<S>, mut writer: Writer<S>) -> Result<(), WireError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (frames, mut outgoing) = mpsc::channel(QUEUE);
        let (exit, exited) = watch::channel(false);
        let mut pumps = JoinSet::new();
        match &self.terminal {
            Some(terminal) => {
                pumps.spawn(pump(terminal.clone().reader(), frames.clone(), exited, Frame::Output));
            }
            None => {
                if let Some(output) = self.child.stdout.take() {
                    pumps.spawn(pump(output, frames.clone(), exited.clone(), Frame::Output));
                }
                if let Some(errors) = self.child.stderr.take() {
                    pumps.spawn(pump(errors, frames.clone(), exited, Frame::Errors));
                }
            }
        }
        let input = listen(reader, self.input.take(), self.terminal.clone(), frames);
        let mut listening = AbortOnDropHandle::new(tokio::spawn(input));
        let mut status = None;
        let ended = loop {
            tokio::select! {
                // the client has gone, or is not believed
                gone = &mut listening => break Err(gone.unwrap_or(Ok(())).err()),
                frame = outgoing.recv(), if status.is_none() || !pumps.is_empty() => {
                    let Some(frame) = frame else { continue };
                    if let Err(error) = writer.send(&frame).await {
                        break Err(Some(error));
                    }
                }
                Some(_) = pumps.join_next() => {}
                waited = self.child.wait(), if status.is_none() => {
                    status = Some(waited);
                    exit.send_replace(true);
                }
            }
            if pumps.is_empty() && status.is_some() {
                while let Ok(frame) = outgoing.try_recv() {
                    writer.send(&frame).await?;
                }
                break Ok(());
            }
        };
        drop(listening);
        // whatever it left running was its own, and ends before its client is told
        drop(self.group);
        match (ended, status) {
            (Ok(()), Some(Ok(status))) => finish(writer, Ended::Exit { code: exit_code(status) }).await,
            (Ok(()), Some(Err(error))) => finish(writer, Ended::failed(error)).await,
            (Err(Some(error)), _) => Err(error),
            _ => Ok(()),
        }
    }
}

/// Where programs are looked for: what a login shell of macOS has, and Homebrew's places.
const PATH: &str = "/usr/local/bin:/opt/homebrew/bin:/usr/bin:/bin:/usr/sbin:/sbin";

/// The command as the user who is logged in, as the leader of a session of its own ([`become_command`]), with nothing of
/// this program's environment.
fn led(probe: &dyn Probe, arguments: &[String]) -> io::Result<std::process::Command> {
    let (program, rest) = arguments.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut inner = std::process::Command::new(program);
    inner.args(rest);
    let inner = probe.as_user(inner)?;
    let mut command = std::process::Command::new(std::env::current_exe()?);
    command.arg("exec").arg("--").arg(inner.get_program()).args(inner.get_args()).env_clear().env("PATH", PATH);
    command.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
    if let Some(home) = inner.get_current_dir() {
        command.current_dir(home);
    }
    Ok(command)
}

/// The process group that a command leads ([`become_command`]). It ends with this, however this ends: a session may be
/// dropped anywhere, when the guest goes down, or by a panic.
struct Group(Option<Pid>);

impl Group {
    fn of(child: &Child) -> Group {
        Group(child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let Some(group) = self.0 else { return };
        // ESRCH: everybody has ended
        let _ = kill_process_group(group, Signal::HUP);
        let _ = kill_process_group(group, Signal::KILL);
    }
}

async fn finish<S>(mut writer: Writer<S>, ended: Ended) -> Result<(), WireError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    writer.send(&Frame::Ended(ended)).await?;
    writer.close().await
}

/// Output, until its end, or until it is quiet after the command's.
async fn pump<R>(mut from: R, frames: mpsc::Sender<Frame>, mut exited: watch::Receiver<bool>, frame: fn(Bytes) -> Frame)
where
    R: AsyncRead + Unpin,
{
    let mut buffer = vec![0; MAX_CHUNK];
    loop {
        let quiet = async {
            // its sender goes with the session
            drop(exited.wait_for(|exited| *exited).await);
            tokio::time::sleep(QUIET).await;
        };
        let count = tokio::select! {
            biased;
            // a terminal whose command has gone answers with an error: its end
            read = from.read(&mut buffer) => read.unwrap_or(0),
            () = quiet => 0,
        };
        if count == 0 || frames.send(frame(Bytes::copy_from_slice(&buffer[..count]))).await.is_err() {
            return;
        }
    }
}

/// What the client says, until it has gone.
async fn listen<S>(
    mut reader: Reader<S>,
    input: Option<Input>,
    terminal: Option<Arc<Terminal>>,
    frames: mpsc::Sender<Frame>,
) -> Result<(), WireError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (chunks, received) = mpsc::unbounded_channel();
    let mut chunks = Some(chunks);
    let (took, mut taken) = mpsc::unbounded_channel();
    let feeding = feed(input, received, took, frames);
    let mut credit = Credit::default();
    let reading = async {
        loop {
            let frame = tokio::select! {
                frame = reader.next() => frame?,
                Some(count) = taken.recv() => {
                    credit.earn(count)?;
                    continue;
                }
            };
            match frame {
                None => return Ok(()),
                Some(Frame::Input(bytes)) => {
                    while let Ok(count) = taken.try_recv() {
                        credit.earn(count)?;
                    }
                    credit.spend(bytes.len())?;
                    // what comes after the end of input is nobody's
                    if let Some(chunks) = &chunks {
                        let _unread = chunks.send(bytes);
                    }
                }
                Some(Frame::EndOfInput) => chunks = None,
                Some(Frame::Resize(size)) => {
                    if let Some(terminal) = &terminal
                        && let Err(error) = terminal.resize(size)
                    {
                        tracing::debug!(%error, "a terminal keeps its size");
                    }
                }
                Some(_) => return Err(WireError::OutOfBounds("it sends what only a guest says".to_owned())),
            }
        }
    };
    let fed = async {
        feeding.await;
        std::future::pending().await
    };
    tokio::select! {
        ended = reading => ended,
        never = fed => never,
    }
}

/// Gives input to the command, and says how much it took.
async fn feed(
    input: Option<Input>,
    mut chunks: mpsc::UnboundedReceiver<Bytes>,
    took: mpsc::UnboundedSender<u32>,
    frames: mpsc::Sender<Frame>,
) {
    let mut input = input;
    while let Some(bytes) = chunks.recv().await {
        let written = match &mut input {
            Some(Input::Pipe(pipe)) => pipe.write_all(&bytes).await,
            Some(Input::Terminal(terminal)) => terminal.write_all(&bytes).await,
            None => Ok(()),
        };
        if written.is_err() {
            // it reads no more; the rest is swallowed, as a shell's pipe would not be missed
            input = None;
        }
        let count = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        if took.send(count).is_err() || frames.send(Frame::Taken(count)).await.is_err() {
            return;
        }
    }
    // the end of a pipe is the end of input; a terminal has none
}

async fn forward<S>(stream: TcpStream, reader: Reader<S>, mut writer: Writer<S>) -> Result<(), WireError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut from, to) = stream.into_split();
    let (frames, mut outgoing) = mpsc::channel(QUEUE);
    let output = frames.clone();
    let _sending = AbortOnDropHandle::new(tokio::spawn(async move {
        let mut buffer = vec![0; MAX_CHUNK];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            if output.send(Frame::Output(Bytes::copy_from_slice(&buffer[..count]))).await.is_err() {
                return;
            }
        }
        // the connection's far side is done: so is the session
        let _gone = output.send(Frame::Ended(Ended::Over)).await;
    }));
    let mut listening = AbortOnDropHandle::new(tokio::spawn(receive(reader, to, frames)));
    loop {
        tokio::select! {
            gone = &mut listening => return gone.unwrap_or(Ok(())),
            frame = outgoing.recv() => match frame {
                Some(Frame::Ended(ended)) => return finish(writer, ended).await,
                Some(frame) => writer.send(&frame).await?,
                None => return Ok(()),
            },
        }
    }
}

/// Input for a port.
async fn receive<S>(
    mut reader: Reader<S>,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    frames: mpsc::Sender<Frame>,
) -> Result<(), WireError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    while let Some(frame) = reader.next().await? {
        match frame {
            Frame::Input(bytes) => {
                // a window is all that a client has out, so this waits for no more than one
                to.write_all(&bytes).await?;
                let count = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
                if frames.send(Frame::Taken(count)).await.is_err() {
                    return Ok(());
                }
            }
            Frame::EndOfInput => to.shutdown().await?,
            _ => return Err(WireError::OutOfBounds("it sends what only a guest says".to_owned())),
        }
    }
    Ok(())
}

/// When this program was started by a session (`macrack-guest exec -- PROGRAM …`): becomes that command, as the
/// leader of a process session of its own, on the terminal that its input is, if it is one. Returns only when it
/// was not, or could not: then with the code that a shell has for that.
pub fn become_command() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != "exec" || arguments.next()? != "--" {
        return None;
    }
    let program = arguments.next()?;
    let error = lead(&program, arguments.collect());
    eprintln!("{}: {error}", program.display());
    Some(ExitCode::from(if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 }))
}

fn lead(program: &OsString, arguments: Vec<OsString>) -> io::Error {
    if let Err(error) = rustix::process::setsid() {
        return error.into();
    }
    let input = io::stdin();
    if rustix::termios::isatty(&input)
        && let Err(error) = rustix::process::ioctl_tiocsctty(input.as_fd())
    {
        return error.into();
    }
    std::process::Command::new(program).args(arguments).exec()
}
