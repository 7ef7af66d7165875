//! The thread that turns the bytes of one blob into a region of the disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::{Job, Observer, Pull};
use crate::digest::Hasher;
use crate::error::Error;
use crate::lz4::{Decoder, Lz4Error};
use crate::sparse::Writer;

/// Pieces that may wait for the disk; a piece is what one read of the network gave.
const WAITING: usize = 16;

/// What ended a worker before its time.
#[derive(Debug)]
pub(super) enum Fault {
    /// What came is not what the manifest says.
    Wrong(String),
    /// The disk, or whoever asked, does not let it go on.
    Ended(Error),
}

impl From<Lz4Error> for Fault {
    fn from(error: Lz4Error) -> Self {
        Fault::Wrong(error.to_string())
    }
}

/// A worker and the way to it.
pub(super) struct Worker {
    pieces: mpsc::Sender<Piece>,
    handle: JoinHandle<Result<(), Fault>>,
    placed: Arc<AtomicU64>,
    observer: Arc<dyn Observer>,
}

enum Piece {
    Bytes(Bytes),
    End,
}

impl Worker {
    pub(super) fn start(pull: &Pull, job: Job) -> Worker {
        let (pieces, waiting) = mpsc::channel(WAITING);
        let placed = Arc::new(AtomicU64::new(0));
        let (observer, count) = (pull.observer.clone(), placed.clone());
        let handle = pull.workers.spawn_blocking(move || work(&job, waiting, &*observer, &count));
        Worker { pieces, handle, placed, observer: pull.observer.clone() }
    }

    /// Gives it more; false when it has ended.
    pub(super) async fn push(&self, bytes: Bytes) -> bool {
        self.pieces.send(Piece::Bytes(bytes)).await.is_ok()
    }

    /// Ends it, after all has come.
    pub(super) async fn finish(self) -> Result<(), Fault> {
        // one that has ended already says why below
        let _ = self.pieces.send(Piece::End).await;
        self.ended().await
    }

    async fn ended(self) -> Result<(), Fault> {
        let Worker { pieces, handle, placed, observer } = self;
        drop(pieces);
        let ended = handle.await.unwrap_or_else(|ended| {
            Err(Fault::Ended(Error::io("a thread that unpacks")(std::io::Error::other(ended))))
        });
        if ended.is_err() {
            observer.undone(placed.load(Ordering::Relaxed));
        }
        ended
    }

    /// Drops what it has done.
    pub(super) async fn discard(self) {
        // without an end it counts as failed, which is what is wanted
        drop(self.ended().await);
    }
}

fn work(
    job: &Job,
    mut pieces: mpsc::Receiver<Piece>,
    observer: &dyn Observer,
    placed: &AtomicU64,
) -> Result<(), Fault> {
    let writing = || format!("write {}", job.name);
    let mut coded = Hasher::default();
    let mut decoder = Decoder::new(job.raw_size);
    let mut writer = Writer::new(&job.file, job.offset, job.raw_size, job.dirty);
    let mut put = |raw: &[u8]| {
        let more = writer.write(raw).map_err(|error| match error.kind() {
            std::io::ErrorKind::InvalidData => Fault::Wrong(error.to_string()),
            _ => Fault::Ended(Error::io(writing())(error)),
        })?;
        if more > 0 {
            placed.fetch_add(more, Ordering::Relaxed);
            observer.done(more);
            observer.go_on().map_err(|words| Fault::Ended(Error::Stopped(words)))?;
        }
        Ok::<(), Fault>(())
    };
    loop {
        match pieces.blocking_recv() {
            Some(Piece::Bytes(bytes)) => {
                coded.update(&bytes);
                if job.coded { decoder.push(&bytes, &mut put)? } else { put(&bytes)? }
            }
            Some(Piece::End) => break,
            None => return Err(Fault::Wrong("it was given up".to_owned())),
        }
    }
    let found = coded.finish();
    if found != job.blob.digest {
        return Err(Fault::Wrong(format!("what came has the digest {found}, the manifest says {}", job.blob.digest)));
    }
    if job.coded {
        decoder.finish()?;
    }
    let (rest, raw) = writer.finish().map_err(|error| Fault::Ended(Error::io(writing())(error)))?;
    placed.fetch_add(rest, Ordering::Relaxed);
    observer.done(rest);
    match &job.raw_digest {
        Some(wanted) if *wanted != raw => {
            Err(Fault::Wrong(format!("it unpacks to the digest {raw}, the manifest says {wanted}")))
        }
        _ => Ok(()),
    }
}
