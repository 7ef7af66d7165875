//! What the tenant of this VM may read: its journal, as it is written.
//!
//! Invariant: only what [`Notes::say`] and [`Notes::follow_first_boot`] are given gets in: words about the VM
//! that name nothing of the host, and bytes of the guest's own script.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use macrack_wire::journal::{Journal, MAX_LINE, Source, read_from};
use macrack_wire::link::Link;
use macrack_wire::session::{Frame, MAX_CHUNK, Session, split};
use macrack_wire::{VmDir, WireError};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

use crate::hypervisor::{GuestPort, begin, reach};

/// The most that one script may write into the journal (16 MiB); a guest keeps less than that itself.
const MAX_BOOT: u64 = 16 * 1024 * 1024;

/// The journal of this process' VM.
#[derive(Debug)]
pub struct Notes {
    path: PathBuf,
    journal: Mutex<Option<Journal>>,
    length: watch::Sender<u64>,
}

impl Notes {
    /// The journal of `dir`. One that cannot be opened is done without: the VM is worth more.
    pub fn open(dir: &VmDir) -> Arc<Self> {
        let journal = Journal::open(&dir.journal()).inspect_err(|error| tracing::error!(%error, "no journal")).ok();
        let length = watch::Sender::new(journal.as_ref().map_or(0, Journal::length));
        Arc::new(Notes { path: dir.journal(), journal: Mutex::new(journal), length })
    }

    /// Adds words about the VM.
    pub fn say(&self, words: &str) {
        self.add(Source::Vm, words);
    }

    fn add(&self, source: Source, text: &str) {
        let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(journal) = journal.as_mut() else { return };
        if let Err(error) = journal.add(Timestamp::now(), source, text) {
            tracing::warn!(%error, "the journal lacks a line");
        }
        self.length.send_replace(journal.length());
    }

    /// Sends the journal from byte `from` on, and what is added, until the reader has gone.
    ///
    /// # Errors
    /// When the connection fails.
    pub async fn send<S>(&self, link: Link<S>, mut from: u64) -> Result<(), WireError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let (mut reader, mut writer) = split(link);
        let mut length = self.length.subscribe();
        loop {
            length.mark_unchanged();
            loop {
                let (at, bytes) = self.read(from)?;
                if bytes.is_empty() {
                    break;
                }
                from = at + bytes.len() as u64;
                writer.send(&Frame::Output(bytes.into())).await?;
            }
            tokio::select! {
                changed = length.changed() => if changed.is_err() { return Ok(()) },
                said = reader.next() => if said?.is_none() { return Ok(()) },
            }
        }
    }

    fn read(&self, from: u64) -> io::Result<(u64, Vec<u8>)> {
        // a journal that is being shortened is not read half way
        let _still = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        read_from(&self.path, from, MAX_CHUNK)
    }

    /// Takes in what the guest's first-boot script writes, until it has ended.
    pub async fn follow_first_boot<P: GuestPort>(self: Arc<Self>, port: P) {
        if let Err(error) = self.copy_first_boot(port).await {
            tracing::warn!(%error, "the first boot's output is not followed any more");
            self.say("what the first-boot script writes is not seen any more");
        }
    }

    async fn copy_first_boot<P: GuestPort>(&self, port: P) -> Result<(), WireError> {
        let (mut reader, _writer) = split(begin(reach(&port).await?, Session::FirstBootLog).await?);
        let (mut rest, mut taken) = (Vec::new(), 0);
        while let Some(frame) = reader.next().await? {
            let Frame::Output(bytes) = frame else { break };
            taken += bytes.len() as u64;
            if taken > MAX_BOOT {
                return Err(WireError::OutOfBounds("its first boot says too much".to_owned()));
            }
            rest.extend_from_slice(&bytes);
            let whole = match rest.iter().rposition(|byte| *byte == b'\n') {
                Some(end) => end + 1,
                None if rest.len() > MAX_LINE => rest.len(),
                None => continue,
            };
            let lines: Vec<u8> = rest.drain(..whole).collect();
            self.add(Source::FirstBoot, &String::from_utf8_lossy(&lines));
        }
        if !rest.is_empty() {
            self.add(Source::FirstBoot, &String::from_utf8_lossy(&rest));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::time::Duration;

    use tokio::io::DuplexStream;
    use tokio::time::timeout;

    use super::*;

    /// Of a guest in which nothing listens.
    struct Deaf;

    impl GuestPort for Deaf {
        type Stream = DuplexStream;

        async fn connect(&self) -> io::Result<DuplexStream> {
            pending().await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_guest_that_takes_no_connection_is_not_waited_for_and_the_journal_says_what_it_lacks() {
        let folder = tempfile::tempdir().unwrap();
        let dir = VmDir::new(folder.path());
        let followed = Notes::open(&dir).follow_first_boot(Deaf);
        timeout(Duration::from_secs(60), followed).await.expect("it is waited for");
        let journal = std::fs::read_to_string(dir.journal()).unwrap();
        assert!(journal.contains("what the first-boot script writes is not seen any more"), "{journal}");
    }
}
