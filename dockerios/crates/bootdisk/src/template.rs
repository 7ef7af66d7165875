//! The OpenCore template. Invariant: what is handed on was hashed as it was read, and matches a manifest whose own
//! sha256 is the one that was asked for; nothing unlisted gets through, and nothing listed is missing.
//!
//! The manifest is `MANIFEST.sha256` at the template's root, in the format of `sha256sum`: one line for each file,
//! `<sha256>  <path>`, sorted by path as bytes. Its own sha256 is the template's.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::config::CONFIG_PATH;
use crate::image::IMAGE_BYTES;

/// The manifest's name.
pub const MANIFEST: &str = "MANIFEST.sha256";

/// Without these OpenCore does not start. FAT does not care about case, nor does this list.
pub(crate) const NEEDED: [&str; 3] = ["EFI/BOOT/BOOTx64.efi", "EFI/OC/OpenCore.efi", CONFIG_PATH];

/// A folder inside a folder inside a folder: OpenCore's deepest kexts have about ten levels.
const MOST_LEVELS: usize = 32;

/// Why a template is refused.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// A file or folder cannot be read.
    #[error("template {path:?}: {error}; mount the template whole and readable")]
    Io {
        /// Which.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// The sha256 that was asked for is none.
    #[error("template sha256 {0:?} is not 64 hexadecimal digits; take it from `sha256sum {MANIFEST}`")]
    BadDigest(String),
    /// The manifest is another one.
    #[error("template {MANIFEST} has sha256 {found} and {wanted} was asked for; mount that template or name this one")]
    OtherTemplate {
        /// What is there.
        found: String,
        /// What was asked for.
        wanted: String,
    },
    /// A line of the manifest cannot be read.
    #[error(
        "template {MANIFEST} line {0}: has to be `<sha256>  <path>`, sorted by path, each path once; write it with \
         `dockerios-bootdisk manifest`"
    )]
    ManifestLine(usize),
    /// A file differs from the manifest.
    #[error("template file {path:?} has sha256 {found} and the manifest says {wanted}; restore the file")]
    OtherContent {
        /// The file.
        path: String,
        /// What is there.
        found: String,
        /// What the manifest says.
        wanted: String,
    },
    /// A listed file is not there.
    #[error("template file {0:?} stands in the manifest and is not there; restore the file")]
    Missing(String),
    /// A file is there that is not listed.
    #[error("template file {0:?} does not stand in the manifest; remove the file, or write the manifest anew")]
    Unlisted(String),
    /// A file that every template has.
    #[error("template has no {0}; build the template from a release of OpenCore")]
    Needed(&'static str),
    /// A link, a socket, a device.
    #[error("template {0:?} is neither a file nor a folder; put the file itself there")]
    Special(PathBuf),
    /// A name that is not text.
    #[error("template {0:?} has a name that is not UTF-8, holds a line break, or lies too deep; rename it")]
    Name(PathBuf),
    /// More than a bootdisk holds.
    #[error("template has {0} bytes and a bootdisk {IMAGE_BYTES}; leave out what is not needed")]
    Large(u64),
}

/// Files that were verified, by path.
#[derive(Debug)]
pub struct Template {
    /// Paths with `/` and contents, sorted.
    pub files: BTreeMap<String, Vec<u8>>,
}

impl Template {
    /// Reads and verifies the template in that folder.
    pub fn load(folder: &Path, sha256: &str) -> Result<Self, TemplateError> {
        if !is_digest(sha256) {
            return Err(TemplateError::BadDigest(sha256.chars().take(80).collect()));
        }
        let path = folder.join(MANIFEST);
        let manifest = read_manifest(path)?;
        let found = digest(&manifest);
        if !found.eq_ignore_ascii_case(sha256) {
            return Err(TemplateError::OtherTemplate {
                found,
                wanted: sha256.to_owned(),
            });
        }
        let mut listed = parse(&manifest)?;
        let files = read(folder)?;
        for (path, content) in &files {
            let wanted = listed
                .remove(path)
                .ok_or_else(|| TemplateError::Unlisted(path.clone()))?;
            let found = digest(content);
            if found != wanted {
                return Err(TemplateError::OtherContent {
                    path: path.clone(),
                    found,
                    wanted,
                });
            }
        }
        if let Some((path, _)) = listed.pop_first() {
            return Err(TemplateError::Missing(path));
        }
        for needed in NEEDED {
            let exact = needed == CONFIG_PATH;
            if !files.keys().any(|path| {
                if exact {
                    path == needed
                } else {
                    path.eq_ignore_ascii_case(needed)
                }
            }) {
                return Err(TemplateError::Needed(needed));
            }
        }
        Ok(Self { files })
    }
}

/// A file, as all of a template: a pipe or a device would be read without an end.
fn read_manifest(path: PathBuf) -> Result<Vec<u8>, TemplateError> {
    let io = |error| TemplateError::Io {
        path: path.clone(),
        error,
    };
    let about = fs::metadata(&path).map_err(io)?;
    if !about.is_file() {
        return Err(TemplateError::Special(path));
    }
    if about.len() > IMAGE_BYTES {
        return Err(TemplateError::Large(about.len()));
    }
    fs::read(&path).map_err(io)
}

/// The manifest of the files in that folder.
pub fn manifest(folder: &Path) -> Result<String, TemplateError> {
    Ok(read(folder)?
        .iter()
        .map(|(path, content)| format!("{}  {path}\n", digest(content)))
        .collect())
}

/// The sha256 in hexadecimal digits.
pub fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn parse(manifest: &[u8]) -> Result<BTreeMap<String, String>, TemplateError> {
    let text = std::str::from_utf8(manifest).map_err(|_| TemplateError::ManifestLine(1))?;
    let mut listed: BTreeMap<String, String> = BTreeMap::new();
    for (at, line) in text.lines().enumerate() {
        let refuse = || TemplateError::ManifestLine(at + 1);
        let (sha256, path) = line.split_once("  ").ok_or_else(refuse)?;
        let sorted = listed.last_key_value().is_none_or(|(last, _)| last.as_str() < path);
        if !is_digest(sha256) || path.is_empty() || !sorted {
            return Err(refuse());
        }
        listed.insert(path.to_owned(), sha256.to_ascii_lowercase());
    }
    Ok(listed)
}

fn read(folder: &Path) -> Result<BTreeMap<String, Vec<u8>>, TemplateError> {
    let mut files = BTreeMap::new();
    let mut found = Vec::new();
    walk(folder, "", 0, &mut found)?;
    let total = found.iter().map(|(_, _, size)| size).sum();
    if total > IMAGE_BYTES {
        return Err(TemplateError::Large(total));
    }
    for (name, path, _) in found {
        let content = fs::read(&path).map_err(|error| TemplateError::Io { path, error })?;
        files.insert(name, content);
    }
    Ok(files)
}

fn walk(
    folder: &Path,
    prefix: &str,
    level: usize,
    found: &mut Vec<(String, PathBuf, u64)>,
) -> Result<(), TemplateError> {
    let io = |error| TemplateError::Io {
        path: folder.to_owned(),
        error,
    };
    for entry in fs::read_dir(folder).map_err(io)? {
        let entry = entry.map_err(io)?;
        let path = entry.path();
        let name = match entry.file_name().into_string() {
            Ok(name) if !name.contains(['\n', '\r']) && level < MOST_LEVELS => format!("{prefix}{name}"),
            _ => return Err(TemplateError::Name(path)),
        };
        let metadata = fs::symlink_metadata(&path).map_err(|error| TemplateError::Io {
            path: path.clone(),
            error,
        })?;
        if metadata.is_dir() {
            walk(&path, &format!("{name}/"), level + 1, found)?;
        } else if !metadata.is_file() {
            return Err(TemplateError::Special(path));
        } else if name != MANIFEST {
            found.push((name, path, metadata.len()));
        }
    }
    Ok(())
}
