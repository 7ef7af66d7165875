//! A golden out of a registry: chunks at once, each checked before it counts.
//!
//! ```text
//!   chunk ─▶ on the disk and in the journal? ─▶ its digest fits ─────────────────▶ done
//!              │ no                              │ no
//!              └───────────▶ fetch ◀─────────────┘
//!                             │ cut: the rest, by range     │ wrong: once more from the start, then it is refused
//! ```
//!
//! Invariant: a pull that ends well has put every byte of `disk.img` and `aux.img` where the digests say. One that was
//! cut, by whatever, leaves a journal of what was whole; the next one hashes that and fetches the rest.

mod fetch;
mod journal;
mod worker;

use std::fs::{File, OpenOptions};
use std::path::Path;
use std::sync::{Arc, Mutex};

use futures::StreamExt;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::client::Client;
use crate::digest::Hasher;
use crate::error::Error;
use crate::layout::{Blob, Golden, VmConfig, judge_image_config};
use crate::reference::Reference;
use crate::sparse::read_region;
use journal::Journal;

/// Chunks that are fetched at once.
pub const PARALLEL: usize = 6;

/// Told of a pull or a push under way, and asked whether it may go on.
pub trait Observer: Send + Sync + 'static {
    /// So many more raw bytes are where they belong.
    fn done(&self, bytes: u64);
    /// So many of them were of no use and will come again.
    fn undone(&self, bytes: u64);
    /// Asked every megabyte or so; an error, in words, ends it.
    ///
    /// # Errors
    /// When it is to end.
    fn go_on(&self) -> Result<(), String>;
}

/// What every part of a pull shares.
#[derive(Clone)]
struct Pull {
    client: Client,
    reference: Reference,
    observer: Arc<dyn Observer>,
    cancel: CancellationToken,
    workers: TaskTracker,
}

/// A blob, and the region of a file that it becomes.
#[derive(Clone)]
struct Job {
    blob: Blob,
    file: Arc<File>,
    /// What the file is, in words.
    name: String,
    offset: u64,
    raw_size: u64,
    raw_digest: Option<String>,
    /// It is LZ4; otherwise the bytes themselves.
    coded: bool,
    /// An earlier attempt may have written to the region.
    dirty: bool,
}

/// Pulls the disk and the auxiliary storage of `golden` into `disk.img` and `aux.img` in the directory `into`, which is
/// there; what an earlier pull of the same golden left in it is used. Returns what the golden says of its VM.
///
/// # Errors
/// Closed classes, see [`Error`]; after [`crate::Class::Transient`] the directory is of use to the next try.
pub async fn pull(
    client: &Client,
    reference: &Reference,
    golden: &Golden,
    into: &Path,
    observer: Arc<dyn Observer>,
    cancel: CancellationToken,
) -> Result<VmConfig, Error> {
    judge_image_config(&client.small_blob(reference, &golden.image_config).await?)?;
    let config = VmConfig::read(&client.small_blob(reference, &golden.config).await?)?;
    let (journal, finished) = Journal::open(&into.join("journal"))?;
    let (disk, had_disk) = open_sized(&into.join("disk.img"), golden.disk_bytes)?;
    let (aux, had_aux) = open_sized(&into.join("aux.img"), golden.nvram.size)?;
    let journal = Arc::new(Mutex::new(journal));
    let pull = Pull {
        client: client.clone(),
        reference: reference.clone(),
        observer,
        cancel: cancel.child_token(),
        workers: TaskTracker::new(),
    };
    let chunks = golden.chunks.iter().map(|chunk| Job {
        blob: chunk.blob.clone(),
        file: disk.clone(),
        name: "disk.img".to_owned(),
        offset: chunk.offset,
        raw_size: chunk.raw_size,
        raw_digest: chunk.raw_digest.clone(),
        coded: true,
        dirty: had_disk,
    });
    let aux_job = Job {
        blob: golden.nvram.clone(),
        file: aux.clone(),
        name: "aux.img".to_owned(),
        offset: 0,
        raw_size: golden.nvram.size,
        raw_digest: Some(golden.nvram.digest.clone()),
        coded: false,
        dirty: had_aux,
    };
    let jobs: Vec<Job> = std::iter::once(aux_job).chain(chunks).collect();
    let done = futures::stream::iter(jobs.into_iter().enumerate().map(|(n, job)| {
        let (pull, journal) = (pull.clone(), journal.clone());
        let here = finished.get(&n) == Some(&job.blob.digest);
        async move { pull.part(n, job, here, &journal).await }
    }))
    .buffer_unordered(PARALLEL);
    // after a failure the others are told to end, and waited for: nothing may write after this function
    let failed = done
        .fold(None, |failed: Option<Error>, ended| {
            if ended.is_err() {
                pull.cancel.cancel();
            }
            std::future::ready(failed.or(ended.err()))
        })
        .await;
    pull.workers.close();
    pull.workers.wait().await;
    if let Some(error) = failed {
        return Err(error);
    }
    for (file, name) in [(disk, "disk.img"), (aux, "aux.img")] {
        blocking(move || file.sync_all().map_err(Error::io(format!("flush {name}")))).await?;
    }
    std::fs::remove_file(into.join("journal")).map_err(Error::io("remove the journal of the pull"))?;
    Ok(config)
}

impl Pull {
    /// One part, from wherever it is to be had.
    async fn part(&self, n: usize, job: Job, here: bool, journal: &Mutex<Journal>) -> Result<(), Error> {
        if self.cancel.is_cancelled() {
            return Err(stopped());
        }
        if here && self.is_here(&job).await? {
            return Ok(());
        }
        let digest = job.blob.digest.clone();
        tokio::select! {
            fetched = self.fetch(job) => fetched?,
            () = self.cancel.cancelled() => return Err(stopped()),
        }
        journal.lock().unwrap_or_else(std::sync::PoisonError::into_inner).finished(n, &digest)
    }

    /// Whether the region holds what it should.
    async fn is_here(&self, job: &Job) -> Result<bool, Error> {
        let Some(wanted) = job.raw_digest.clone() else { return Ok(false) };
        let (job, observer) = (job.clone(), self.observer.clone());
        let what = format!("read what is here of {}", job.name);
        let hashed = self.workers.spawn_blocking(move || {
            let mut hasher = Hasher::default();
            read_region::<Interrupted>(&job.file, job.offset, job.raw_size, &mut |bytes| {
                hasher.update(bytes);
                observer.go_on().map_err(Interrupted::Told)
            })?;
            let fits = hasher.finish() == wanted;
            if fits {
                observer.done(job.raw_size);
            }
            Ok(fits)
        });
        match hashed.await {
            Ok(Ok(fits)) => Ok(fits),
            Ok(Err(Interrupted::Told(words))) => Err(Error::Stopped(words)),
            Ok(Err(Interrupted::Io(error))) => Err(Error::io(what)(error)),
            Err(ended) => Err(Error::io(what)(std::io::Error::other(ended))),
        }
    }
}

enum Interrupted {
    Io(std::io::Error),
    Told(String),
}

impl From<std::io::Error> for Interrupted {
    fn from(error: std::io::Error) -> Self {
        Interrupted::Io(error)
    }
}

fn stopped() -> Error {
    Error::Stopped("the pull was ended: nothing asks for it any more".to_owned())
}

fn open_sized(path: &Path, len: u64) -> Result<(Arc<File>, bool), Error> {
    let what = || Error::io(format!("open {}", path.display()));
    let had = path.exists();
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).map_err(what())?;
    file.set_len(len).map_err(what())?;
    Ok((Arc::new(file), had))
}

/// Work that blocks, off the runtime's threads.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let ended = tokio::task::spawn_blocking(work).await;
    ended.unwrap_or_else(|ended| Err(Error::io("a thread that copies")(std::io::Error::other(ended))))
}
