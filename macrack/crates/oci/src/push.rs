//! A golden into a registry: chunks are compressed and uploaded at once; what is there already is not sent again, so a
//! push that was cut is resumed by pushing again.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;

use crate::client::Client;
use crate::digest::{self, Hasher};
use crate::error::Error;
use crate::layout::{Blob, Chunk, Facts, Golden, MAX_CHUNK, MAX_NVRAM, SECTOR, image_config};
use crate::lz4::Encoder;
use crate::pull::{Observer, blocking};
use crate::reference::{Reference, Target};
use crate::sparse::{is_hole, read_region};

/// Chunks that are compressed and uploaded at once; each may take as much memory as a chunk has bytes.
pub const PARALLEL: usize = 4;

/// What is pushed.
#[derive(Debug, Clone)]
pub struct Bundle {
    /// The disk, raw.
    pub disk: PathBuf,
    /// The auxiliary storage.
    pub aux: PathBuf,
    /// The VM, see [`crate::layout::VmConfig::write`].
    pub config: Vec<u8>,
    /// What is in it.
    pub facts: Facts,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pushed {
    /// The golden, pinned.
    pub reference: Reference,
    /// Length of the disk, in bytes.
    pub disk_bytes: u64,
    /// Bytes of the image in the registry.
    pub image_bytes: u64,
    /// Bytes of it that were sent; the rest was there.
    pub sent_bytes: u64,
}

struct Coded {
    digest: String,
    raw_digest: String,
    bytes: Bytes,
}

struct Push {
    client: Client,
    target: Target,
    observer: Arc<dyn Observer>,
    disk: Arc<File>,
    /// Chunks that are one hole, by length: all of a length are one blob.
    holes: Mutex<BTreeMap<u64, Arc<Coded>>>,
    sent: Mutex<u64>,
}

/// Pushes a bundle.
///
/// # Errors
/// When the bundle is none, or the registry does not take it.
pub async fn push(
    client: &Client,
    target: &Target,
    bundle: Bundle,
    chunk_bytes: u64,
    observer: Arc<dyn Observer>,
) -> Result<Pushed, Error> {
    if !(1..=MAX_CHUNK).contains(&chunk_bytes) {
        return Err(Error::Invalid(format!("a chunk of {chunk_bytes} bytes: 1 to {MAX_CHUNK} are allowed")));
    }
    let (disk, before) = open(&bundle.disk)?;
    let (aux, aux_meta) = open(&bundle.aux)?;
    let disk_bytes = before.len();
    if disk_bytes == 0 || !disk_bytes.is_multiple_of(SECTOR) {
        return Err(Error::Invalid(format!(
            "{} has {disk_bytes} bytes; a disk is a multiple of {SECTOR}, and not empty",
            bundle.disk.display()
        )));
    }
    if aux_meta.len() == 0 || aux_meta.len() > MAX_NVRAM {
        return Err(Error::Invalid(format!(
            "{} has {} bytes; an auxiliary storage has 1 to {MAX_NVRAM}",
            bundle.aux.display(),
            aux_meta.len()
        )));
    }
    let push = Arc::new(Push {
        client: client.clone(),
        target: target.clone(),
        observer,
        disk: Arc::new(disk),
        holes: Mutex::default(),
        sent: Mutex::new(0),
    });
    let config = push.small(bundle.config.into()).await?;
    let image_config = push.small(image_config().into()).await?;
    let aux = blocking(move || whole(&aux, aux_meta.len())).await?;
    let nvram = push.small(aux).await?;
    let offsets = (0..disk_bytes).step_by(usize::try_from(chunk_bytes).unwrap_or(usize::MAX));
    let chunks: Vec<Chunk> = futures::stream::iter(offsets.map(|offset| {
        let push = push.clone();
        async move { push.chunk(offset, chunk_bytes.min(disk_bytes - offset)).await }
    }))
    .buffered(PARALLEL)
    .try_collect()
    .await?;
    let after = std::fs::metadata(&bundle.disk).map_err(Error::io(format!("look at {}", bundle.disk.display())))?;
    if (after.len(), after.modified().ok()) != (disk_bytes, before.modified().ok()) {
        return Err(Error::Invalid(format!(
            "{} was changed while it was pushed: shut its VM down, and push again",
            bundle.disk.display()
        )));
    }
    let golden = Golden { image_config, config, chunks, nvram, disk_bytes, facts: bundle.facts };
    let manifest = golden.write(Timestamp::now())?;
    let reference = client.put_manifest(target, manifest).await?;
    let sent_bytes = *push.sent.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    Ok(Pushed { reference, disk_bytes, image_bytes: golden.download_bytes(), sent_bytes })
}

impl Push {
    async fn small(&self, bytes: Bytes) -> Result<Blob, Error> {
        let blob = Blob { digest: digest::of(&bytes), size: bytes.len() as u64 };
        self.upload(&blob.digest, bytes).await?;
        Ok(blob)
    }

    async fn upload(&self, digest: &str, bytes: Bytes) -> Result<(), Error> {
        let size = bytes.len() as u64;
        if self.client.put_blob(&self.target, digest, bytes).await? {
            *self.sent.lock().unwrap_or_else(std::sync::PoisonError::into_inner) += size;
        }
        Ok(())
    }

    async fn chunk(self: Arc<Self>, offset: u64, raw_size: u64) -> Result<Chunk, Error> {
        let push = self.clone();
        let coded = blocking(move || push.coded(offset, raw_size)).await?;
        self.upload(&coded.digest, coded.bytes.clone()).await?;
        self.observer.done(raw_size);
        let blob = Blob { digest: coded.digest.clone(), size: coded.bytes.len() as u64 };
        Ok(Chunk { blob, offset, raw_size, raw_digest: Some(coded.raw_digest.clone()) })
    }

    fn coded(&self, offset: u64, raw_size: u64) -> Result<Arc<Coded>, Error> {
        let reading = || Error::io("read the disk");
        if !is_hole(&self.disk, offset, raw_size).map_err(reading())? {
            return self.encode(offset, raw_size).map(Arc::new);
        }
        // held while it is made: the others wait for it instead of making it too
        let mut holes = self.holes.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(known) = holes.get(&raw_size) {
            return Ok(known.clone());
        }
        let coded = Arc::new(self.encode(offset, raw_size)?);
        holes.insert(raw_size, coded.clone());
        Ok(coded)
    }

    fn encode(&self, offset: u64, raw_size: u64) -> Result<Coded, Error> {
        let (mut raw, mut encoder) = (Hasher::default(), Encoder::default());
        read_region::<Interrupted>(&self.disk, offset, raw_size, &mut |bytes| {
            raw.update(bytes);
            encoder.push(bytes);
            self.observer.go_on().map_err(|words| Interrupted(Error::Stopped(words)))
        })
        .map_err(|Interrupted(error)| error)?;
        let bytes = encoder.finish();
        Ok(Coded { digest: digest::of(&bytes), raw_digest: raw.finish(), bytes: bytes.into() })
    }
}

struct Interrupted(Error);

impl From<std::io::Error> for Interrupted {
    fn from(error: std::io::Error) -> Self {
        Interrupted(Error::io("read the disk")(error))
    }
}

fn open(path: &Path) -> Result<(File, std::fs::Metadata), Error> {
    let opening = || Error::io(format!("open {}", path.display()));
    let file = File::open(path).map_err(opening())?;
    let metadata = file.metadata().map_err(opening())?;
    Ok((file, metadata))
}

fn whole(file: &File, len: u64) -> Result<Bytes, Error> {
    let mut bytes = Vec::new();
    read_region::<Interrupted>(file, 0, len, &mut |more| {
        bytes.extend_from_slice(more);
        Ok(())
    })
    .map_err(|Interrupted(error)| error)?;
    Ok(bytes.into())
}
