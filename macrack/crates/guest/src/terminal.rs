//! A pseudo-terminal: the far end of somebody's real one.

use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use macrack_wire::session::TerminalSize;
use rustix::fs::{Mode, OFlags};
use rustix::io::FdFlags;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::Winsize;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, ReadBuf};

/// The near end, which shows what the command writes and takes what is typed.
#[derive(Debug)]
pub struct Terminal(AsyncFd<OwnedFd>);

#[allow(unsafe_code, reason = "the only way to register a descriptor of one's own")]
fn registered(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the descriptor is owned by what is registered, so it is open, and the same, for as long.
    unsafe { AsyncFd::register(fd) }.map_err(|error| error.into_parts().1)
}

/// What the command writes.
#[derive(Debug)]
pub struct TerminalReader(Arc<Terminal>);

impl Terminal {
    /// A terminal, and the end of it that a command gets. Needs a tokio runtime.
    ///
    /// # Errors
    /// When the operating system has none left.
    pub fn open() -> io::Result<(Terminal, OwnedFd)> {
        let near = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
        rustix::io::fcntl_setfd(&near, FdFlags::CLOEXEC)?;
        grantpt(&near)?;
        unlockpt(&near)?;
        let name = ptsname(&near, Vec::new())?;
        let far = rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?;
        rustix::io::ioctl_fionbio(&near, true)?;
        Ok((Terminal(registered(near)?), far))
    }

    /// Changes its size; the command is told by its terminal.
    ///
    /// # Errors
    /// When the operating system refuses.
    pub fn resize(&self, size: TerminalSize) -> io::Result<()> {
        let size = Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
        Ok(rustix::termios::tcsetwinsize(self.0.get_ref(), size)?)
    }

    /// Types `bytes`.
    ///
    /// # Errors
    /// When the command has gone.
    pub async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let mut ready = self.0.writable().await?;
            match ready.try_io(|fd| Ok(rustix::io::write(fd.get_ref(), bytes)?)) {
                Ok(written) => bytes = &bytes[written?..],
                Err(_would_block) => {}
            }
        }
        Ok(())
    }

    /// Its reading side; one reader at a time.
    pub fn reader(self: Arc<Self>) -> TerminalReader {
        TerminalReader(self)
    }
}

impl AsyncRead for TerminalReader {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut ready = ready!(self.0.0.poll_read_ready(cx))?;
            let space = buffer.initialize_unfilled();
            if let Ok(read) = ready.try_io(|fd| Ok(rustix::io::read(fd.get_ref(), space)?)) {
                let count = read?;
                buffer.advance(count);
                return Poll::Ready(Ok(()));
            }
        }
    }
}
