//! A guest that is described by the files of a directory: for development and tests on Linux, never in a release.
//! Invariant: a file that is there and makes no sense leaves the value as it was.
//!
//! Files: `stage`, `osVersion`, `software` (one `name version` a line), `diskFree`, `diskTotal` (bytes), `serial`,
//! `systemUUID`, `bootId`. One that is missing is not known; without `stage` the guest is at AgentStarting.

use std::{fs, io, path::PathBuf};

use dockerios_wire::{Software, Stage};

use crate::facts::{Facts, Probe, Seen};

/// Reads the guest from files.
#[derive(Debug)]
pub struct DirectoryProbe {
    directory: PathBuf,
    last: Facts,
}

impl DirectoryProbe {
    /// Looks at the files of `directory`, which may appear later.
    #[must_use]
    pub fn new(directory: PathBuf) -> Self {
        Self {
            directory,
            last: Facts::default(),
        }
    }

    fn text(&self, name: &str) -> Result<Option<String>, String> {
        match fs::read_to_string(self.directory.join(name)) {
            Ok(text) => Ok(Some(text.trim().to_owned()).filter(|t| !t.is_empty())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(format!("{name}: {e}")),
        }
    }

    fn read<T>(
        &self,
        name: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
        absent: T,
        last: T,
        troubles: &mut Vec<String>,
    ) -> T {
        let read = match self.text(name) {
            Ok(None) => return absent,
            Ok(Some(text)) => parse(&text).map_err(|e| format!("{name}: {e}")),
            Err(e) => Err(e),
        };
        read.unwrap_or_else(|trouble| {
            troubles.push(trouble);
            last
        })
    }
}

impl Probe for DirectoryProbe {
    async fn look(&mut self) -> Seen {
        let mut t = Vec::new();
        let word = |text: &str| Ok::<_, String>(Some(text.to_owned()));
        let bytes = |text: &str| {
            text.parse()
                .map(Some)
                .map_err(|e| format!("`{text}` is no number of bytes: {e}"))
        };
        let last = self.last.clone();
        let stage = |text: &str| Stage::try_from(text.to_owned());
        let facts = Facts {
            stage: self.read("stage", stage, Stage::AgentStarting, last.stage, &mut t),
            os_version: self.read("osVersion", word, None, last.os_version, &mut t),
            software: self.read("software", programs, Vec::new(), last.software, &mut t),
            disk_free: self.read("diskFree", bytes, None, last.disk_free, &mut t),
            disk_total: self.read("diskTotal", bytes, None, last.disk_total, &mut t),
            serial: self.read("serial", word, None, last.serial, &mut t),
            system_uuid: self.read("systemUUID", word, None, last.system_uuid, &mut t),
            boot_id: self.read("bootId", word, None, last.boot_id, &mut t),
        };
        self.last = facts.clone();
        Seen { facts, troubles: t }
    }
}

fn programs(text: &str) -> Result<Vec<Software>, String> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines
        .map(|line| {
            let (name, version) = line
                .rsplit_once(' ')
                .ok_or_else(|| format!("`{line}` is not `name version`"))?;
            Ok(Software {
                name: name.trim().to_owned(),
                version: version.to_owned(),
            })
        })
        .collect()
}
