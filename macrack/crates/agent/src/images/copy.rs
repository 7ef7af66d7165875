//! Copies of disk images: holes stay holes, and a copy can be hashed and stopped on its way.
//!
//! Blocking; callers use it where blocking is allowed.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use macrack_api::rack::node::CloneWay;
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

/// Makes `to` a copy of `from` that shares its blocks where the file system can do that; on Linux it is sparse where
/// it cannot, on a Mac it is refused. Then lengthens it to `at_least` bytes. `to` must not exist, and neither may be a
/// symbolic link. Says which way was taken.
///
/// # Errors
/// The operating system's, or `step`'s; [`unshared`]'s words where blocks cannot be shared and must be.
pub fn clone_file(
    from: &Path,
    to: &Path,
    at_least: u64,
    step: &mut dyn FnMut(u64) -> io::Result<()>,
) -> io::Result<CloneWay> {
    let source = OpenOptions::new().read(true).custom_flags(no_follow()).open(from)?;
    let len = source.metadata()?.len();
    let (way, target) = share(&source, to)?;
    if way == CloneWay::Copy {
        copy_runs(&source, &target, len, &mut |_, size| step(size as u64))?;
    }
    if at_least > len {
        target.set_len(at_least)?;
    }
    target.sync_all()?;
    Ok(way)
}

/// Fails on a symbolic link in the last place of a path.
fn no_follow() -> i32 {
    i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or(0)
}

/// The file system's own way to share blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sharing {
    /// `fclonefileat(2)` of APFS: makes the file.
    #[cfg_attr(not(any(test, target_os = "macos")), allow(dead_code, reason = "judged on Linux in tests"))]
    Clonefile,
    /// The ioctl `FICLONE` of Linux (ioctl_ficlonerange(2)): fills a file that is there.
    #[cfg_attr(not(any(test, target_os = "linux")), allow(dead_code, reason = "judged on macOS never"))]
    Reflink,
}

/// What follows from the answer of the file system, when it was asked to share blocks: pure. A Mac never copies in
/// silence: a golden of 100 GB copied twice is no disk left, and minutes where a clone takes none.
fn unshared(by: Sharing, answer: Result<(), Errno>) -> io::Result<CloneWay> {
    let error = match (by, answer) {
        (Sharing::Clonefile, Ok(())) => return Ok(CloneWay::Clonefile),
        (Sharing::Reflink, Ok(())) => return Ok(CloneWay::Reflink),
        // this file system shares no blocks, or not between these two places
        (Sharing::Reflink, Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::INVAL | Errno::XDEV)) => {
            return Ok(CloneWay::Copy);
        }
        (Sharing::Reflink, Err(error)) => return Err(error.into()),
        (Sharing::Clonefile, Err(error)) => error,
    };
    let why = match error {
        Errno::XDEV => {
            "the golden and the VM lie on different volumes; keep all of --state-dir on one APFS volume".to_owned()
        }
        // two numbers on Darwin, one on Linux
        error if error == Errno::NOTSUP || error == Errno::OPNOTSUPP => {
            "the volume of --state-dir cannot clone files; put it on an APFS volume".to_owned()
        }
        Errno::EXIST => "there is a disk already, and a disk is never replaced".to_owned(),
        Errno::NOSPC => "the volume is full; delete an instance, or let goldens be evicted".to_owned(),
        error => io::Error::from(error).to_string(),
    };
    let kind = io::Error::from(error).kind();
    Err(io::Error::new(kind, format!("clonefile: {why}; it is not copied instead, which would fill the disk")))
}

/// Makes `to`, with the source's blocks if they can be shared, else empty.
#[cfg(target_os = "linux")]
fn share(source: &File, to: &Path) -> io::Result<(CloneWay, File)> {
    let target = OpenOptions::new().write(true).create_new(true).mode(0o600).open(to)?;
    let way = unshared(Sharing::Reflink, rustix::fs::ioctl_ficlone(&target, source))?;
    Ok((way, target))
}

/// Makes `to` with the source's blocks. Of the owner nothing is copied: the disk is the agent's user's.
#[cfg(target_os = "macos")]
fn share(source: &File, to: &Path) -> io::Result<(CloneWay, File)> {
    use rustix::fs::{CWD, CloneFlags, fclonefileat};
    // CLONE_NOFOLLOW (1) and CLONE_NOOWNERCOPY (2) of <sys/clonefile.h>
    let flags = CloneFlags::NOFOLLOW | CloneFlags::NOOWNERCOPY;
    let way = unshared(Sharing::Clonefile, fclonefileat(source, CWD, to, flags))?;
    // a golden is read-only, and so is its clone at first
    std::fs::set_permissions(to, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    let target = OpenOptions::new().write(true).custom_flags(no_follow()).open(to)?;
    Ok((way, target))
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
        let way = clone_file(&golden, &disk, 16 << 20, &mut |_| Ok(())).unwrap();
        assert!(matches!(way, CloneWay::Reflink | CloneWay::Copy), "{way:?}");
        let clone = OpenOptions::new().read(true).write(true).open(&disk).unwrap();
        assert_eq!(clone.metadata().unwrap().len(), 16 << 20);
        clone.write_all_at(b"tenant", 0).unwrap();
        assert_eq!(&std::fs::read(&golden).unwrap()[..6], b"at the", "the golden is untouched");
        let again = clone_file(&golden, &disk, 0, &mut |_| Ok(()));
        assert_eq!(again.unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    }

    #[test]
    fn a_golden_behind_a_link_is_not_cloned() {
        let dir = tempfile::tempdir().unwrap();
        sparse(&dir.path().join("elsewhere"));
        std::os::unix::fs::symlink(dir.path().join("elsewhere"), dir.path().join("golden")).unwrap();
        let refused = clone_file(&dir.path().join("golden"), &dir.path().join("disk"), 0, &mut |_| Ok(()));
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(Errno::LOOP.raw_os_error()));
        assert!(!dir.path().join("disk").exists());
    }

    #[test]
    fn linux_copies_where_blocks_cannot_be_shared_and_a_mac_refuses_with_the_reason() {
        use Sharing::{Clonefile, Reflink};
        assert_eq!(unshared(Clonefile, Ok(())).unwrap(), CloneWay::Clonefile);
        assert_eq!(unshared(Reflink, Ok(())).unwrap(), CloneWay::Reflink);
        for error in [Errno::OPNOTSUPP, Errno::NOTTY, Errno::INVAL, Errno::XDEV] {
            assert_eq!(unshared(Reflink, Err(error)).unwrap(), CloneWay::Copy, "{error}");
        }
        assert!(unshared(Reflink, Err(Errno::NOSPC)).is_err(), "a full disk is no reason to copy");
        for (error, kind, words) in [
            (Errno::XDEV, io::ErrorKind::CrossesDevices, "on one APFS volume"),
            (Errno::OPNOTSUPP, io::ErrorKind::Unsupported, "put it on an APFS volume"),
            (Errno::EXIST, io::ErrorKind::AlreadyExists, "never replaced"),
            (Errno::NOSPC, io::ErrorKind::StorageFull, "delete an instance"),
            (Errno::IO, io::ErrorKind::Other, "clonefile: "),
            (Errno::NOTTY, io::ErrorKind::Other, "not copied instead"),
        ] {
            let refused = unshared(Clonefile, Err(error)).expect_err("a Mac copied in silence");
            if kind != io::ErrorKind::Other {
                assert_eq!(refused.kind(), kind, "{error}");
            }
            assert!(refused.to_string().contains(words), "{error}: {refused}");
        }
    }

    /// A mounted file system that shares blocks; unmounted when dropped.
    struct Xfs(tempfile::TempDir);

    impl Xfs {
        /// `None`, with the reason, where this machine cannot make and mount one: it takes root, a kernel with XFS and
        /// loop devices, and mkfs.xfs of the package xfsprogs.
        fn mounted() -> Result<Xfs, String> {
            let dir = tempfile::tempdir().unwrap();
            let (image, mount) = (dir.path().join("image"), dir.path().join("mount"));
            std::fs::create_dir(&mount).unwrap();
            File::create(&image).unwrap().set_len(512 << 20).unwrap();
            let run = |program: &str, arguments: &[&std::ffi::OsStr]| match std::process::Command::new(program)
                .args(arguments)
                .output()
            {
                Ok(done) if done.status.success() => Ok(()),
                Ok(done) => Err(format!("{program}: {}", String::from_utf8_lossy(&done.stderr).trim())),
                Err(error) => Err(format!("{program}: {error}")),
            };
            run("mkfs.xfs", &["-q".as_ref(), image.as_os_str()])?;
            run("mount", &["-o".as_ref(), "loop".as_ref(), image.as_os_str(), mount.as_os_str()])?;
            Ok(Xfs(dir))
        }
    }

    impl Drop for Xfs {
        fn drop(&mut self) {
            let unmounted = std::process::Command::new("umount").arg(self.0.path().join("mount")).status();
            assert!(unmounted.is_ok_and(|status| status.success()), "{} is still mounted", self.0.path().display());
        }
    }

    #[test]
    fn on_a_file_system_that_shares_blocks_a_clone_takes_none_until_it_is_written() {
        let xfs = match Xfs::mounted() {
            Ok(xfs) => xfs,
            Err(why) => return eprintln!("SKIPPED, reflinks are not tested here: {why}"),
        };
        let place = xfs.0.path().join("mount");
        let (golden, disk) = (place.join("golden"), place.join("disk"));
        std::fs::write(&golden, vec![7; 64 << 20]).unwrap();
        std::fs::set_permissions(&golden, std::os::unix::fs::PermissionsExt::from_mode(0o444)).unwrap();
        File::open(&golden).unwrap().sync_all().unwrap();
        let free = || {
            let found = rustix::fs::statvfs(&place).unwrap();
            found.f_bavail * found.f_frsize
        };
        let before = free();
        assert_eq!(clone_file(&golden, &disk, 128 << 20, &mut |_| Ok(())).unwrap(), CloneWay::Reflink);
        assert!(before - free() < 4 << 20, "{} bytes were copied", before - free());
        // shared blocks count as allocated: what it may still take is the whole of its size
        let shared = allocated(&disk).unwrap();
        assert!(shared >= 64 << 20, "{shared}");
        assert_eq!(crate::images::room::growth(128 << 20, shared, shared), 128 << 20);
        let clone = OpenOptions::new().write(true).open(&disk).unwrap();
        clone.write_all_at(&vec![9; 32 << 20], 0).unwrap();
        clone.sync_all().unwrap();
        assert!(before - free() >= 32 << 20, "written blocks are its own");
        assert_eq!(std::fs::read(&golden).unwrap()[..4], [7; 4], "the golden is untouched");
        drop(clone);
        drop(xfs);
    }
}
