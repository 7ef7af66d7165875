//! The goldens on this chassis: `images/<hex>/{disk.img, aux.img, manifest.json, seal.json}`, read-only, and beside each
//! `images/.used-<hex>`, which says when it was used last.
//!
//! Invariants:
//! - a golden appears by one rename of a whole directory and disappears by one rename before its files go, so a crash
//!   at any moment leaves either the golden or a leftover that the next start removes;
//! - the seal is written when every byte was checked against its digest and is on the disk. What has no seal, or is not
//!   as its seal says, is no golden: nothing is cloned from it, and it is pulled again.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use macrack_wire::layout::{read_json, write_json, write_whole};
use serde::{Deserialize, Serialize};

use super::copy::allocated;
use super::reference::is_hex;

const PARTIAL: &str = ".partial-";
const EVICTED: &str = ".evicted-";
const USED: &str = ".used-";
const SEAL: &str = "seal.json";
/// What a golden is made of.
const FILES: [&str; 3] = ["disk.img", "aux.img", "manifest.json"];
/// Nobody writes to a golden, its owner included.
const FILE_MODE: u32 = 0o444;
const DIR_MODE: u32 = 0o555;

/// `seal.json`: what the files of a golden were when they had been checked. Any write shows in length or time.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Seal {
    files: BTreeMap<String, Stamp>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Stamp {
    bytes: u64,
    modified_seconds: i64,
    modified_nanos: i64,
}

impl Stamp {
    fn of(path: &Path) -> io::Result<Stamp> {
        let found = path.symlink_metadata()?;
        if !found.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is no file"));
        }
        Ok(Stamp { bytes: found.len(), modified_seconds: found.mtime(), modified_nanos: found.mtime_nsec() })
    }
}

impl Seal {
    fn of(dir: &Path) -> io::Result<Seal> {
        let stamp = |name: &&str| {
            let stamp = Stamp::of(&dir.join(name)).map_err(|error| named(name, &error))?;
            Ok(((*name).to_owned(), stamp))
        };
        FILES.iter().map(stamp).collect::<io::Result<_>>().map(|files| Seal { files })
    }
}

fn named(name: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{name}: {error}"))
}

/// Whether the golden in `dir` is what was pulled: cheap, by length and time of its files.
///
/// # Errors
/// What is not as it was, or cannot be looked at.
pub fn verify(dir: &Path) -> io::Result<()> {
    let seal: Seal = read_json(&dir.join(SEAL)).map_err(|error| named("it has no seal", &error))?;
    let found = Seal::of(dir)?;
    for name in FILES {
        let (sealed, now) = (seal.files.get(name), found.files.get(name));
        if sealed != now {
            let why = format!("{name} was changed since it was pulled: {now:?}, sealed {sealed:?}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
    }
    Ok(())
}

/// Notes that the golden in `dir` is used now.
///
/// # Errors
/// When it cannot be written.
pub fn note_used(dir: &Path, now: Timestamp) -> io::Result<()> {
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    write_whole(&dir.with_file_name(format!("{USED}{name}")), now.to_string().as_bytes())
}

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
    /// The cache in `root`, which is made when it is not there; leftovers of a crash are removed, and so is what is no
    /// golden any more.
    ///
    /// # Errors
    /// When the operating system refuses.
    pub fn open(root: impl Into<PathBuf>) -> io::Result<Self> {
        let root = root.into();
        fs::create_dir_all(&root)?;
        let cache = Cache { root };
        for entry in fs::read_dir(&cache.root)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            // what a pull has of a golden stays: it goes on from there, or is removed when nothing asks for it
            let partial = name.strip_prefix(PARTIAL).is_some_and(is_hex);
            if name.starts_with(EVICTED) || (name.starts_with(PARTIAL) && !partial) {
                tracing::info!(leftover = %name, "removing what a crash left behind");
                remove(&entry.path())?;
            } else if is_hex(&name) {
                cache.adopt(&name)?;
            } else if let Some(hex) = name.strip_prefix(USED)
                && !cache.dir(hex).exists()
            {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(cache)
    }

    /// Takes up a golden as a crash, another version or a person may have left it.
    fn adopt(&self, hex: &str) -> io::Result<()> {
        match verify(&self.dir(hex)) {
            // a crash may have come between the rename and this
            Ok(()) => fs::set_permissions(self.dir(hex), Permissions::from_mode(DIR_MODE)),
            Err(why) => {
                tracing::error!(golden = hex, %why, "it cannot be trusted: removed, and pulled again when it is needed");
                self.evict(hex)
            }
        }
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
                && self.has(&hex)
            {
                let golden = self.look(&hex)?;
                goldens.insert(hex, golden);
            }
        }
        Ok(goldens)
    }

    fn look(&self, hex: &str) -> io::Result<Golden> {
        let dir = self.dir(hex);
        let bytes = allocated(&dir.join("disk.img"))? + allocated(&dir.join("aux.img"))?;
        let written = fs::read_to_string(self.root.join(format!("{USED}{hex}"))).ok();
        let last_used = match written.and_then(|text| text.trim().parse().ok()) {
            Some(time) => time,
            // never written or unreadable: when its files were
            None => Timestamp::try_from(fs::metadata(dir)?.modified()?).map_err(io::Error::other)?,
        };
        Ok(Golden { bytes, last_used })
    }

    /// Whether the golden is here, and is what was pulled.
    pub fn has(&self, hex: &str) -> bool {
        is_hex(hex) && verify(&self.dir(hex)).is_ok()
    }

    /// The directory of a golden.
    pub fn dir(&self, hex: &str) -> PathBuf {
        self.root.join(hex)
    }

    /// The directory to pull into, with what an earlier pull of the same golden left there.
    ///
    /// # Errors
    /// When the operating system refuses.
    pub fn begin(&self, hex: &str) -> io::Result<PathBuf> {
        let partial = self.root.join(format!("{PARTIAL}{hex}"));
        fs::create_dir_all(&partial)?;
        // a crash may have come on the way to being published
        for name in FILES {
            match fs::set_permissions(partial.join(name), Permissions::from_mode(0o600)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(partial)
    }

    /// Bytes that the disk has of a golden that is not whole.
    pub fn partial_bytes(&self, hex: &str) -> u64 {
        let partial = self.root.join(format!("{PARTIAL}{hex}"));
        allocated(&partial.join("disk.img")).unwrap_or(0)
    }

    /// Hex of every golden that is not whole.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn partials(&self) -> io::Result<Vec<String>> {
        let mut partials = Vec::new();
        for entry in fs::read_dir(&self.root)? {
            if let Some(hex) = entry?.file_name().to_string_lossy().strip_prefix(PARTIAL)
                && is_hex(hex)
            {
                partials.push(hex.to_owned());
            }
        }
        Ok(partials)
    }

    /// Removes what was pulled so far.
    ///
    /// # Errors
    /// When the operating system refuses.
    pub fn discard(&self, hex: &str) -> io::Result<()> {
        remove(&self.root.join(format!("{PARTIAL}{hex}")))
    }

    /// Makes what was pulled a golden: read-only, sealed, on the disk, under its own name. The caller has checked every
    /// byte; what stands under the name and is no golden gives way.
    ///
    /// # Errors
    /// When the operating system refuses; nothing is then under its name.
    pub fn publish(&self, hex: &str, manifest: &[u8], now: Timestamp) -> io::Result<()> {
        let (partial, dir) = (self.root.join(format!("{PARTIAL}{hex}")), self.dir(hex));
        write_whole(&partial.join("manifest.json"), manifest)?;
        for name in FILES {
            let file = partial.join(name);
            fs::set_permissions(&file, Permissions::from_mode(FILE_MODE))?;
            File::open(&file)?.sync_all()?;
        }
        // only what is on the disk is sealed: a seal that survives a power cut vouches for the bytes beside it
        write_json(&partial.join(SEAL), &Seal::of(&partial)?)?;
        fs::set_permissions(partial.join(SEAL), Permissions::from_mode(FILE_MODE))?;
        File::open(&partial)?.sync_all()?;
        if dir.exists() {
            self.evict(hex)?;
        }
        note_used(&dir, now)?;
        fs::rename(&partial, &dir)?;
        fs::set_permissions(&dir, Permissions::from_mode(DIR_MODE))?;
        File::open(&self.root)?.sync_all()
    }

    /// Removes a golden.
    ///
    /// # Errors
    /// When the operating system refuses.
    pub fn evict(&self, hex: &str) -> io::Result<()> {
        let evicted = self.root.join(format!("{EVICTED}{hex}"));
        remove(&evicted)?;
        fs::rename(self.dir(hex), &evicted)?;
        match fs::remove_file(self.root.join(format!("{USED}{hex}"))) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        remove(&evicted)
    }
}

/// Removes a directory with all that is in it, read-only or not; one that is not there is removed.
fn remove(dir: &Path) -> io::Result<()> {
    let gone = fs::set_permissions(dir, Permissions::from_mode(0o700)).and_then(|()| fs::remove_dir_all(dir));
    match gone {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
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
        let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left.len(), 3, "leftovers are still there: {left:?}");
        // what was pulled of the other is of use to the next pull of it, until nothing asks for it
        assert_eq!(cache.partials().unwrap(), std::slice::from_ref(&cut));
        assert!(!cache.has(&cut), "a half golden is taken for one");
        assert_eq!(fs::read(cache.begin(&cut).unwrap().join("disk.img")).unwrap(), b"disk");
        cache.discard(&cut).unwrap();
        assert!(cache.partials().unwrap().is_empty());
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    /// A cache with one golden.
    fn with_golden(root: &Path) -> (Cache, String) {
        let cache = Cache::open(root).unwrap();
        let hex = "a".repeat(64);
        let partial = cache.begin(&hex).unwrap();
        for name in ["disk.img", "aux.img"] {
            fs::write(partial.join(name), name).unwrap();
        }
        cache.publish(&hex, b"{}", Timestamp::UNIX_EPOCH).unwrap();
        (cache, hex)
    }

    #[test]
    fn a_golden_is_read_only_and_goes_all_the_same_when_it_is_evicted() {
        let dir = tempfile::tempdir().unwrap();
        let (cache, hex) = with_golden(dir.path());
        assert_eq!(mode(&cache.dir(&hex)), 0o555);
        for name in ["disk.img", "aux.img", "manifest.json", "seal.json"] {
            assert_eq!(mode(&cache.dir(&hex).join(name)), 0o444, "{name}");
        }
        let later = Timestamp::from_second(3600).unwrap();
        note_used(&cache.dir(&hex), later).unwrap();
        assert_eq!(cache.list().unwrap()[&hex].last_used, later);
        cache.evict(&hex).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_was_changed_cut_or_never_sealed_is_no_golden_and_does_not_outlive_a_restart() {
        type Harm = fn(&Path);
        let harms: [(&str, Harm); 4] = [
            ("another length", |dir| fs::write(dir.join("disk.img"), "disk").unwrap()),
            ("another time", |dir| {
                let later = std::time::SystemTime::now() + std::time::Duration::from_secs(1);
                File::options().write(true).open(dir.join("disk.img")).unwrap().set_modified(later).unwrap();
            }),
            ("no seal: the power went between the files and their seal", |dir| {
                fs::remove_file(dir.join("seal.json")).unwrap();
            }),
            ("a link to elsewhere", |dir| {
                fs::rename(dir.join("aux.img"), dir.join("moved")).unwrap();
                std::os::unix::fs::symlink("moved", dir.join("aux.img")).unwrap();
            }),
        ];
        for (what, harm) in harms {
            let dir = tempfile::tempdir().unwrap();
            let (cache, hex) = with_golden(dir.path());
            let golden = cache.dir(&hex);
            fs::set_permissions(&golden, Permissions::from_mode(0o700)).unwrap();
            for name in ["disk.img", "aux.img"] {
                fs::set_permissions(golden.join(name), Permissions::from_mode(0o600)).unwrap();
            }
            assert!(cache.has(&hex), "modes alone are no change");
            harm(&golden);
            assert!(!cache.has(&hex) && cache.list().unwrap().is_empty(), "{what}");
            let cache = Cache::open(dir.path()).unwrap();
            assert!(!cache.dir(&hex).exists(), "{what}");
            // it can be pulled again
            with_golden(dir.path());
        }
    }

    #[test]
    fn a_good_golden_is_found_again_with_its_use_and_its_modes_put_right() {
        let dir = tempfile::tempdir().unwrap();
        let (cache, hex) = with_golden(dir.path());
        fs::set_permissions(cache.dir(&hex), Permissions::from_mode(0o700)).unwrap();
        fs::write(dir.path().join(format!(".used-{}", "d".repeat(64))), "").unwrap();
        let again = Cache::open(dir.path()).unwrap();
        assert_eq!(again.list().unwrap(), cache.list().unwrap());
        assert_eq!(mode(&again.dir(&hex)), 0o555);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "the use of a golden that is gone is kept");
    }
}
