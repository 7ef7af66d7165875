//! A real macOS guest. Type-checked and linted for macOS; not yet run on hardware.
//!
//! Only what asks the system stands here. What follows from its answers is decided in [`crate::probe`]
//! and [`crate::disk`], which are tested anywhere.

use std::fs::{File, OpenOptions, metadata};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, chown};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use macrack_wire::Listen;
use macrack_wire::guest::{HOST_CID, VSOCK_PORT};
use nix::sys::event::{EvFlags, EventFilter, FilterFlag, KEvent, Kqueue};
use tokio::sync::watch;
use tokio_vsock::{VMADDR_CID_ANY, VsockAddr, VsockListener, VsockStream};

use crate::bounded::{self, Ended};
use crate::disk;
use crate::probe::{
    FIRST_USER, Facts, Probe, Session, asuser, ioreg_value, reachable, sealed, session, until_next_look,
};

/// The file whose owner is whoever sits at the machine.
const CONSOLE: &str = "/dev/console";
/// The volume that fills up: the system's own is sealed.
const DATA_VOLUME: &str = "/System/Volumes/Data";
/// How long one of the system's own tools may take to answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// Before the console is looked for again after it could not be followed.
const CONSOLE_WAIT: Duration = Duration::from_secs(2);

/// The machine.
#[derive(Debug)]
pub struct Mac {
    sessions: watch::Receiver<Session>,
    closer: watch::Receiver<Closer>,
}

/// What takes seconds to find out.
#[derive(Debug, Clone, Copy, Default)]
struct Closer {
    first_launch_accepted: Option<bool>,
    system_sealed: Option<bool>,
}

impl Mac {
    /// Begins to follow who sits at the machine. Needs a tokio runtime.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start() -> io::Result<Self> {
        let (seen, sessions) = watch::channel(Session::None);
        thread::Builder::new().name("console".to_owned()).spawn(move || watch_console(&seen))?;
        let (found, closer) = watch::channel(Closer::default());
        tokio::spawn(look_closer(sessions.clone(), found));
        Ok(Mac { sessions, closer })
    }

    /// The facts of this moment, the slow ones included, for a person who waits for them.
    pub async fn look() -> (Session, Facts) {
        let closer = Closer { first_launch_accepted: first_launch().await, system_sealed: system_sealed().await };
        (look_at_console().unwrap_or(Session::None), facts(closer))
    }
}

impl Probe for Mac {
    fn sessions(&self) -> watch::Receiver<Session> {
        self.sessions.clone()
    }

    fn facts(&self) -> Facts {
        facts(*self.closer.borrow())
    }

    /// Virtualization.framework derives it from the machine identifier, of which each clone gets its own.
    fn machine(&self) -> io::Result<String> {
        let printed = Command::new("/usr/sbin/ioreg").args(["-rd1", "-c", "IOPlatformExpertDevice"]).output()?;
        let printed = String::from_utf8_lossy(&printed.stdout);
        ioreg_value(&printed, "IOPlatformUUID").ok_or_else(|| io::Error::other("ioreg names no IOPlatformUUID"))
    }

    fn as_user(&self, program: Command) -> io::Result<Command> {
        let mut command = Command::new("/bin/launchctl");
        command.args(asuser(console_user()?, &program));
        if let Some(directory) = program.get_current_dir() {
            command.current_dir(directory);
        }
        Ok(command)
    }

    fn hand_over(&self, path: &Path) -> io::Result<()> {
        chown(path, Some(console_user()?), None)
    }

    fn shut_down(&self) -> io::Result<()> {
        let mut shutdown =
            Command::new("/sbin/shutdown").args(["-h", "now"]).stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
        thread::spawn(move || match shutdown.wait() {
            Ok(status) if status.success() => {}
            ended => tracing::error!(?ended, "the shutdown failed; the host presses the power button next"),
        });
        Ok(())
    }
}

fn facts(closer: Closer) -> Facts {
    let unreadable = |what: &'static str| move |error: &io::Error| tracing::warn!(%error, "{what} cannot be read");
    let root = Path::new("/");
    Facts {
        os_version: disk::os_version(root),
        xcode_version: disk::newest_xcode(root).map(|xcode| xcode.version),
        disk_free_bytes: disk::free_bytes(Path::new(DATA_VOLUME)).inspect_err(unreadable("free space")).ok(),
        addresses: addresses().inspect_err(unreadable("addresses")).unwrap_or_default(),
        first_launch_accepted: closer.first_launch_accepted,
        system_sealed: closer.system_sealed,
    }
}

fn addresses() -> io::Result<Vec<IpAddr>> {
    let mut found: Vec<IpAddr> = nix::ifaddrs::getifaddrs()?
        .filter_map(|interface| {
            let address = interface.address?;
            let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
        })
        .filter(reachable)
        .collect();
    // v4 first: that is the one people connect to
    found.sort();
    found.dedup();
    Ok(found)
}

/// The uid of the person at the console.
fn console_user() -> io::Result<u32> {
    let uid = metadata(CONSOLE)?.uid();
    if uid < FIRST_USER {
        return Err(io::Error::new(io::ErrorKind::NotFound, "nobody is logged in"));
    }
    Ok(uid)
}

fn look_at_console() -> io::Result<Session> {
    let console = metadata(CONSOLE).inspect_err(|error| tracing::warn!(%error, "{CONSOLE} cannot be read")).ok();
    // pgrep(1): 0 found, 1 not found, else it could not look
    let found = Command::new("/usr/bin/pgrep").args(["-q", "-x", "loginwindow"]).status()?.code();
    match found {
        Some(code @ (0 | 1)) => Ok(session(console.map(|console| console.uid()), code == 0)),
        other => Err(io::Error::other(format!("pgrep ended with {other:?}"))),
    }
}

/// Follows the console for as long as anybody listens.
fn watch_console(seen: &watch::Sender<Session>) {
    while !seen.is_closed() {
        if let Err(error) = follow_console(seen) {
            tracing::warn!(%error, "the console cannot be followed; it is looked at again in a moment");
            thread::sleep(CONSOLE_WAIT);
        }
    }
}

/// Publishes the session until the console is revoked: loginwindow changes its owner, and the kernel
/// tells of that. Nothing tells when loginwindow itself starts, see [`until_next_look`].
fn follow_console(seen: &watch::Sender<Session>) -> io::Result<()> {
    let flags = nix::libc::O_EVTONLY | nix::libc::O_NOCTTY;
    let console: File = OpenOptions::new().read(true).custom_flags(flags).open(CONSOLE)?;
    let queue = Kqueue::new()?;
    let gone = FilterFlag::NOTE_REVOKE | FilterFlag::NOTE_DELETE;
    let ident = usize::try_from(console.as_raw_fd()).map_err(io::Error::other)?;
    let owner = KEvent::new(
        ident,
        EventFilter::EVFILT_VNODE,
        EvFlags::EV_ADD | EvFlags::EV_CLEAR,
        FilterFlag::NOTE_ATTRIB | gone,
        0,
        0,
    );
    queue.kevent(&[owner], &mut [], None)?;
    while !seen.is_closed() {
        let session = look_at_console()?;
        seen.send_if_modified(|last| std::mem::replace(last, session) != session);
        let wait = nix::libc::timespec {
            tv_sec: i64::try_from(until_next_look(session).as_secs()).unwrap_or(i64::MAX),
            tv_nsec: 0,
        };
        let mut told = [owner];
        let count = match queue.kevent(&[], &mut told, Some(wait)) {
            Err(nix::errno::Errno::EINTR) => 0,
            count => count?,
        };
        if count > 0 && told[0].fflags().intersects(gone) {
            return Ok(());
        }
    }
    Ok(())
}

/// Finds out what takes seconds: at the start, and again whenever the session changes, for that is when
/// somebody may have accepted a licence.
async fn look_closer(mut sessions: watch::Receiver<Session>, found: watch::Sender<Closer>) {
    let system_sealed = system_sealed().await;
    loop {
        found.send_replace(Closer { first_launch_accepted: first_launch().await, system_sealed });
        if sessions.changed().await.is_err() {
            return;
        }
    }
}

/// Exit code 0 of `xcodebuild -checkFirstLaunchStatus`: neither a licence nor a package waits.
async fn first_launch() -> Option<bool> {
    let xcode = disk::newest_xcode(Path::new("/"))?;
    let mut command = Command::new("/usr/bin/xcodebuild");
    command.arg("-checkFirstLaunchStatus").env("DEVELOPER_DIR", xcode.app.join("Contents/Developer"));
    match bounded::run(command, PATIENCE).await {
        Ok(bounded::Outcome { ended: Ended::Exited(code), .. }) => Some(code == 0),
        other => {
            tracing::warn!(?other, "xcodebuild does not say whether its first launch is done");
            None
        }
    }
}

async fn system_sealed() -> Option<bool> {
    let mut command = Command::new("/usr/bin/csrutil");
    command.args(["authenticated-root", "status"]);
    match bounded::run(command, PATIENCE).await {
        Ok(outcome) => sealed(&outcome.output),
        Err(error) => {
            tracing::warn!(%error, "csrutil does not say whether the system volume is sealed");
            None
        }
    }
}

/// The guest's vsock port, for the host alone.
#[derive(Debug)]
pub struct HostOnly(VsockListener);

impl HostOnly {
    /// Listens on [`VSOCK_PORT`].
    ///
    /// # Errors
    /// When the port is taken, or this is no guest of Virtualization.framework.
    pub fn bind() -> io::Result<Self> {
        let any = VsockAddr::new(VMADDR_CID_ANY, VSOCK_PORT);
        let named = |error| io::Error::other(format!("vsock port {VSOCK_PORT} cannot be listened on: {error}"));
        VsockListener::bind(any).map(HostOnly).map_err(named)
    }
}

impl Listen for HostOnly {
    type Stream = VsockStream;

    async fn accept(&self) -> io::Result<VsockStream> {
        let (stream, peer) = self.0.accept().await?;
        if peer.cid() != HOST_CID {
            let why = format!("a peer at vsock address {} was turned away: only the host is served", peer.cid());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        Ok(stream)
    }
}
