//! How a VM process that launchd starts tells its launcher how far it came: nothing inherits anything there.
//!
//! ```text
//!   launcher binds up.sock ─▶ launchd starts the process ─▶ it connects, says "process 4711"
//!                                                            then "listening" or "held", or just ends
//! ```
//!
//! Invariant: what the launcher hears is the process' own words or its end; a process that never came is told by the
//! deadline, and by nothing else.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::launch::LISTENING;

/// Said when another process runs the VM.
const HELD: &str = "held";
const PROCESS: &str = "process ";

/// The process' side. Without a launcher it says nothing to anybody.
#[derive(Debug)]
pub struct Announcer(Option<UnixStream>);

impl Announcer {
    /// Reports to the launcher at `socket`, if one waits there; one that has gone is no reason to end.
    pub fn new(socket: &Path) -> Self {
        let stream = match UnixStream::connect(socket) {
            Ok(stream) => Some(stream),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                tracing::warn!(%error, "the launcher has gone");
                None
            }
        };
        let mut announcer = Announcer(stream);
        announcer.say(&format!("{PROCESS}{}", std::process::id()));
        announcer
    }

    /// The control socket takes connections.
    pub fn listening(&mut self) {
        self.say(LISTENING);
        self.0 = None;
    }

    /// Another process runs this VM.
    pub fn held(&mut self) {
        self.say(HELD);
        self.0 = None;
    }

    fn say(&mut self, word: &str) {
        if let Some(stream) = &mut self.0
            && let Err(error) = writeln!(stream, "{word}")
        {
            tracing::warn!(%error, "the launcher has gone");
            self.0 = None;
        }
    }
}

/// What a launcher heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// This process serves its control socket.
    Listening(u32),
    /// This process found that another one runs the VM.
    Held(u32),
    /// This process ended; `state.json` may say why.
    Ended(u32),
    /// No process came within the patience.
    Nobody,
}

/// Waits for the process of a job that was started; `patience` is for it to come and say how it stands.
///
/// # Errors
/// When the listener fails, or what came is no process of ours, or says nothing.
pub fn hear(listener: UnixListener, patience: Duration) -> io::Result<Heard> {
    let until = Instant::now() + patience;
    let (sender, came) = channel();
    // std cannot wait for a connection with a deadline; the thread ends with this short-lived process
    thread::spawn(move || sender.send(listener.accept().map(|(stream, _)| stream)));
    let stream = match came.recv_timeout(patience) {
        Ok(stream) => stream?,
        Err(RecvTimeoutError::Timeout) => return Ok(Heard::Nobody),
        Err(RecvTimeoutError::Disconnected) => return Err(io::Error::other("the listening thread ended")),
    };
    let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    stream.set_read_timeout(Some(left))?;
    let mut lines = BufReader::new(stream).lines();
    let silent = |error: io::Error| match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => io::Error::new(
            io::ErrorKind::TimedOut,
            format!("its process came, and did not say how it stands within {patience:?}"),
        ),
        _ => error,
    };
    let first = lines.next().transpose().map_err(silent)?.unwrap_or_default();
    let pid = first.strip_prefix(PROCESS).and_then(|pid| pid.parse().ok());
    let pid = pid.ok_or_else(|| io::Error::other(format!("the launcher was told {first:?}, not a process id")))?;
    Ok(match lines.next().transpose().map_err(silent)? {
        None => Heard::Ended(pid),
        Some(word) if word == LISTENING => Heard::Listening(pid),
        Some(word) if word == HELD => Heard::Held(pid),
        Some(word) => return Err(io::Error::other(format!("the launcher was told {word:?}"))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    fn heard(process: impl FnOnce(&mut Announcer)) -> Heard {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("up.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let mut announcer = Announcer::new(&socket);
        process(&mut announcer);
        drop(announcer);
        hear(listener, SOON).unwrap()
    }

    #[test]
    fn a_launcher_hears_how_its_process_came_up() {
        let me = std::process::id();
        assert_eq!(heard(Announcer::listening), Heard::Listening(me));
        assert_eq!(heard(Announcer::held), Heard::Held(me));
        assert_eq!(heard(|_| ()), Heard::Ended(me));
    }

    #[test]
    fn a_process_that_never_comes_is_told_by_the_deadline() {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("up.sock")).unwrap();
        assert_eq!(hear(listener, Duration::from_millis(20)).unwrap(), Heard::Nobody);
    }

    #[test]
    fn a_process_that_comes_and_falls_silent_is_told_in_words() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("up.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let _silent = Announcer::new(&socket);
        let error = hear(listener, Duration::from_millis(50)).unwrap_err();
        assert!(error.to_string().contains("did not say how it stands within 50ms"), "{error}");
    }

    #[test]
    fn a_stranger_on_the_socket_is_no_process_of_ours() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("up.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        writeln!(UnixStream::connect(&socket).unwrap(), "listening").unwrap();
        assert!(hear(listener, SOON).unwrap_err().to_string().contains("not a process id"));
    }

    #[test]
    fn a_process_without_a_launcher_goes_on() {
        let mut announcer = Announcer::new(Path::new("/nonexistent/up.sock"));
        announcer.listening();
    }
}
