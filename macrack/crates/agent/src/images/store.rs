//! Where goldens come from.
//!
//! A directory store holds `<registry>/<path>/sha256-<hex>/{manifest.json, disk.img, aux.img}`, where
//! `<hex>` is the sha256 of `manifest.json`, and the manifest holds those of the two images: so the
//! digest in a MacOSImage pins every byte.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::copy::{copy_hashed, hash, hash_file};
use super::progress::Progress;
use super::reference::{NotAReference, Reference};

/// The longest manifest that is read, in bytes.
const MAX_MANIFEST: u64 = 64 * 1024;

/// What a golden is, as its `manifest.json` says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// The guest's macOS, e.g. `26.1`; what a golden does not say is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os_version: Option<String>,
    /// The Xcode on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xcode_version: Option<String>,
    /// The `macrack-guest` in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest_agent_version: Option<String>,
    /// Length of `disk.img` in bytes.
    pub disk_bytes: u64,
    /// sha256 of `disk.img`, 64 hex digits; a directory store pins by it, a registry pins each chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_sha256: Option<String>,
    /// sha256 of `aux.img`, 64 hex digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aux_sha256: Option<String>,
    /// Oldest host macOS that can run it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimum_host_version: Option<String>,
    /// `VZMacHardwareModel.dataRepresentation`, base64: what the auxiliary storage is of. A real golden has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardware_model: Option<String>,
}

/// Why a golden could not be had.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The store does not have it.
    #[error("the store has no {0}; push it, or correct spec.source of its MacOSImage")]
    NotFound(Reference),
    /// What the store has is not what the digest says, or no golden.
    #[error("{reference}: {why}; push it again")]
    NotAGolden {
        /// The golden.
        reference: Reference,
        /// What is wrong.
        why: String,
    },
    /// The store does not let us, or how it is to be asked is wrong.
    #[error("{0}")]
    Denied(String),
    /// The store did not answer, or not well.
    #[error("{what}; it is tried again")]
    Transient {
        /// What was asked for, and what came instead.
        what: String,
        /// When the store wants to be asked again.
        after: Option<Duration>,
    },
    /// There is not, or no more, room for it.
    #[error("{0}")]
    NoRoom(String),
    /// Nobody waits for it any more.
    #[error("the pull was ended: nothing asks for it any more")]
    Cancelled,
    /// Reading or writing failed.
    #[error("{what}: {source}")]
    Io {
        /// What was done.
        what: String,
        /// The operating system's answer.
        source: io::Error,
    },
}

impl StoreError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> StoreError {
        let what = what.into();
        move |source| StoreError::Io { what, source }
    }
}

/// A golden, and what it takes to ask for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The golden.
    pub reference: Reference,
    /// Secret in the operator's namespace with the login of its registry.
    pub pull_secret: Option<String>,
}

/// How a fetch under way is watched and ended.
#[derive(Clone)]
pub struct Watchdog {
    /// Counts the bytes.
    pub progress: std::sync::Arc<Progress>,
    /// Ends the fetch.
    pub cancel: CancellationToken,
    /// Asked every few megabytes: an error ends the fetch.
    pub room: std::sync::Arc<dyn Fn() -> Result<(), String> + Send + Sync>,
}

/// A place that goldens are pulled from.
pub trait ImageStore: Send + Sync + 'static {
    /// What the golden is; checked against its digest.
    fn manifest<'a>(&'a self, source: &'a Source) -> BoxFuture<'a, Result<Manifest, StoreError>>;

    /// Puts `disk.img` and `aux.img` into the directory `into`, sparse, digests checked; what an earlier fetch of the
    /// same golden left there is used or overwritten. Returns everything that is known of it then.
    fn fetch<'a>(
        &'a self,
        source: &'a Source,
        manifest: &'a Manifest,
        into: &'a Path,
        watchdog: Watchdog,
    ) -> BoxFuture<'a, Result<Manifest, StoreError>>;

    /// Gives the way to the API, once, before the first golden is asked for.
    fn use_api(&self, _: &kube::Client) {}
}

/// A directory of goldens.
#[derive(Debug, Clone)]
pub struct DirectoryStore {
    root: PathBuf,
}

impl DirectoryStore {
    /// The store under `root`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        DirectoryStore { root: root.into() }
    }
}

impl ImageStore for DirectoryStore {
    fn manifest<'a>(&'a self, source: &'a Source) -> BoxFuture<'a, Result<Manifest, StoreError>> {
        let (root, reference) = (self.root.clone(), source.reference.clone());
        blocking(move || read_manifest(&root, &reference))
    }

    fn fetch<'a>(
        &'a self,
        source: &'a Source,
        manifest: &'a Manifest,
        into: &'a Path,
        watchdog: Watchdog,
    ) -> BoxFuture<'a, Result<Manifest, StoreError>> {
        let reference = source.reference.clone();
        let (from, manifest, into) = (self.root.join(reference.place()), manifest.clone(), into.to_owned());
        blocking(move || {
            let (Some(disk), Some(aux)) = (&manifest.disk_sha256, &manifest.aux_sha256) else {
                let why = "its manifest.json lacks diskSha256 or auxSha256".to_owned();
                return Err(StoreError::NotAGolden { reference, why });
            };
            let disk = Image { name: "disk.img", bytes: Some(manifest.disk_bytes), sha256: disk };
            let aux = Image { name: "aux.img", bytes: None, sha256: aux };
            fetch_image(&reference, &from, &into, &disk, &watchdog)?;
            fetch_image(&reference, &from, &into, &aux, &watchdog)?;
            Ok(manifest)
        })
    }
}

fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> BoxFuture<'static, Result<T, StoreError>> {
    Box::pin(async {
        tokio::task::spawn_blocking(work).await.unwrap_or_else(|ended| {
            Err(StoreError::Io { what: "the copying thread".to_owned(), source: io::Error::other(ended) })
        })
    })
}

fn read_manifest(root: &Path, reference: &Reference) -> Result<Manifest, StoreError> {
    let path = root.join(reference.place()).join("manifest.json");
    let named = || StoreError::io(format!("read {}", path.display()));
    let wrong = |why: String| StoreError::NotAGolden { reference: reference.clone(), why };
    let size = match fs::metadata(&path) {
        Ok(found) => found.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(StoreError::NotFound(reference.clone()));
        }
        Err(error) => return Err(named()(error)),
    };
    if size > MAX_MANIFEST {
        return Err(wrong(format!("manifest.json is {size} bytes long, at most {MAX_MANIFEST} are read")));
    }
    let bytes = fs::read(&path).map_err(named())?;
    let found = hash(&bytes);
    if found != reference.hex() {
        return Err(wrong(format!("manifest.json has the digest sha256:{found}")));
    }
    serde_json::from_slice(&bytes).map_err(|e| wrong(format!("manifest.json: {e}")))
}

struct Image<'a> {
    name: &'static str,
    bytes: Option<u64>,
    sha256: &'a str,
}

fn fetch_image(
    reference: &Reference,
    from: &Path,
    into: &Path,
    image: &Image<'_>,
    watchdog: &Watchdog,
) -> Result<(), StoreError> {
    let path = from.join(image.name);
    let wrong = |why: String| StoreError::NotAGolden { reference: reference.clone(), why };
    let reading = || StoreError::io(format!("read {}", path.display()));
    let source = File::open(&path).map_err(reading())?;
    let len = source.metadata().map_err(reading())?.len();
    if let Some(expected) = image.bytes.filter(|expected| *expected != len) {
        return Err(wrong(format!("{} is {len} bytes long, the manifest says {expected}", image.name)));
    }
    let place = into.join(image.name);
    let writing = || StoreError::io(format!("copy {} to {}", path.display(), place.display()));
    // what an earlier fetch left is of no use: copies here are not resumed
    let target = File::create(&place).map_err(writing())?;
    let mut refused = None;
    let copied = copy_hashed(&source, &target, len, &mut |bytes| {
        watchdog.progress.add(bytes);
        if watchdog.cancel.is_cancelled() {
            refused = Some(StoreError::Cancelled);
        } else if let Err(why) = (watchdog.room)() {
            refused = Some(StoreError::NoRoom(why));
        }
        if refused.is_some() { Err(io::ErrorKind::Interrupted.into()) } else { Ok(()) }
    });
    if let Some(refused) = refused {
        return Err(refused);
    }
    let digest = copied.map_err(writing())?;
    if digest != image.sha256 {
        return Err(wrong(format!(
            "{} has the digest sha256:{digest}, the manifest says {}",
            image.name, image.sha256
        )));
    }
    target.sync_all().map_err(writing())
}

/// What a golden made by [`publish`] holds.
#[derive(Debug, Clone)]
pub struct Spec {
    /// The guest's macOS.
    pub os_version: String,
    /// The Xcode on it.
    pub xcode_version: String,
    /// The `macrack-guest` in it.
    pub guest_agent_version: String,
    /// Length of the disk; almost all of it is a hole.
    pub disk_bytes: u64,
    /// Oldest host macOS that can run it.
    pub minimum_host_version: Option<String>,
}

impl Default for Spec {
    fn default() -> Self {
        Spec {
            os_version: "26.1".to_owned(),
            xcode_version: "26.1".to_owned(),
            guest_agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            disk_bytes: 64 << 20,
            minimum_host_version: None,
        }
    }
}

/// Puts a golden with simulated images into the directory store under `root`, under `repository`
/// (`registry/path`), and returns its pinned reference.
///
/// # Errors
/// When `repository` is not of that form, or the operating system refuses.
pub fn publish(root: &Path, repository: &str, spec: &Spec) -> io::Result<Reference> {
    // of this call alone: others of this process may publish at the same moment
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    let staging = root.join(format!(".publish-{}-{call}", std::process::id()));
    fs::create_dir_all(&staging)?;
    let published = stage(&staging, spec).and_then(|hex| {
        let invalid = |e: NotAReference| io::Error::new(io::ErrorKind::InvalidInput, e);
        let reference = Reference::new(repository, &hex).map_err(invalid)?;
        let place = root.join(reference.place());
        if let Some(parent) = place.parent() {
            fs::create_dir_all(parent)?;
        }
        match fs::rename(&staging, &place) {
            // the place names the content: who was there first has put the same there
            Err(_) if place.exists() => Ok(reference),
            renamed => renamed.map(|()| reference),
        }
    });
    if staging.exists() {
        fs::remove_dir_all(&staging)?;
    }
    published
}

fn stage(staging: &Path, spec: &Spec) -> io::Result<String> {
    let image = |name: &str, len: u64, content: &str| -> io::Result<String> {
        let path = staging.join(name);
        let file = File::create(&path)?;
        file.set_len(len.max(content.len() as u64))?;
        file.write_all_at(content.as_bytes(), 0)?;
        hash_file(&path)
    };
    let content = format!("macOS {} with Xcode {}", spec.os_version, spec.xcode_version);
    let manifest = Manifest {
        os_version: Some(spec.os_version.clone()),
        xcode_version: Some(spec.xcode_version.clone()),
        guest_agent_version: Some(spec.guest_agent_version.clone()),
        disk_bytes: spec.disk_bytes.max(content.len() as u64),
        disk_sha256: Some(image("disk.img", spec.disk_bytes, &content)?),
        aux_sha256: Some(image("aux.img", 4096, "simulated auxiliary storage")?),
        minimum_host_version: spec.minimum_host_version.clone(),
        hardware_model: None,
    };
    let bytes = serde_json::to_vec_pretty(&manifest)?;
    fs::write(staging.join("manifest.json"), &bytes)?;
    Ok(hash(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn many_publish_at_once_and_the_same_golden_twice() {
        let root = tempfile::tempdir().expect("a folder");
        let publishing = |n: usize| publish(root.path(), &format!("registry.example.com/g{}", n / 2), &Spec::default());
        let all: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|n| scope.spawn(move || publishing(n))).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        for published in all {
            let place = root.path().join(published.expect("published").place());
            assert!(place.join("manifest.json").exists(), "{}", place.display());
        }
        let left: Vec<_> = std::fs::read_dir(root.path()).expect("a folder").flatten().map(|e| e.file_name()).collect();
        assert_eq!(left, ["registry.example.com"], "nothing is left of the staging");
    }

    fn free_rein() -> Watchdog {
        Watchdog { progress: Arc::default(), cancel: CancellationToken::new(), room: Arc::new(|| Ok(())) }
    }

    async fn fetched(root: &Path, reference: &Reference) -> Result<(), StoreError> {
        let store = DirectoryStore::new(root);
        let into = tempfile::tempdir().unwrap();
        let source = Source { reference: reference.clone(), pull_secret: None };
        let manifest = store.manifest(&source).await?;
        store.fetch(&source, &manifest, into.path(), free_rein()).await.map(drop)
    }

    #[tokio::test]
    async fn what_was_published_is_fetched_and_every_byte_is_pinned() {
        let root = tempfile::tempdir().unwrap();
        let spec = Spec { disk_bytes: 2 << 20, ..Spec::default() };
        let reference = publish(root.path(), "registry.example/macos/tahoe:26.1", &spec).unwrap();
        assert_eq!(publish(root.path(), "registry.example/macos/tahoe", &spec).unwrap(), reference);
        fetched(root.path(), &reference).await.unwrap();

        let disk = root.path().join(reference.place()).join("disk.img");
        File::options().write(true).open(&disk).unwrap().write_all_at(b"x", 1 << 20).unwrap();
        let refused = fetched(root.path(), &reference).await.unwrap_err().to_string();
        assert!(refused.contains("disk.img has the digest"), "{refused}");

        fs::write(root.path().join(reference.place()).join("manifest.json"), "{}").unwrap();
        let refused = fetched(root.path(), &reference).await.unwrap_err().to_string();
        assert!(refused.contains("manifest.json has the digest"), "{refused}");
    }

    #[tokio::test]
    async fn a_missing_golden_is_told_from_a_broken_store() {
        let root = tempfile::tempdir().unwrap();
        let reference = Reference::new("registry.example/tahoe", &"ab".repeat(32)).unwrap();
        let refused = fetched(root.path(), &reference).await.unwrap_err();
        assert!(matches!(refused, StoreError::NotFound(_)), "{refused}");
    }
}
