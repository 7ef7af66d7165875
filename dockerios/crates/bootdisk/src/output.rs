//! Writing the image. Invariant: under the output's name there is either what was there before or the whole image,
//! never a part of it. A block device cannot be swapped: there every byte is written, zeros too, whatever lay there.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::image::{Extent, IMAGE_BYTES};

/// What the name of an image begins with until it is whole.
const UNFINISHED_IMAGE: &str = ".bootdisk-";
/// What the name of a layout begins with until it is whole.
pub(crate) const UNFINISHED_LAYOUT: &str = ".containerdisk-";

/// Why the image was not written.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// The path is not one that an image can have.
    #[error("output {0:?} is neither a file nor a block device; name a file in an existing folder")]
    Kind(PathBuf),
    /// The block device is smaller than the image.
    #[error("output {path:?} has {there} bytes and the image takes {IMAGE_BYTES}; make the volume at least 384Mi")]
    Small {
        /// The device.
        path: PathBuf,
        /// Its size in bytes.
        there: u64,
    },
    /// The system refused.
    #[error("output {path:?}: {error}; the folder has to be there, writable, and to have room")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
}

/// Writes the image and gives its sha256.
pub fn write(output: &Path, extents: &[Extent]) -> Result<String, OutputError> {
    let io = |error| OutputError::Io {
        path: output.to_owned(),
        error,
    };
    match output.metadata() {
        Ok(there) if there.file_type().is_block_device() => device(output, extents)?,
        Ok(there) if !there.is_file() => return Err(OutputError::Kind(output.to_owned())),
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io(error)),
        _ => replace(output, extents)?,
    }
    let mut digest = Sha256::new();
    stream(&mut digest, extents).map_err(io)?;
    Ok(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The folder that the file lies in.
pub(crate) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// What lies unfinished beside the output: of runs that were killed, or of such that go on. Nobody can tell which, so it
/// is for a person to remove. A folder that cannot be read is said by whoever writes there.
pub fn unfinished(output: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder_of(output)).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries
        .filter(|entry| {
            let name = entry.file_name();
            [UNFINISHED_IMAGE, UNFINISHED_LAYOUT]
                .iter()
                .any(|prefix| name.as_encoded_bytes().starts_with(prefix.as_bytes()))
        })
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found
}

fn replace(output: &Path, extents: &[Extent]) -> Result<(), OutputError> {
    let folder = folder_of(output);
    if output.file_name().is_none() {
        return Err(OutputError::Kind(output.to_owned()));
    }
    let io = |error| OutputError::Io {
        path: output.to_owned(),
        error,
    };
    let mut file = tempfile::Builder::new()
        .prefix(UNFINISHED_IMAGE)
        .tempfile_in(folder)
        .map_err(io)?;
    sparse(file.as_file_mut(), extents).map_err(io)?;
    file.as_file()
        .set_permissions(Permissions::from_mode(0o644))
        .map_err(io)?;
    file.as_file().sync_all().map_err(io)?;
    file.persist(output).map_err(|error| io(error.error))?;
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(io)
}

fn sparse(file: &mut File, extents: &[Extent]) -> io::Result<()> {
    file.set_len(IMAGE_BYTES)?;
    for extent in extents {
        file.seek(SeekFrom::Start(extent.offset))?;
        file.write_all(&extent.bytes)?;
    }
    Ok(())
}

fn device(path: &Path, extents: &[Extent]) -> Result<(), OutputError> {
    let io = |error| OutputError::Io {
        path: path.to_owned(),
        error,
    };
    let mut device = OpenOptions::new().write(true).open(path).map_err(io)?;
    let there = device.seek(SeekFrom::End(0)).map_err(io)?;
    if there < IMAGE_BYTES {
        return Err(OutputError::Small {
            path: path.to_owned(),
            there,
        });
    }
    device.rewind().map_err(io)?;
    stream(&mut device, extents).map_err(io)?;
    device.sync_all().map_err(io)
}

/// Every byte of the image in order.
fn stream(target: &mut impl Write, extents: &[Extent]) -> io::Result<()> {
    let zeros = vec![0; 1 << 20];
    let mut at = 0;
    let fill = |target: &mut dyn Write, mut missing: u64| -> io::Result<()> {
        while missing > 0 {
            let part = missing.min(zeros.len() as u64);
            target.write_all(&zeros[..part as usize])?;
            missing -= part;
        }
        Ok(())
    };
    for extent in extents {
        let gap = extent
            .offset
            .checked_sub(at)
            .ok_or_else(|| io::Error::other("extents overlap"))?;
        fill(target, gap)?;
        target.write_all(&extent.bytes)?;
        at = extent.offset + extent.bytes.len() as u64;
    }
    fill(target, IMAGE_BYTES.saturating_sub(at))
}
