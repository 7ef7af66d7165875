//! A golden as a folder, before it is pushed: what `macrack-vm install` writes and `kubectl macrack image push`
//! reads.
//!
//! ```text
//!   BUNDLE/bundle.json    a GoldenBundle: written last, so a folder without it is no bundle
//!          disk.img       raw
//!          aux.img        the auxiliary storage
//!          machine.json   the identity that it was installed with: for the first boots, never pushed
//! ```
//!
//! A bundle that is booted to be finished is run by `macrack-vm` like any VM; a clone of the pushed golden gets an
//! identity of its own.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::layout::{read_json, write_json};
use crate::vm::{Display, MacAddress};

/// The content of `bundle.json`: what the image needs of a host, and what is on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GoldenBundle {
    /// `VZMacHardwareModel.dataRepresentation`, base64. The aux storage is of this model, so the two go together.
    pub hardware_model: String,
    /// The macOS in it, e.g. `26.1`.
    pub os_version: String,
    /// Fewest virtual cores that this macOS takes.
    pub cpu_count_min: u32,
    /// Least memory that this macOS takes, in bytes.
    pub memory_min: u64,
    /// Length of `disk.img` in bytes.
    pub disk_bytes: u64,
    /// The screen that it was set up with, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display: Option<Display>,
}

/// The content of `machine.json`: the identity that a bundle is booted with while it is being finished.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BundleMachine {
    /// `VZMacMachineIdentifier.dataRepresentation`, base64.
    pub machine_identifier: String,
    /// Its network card.
    pub mac_address: MacAddress,
}

/// The folder of a golden.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BundleDir(PathBuf);

impl BundleDir {
    /// The bundle whose files lie in `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        BundleDir(path.into())
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// `disk.img`, raw.
    pub fn disk(&self) -> PathBuf {
        self.0.join("disk.img")
    }

    /// `aux.img`, the auxiliary storage.
    pub fn aux(&self) -> PathBuf {
        self.0.join("aux.img")
    }

    /// `bundle.json`: a [`GoldenBundle`].
    pub fn manifest(&self) -> PathBuf {
        self.0.join("bundle.json")
    }

    /// `machine.json`: a [`BundleMachine`].
    pub fn machine(&self) -> PathBuf {
        self.0.join("machine.json")
    }

    /// What the bundle says.
    ///
    /// # Errors
    /// When `bundle.json` is not there (then nothing finished here) or is not understood; the file is named.
    pub fn read(&self) -> io::Result<GoldenBundle> {
        read_json(&self.manifest())
    }

    /// Writes `bundle.json`, whole or not at all.
    ///
    /// # Errors
    /// As the operating system's.
    pub fn write(&self, bundle: &GoldenBundle) -> io::Result<()> {
        write_json(&self.manifest(), bundle)
    }

    /// The identity it was installed with.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_machine(&self) -> io::Result<BundleMachine> {
        read_json(&self.machine())
    }

    /// Writes `machine.json`, whole or not at all.
    ///
    /// # Errors
    /// As the operating system's.
    pub fn write_machine(&self, machine: &BundleMachine) -> io::Result<()> {
        write_json(&self.machine(), machine)
    }
}
