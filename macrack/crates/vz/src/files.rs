//! What the files of a VM must be, before the framework opens them: looked at, never changed.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use macrack_wire::VmError;
use macrack_wire::classify::{INVALID_DISK, MACRACK_DOMAIN};

use crate::configuration::{Configuration, Disk};

/// Disks come in whole sectors.
pub const SECTOR: u64 = 512;

/// Formats that are not raw, by the bytes that they begin with. The framework is told no format, so it must tell ASIF
/// (which it opens from macOS 26 on) by these bytes, and it is the guest that writes them: one that made its raw disk look
/// like another format would choose for itself how long its disk is. Every golden is raw, so every disk is.
const FORMATS: [(&[u8], &str); 5] = [
    (b"shdw", "an ASIF"),
    (b"QFI\xfb", "a qcow2"),
    (b"KDMV", "a VMDK"),
    (b"vhdxfile", "a VHDX"),
    (b"conectix", "a VHD"),
];
/// How a disk image of `hdiutil` ends: `koly`, 512 bytes before its end.
const UDIF: &[u8] = b"koly";

/// Directories that the system empties when it likes: on a Mac, `TMPDIR` and what stands for it.
pub fn temporary_directories() -> Vec<PathBuf> {
    let mut all = vec![std::env::temp_dir()];
    all.extend(["/tmp", "/private/tmp", "/var/folders", "/private/var/folders"].map(PathBuf::from));
    all
}

/// Judges the files of `configuration`. `temporary` are directories in which no disk may lie.
///
/// # Errors
/// Of class `InvalidConfiguration` where a path is wrong, `DiskImage` where a disk is; the file is named.
pub fn check(configuration: &Configuration, temporary: &[PathBuf]) -> Result<(), VmError> {
    for path in configuration.files() {
        check_path(path)?;
    }
    for disk in &configuration.disks {
        check_disk(disk, temporary)?;
    }
    let aux = &configuration.platform.auxiliary_storage;
    let bytes = fs::metadata(aux).map_err(|error| unreadable(aux, &error))?.len();
    if bytes == 0 {
        return Err(misplaced(aux, "the auxiliary storage is empty; make the instance anew"));
    }
    Ok(())
}

/// Why no disk lies at `path`, if that is in one of the directories `temporary`.
pub(crate) fn swept(path: &Path, temporary: &[PathBuf]) -> Option<String> {
    let directory = temporary.iter().find(|directory| path.starts_with(directory))?;
    Some(format!("a disk in {} is lost when the system tidies up", directory.display()))
}

fn check_path(path: &Path) -> Result<(), VmError> {
    if !path.is_absolute() || path.to_str().is_none() {
        return Err(misplaced(path, "not an absolute path in UTF-8, as the framework takes them"));
    }
    let link = fs::symlink_metadata(path).map_err(|error| unreadable(path, &error))?;
    if !link.is_file() {
        return Err(misplaced(path, "not a regular file; the framework follows no symbolic links"));
    }
    let real = fs::canonicalize(path).map_err(|error| unreadable(path, &error))?;
    if real != path {
        let why = format!("its path goes through a symbolic link; use {}", real.display());
        return Err(misplaced(path, &why));
    }
    Ok(())
}

fn check_disk(disk: &Disk, temporary: &[PathBuf]) -> Result<(), VmError> {
    let path = &disk.image;
    if let Some(why) = swept(path, temporary) {
        return Err(misplaced(path, &format!("{why}; move the state directory")));
    }
    let image = File::open(path).map_err(|error| unreadable(path, &error))?;
    let bytes = image.metadata().map_err(|error| unreadable(path, &error))?.len();
    if bytes == 0 || !bytes.is_multiple_of(SECTOR) {
        return Err(bad_disk(path, &format!("{bytes} bytes: a disk has a multiple of {SECTOR}; make it anew")));
    }
    match format(&image, bytes).map_err(|error| unreadable(path, &error))? {
        None => Ok(()),
        Some(name) => Err(bad_disk(
            path,
            &format!(
                "it begins or ends as {name} image does, and a disk is raw: if its golden is so, convert that and push it \
                 anew, else its guest has written this: make the instance anew"
            ),
        )),
    }
}

/// The format of an image that is not raw, with its article.
fn format(image: &File, bytes: u64) -> io::Result<Option<&'static str>> {
    let mut sector = [0; SECTOR as usize];
    image.read_exact_at(&mut sector, 0)?;
    if let Some((_, name)) = FORMATS.iter().find(|(magic, _)| sector.starts_with(magic)) {
        return Ok(Some(name));
    }
    image.read_exact_at(&mut sector, bytes - SECTOR)?;
    Ok(sector.starts_with(UDIF).then_some("a DMG"))
}

fn misplaced(path: &Path, why: &str) -> VmError {
    VmError::invalid(format!("{}: {why}", path.display()))
}

fn bad_disk(path: &Path, why: &str) -> VmError {
    VmError::new(MACRACK_DOMAIN, INVALID_DISK, format!("{}: {why}", path.display()))
}

/// A file that cannot be looked at is no file: the start fails, and says of which.
fn unreadable(path: &Path, error: &io::Error) -> VmError {
    bad_disk(path, &error.to_string())
}
