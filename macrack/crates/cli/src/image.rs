//! `kubectl macrack image`: a golden into a registry, and what one in a registry is.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use clap::{Args, Subcommand};
use macrack_oci::layout::{NewConfig, VmConfig};
use macrack_oci::pull::Observer;
use macrack_oci::push::{Bundle, Pushed, push};
use macrack_oci::{Client, Credentials, Facts, Golden, Options, Reference, Target};
use macrack_wire::{BundleDir, GoldenBundle, MacAddress};

/// Between two words about how far a push is, to a terminal and to a file.
const WORDS_EVERY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));
/// Raw bytes of the disk per chunk: half of what Tart uses, so that four at once fit into the memory of a laptop.
const CHUNK: u64 = 256 << 20;
/// The screen that a bundle without one is described with.
const DISPLAY: (u32, u32) = (1920, 1080);

/// Pushes goldens, and says what one is.
///
/// A golden is one macOS, the Xcode for it and MacRack's guest agent; macOS runs on Apple hardware only, and what you
/// push to whom is under the licences of what is in it.
#[derive(Args)]
pub(crate) struct Image {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Push(Push),
    Inspect(Inspect),
}

/// How registries are reached.
#[derive(Args)]
struct Registries {
    /// Speak plain HTTP to this registry, host[:port]; may be given again. Loopback needs no such word
    #[arg(long, value_name = "HOST")]
    insecure_registry: Vec<String>,
    /// Logins, as `docker login` keeps them; by default $DOCKER_CONFIG/config.json, then ~/.docker/config.json
    #[arg(long, value_name = "FILE")]
    registry_config: Option<PathBuf>,
}

/// Compresses a bundle and uploads it, several chunks at once; what the registry has already is not sent again. Prints a
/// MacOSImage to apply
#[derive(Args)]
struct Push {
    /// The folder with disk.img, aux.img and bundle.json, as `macrack-vm install` makes it; its VM is shut down
    bundle: PathBuf,
    /// Where to: registry/path:tag
    target: Target,
    /// The Xcode in it, e.g. 26.1
    #[arg(long, value_name = "VERSION")]
    xcode_version: Option<String>,
    /// The macrack-guest in it, e.g. 0.1.0
    #[arg(long, value_name = "VERSION")]
    guest_agent_version: Option<String>,
    /// The oldest macOS on a Mac that can run it
    #[arg(long, value_name = "VERSION")]
    minimum_host_version: Option<String>,
    /// Name of the MacOSImage; by default the last part of the path
    #[arg(long)]
    name: Option<String>,
    /// Secret in macrack-system with the registry's login, for the MacOSImage
    #[arg(long, value_name = "SECRET")]
    pull_secret: Option<String>,
    #[command(flatten)]
    registries: Registries,
}

/// What a golden in a registry is: contents, sizes, chunks
#[derive(Args)]
struct Inspect {
    /// The golden: registry/path@sha256:<64 hex digits>
    reference: Reference,
    #[command(flatten)]
    registries: Registries,
}

impl Image {
    /// Does what was asked.
    ///
    /// # Errors
    /// In words for the person who asked.
    pub(crate) async fn run(self) -> Result<()> {
        match self.verb {
            Verb::Push(push) => push.run().await,
            Verb::Inspect(inspect) => inspect.run().await,
        }
    }
}

impl Registries {
    fn client(&self) -> Result<Client> {
        let client = Client::new(Options::reaching([], self.insecure_registry.iter().cloned()))?;
        let (path, wanted) = match &self.registry_config {
            Some(path) => (path.clone(), true),
            None => match default_config() {
                Some(path) => (path, false),
                None => return Ok(client),
            },
        };
        match std::fs::read(&path) {
            Ok(bytes) => {
                Ok(client.with(Credentials::from_docker_config(&bytes).with_context(|| path.display().to_string())?))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && !wanted => Ok(client),
            Err(error) => Err(error).with_context(|| format!("read {}", path.display())),
        }
    }
}

fn default_config() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    Some(set("DOCKER_CONFIG").or_else(|| Some(set("HOME")?.join(".docker")))?.join("config.json"))
}

impl Push {
    async fn run(self) -> Result<()> {
        let dir = BundleDir::new(&self.bundle);
        let bundle = dir.read().with_context(|| {
            format!("{} is no bundle: a folder with disk.img, aux.img and bundle.json is wanted", self.bundle.display())
        })?;
        let disk_bytes =
            std::fs::metadata(dir.disk()).with_context(|| format!("look at {}", dir.disk().display()))?.len();
        if disk_bytes != bundle.disk_bytes {
            bail!(
                "{} has {disk_bytes} bytes, bundle.json says {}: correct diskBytes if the disk was resized on purpose",
                dir.disk().display(),
                bundle.disk_bytes
            );
        }
        for (flag, version) in [
            ("--xcode-version", &self.xcode_version),
            ("--guest-agent-version", &self.guest_agent_version),
            ("--minimum-host-version", &self.minimum_host_version),
            ("osVersion in bundle.json", &Some(bundle.os_version.clone())),
        ] {
            if let Some(version) = version.as_ref().filter(|version| !is_release(version)) {
                bail!("{flag}: {version:?} is no release such as 26.1; betas are not sold");
            }
        }
        let facts = Facts {
            os_version: Some(bundle.os_version.clone()),
            xcode_version: self.xcode_version.clone(),
            guest_agent_version: self.guest_agent_version.clone(),
            minimum_host_version: self.minimum_host_version.clone(),
        };
        let meter = Arc::new(Meter { done: AtomicU64::new(0), total: disk_bytes, began: Instant::now() });
        let pushed = Bundle { disk: dir.disk(), aux: dir.aux(), config: config(&bundle)?, facts: facts.clone() };
        let client = self.registries.client()?;
        let pushing = push(&client, &self.target, pushed, CHUNK, meter.clone());
        let pushed = meter.beside(pushing).await.with_context(|| format!("push to {}", self.target))?;
        eprintln!("{}", meter.summary(&pushed));
        match manifest(&self, &facts, &pushed) {
            Some(manifest) => print!("{manifest}"),
            None => {
                println!("{}", pushed.reference);
                eprintln!(
                    "A MacOSImage names what is in the golden: with --xcode-version and --guest-agent-version one is printed here."
                );
            }
        }
        Ok(())
    }
}

/// `26`, `26.1`, `26.1.1`: as the schema of MacOSImage takes it.
fn is_release(version: &str) -> bool {
    let parts: Vec<&str> = version.split('.').collect();
    parts.len() <= 4
        && parts.iter().all(|part| (1..=4).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit()))
}

/// The VM for Tart, which wants an identity; each clone of a golden gets one of its own.
fn config(bundle: &GoldenBundle) -> Result<Vec<u8>> {
    if BASE64_STANDARD.decode(&bundle.hardware_model).map_or(true, |model| model.is_empty()) {
        bail!("bundle.json: hardwareModel is not base64 of a data representation");
    }
    let random = |salt: u8| {
        use std::hash::{BuildHasher, RandomState};
        // a name, no secret
        RandomState::new().hash_one(salt)
    };
    // the data representation of a machine identifier is a property list with its ECID
    let mut identifier = Vec::new();
    let ecid = plist::Dictionary::from_iter([("ECID", plist::Value::from(random(1) >> 1))]);
    plist::Value::from(ecid).to_writer_binary(&mut identifier).context("write a machine identifier")?;
    let address = MacAddress::locally_administered(random(2).to_le_bytes()[..6].try_into()?);
    Ok(VmConfig::write(&NewConfig {
        hardware_model: &bundle.hardware_model,
        machine_identifier: &BASE64_STANDARD.encode(identifier),
        mac_address: &address.to_string(),
        cpu_count_min: bundle.cpu_count_min.into(),
        memory_min: bundle.memory_min,
        display: bundle.display.map_or(DISPLAY, |display| (display.width, display.height)),
    }))
}

/// A MacOSImage to apply, when it is known what is in the golden.
fn manifest(push: &Push, facts: &Facts, pushed: &Pushed) -> Option<String> {
    let (os, xcode, agent) =
        (facts.os_version.as_ref()?, facts.xcode_version.as_ref()?, facts.guest_agent_version.as_ref()?);
    let name = push.name.clone().unwrap_or_else(|| {
        let last = push.target.path.rsplit('/').next().unwrap_or_default();
        last.replace(['_', '.'], "-")
    });
    let mut yaml = format!(
        "# {}\napiVersion: image.macrack.io/v1alpha1\nkind: MacOSImage\nmetadata:\n  name: {name}\nspec:\n  source:\n    oci:\n      image: {}\n",
        push.target, pushed.reference
    );
    if let Some(secret) = &push.pull_secret {
        yaml += &format!("      pullSecretRef: {{name: {secret}}}\n");
    }
    yaml += "  contents:\n";
    for (kind, version) in [("macOS", os), ("Xcode", xcode), ("GuestAgent", agent)] {
        yaml += &format!("  - {{kind: {kind}, version: {version:?}}}\n");
    }
    if let Some(minimum) = &facts.minimum_host_version {
        yaml += &format!("  minimumHostVersion: {minimum:?}\n");
    }
    Some(yaml)
}

impl Inspect {
    async fn run(self) -> Result<()> {
        let client = self.registries.client()?;
        let golden = Golden::read(&client.manifest(&self.reference).await?)?;
        let config = VmConfig::read(&client.small_blob(&self.reference, &golden.config).await?)?;
        let known = |version: &Option<String>| version.clone().unwrap_or_else(|| "not said".to_owned());
        let facts = &golden.facts;
        for (what, is) in [
            ("macOS", known(&facts.os_version)),
            ("Xcode", known(&facts.xcode_version)),
            ("guest agent", known(&facts.guest_agent_version)),
            ("host", facts.minimum_host_version.as_ref().map_or("any".to_owned(), |v| format!("macOS {v} or newer"))),
            ("disk", amount(golden.disk_bytes)),
            ("download", format!("{} in {} chunks", amount(golden.download_bytes()), golden.chunks.len())),
            ("least cores", config.cpu_count_min.map_or("not said".to_owned(), |n| n.to_string())),
            ("least memory", config.memory_min.map_or("not said".to_owned(), amount)),
        ] {
            println!("{what:<13}{is}");
        }
        Ok(())
    }
}

/// `5.4 GB`, decimal as on a disk's label.
fn amount(bytes: u64) -> String {
    let (unit, name) = if bytes < 1_000_000_000 { (1_000_000, "MB") } else { (1_000_000_000, "GB") };
    let tenths = bytes.saturating_mul(10) / unit;
    format!("{}.{} {name}", tenths / 10, tenths % 10)
}

/// How far a push is.
struct Meter {
    done: AtomicU64,
    total: u64,
    began: Instant,
}

impl Observer for Meter {
    fn done(&self, bytes: u64) {
        self.done.fetch_add(bytes, Ordering::Relaxed);
    }
    fn undone(&self, bytes: u64) {
        self.done.fetch_sub(bytes, Ordering::Relaxed);
    }
    fn go_on(&self) -> Result<(), String> {
        Ok(())
    }
}

impl Meter {
    /// Awaits a push and tells its progress on the way.
    async fn beside<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        let terminal = std::io::stderr().is_terminal();
        let every = if terminal { WORDS_EVERY.0 } else { WORDS_EVERY.1 };
        let mut tick = tokio::time::interval_at(tokio::time::Instant::now() + every, every);
        loop {
            tokio::select! {
                ended = &mut work => {
                    if terminal {
                        eprint!("\r\x1b[K");
                    }
                    return ended;
                }
                _ = tick.tick() => {
                    let words = self.words();
                    if terminal { eprint!("\r\x1b[K{words}") } else { eprintln!("{words}") }
                    let _ = std::io::stderr().flush();
                }
            }
        }
    }

    fn words(&self) -> String {
        let done = self.done.load(Ordering::Relaxed);
        let millis = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX).max(1);
        let rate = done.saturating_mul(1000) / millis;
        let left = self.total.saturating_sub(done).checked_div(rate).map(|left| format!(", {left} s left"));
        format!("pushing {} of {}, {}/s{}", amount(done), amount(self.total), amount(rate), left.unwrap_or_default())
    }

    fn summary(&self, pushed: &Pushed) -> String {
        format!(
            "pushed {} of disk as {} in {:.1} s; {} were sent, the rest was there",
            amount(pushed.disk_bytes),
            amount(pushed.image_bytes),
            self.began.elapsed().as_secs_f64(),
            amount(pushed.sent_bytes)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_numbers_and_dots() {
        for (version, is) in [
            ("26", true),
            ("26.1", true),
            ("26.1.1", true),
            ("26.1b2", false),
            ("", false),
            ("26.", false),
            ("v26", false),
        ] {
            assert_eq!(is_release(version), is, "{version}");
        }
    }

    #[test]
    fn a_bundle_becomes_a_config_that_tart_reads_with_an_identity_of_its_own() {
        let bundle = GoldenBundle {
            hardware_model: BASE64_STANDARD.encode("model"),
            os_version: "26.1".to_owned(),
            cpu_count_min: 4,
            memory_min: 4 << 30,
            disk_bytes: 1 << 30,
            display: None,
        };
        let (one, two) = (config(&bundle).unwrap(), config(&bundle).unwrap());
        assert_ne!(one, two, "two goldens share an identity");
        assert_eq!(VmConfig::read(&one).unwrap().memory_min, Some(4 << 30));
        let json: serde_json::Value = serde_json::from_slice(&one).unwrap();
        let ecid = BASE64_STANDARD.decode(json["ecid"].as_str().unwrap()).unwrap();
        assert!(plist::from_bytes::<plist::Dictionary>(&ecid).unwrap().contains_key("ECID"));
        let bad = GoldenBundle { hardware_model: "?".to_owned(), ..bundle };
        assert!(config(&bad).unwrap_err().to_string().contains("hardwareModel"));
    }
}
