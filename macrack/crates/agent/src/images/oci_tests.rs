//! The puller on a real registry.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use macrack_oci::Facts;
use macrack_oci::layout::NewConfig;
use macrack_oci::push::{Bundle, push};
use macrack_testkit::{Registry, RegistryOptions};
use tokio::sync::watch;

use super::super::cache::Cache;
use super::super::pull::{Puller, Situation, Standing, Want, Wishes};
use super::super::reference::Reference;
use super::*;
use crate::bell::Bell;

const PATIENCE: Duration = Duration::from_secs(60);
const DISK: u64 = 12 << 20;
const CHUNK: u64 = 1 << 20;

struct Nobody;

impl pull::Observer for Nobody {
    fn done(&self, _: u64) {}
    fn undone(&self, _: u64) {}
    fn go_on(&self) -> Result<(), String> {
        Ok(())
    }
}

/// A golden of a dozen chunks in a registry.
async fn pushed(dir: &Path) -> (Registry, Source) {
    let registry = Registry::start(RegistryOptions::default()).await.unwrap();
    let (disk, aux) = (dir.join("disk.img"), dir.join("aux.img"));
    let file = File::create(&disk).unwrap();
    file.set_len(DISK).unwrap();
    for chunk in 0..DISK / CHUNK {
        file.write_all_at(format!("chunk {chunk}").as_bytes(), chunk * CHUNK).unwrap();
    }
    std::fs::write(&aux, "aux").unwrap();
    let config = macrack_oci::layout::VmConfig::write(&NewConfig {
        hardware_model: "bW9kZWw=",
        machine_identifier: "ZWNpZA==",
        mac_address: "02:00:00:00:00:01",
        cpu_count_min: 4,
        memory_min: 4 << 30,
        display: (1920, 1080),
    });
    let facts = Facts { os_version: Some("26.1".to_owned()), ..Facts::default() };
    let target = format!("{}/golden/tahoe:26.1", registry.address()).parse().unwrap();
    let client = Client::new(Options::default()).unwrap();
    let bundle = Bundle { disk, aux, config, facts };
    let reference = push(&client, &target, bundle, CHUNK, Arc::new(Nobody)).await.unwrap().reference;
    (registry, Source { reference, pull_secret: None })
}

struct Bench {
    images: PathBuf,
    wishes: watch::Sender<Wishes>,
    seen: watch::Receiver<Situation>,
}

/// A puller over the cache in `images`, that wants `source`.
fn puller(images: &Path, source: &Source, free: u64) -> Bench {
    let (wishes, heard) = watch::channel(Wishes {
        known: true,
        wants: vec![Want { source: source.clone(), for_instance: true }],
        cloned: Default::default(),
        reserve: 1 << 30,
        max_goldens: 2,
        evict_after: SignedDuration::from_hours(168),
    });
    let cache = Cache::open(images).unwrap();
    let store = Arc::new(OciStore::new(Options::default()).unwrap());
    let (puller, seen) = Puller::new(cache, store, Arc::new(move || Ok(free)), heard, Bell::default()).unwrap();
    tokio::spawn(puller.run());
    Bench { images: images.to_owned(), wishes, seen }
}

impl Bench {
    async fn until(&mut self, what: &str, holds: impl Fn(&Situation) -> bool) -> Situation {
        let seen = tokio::time::timeout(PATIENCE, self.seen.wait_for(|s| holds(s))).await;
        let seen = seen.map(|seen| seen.unwrap().clone());
        seen.unwrap_or_else(|_| panic!("still not {what}: {:?}", self.seen.borrow()))
    }

    fn partial(&self, source: &Source) -> PathBuf {
        self.images.join(format!(".partial-{}", source.reference.hex()))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_golden_of_a_registry_gets_into_the_cache_with_what_is_known_of_it_and_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let (_registry, source) = pushed(dir.path()).await;
    let images = dir.path().join("images");
    let mut bench = puller(&images, &source, u64::MAX);
    let hex = source.reference.hex().to_owned();
    let seen = bench.until("cached", |s| s.goldens.contains_key(&hex) && s.standings.is_empty()).await;
    let golden = images.join(&hex);
    assert!(std::fs::read(golden.join("disk.img")).unwrap() == std::fs::read(dir.path().join("disk.img")).unwrap());
    let manifest: Manifest = serde_json::from_slice(&std::fs::read(golden.join("manifest.json")).unwrap()).unwrap();
    assert_eq!(manifest.os_version.as_deref(), Some("26.1"));
    assert_eq!(manifest.xcode_version, None, "what the image does not say is made up");
    assert_eq!(manifest.hardware_model.as_deref(), Some("bW9kZWw="));
    let pull = seen.pulls[&hex];
    assert_eq!((pull.account.bytes, pull.account.total_bytes), (DISK, DISK));
    assert!(pull.finished_at.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_agent_had_of_a_golden_when_it_died_is_used_by_the_next_and_never_shown_as_a_golden() {
    let dir = tempfile::tempdir().unwrap();
    let (_registry, source) = pushed(dir.path()).await;
    let images = dir.path().join("images");
    let hex = source.reference.hex().to_owned();

    // as an agent leaves it that was killed at about 60 %: some chunks are whole, one is half written
    let client = Client::new(Options::default()).unwrap();
    let golden = Golden::read(&client.manifest(&source.reference).await.unwrap()).unwrap();
    let partial = images.join(format!(".partial-{hex}"));
    std::fs::create_dir_all(&partial).unwrap();
    let disk = File::create(partial.join("disk.img")).unwrap();
    disk.set_len(DISK).unwrap();
    let original = std::fs::read(dir.path().join("disk.img")).unwrap();
    let mut journal = String::new();
    for (n, chunk) in golden.chunks.iter().enumerate().take(7) {
        let at = usize::try_from(chunk.offset).unwrap();
        disk.write_all_at(&original[at..at + 4096], chunk.offset).unwrap();
        journal += &format!("{} {}\n", n + 1, chunk.blob.digest);
    }
    disk.write_all_at(b"half of a chu", golden.chunks[7].offset).unwrap();
    std::fs::write(partial.join("journal"), journal).unwrap();

    let mut bench = puller(&images, &source, u64::MAX);
    assert!(bench.seen.borrow().goldens.is_empty(), "a half golden is reported");
    bench.until("cached", |s| s.goldens.contains_key(&hex) && s.standings.is_empty()).await;
    assert!(std::fs::read(images.join(&hex).join("disk.img")).unwrap() == original, "the disk differs");
    assert!(!bench.partial(&source).exists());
    bench.wishes.send_modify(|wishes| wishes.wants.clear());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_is_away_leaves_what_was_pulled_and_one_that_lacks_the_golden_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let (registry, source) = pushed(dir.path()).await;
    let refused = |situation: &Situation, hex: &str| match situation.standings.get(hex) {
        Some(Standing::Refused(why)) => Some(why.clone()),
        _ => None,
    };
    let missing = Source {
        reference: Reference::new(source.reference.repository(), &"ab".repeat(32)).unwrap(),
        pull_secret: None,
    };
    let images = dir.path().join("missing");
    std::fs::create_dir_all(images.join(format!(".partial-{}", missing.reference.hex()))).unwrap();
    let mut bench = puller(&images, &missing, u64::MAX);
    let hex = missing.reference.hex().to_owned();
    let seen = bench.until("refused", |s| refused(s, &hex).is_some()).await;
    assert!(refused(&seen, &hex).unwrap().contains("push it"), "{seen:?}");
    assert!(!bench.partial(&missing).exists(), "what nobody has any more is kept");

    let without =
        puller(&dir.path().join("private"), &Source { pull_secret: Some("ghcr".into()), ..source.clone() }, u64::MAX);
    let mut without = without;
    let hex = source.reference.hex().to_owned();
    let seen = without.until("refused", |s| refused(s, &hex).is_some()).await;
    assert!(refused(&seen, &hex).unwrap().contains("pull secret macrack-system/ghcr"), "{seen:?}");

    drop(registry);
    let images = dir.path().join("away");
    let partial = images.join(format!(".partial-{hex}"));
    std::fs::create_dir_all(&partial).unwrap();
    let mut bench = puller(&images, &source, u64::MAX);
    let seen = bench.until("refused", |s| refused(s, &hex).is_some()).await;
    assert!(refused(&seen, &hex).unwrap().contains("tried again"), "{seen:?}");
    assert!(partial.exists(), "what was pulled before the registry went is thrown away");
}
