//! `agent.json` in a VM's directory: what the agent must remember of it over its own end.
//!
//! Invariant: it is the first file in the directory and is written before what it tells of happens, so
//! that a golden is known to have a clone before the clone exists.

use std::io;
use std::path::PathBuf;

use macrack_api::rack::node::CloneWay;
use macrack_wire::VmDir;
use macrack_wire::layout::{read_json, write_json};
use serde::{Deserialize, Serialize};

/// What the agent remembers of a VM.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// Hex of the golden that its disk is a clone of.
    pub golden: String,
    /// Bytes that its disk may grow to.
    #[serde(default)]
    pub disk_bytes: u64,
    /// How its disk was made from the golden, once it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cloned_by: Option<CloneWay>,
    /// Bytes that its disk shared with the golden at first.
    #[serde(default)]
    pub shared_bytes: u64,
    /// How often it was started.
    #[serde(default)]
    pub starts: u32,
    /// The boot of the last start.
    #[serde(default, rename = "bootID")]
    pub boot_id: String,
    /// The process of the last start, once it is known.
    #[serde(default)]
    pub pid: Option<u32>,
    /// It was ordered to stop since its last start: however it ended, it may be started again.
    #[serde(default)]
    pub stopped_by_order: bool,
}

impl Record {
    fn path(dir: &VmDir) -> PathBuf {
        dir.path().join("agent.json")
    }

    /// Reads it; `None` when there is none.
    ///
    /// # Errors
    /// When it is there and cannot be read.
    pub fn read(dir: &VmDir) -> io::Result<Option<Record>> {
        match read_json(&Self::path(dir)) {
            Ok(record) => Ok(Some(record)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes it, atomically.
    ///
    /// # Errors
    /// When the operating system refuses.
    pub fn write(&self, dir: &VmDir) -> io::Result<()> {
        write_json(&Self::path(dir), self)
    }
}
