//! Copies of disk images: holes stay holes, and a copy can be hashed and stopped on its way.
//!
//! Blocking; callers use it where blocking is allowed.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use ring::digest::{Context, SHA256};
use rustix::fs::SeekFrom;
use rustix::io::Errno;

/// Bytes that are copied between two looks at whether to go on.
const CHUNK: usize = 1 << 20;
/// Runs of zeros of this length are left out of a copy: a file system block.
const BLOCK: usize = 4096;

/// A run of bytes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    start: u64,
    end: u64,
    data: bool,
}

/// Copies `len` bytes, hashing them; returns the digest in hex. `step` is told of every chunk and may
/// end the copy with an error, which is then this function's.
///
/// # Errors
/// The operating system's, or `step`'s.
pub fn copy_hashed(
    from: &File,
    to: &File,
    len: u64,
    step: &mut dyn FnMut(u64) -> io::Result<()>,
) -> io::Result<String> {
    let mut hash = Context::new(&SHA256);
    let zeros = vec![0; CHUNK];
    copy_runs(from, to, len, &mut |chunk, size| {
        hash.update(chunk.unwrap_or(&zeros[..size]));
        step(size as u64)
    })?;
    Ok(hex(hash.finish().as_ref()))
}

/// The sha256 of a file's bytes, in hex.
///
/// # Errors
/// When it cannot be read.
pub fn hash_file(path: &Path) -> io::Result<String> {
    let file = File::open(path)?;
    let mut hash = Context::new(&SHA256);
    let zeros = vec![0; CHUNK];
    let mut buffer = vec![0; CHUNK];
    for run in runs(&file, file.metadata()?.len())? {
        for (at, size) in chunks(run) {
            if run.data {
                file.read_exact_at(&mut buffer[..size], at)?;
                hash.update(&buffer[..size]);
            } else {
                hash.update(&zeros[..size]);
            }
        }
    }
    Ok(hex(hash.finish().as_ref()))
}

/// The sha256 of `bytes`, in hex.
pub fn hash(bytes: &[u8]) -> String {
    hex(ring::digest::digest(&SHA256, bytes).as_ref())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Makes `to` a copy of `from` that shares its blocks where the file system can do that, and is sparse
/// where it cannot; then lengthens it to `at_least` bytes. `to` must not exist.
///
/// # Errors
/// The operating system's, or `step`'s.
pub fn clone_file(
    from: &Path,
    to: &Path,
    at_least: u64,
    step: &mut dyn FnMut(u64) -> io::Result<()>,
) -> io::Result<()> {
    let source = File::open(from)?;
    let target = share_or_create(from, &source, to)?;
    let len = source.metadata()?.len();
    let target = match target {
        Target::Shared(file) => file,
        Target::Empty(file) => {
            copy_runs(&source, &file, len, &mut |_, size| step(size as u64))?;
            file
        }
    };
    if at_least > len {
        target.set_len(at_least)?;
    }
    target.sync_all()
}

enum Target {
    Shared(File),
    Empty(File),
}

#[cfg(target_os = "linux")]
fn share_or_create(_: &Path, source: &File, to: &Path) -> io::Result<Target> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(to)?;
    match rustix::fs::ioctl_ficlone(&file, source) {
        Ok(()) => Ok(Target::Shared(file)),
        // this file system shares no blocks
        Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::INVAL | Errno::XDEV) => Ok(Target::Empty(file)),
        Err(error) => Err(error.into()),
    }
}

#[cfg(target_os = "macos")]
fn share_or_create(from: &Path, _: &File, to: &Path) -> io::Result<Target> {
    if to.exists() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    // the standard library clones on APFS (fclonefileat) before it copies; a golden is read-only
    std::fs::copy(from, to)?;
    std::fs::set_permissions(to, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    Ok(Target::Shared(OpenOptions::new().write(true).mode(0o600).open(to)?))
}

/// Bytes that a file takes on the disk.
///
/// # Errors
/// When it cannot be looked at.
pub fn allocated(path: &Path) -> io::Result<u64> {
    // st_blocks counts units of 512 bytes whatever the file system's block is (stat(2))
    Ok(path.symlink_metadata()?.blocks() * 512)
}

/// Sees a chunk: its bytes, or `None` for a hole, and its size; an error ends the copy.
type Each<'a> = dyn FnMut(Option<&[u8]>, usize) -> io::Result<()> + 'a;

/// Copies the runs of data; `each` sees every chunk: its bytes, or `None` for a hole of that size.
fn copy_runs(from: &File, to: &File, len: u64, each: &mut Each<'_>) -> io::Result<()> {
    to.set_len(len)?;
    let zeros = vec![0; BLOCK];
    let mut buffer = vec![0; CHUNK];
    for run in runs(from, len)? {
        for (at, size) in chunks(run) {
            if !run.data {
                each(None, size)?;
                continue;
            }
            let chunk = &mut buffer[..size];
            from.read_exact_at(chunk, at)?;
            for (n, block) in chunk.chunks(BLOCK).enumerate() {
                if *block != zeros[..block.len()] {
                    to.write_all_at(block, at + (n * BLOCK) as u64)?;
                }
            }
            each(Some(chunk), size)?;
        }
    }
    Ok(())
}

/// The runs of data and holes of the first `len` bytes, in order, without gaps.
fn runs(file: &File, len: u64) -> io::Result<Vec<Run>> {
    let mut runs = Vec::new();
    let mut at = 0;
    while at < len {
        let data = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(data) => data.min(len),
            // no data up to the end of the file
            Err(Errno::NXIO) => len,
            Err(error) => return Err(error.into()),
        };
        if data > at {
            runs.push(Run { start: at, end: data, data: false });
        }
        if data < len {
            let end = rustix::fs::seek(file, SeekFrom::Hole(data))?.min(len);
            runs.push(Run { start: data, end, data: true });
            at = end;
        } else {
            at = len;
        }
    }
    Ok(runs)
}

fn chunks(run: Run) -> impl Iterator<Item = (u64, usize)> {
    (run.start..run.end).step_by(CHUNK).map(move |at| (at, usize::try_from(run.end - at).unwrap_or(CHUNK).min(CHUNK)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sparse(path: &Path) -> File {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path).unwrap();
        file.set_len(8 << 20).unwrap();
        file.write_all_at(b"at the start", 0).unwrap();
        file.write_all_at(b"in the middle", 5 << 20).unwrap();
        file
    }

    #[test]
    fn a_copy_has_the_same_bytes_and_digest_and_stays_sparse() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        let source = sparse(&a);
        let target = File::create_new(&b).unwrap();
        let mut seen = 0;
        let digest = copy_hashed(&source, &target, 8 << 20, &mut |n| {
            seen += n;
            Ok(())
        })
        .unwrap();
        assert_eq!(std::fs::read(&a).unwrap(), std::fs::read(&b).unwrap());
        assert_eq!(digest, hash(&std::fs::read(&a).unwrap()), "holes are hashed as the zeros they are");
        assert_eq!(hash_file(&a).unwrap(), digest);
        assert_eq!(seen, 8 << 20, "holes count as progress");
        assert!(allocated(&b).unwrap() < 1 << 20, "a hole was filled");
    }

    #[test]
    fn a_copy_ends_when_it_is_told_to() {
        let dir = tempfile::tempdir().unwrap();
        let source = sparse(&dir.path().join("a"));
        let target = File::create_new(dir.path().join("b")).unwrap();
        let stopped = copy_hashed(&source, &target, 8 << 20, &mut |_| Err(io::Error::other("no more room")));
        assert_eq!(stopped.unwrap_err().to_string(), "no more room");
    }

    #[test]
    fn a_clone_is_writable_as_long_as_asked_and_never_replaces_a_disk() {
        let dir = tempfile::tempdir().unwrap();
        let (golden, disk) = (dir.path().join("golden"), dir.path().join("disk"));
        sparse(&golden);
        clone_file(&golden, &disk, 16 << 20, &mut |_| Ok(())).unwrap();
        let clone = OpenOptions::new().read(true).write(true).open(&disk).unwrap();
        assert_eq!(clone.metadata().unwrap().len(), 16 << 20);
        clone.write_all_at(b"tenant", 0).unwrap();
        assert_eq!(&std::fs::read(&golden).unwrap()[..6], b"at the", "the golden is untouched");
        let again = clone_file(&golden, &disk, 0, &mut |_| Ok(()));
        assert_eq!(again.unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    }
}
