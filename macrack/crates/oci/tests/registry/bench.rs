//! A registry, a bundle, and somebody who watches.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use macrack_oci::layout::{NewConfig, VmConfig};
use macrack_oci::pull::Observer;
use macrack_oci::push::{Bundle, Pushed};
use macrack_oci::retry::Patience;
use macrack_oci::{Client, Error, Facts, Golden, Options, Reference};
use macrack_testkit::{Registry, RegistryOptions};
use tokio_util::sync::CancellationToken;

pub(crate) const MIB: u64 = 1 << 20;
/// Raw bytes of a chunk in these tests.
pub(crate) const CHUNK: u64 = 4 * MIB;
/// Chunks of the disk.
pub(crate) const CHUNKS: u64 = 8;

/// Counts, and may end a pull.
#[derive(Default)]
pub(crate) struct Watch {
    pub(crate) done: AtomicI64,
    /// Ends it once so many bytes are done; 0 for never.
    pub(crate) most: AtomicU64,
}

impl Observer for Watch {
    fn done(&self, bytes: u64) {
        self.done.fetch_add(i64::try_from(bytes).unwrap(), Ordering::SeqCst);
    }
    fn undone(&self, bytes: u64) {
        self.done.fetch_sub(i64::try_from(bytes).unwrap(), Ordering::SeqCst);
    }
    fn go_on(&self) -> Result<(), String> {
        let most = self.most.load(Ordering::SeqCst);
        let done = u64::try_from(self.done.load(Ordering::SeqCst)).unwrap_or(0);
        if most > 0 && done >= most { Err("the power went".to_owned()) } else { Ok(()) }
    }
}

pub(crate) struct Bench {
    pub(crate) registry: Registry,
    pub(crate) dir: tempfile::TempDir,
    pub(crate) bundle: Bundle,
}

/// Tries often and soon.
pub(crate) fn options() -> Options {
    let patience = Patience { tries: 4, first: Duration::from_millis(20), most: Duration::from_secs(2) };
    Options { patience, stall: Duration::from_secs(2), ..Options::default() }
}

pub(crate) fn client() -> Client {
    Client::new(options()).unwrap()
}

impl Bench {
    pub(crate) async fn new() -> Bench {
        Bench::with(RegistryOptions::default()).await
    }

    pub(crate) async fn with(options: RegistryOptions) -> Bench {
        let registry = Registry::start(options).await.unwrap();
        let dir = tempfile::tempdir().unwrap();
        let bundle = bundle(dir.path());
        Bench { registry, dir, bundle }
    }

    pub(crate) fn disk(&self) -> Vec<u8> {
        fs::read(&self.bundle.disk).unwrap()
    }

    /// Pushes to the registry itself.
    pub(crate) async fn push(&self, client: &Client) -> Result<Pushed, Error> {
        let target = format!("{}/golden/tahoe:26.1", self.registry.address()).parse().unwrap();
        macrack_oci::push::push(client, &target, self.bundle.clone(), CHUNK, Arc::new(Watch::default())).await
    }

    /// The same golden at another address.
    pub(crate) fn at(reference: &Reference, address: &str) -> Reference {
        Reference::new(&format!("{address}/{}", reference.path()), reference.hex()).unwrap()
    }

    pub(crate) fn place(&self, name: &str) -> PathBuf {
        let into = self.dir.path().join(name);
        fs::create_dir_all(&into).unwrap();
        into
    }
}

/// A disk with text, noise, zeros and a short last chunk.
fn bundle(dir: &Path) -> Bundle {
    let (disk, aux) = (dir.join("disk.img"), dir.join("aux.img"));
    let file = File::create_new(&disk).unwrap();
    file.set_len(CHUNK * CHUNKS - 3 * MIB - 512).unwrap();
    let mut state = 7_u64;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    })
    .take(2 * usize::try_from(MIB).unwrap() + 77)
    .collect();
    for chunk in [0, 1, 3, 4, 6] {
        file.write_all_at(&noise, chunk * CHUNK + 4096 * (chunk + 1)).unwrap();
        file.write_all_at("macOS on a golden. ".repeat(20_000).as_bytes(), chunk * CHUNK + 3 * MIB).unwrap();
    }
    fs::write(&aux, &noise[..300_000]).unwrap();
    let config = VmConfig::write(&NewConfig {
        hardware_model: "bW9kZWw=",
        machine_identifier: "ZWNpZA==",
        mac_address: "02:00:00:00:00:01",
        cpu_count_min: 4,
        memory_min: 4 << 30,
        display: (1920, 1080),
    });
    let facts =
        Facts { os_version: Some("26.1".to_owned()), xcode_version: Some("26.1".to_owned()), ..Facts::default() };
    Bundle { disk, aux, config, facts }
}

/// Pulls into `into`.
pub(crate) async fn pull(client: &Client, reference: &Reference, into: &Path) -> Result<VmConfig, Error> {
    pull_watched(client, reference, into, Arc::new(Watch::default())).await
}

pub(crate) async fn pull_watched(
    client: &Client,
    reference: &Reference,
    into: &Path,
    watch: Arc<Watch>,
) -> Result<VmConfig, Error> {
    let golden = Golden::read(&client.manifest(reference).await?)?;
    macrack_oci::pull::pull(client, reference, &golden, into, watch, CancellationToken::new()).await
}

/// Bytes that a file takes on the disk.
pub(crate) fn allocated(path: &Path) -> u64 {
    fs::metadata(path).unwrap().blocks() * 512
}
