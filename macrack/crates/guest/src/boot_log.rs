//! What the first-boot script writes: kept on the disk, and followed by the host while it grows.
//!
//! Invariant: the file never grows past [`MAX_LOG`]; the script does not wait for whoever follows.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use macrack_wire::WireError;
use macrack_wire::session::{Ended, Frame, MAX_CHUNK, Writer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::net::unix::pipe;
use tokio::sync::watch;

/// The most bytes that are kept (8 MiB).
pub const MAX_LOG: u64 = 8 * 1024 * 1024;

/// How far the log has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Progress {
    /// Bytes in the file.
    written: u64,
    /// More may come.
    open: bool,
}

/// The log of one disk.
#[derive(Debug)]
pub struct BootLog {
    path: PathBuf,
    progress: watch::Sender<Progress>,
}

impl BootLog {
    /// The log at `path`, as an earlier boot left it; `awaited` when a script is still to write it.
    pub fn new(path: PathBuf, awaited: bool) -> Arc<Self> {
        let written = path.metadata().map_or(0, |file| file.len());
        Arc::new(BootLog { path, progress: watch::Sender::new(Progress { written, open: awaited }) })
    }

    /// A script is to write it, or none is any more.
    pub fn await_script(&self, awaited: bool) {
        self.progress.send_modify(|progress| progress.open = awaited);
    }

    /// Drops what another machine, of whose disk this one is a clone, has left here: nobody is shown its words.
    pub fn forget(&self) {
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::error!(%error, "what another machine's first boot wrote cannot be removed; it is not shown");
            }
            _ => {}
        }
        self.progress.send_modify(|progress| progress.written = 0);
    }

    /// Begins the file anew; what is written into the answered pipe ends up in it. Needs a tokio runtime.
    ///
    /// # Errors
    /// When the operating system refuses.
    pub fn begin(self: &Arc<Self>) -> io::Result<OwnedFd> {
        let file = File::create(&self.path)?;
        let (reader, writer) = io::pipe()?;
        let reader = pipe::Receiver::from_owned_fd(reader.into())?;
        self.progress.send_replace(Progress { written: 0, open: true });
        tokio::spawn(self.clone().copy(reader, file));
        Ok(writer.into())
    }

    async fn copy(self: Arc<Self>, mut from: pipe::Receiver, mut file: File) {
        let mut buffer = vec![0; MAX_CHUNK];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            let room = MAX_LOG.saturating_sub(self.progress.borrow().written);
            let kept = count.min(usize::try_from(room).unwrap_or(usize::MAX));
            if kept == 0 {
                continue;
            }
            if let Err(error) = file.write_all(&buffer[..kept]) {
                tracing::warn!(%error, "the first-boot script's output cannot be kept");
                continue;
            }
            self.progress.send_modify(|progress| progress.written += kept as u64);
        }
        self.await_script(false);
    }

    /// Sends all of it to a host, and what is added, until the script has ended.
    ///
    /// # Errors
    /// When the host has gone.
    pub async fn send<S: AsyncRead + AsyncWrite + Unpin>(&self, writer: &mut Writer<S>) -> Result<Ended, WireError> {
        let mut progress = self.progress.subscribe();
        let mut sent = 0;
        loop {
            let now = *progress.borrow_and_update();
            if now.written < sent {
                sent = 0;
            }
            while sent < now.written {
                match self.chunk(sent) {
                    Ok(bytes) if bytes.is_empty() => break,
                    Ok(bytes) => {
                        sent += bytes.len() as u64;
                        writer.send(&Frame::Output(bytes.into())).await?;
                    }
                    Err(error) => return Ok(Ended::failed(error)),
                }
            }
            if !now.open || progress.changed().await.is_err() {
                return Ok(Ended::Over);
            }
        }
    }

    fn chunk(&self, from: u64) -> io::Result<Vec<u8>> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        file.take(MAX_CHUNK as u64).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}
