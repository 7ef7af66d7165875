//! The goldens on this chassis: `images/<hex>/{disk.img, aux.img, manifest.json, last-used}`.
//!
//! Invariant: a golden appears by one rename of a whole directory and disappears by one rename before
//! its files go, so a crash at any moment leaves either the golden or a leftover that the next start
//! removes.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use macrack_wire::layout::write_whole;

use super::copy::allocated;
use super::reference::is_hex;

const PARTIAL: &str = ".partial-";
const EVICTED: &str = ".evicted-";

/// One golden on this chassis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Golden {
    /// Bytes that it takes on the disk.
    pub bytes: u64,
    /// When an instance was last cloned from it, or it was pulled.
    pub last_used: Timestamp,
}

/// The directory of goldens.
#[derive(Debug, Clone)]
pub struct Cache {
    root: PathBuf,
}

impl Cache {
    /// The cache in `root`, which is made when it is not there; leftovers of a crash are removed.
    ///
    /// # Errors
    /// When the operating system refuses.
    pub fn open(root: impl Into<PathBuf>) -> io::Result<Self> {
        let root = root.into();
        fs::create_dir_all(&root)?;
        for entry in fs::read_dir(&root)? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with(PARTIAL) || name.starts_with(EVICTED) {
                tracing::info!(leftover = %name, "removing what a crash left behind");
                fs::remove_dir_all(entry.path())?;
            }
        }
        Ok(Cache { root })
    }

    /// Every golden, by hex.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn list(&self) -> io::Result<BTreeMap<String, Golden>> {
        let mut goldens = BTreeMap::new();
        for entry in fs::read_dir(&self.root)? {
            let entry = entry?;
            if let Ok(hex) = entry.file_name().into_string()
                && is_hex(&hex)
            {
                let golden = self.look(&entry.path())?;
                goldens.insert(hex, golden);
            }
        }
        Ok(goldens)
    }

    fn look(&self, dir: &Path) -> io::Result<Golden> {
        let bytes = allocated(&dir.join("disk.img"))? + allocated(&dir.join("aux.img"))?;
        let written = fs::read_to_string(dir.join("last-used")).ok();
        let last_used = match written.and_then(|text| text.trim().parse().ok()) {
            Some(time) => time,
            // never written or unreadable: when its files were
            None => Timestamp::try_from(fs::metadata(dir)?.modified()?).map_err(io::Error::other)?,
        };
        Ok(Golden { bytes, last_used })
    }

    /// Whether the golden is here.
    pub fn has(&self, hex: &str) -> bool {
        is_hex(hex) && self.dir(hex).is_dir()
    }

    /// The directory of a golden.
    pub fn dir(&self, hex: &str) -> PathBuf {
        self.root.join(hex)
    }

    /// Notes that the golden is used now.
    ///
    /// # Errors
    /// When it is not here, or cannot be written.
    pub fn touch(&self, hex: &str, now: Timestamp) -> io::Result<()> {
        write_whole(&self.dir(hex).join("last-used"), now.to_string().as_bytes())
    }

    /// An empty directory to pull into; what an earlier pull left there is removed.
    ///
    /// # Errors
    /// When the operating system refuses.
    pub fn begin(&self, hex: &str) -> io::Result<PathBuf> {
        let partial = self.root.join(format!("{PARTIAL}{hex}"));
        self.discard(hex)?;
        fs::create_dir(&partial)?;
        Ok(partial)
    }

    /// Removes what was pulled so far.
    ///
    /// # Errors
    /// When the operating system refuses.
    pub fn discard(&self, hex: &str) -> io::Result<()> {
        match fs::remove_dir_all(self.root.join(format!("{PARTIAL}{hex}"))) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Makes what was pulled a golden: read-only, on the disk, under its own name.
    ///
    /// # Errors
    /// When the operating system refuses; nothing is then under its name.
    pub fn publish(&self, hex: &str, manifest: &[u8], now: Timestamp) -> io::Result<()> {
        let partial = self.root.join(format!("{PARTIAL}{hex}"));
        write_whole(&partial.join("manifest.json"), manifest)?;
        write_whole(&partial.join("last-used"), now.to_string().as_bytes())?;
        for name in ["disk.img", "aux.img", "manifest.json"] {
            fs::set_permissions(partial.join(name), Permissions::from_mode(0o400))?;
        }
        File::open(&partial)?.sync_all()?;
        fs::rename(&partial, self.dir(hex))?;
        File::open(&self.root)?.sync_all()
    }

    /// Removes a golden.
    ///
    /// # Errors
    /// When the operating system refuses.
    pub fn evict(&self, hex: &str) -> io::Result<()> {
        let evicted = self.root.join(format!("{EVICTED}{hex}"));
        fs::rename(self.dir(hex), &evicted)?;
        fs::remove_dir_all(evicted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crash_in_the_middle_of_a_pull_or_an_eviction_leaves_no_half_golden() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(dir.path()).unwrap();
        let (whole, cut) = ("a".repeat(64), "b".repeat(64));
        for hex in [&whole, &cut] {
            let partial = cache.begin(hex).unwrap();
            fs::write(partial.join("disk.img"), "disk").unwrap();
            fs::write(partial.join("aux.img"), "aux").unwrap();
        }
        cache.publish(&whole, b"{}", Timestamp::UNIX_EPOCH).unwrap();
        fs::create_dir(dir.path().join(format!(".evicted-{}", "c".repeat(64)))).unwrap();

        let cache = Cache::open(dir.path()).unwrap();
        assert!(cache.list().unwrap().into_keys().eq([whole.clone()]));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "leftovers are still there");
        let mode = fs::metadata(cache.dir(&whole).join("disk.img")).unwrap().permissions().mode();
        assert_eq!(mode & 0o222, 0, "a golden can be written to");
    }
}
