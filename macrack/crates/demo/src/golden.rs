//! A golden in a registry: a sparse disk that stands for macOS with Xcode, pushed as an admin pushes it.
//!
//! The registry is distribution's own, on loopback; the bundle and what was pushed of it are kept for later runs.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use macrack_testkit::{Registry, RegistryOptions};
use macrack_wire::{BundleDir, GoldenBundle};

/// Length of its disk: 5.0 GB, most of it holes, every byte of it read and hashed.
const DISK_BYTES: u64 = 5_000_000_000;
/// What is on it and its Xcode.
const VERSION: &str = "26.1";
/// Where it is in the registry.
const PATH: &str = "golden/tahoe-xcode26";

/// The registry, and the golden in it.
pub(crate) struct Pushed {
    /// It runs as long as this is there.
    pub(crate) registry: Registry,
    /// The MacOSImage that the push printed.
    pub(crate) manifest: String,
    /// What the push said.
    pub(crate) words: String,
}

/// Starts a registry on what an earlier run left, and pushes the golden.
pub(crate) async fn pushed(bin_dir: &Path, dir: &Path) -> Result<Pushed> {
    let registry = Registry::start(RegistryOptions { blobs: Some(dir.join("registry")), ..Default::default() }).await?;
    let bundle = dir.join("bundle");
    let made = bundle.clone();
    tokio::task::spawn_blocking(move || make(&made)).await?.context("making the golden's bundle")?;
    let output = tokio::process::Command::new(bin_dir.join("kubectl-macrack"))
        .args(["image", "push"])
        .arg(&bundle)
        .arg(format!("{}/{PATH}:{VERSION}", registry.address()))
        .args(["--xcode-version", VERSION, "--guest-agent-version", env!("CARGO_PKG_VERSION")])
        // nobody's logins are of interest here
        .env("DOCKER_CONFIG", dir)
        .kill_on_drop(true)
        .output()
        .await
        .context("kubectl macrack image push")?;
    let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if !output.status.success() {
        bail!("kubectl macrack image push: {words}");
    }
    Ok(Pushed { registry, manifest: String::from_utf8(output.stdout)?, words })
}

/// Makes the bundle, unless it is there.
fn make(folder: &Path) -> Result<()> {
    let dir = BundleDir::new(folder);
    if dir.read().is_ok_and(|bundle| bundle.disk_bytes == DISK_BYTES) {
        return Ok(());
    }
    fs::create_dir_all(folder)?;
    let disk = File::create(dir.disk())?;
    disk.set_len(DISK_BYTES)?;
    // something that does not shrink in each gigabyte
    let mut state = 1_u64;
    let mut noise = vec![0; 4 << 20];
    for at in (0..DISK_BYTES).step_by(1 << 30) {
        noise.fill_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        });
        disk.write_all_at(&noise, at)?;
    }
    fs::write(dir.aux(), vec![b'a'; 1 << 20])?;
    disk.sync_all()?;
    dir.write(&GoldenBundle {
        hardware_model: "c2ltdWxhdGVkIGhhcmR3YXJlIG1vZGVs".to_owned(),
        os_version: VERSION.to_owned(),
        cpu_count_min: 4,
        memory_min: 4 << 30,
        disk_bytes: DISK_BYTES,
        display: None,
    })?;
    Ok(())
}
