//! From a golden to a VM's directory.
//!
//! Invariant: `vm.json` is the last file to appear, so a directory without it is a disk that was never
//! whole; it is made anew from nothing.

use std::fmt;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use futures::future::BoxFuture;
use jiff::Timestamp;
use macrack_api::rack::node::CloneWay;
use macrack_wire::layout::{write_json, write_whole};
use macrack_wire::{Display, MacAddress, VmDescription, VmDir};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::record::Record;
use crate::images::Manifest;
use crate::images::cache::{note_used, verify};
use crate::images::copy::{allocated, clone_file};
use crate::images::room::gigabytes;

/// The text of a first-boot script, fetched when the disk is made and never again.
pub type Script = BoxFuture<'static, Result<String, String>>;

/// Everything that a VM is made from.
pub struct Making {
    /// What the VM process is told.
    pub description: VmDescription,
    /// Bytes that the disk may grow to.
    pub disk_bytes: u64,
    /// Hex of the golden.
    pub golden: String,
    /// Its directory.
    pub golden_dir: PathBuf,
    /// The first-boot script, if there is one.
    pub script: Option<Script>,
}

impl fmt::Debug for Making {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Making").field("description", &self.description).finish_non_exhaustive()
    }
}

/// What a VM is described as.
#[derive(Debug, Clone)]
pub struct Shape {
    /// The instance's uid.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Virtual cores.
    pub cpu_cores: u32,
    /// Bytes.
    pub memory_bytes: u64,
    /// A screen.
    pub display: Option<Display>,
    /// Whether there is a first-boot script.
    pub first_boot: bool,
}

impl Shape {
    /// The description with an identity of its own. The hardware model is the golden's, and is filled in when the
    /// golden is there.
    pub fn described(self, machine_identifier: String, mac_address: MacAddress) -> VmDescription {
        VmDescription {
            uid: self.uid,
            namespace: self.namespace,
            name: self.name,
            cpu_cores: self.cpu_cores,
            memory_bytes: self.memory_bytes,
            disk: "disk.img".to_owned(),
            aux: "aux.img".to_owned(),
            hardware_model: None,
            machine_identifier,
            mac_address,
            display: self.display,
            first_boot: self.first_boot,
        }
    }
}

/// Makes the directory. Blocking.
pub(super) fn make_files(
    dir: &VmDir,
    making: &Making,
    script: Option<&str>,
    cancel: &CancellationToken,
) -> io::Result<Record> {
    let named = |what: &'static str| move |error: io::Error| io::Error::new(error.kind(), format!("{what}: {error}"));
    verify(&making.golden_dir).map_err(named("the golden on this Mac cannot be trusted and is pulled again"))?;
    let manifest: Manifest = macrack_wire::layout::read_json(&making.golden_dir.join("manifest.json"))?;
    if manifest.disk_bytes > making.disk_bytes {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "its InstanceClass allows a disk of {}, the golden's has {}; make an instance of a larger class",
                gigabytes(making.disk_bytes),
                gigabytes(manifest.disk_bytes)
            ),
        ));
    }
    match fs::remove_dir_all(dir.path()) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(named("removing the half-made disk")(error));
        }
        _ => {}
    }
    DirBuilder::new().mode(0o700).create(dir.path())?;
    let mut record = Record { golden: making.golden.clone(), disk_bytes: making.disk_bytes, ..Record::default() };
    record.write(dir)?;
    if let Some(script) = script {
        write_whole(&dir.first_boot(), script.as_bytes())?;
    }
    let mut go_on = |_| match cancel.is_cancelled() {
        true => Err(io::Error::new(io::ErrorKind::Interrupted, "it is to be wiped")),
        false => Ok(()),
    };
    let (disk, aux) = (dir.path().join(&making.description.disk), dir.path().join(&making.description.aux));
    let way = clone_file(&making.golden_dir.join("disk.img"), &disk, making.disk_bytes, &mut go_on)
        .map_err(named("cloning the golden's disk"))?;
    record.cloned_by = Some(way);
    record.shared_bytes = if way == CloneWay::Copy { 0 } else { allocated(&disk)? };
    record.write(dir)?;
    tracing::info!(vm = making.description.uid, ?way, shared = record.shared_bytes, "its disk is there");
    clone_file(&making.golden_dir.join("aux.img"), &aux, 0, &mut go_on)
        .map_err(named("cloning the golden's auxiliary storage"))?;
    write_json(&dir.manifest(), &contents(&manifest, &making.golden))?;
    note_used(&making.golden_dir, Timestamp::now()).map_err(named("noting that the golden is used"))?;
    dir.write_description(&VmDescription {
        hardware_model: manifest.hardware_model.clone(),
        ..making.description.clone()
    })?;
    File::open(dir.path())?.sync_all()?;
    Ok(record)
}

/// What this clone is made of, for the record.
fn contents(manifest: &Manifest, golden: &str) -> serde_json::Value {
    // what the golden does not say is not known, and not said here either
    let contents = [
        ("macOS", &manifest.os_version),
        ("Xcode", &manifest.xcode_version),
        ("GuestAgent", &manifest.guest_agent_version),
    ];
    let known = contents.into_iter().filter_map(|(kind, version)| Some((kind, version.as_ref()?)));
    let known: Vec<_> = known.map(|(kind, version)| json!({ "kind": kind, "version": version })).collect();
    json!({ "golden": format!("sha256:{golden}"), "contents": known })
}
