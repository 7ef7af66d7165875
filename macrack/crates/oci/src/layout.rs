//! Tart's layout of a macOS VM as an OCI image: read and written, pure.
//!
//! ```text
//!   manifest ── config                                       an ordinary OCI config, for the labels
//!            ├─ vnd.cirruslabs.tart.config.v1                the VM: hardware model, least cores and memory
//!            ├─ vnd.cirruslabs.tart.disk.v2   × n            LZ4 of at most 512 MiB of disk each, in order
//!            └─ vnd.cirruslabs.tart.nvram.v1                 the auxiliary storage, as it is
//! ```
//!
//! MacRack adds annotations of its own to the manifest (`io.macrack.…`). An image without them can be pulled all the
//! same: what it does not say is not known.
//!
//! Invariant: a [`Golden`] names each byte of its disk exactly once, and every size in it is bounded.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::digest::is_digest;
use crate::error::Error;

/// Media type of an OCI image manifest.
pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// Media type of an OCI image's config.
pub const IMAGE_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
/// Media type of the layer that describes the VM.
pub const CONFIG: &str = "application/vnd.cirruslabs.tart.config.v1";
/// Media type of a chunk of the disk.
pub const DISK: &str = "application/vnd.cirruslabs.tart.disk.v2";
/// Media type of the auxiliary storage.
pub const NVRAM: &str = "application/vnd.cirruslabs.tart.nvram.v1";
const DISK_PREFIX: &str = "application/vnd.cirruslabs.tart.disk.";
const OVERLAY: &str = "application/vnd.cirruslabs.tart.disk.asif.overlay.v1";

/// On a chunk: its raw size in bytes.
pub const RAW_SIZE: &str = "org.cirruslabs.tart.uncompressed-size";
/// On a chunk: the digest of its raw bytes.
pub const RAW_DIGEST: &str = "org.cirruslabs.tart.uncompressed-content-digest";
/// On the manifest: the length of the disk in bytes.
pub const DISK_SIZE: &str = "org.cirruslabs.tart.uncompressed-disk-size";
/// On the manifest: when it was pushed.
pub const UPLOAD_TIME: &str = "org.cirruslabs.tart.upload-time";
/// Label in the config: raw or asif.
pub const DISK_FORMAT: &str = "org.cirruslabs.tart.disk.format";

const OS: &str = "io.macrack.os-version";
const XCODE: &str = "io.macrack.xcode-version";
const GUEST_AGENT: &str = "io.macrack.guest-agent-version";
const MINIMUM_HOST: &str = "io.macrack.minimum-host-version";

/// Longest manifest that is read, in bytes (the least that the distribution specification asks of registries).
pub const MAX_MANIFEST: u64 = 4 << 20;
/// Longest config that is read, in bytes.
pub const MAX_CONFIG: u64 = 1 << 20;
/// Largest auxiliary storage, in bytes; Apple's is 32 MiB.
pub const MAX_NVRAM: u64 = 256 << 20;
/// Most raw bytes of a chunk (Tart's own).
pub const MAX_CHUNK: u64 = 512 << 20;
/// Disks come in whole sectors of this many bytes (of `VZDiskImageStorageDeviceAttachment`).
pub const SECTOR: u64 = 512;
/// Longest disk, in bytes: more than any Mac has that is leased.
pub const MAX_DISK: u64 = 16 << 40;

/// A blob of a registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blob {
    /// `sha256:…`.
    pub digest: String,
    /// Bytes.
    pub size: u64,
}

/// A part of the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// As it is in the registry: compressed.
    pub blob: Blob,
    /// Where its raw bytes begin on the disk.
    pub offset: u64,
    /// How many they are.
    pub raw_size: u64,
    /// Their digest, if it is known.
    pub raw_digest: Option<String>,
}

/// What is known of a golden's contents; what is not said is not known.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Facts {
    /// The guest's macOS, e.g. `26.1`.
    pub os_version: Option<String>,
    /// The Xcode on it.
    pub xcode_version: Option<String>,
    /// The `macrack-guest` in it.
    pub guest_agent_version: Option<String>,
    /// Oldest host macOS that can run it.
    pub minimum_host_version: Option<String>,
}

impl Facts {
    fn read(annotations: &BTreeMap<String, String>) -> Result<Facts, Error> {
        let of = |name: &str| match annotations.get(name) {
            Some(text) if text.is_empty() || text.len() > 64 || text.chars().any(char::is_control) => {
                Err(wrong(format!("annotation {name} is no version")))
            }
            found => Ok(found.cloned()),
        };
        Ok(Facts {
            os_version: of(OS)?,
            xcode_version: of(XCODE)?,
            guest_agent_version: of(GUEST_AGENT)?,
            minimum_host_version: of(MINIMUM_HOST)?,
        })
    }

    fn annotations(&self) -> impl Iterator<Item = (&'static str, &String)> {
        [
            (OS, &self.os_version),
            (XCODE, &self.xcode_version),
            (GUEST_AGENT, &self.guest_agent_version),
            (MINIMUM_HOST, &self.minimum_host_version),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name, value.as_ref()?)))
    }
}

/// A golden as its manifest says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Golden {
    /// The OCI config.
    pub image_config: Blob,
    /// The VM's description.
    pub config: Blob,
    /// The disk, in order, without a gap.
    pub chunks: Vec<Chunk>,
    /// The auxiliary storage.
    pub nvram: Blob,
    /// Length of the disk, in bytes.
    pub disk_bytes: u64,
    /// What is in it.
    pub facts: Facts,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Manifest {
    schema_version: u32,
    #[serde(default)]
    media_type: Option<String>,
    config: Descriptor,
    layers: Vec<Descriptor>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    media_type: String,
    digest: String,
    size: u64,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<String, String>,
}

impl Descriptor {
    fn blob(&self, most: u64) -> Result<Blob, Error> {
        if !is_digest(&self.digest) {
            return Err(wrong(format!("{:.80} is no sha256 digest", self.digest)));
        }
        if self.size > most {
            return Err(wrong(format!("{} has {} bytes, at most {most} are taken", self.digest, self.size)));
        }
        Ok(Blob { digest: self.digest.clone(), size: self.size })
    }

    fn of(media_type: &str, blob: &Blob) -> Descriptor {
        Descriptor {
            media_type: media_type.to_owned(),
            digest: blob.digest.clone(),
            size: blob.size,
            annotations: BTreeMap::new(),
        }
    }
}

fn wrong(why: impl Into<String>) -> Error {
    Error::NotAGolden(why.into())
}

/// Most bytes that a chunk of `raw` bytes may have when compressed: what does not shrink is stored, with a header per
/// block.
fn coded_at_most(raw: u64) -> u64 {
    raw + raw / 16 + (1 << 20)
}

impl Golden {
    /// Reads a manifest.
    ///
    /// # Errors
    /// When it is none, or not one of a macOS golden in Tart's layout; says what is wrong.
    pub fn read(bytes: &[u8]) -> Result<Golden, Error> {
        let manifest: Manifest =
            serde_json::from_slice(bytes).map_err(|error| wrong(format!("its manifest cannot be read: {error}")))?;
        if manifest.schema_version != 2 || manifest.media_type.as_deref().is_some_and(|found| found != MANIFEST) {
            return Err(wrong(format!(
                "it is {}, not one image; take the digest of the image itself",
                manifest.media_type.as_deref().unwrap_or("a manifest of another schema")
            )));
        }
        let layers = &manifest.layers;
        let only = |media_type: &str, most| {
            let mut found = layers.iter().filter(|layer| layer.media_type == media_type);
            match (found.next(), found.next()) {
                (Some(layer), None) => layer.blob(most),
                (None, _) => Err(wrong(format!("no macOS VM in Tart's layout: it has no layer {media_type}"))),
                _ => Err(wrong(format!("it has more than one layer {media_type}"))),
            }
        };
        layers.iter().try_for_each(known)?;
        let chunks = chunks(layers)?;
        let disk_bytes = chunks.last().map_or(0, |last| last.offset + last.raw_size);
        if !disk_bytes.is_multiple_of(SECTOR) {
            return Err(wrong(format!(
                "its disk has {disk_bytes} bytes, and a disk comes in whole sectors of {SECTOR}; push it again"
            )));
        }
        if let Some(said) = manifest.annotations.get(DISK_SIZE)
            && said.parse() != Ok(disk_bytes)
        {
            return Err(wrong(format!(
                "its chunks are {disk_bytes} bytes of disk, annotation {DISK_SIZE} says {said:.24}"
            )));
        }
        let (config, nvram) = (only(CONFIG, MAX_CONFIG)?, only(NVRAM, MAX_NVRAM)?);
        if nvram.size == 0 {
            return Err(wrong("its auxiliary storage is empty, and no Mac starts without one; push it again"));
        }
        Ok(Golden {
            image_config: manifest.config.blob(MAX_CONFIG)?,
            config,
            nvram,
            disk_bytes,
            chunks,
            facts: Facts::read(&manifest.annotations)?,
        })
    }

    /// Writes the manifest.
    ///
    /// # Errors
    /// When it would be longer than registries must take.
    pub fn write(&self, uploaded: jiff::Timestamp) -> Result<Vec<u8>, Error> {
        let disk = self.chunks.iter().map(|chunk| {
            let mut layer = Descriptor::of(DISK, &chunk.blob);
            layer.annotations.insert(RAW_SIZE.to_owned(), chunk.raw_size.to_string());
            layer.annotations.extend(chunk.raw_digest.clone().map(|digest| (RAW_DIGEST.to_owned(), digest)));
            layer
        });
        let config = std::iter::once(Descriptor::of(CONFIG, &self.config));
        let mut annotations: BTreeMap<String, String> =
            self.facts.annotations().map(|(name, value)| (name.to_owned(), value.clone())).collect();
        annotations.insert(DISK_SIZE.to_owned(), self.disk_bytes.to_string());
        annotations.insert(UPLOAD_TIME.to_owned(), uploaded.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
        let manifest = Manifest {
            schema_version: 2,
            media_type: Some(MANIFEST.to_owned()),
            config: Descriptor::of(IMAGE_CONFIG, &self.image_config),
            layers: config.chain(disk).chain([Descriptor::of(NVRAM, &self.nvram)]).collect(),
            annotations,
        };
        let bytes = serde_json::to_vec(&manifest).map_err(|error| Error::Invalid(error.to_string()))?;
        if bytes.len() as u64 > MAX_MANIFEST {
            return Err(Error::Invalid(format!(
                "its manifest would have {} bytes, registries take {MAX_MANIFEST}; use larger chunks",
                bytes.len()
            )));
        }
        Ok(bytes)
    }

    /// Bytes that a pull moves.
    pub fn download_bytes(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.blob.size).sum::<u64>() + self.nvram.size + self.config.size
    }
}

fn known(layer: &Descriptor) -> Result<(), Error> {
    match layer.media_type.as_str() {
        CONFIG | DISK | NVRAM => Ok(()),
        OVERLAY => Err(wrong(
            "its disk is a stack of ASIF overlays, which need macOS 27 on the Mac and are not read; push it with one raw disk (tart set --disk-format raw)",
        )),
        other if other.starts_with(DISK_PREFIX) => {
            Err(wrong(format!("its disk is in {other:.80}, only {DISK} is read; push it again with a present Tart")))
        }
        other => Err(wrong(format!("it holds a layer {other:.80}, which no macOS golden has"))),
    }
}

fn chunks(layers: &[Descriptor]) -> Result<Vec<Chunk>, Error> {
    let mut chunks = Vec::new();
    let mut offset = 0;
    for layer in layers.iter().filter(|layer| layer.media_type == DISK) {
        let said = layer.annotations.get(RAW_SIZE);
        let raw_size: u64 = said
            .and_then(|said| said.parse().ok())
            .filter(|size| (1..=MAX_CHUNK).contains(size))
            .ok_or_else(|| wrong(format!("{}: {RAW_SIZE} must be 1 to {MAX_CHUNK}, it is {said:?}", layer.digest)))?;
        let raw_digest = layer.annotations.get(RAW_DIGEST).cloned();
        if raw_digest.as_deref().is_some_and(|digest| !is_digest(digest)) {
            return Err(wrong(format!("{}: {RAW_DIGEST} is no sha256 digest", layer.digest)));
        }
        chunks.push(Chunk { blob: layer.blob(coded_at_most(raw_size))?, offset, raw_size, raw_digest });
        offset += raw_size;
        if offset > MAX_DISK {
            return Err(wrong(format!("its disk is longer than {MAX_DISK} bytes")));
        }
    }
    if chunks.is_empty() {
        return Err(wrong(format!("it has no disk: no layer {DISK}")));
    }
    Ok(chunks)
}

/// The VM as its config layer says; what MacRack needs of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmConfig {
    /// Data representation of the hardware model, base64; without it no Mac can start the guest.
    pub hardware_model: String,
    /// Least virtual cores.
    pub cpu_count_min: Option<u64>,
    /// Least memory, in bytes.
    pub memory_min: Option<u64>,
}

/// What a config layer is made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewConfig<'a> {
    /// Data representation of the hardware model, base64.
    pub hardware_model: &'a str,
    /// Data representation of a machine identifier, base64: Tart wants one; MacRack gives every clone its own.
    pub machine_identifier: &'a str,
    /// A MAC address, for the same reason.
    pub mac_address: &'a str,
    /// Least virtual cores.
    pub cpu_count_min: u64,
    /// Least memory, in bytes.
    pub memory_min: u64,
    /// Width and height of the screen, in pixels.
    pub display: (u32, u32),
}

impl VmConfig {
    /// Reads a config layer.
    ///
    /// # Errors
    /// When it is not the config of a macOS guest with a raw disk.
    pub fn read(bytes: &[u8]) -> Result<VmConfig, Error> {
        let config: Value =
            serde_json::from_slice(bytes).map_err(|error| wrong(format!("its VM config cannot be read: {error}")))?;
        let text = |name: &str| config.get(name).and_then(Value::as_str);
        let must = |name: &str, wanted: &str, or: &str| match text(name).unwrap_or(or) {
            found if found == wanted => Ok(()),
            found => Err(wrong(format!("its VM config says {name} {found:.40}; a golden has {wanted}"))),
        };
        // Tart's older configs name neither, and are of macOS on Apple silicon
        must("os", "darwin", "darwin")?;
        must("arch", "arm64", "arm64")?;
        must("diskFormat", "raw", "raw")?;
        let model = text("hardwareModel").filter(|model| !model.is_empty() && model.len() <= 4096);
        let model = model.ok_or_else(|| wrong("its VM config has no hardwareModel"))?;
        let number = |name: &str| config.get(name).and_then(Value::as_u64);
        Ok(VmConfig {
            hardware_model: model.to_owned(),
            cpu_count_min: number("cpuCountMin"),
            memory_min: number("memorySizeMin"),
        })
    }

    /// Writes a config layer as Tart reads it.
    pub fn write(new: &NewConfig<'_>) -> Vec<u8> {
        json!({
            "version": 1,
            "os": "darwin",
            "arch": "arm64",
            "hardwareModel": new.hardware_model,
            "ecid": new.machine_identifier,
            "cpuCountMin": new.cpu_count_min,
            "cpuCount": new.cpu_count_min,
            "memorySizeMin": new.memory_min,
            "memorySize": new.memory_min,
            "macAddress": new.mac_address,
            "display": { "width": new.display.0, "height": new.display.1 },
            "diskFormat": "raw",
        })
        .to_string()
        .into_bytes()
    }
}

/// The OCI config of a golden.
pub fn image_config() -> Vec<u8> {
    json!({ "architecture": "arm64", "os": "darwin", "config": { "Labels": { DISK_FORMAT: "raw" } } })
        .to_string()
        .into_bytes()
}

/// Refuses an OCI config whose disk is of another format than raw.
///
/// # Errors
/// As said; and when it is no JSON.
pub fn judge_image_config(bytes: &[u8]) -> Result<(), Error> {
    let config: Value =
        serde_json::from_slice(bytes).map_err(|error| wrong(format!("its OCI config cannot be read: {error}")))?;
    match config.pointer("/config/Labels").and_then(|labels| labels.get(DISK_FORMAT)).and_then(Value::as_str) {
        None | Some("raw") => Ok(()),
        Some(other) => Err(wrong(format!(
            "its disk is {other:.40}; only raw is read: such images need macOS 26 or newer on the Mac; push it with a raw disk"
        ))),
    }
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;
