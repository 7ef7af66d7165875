//! `hostd.log`: every call with its time, its peer and its outcome, one JSON object a line, only ever appended to.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

/// The log is set aside as `hostd.log.1` when it is longer than this, in bytes.
const LONG: u64 = 8 * 1024 * 1024;

/// Who is at the other end of a connection, as the kernel says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Peer {
    /// Its user.
    pub uid: u32,
    /// Its process, where the kernel tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
}

/// One line.
#[derive(Debug, Serialize)]
struct Line<'a> {
    at: Timestamp,
    peer: Peer,
    asked: &'a Value,
    outcome: &'a str,
}

/// The log.
#[derive(Debug)]
pub struct Journal {
    file: PathBuf,
}

impl Journal {
    /// The log in `file`, mode 0600.
    pub fn new(file: PathBuf) -> Self {
        Journal { file }
    }

    /// Appends a line and sees it on the disk.
    ///
    /// # Errors
    /// When the operating system refuses; an error names the file.
    pub fn note(&self, peer: Peer, asked: &Value, outcome: &str) -> io::Result<()> {
        let mut line = serde_json::to_vec(&Line { at: Timestamp::now(), peer, asked, outcome })?;
        line.push(b'\n');
        self.append(&line).map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", self.file.display())))
    }

    fn append(&self, line: &[u8]) -> io::Result<()> {
        if fs::metadata(&self.file).is_ok_and(|log| log.len() > LONG) {
            fs::rename(&self.file, self.file.with_extension("log.1"))?;
        }
        let mut log = OpenOptions::new().append(true).create(true).mode(0o600).open(&self.file)?;
        log.write_all(line)?;
        log.sync_all()
    }
}
