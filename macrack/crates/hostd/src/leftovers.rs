//! What the agent's user could not remove of a VM's directory.
//!
//! Invariant: everything is reached from the root directory one name at a time, by descriptors, and a symbolic link
//! is never followed: it ends the walk above a VM's directory, and is itself removed below it. So whoever owns the
//! state directory cannot make root remove anything elsewhere.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, open, openat, statat, unlinkat};
use rustix::io::Errno;

/// Deepest nesting that is removed; what nests deeper was made to harm.
const DEEPEST: u32 = 64;

/// Removes `<state_dir>/vms/<uid>` and everything in it, and looks that it is gone. Answers how many files and
/// directories that were.
///
/// # Errors
/// When something on the way is a symbolic link or no directory, when another volume is mounted in it, or when the
/// operating system refuses; an error names what.
pub fn remove(state_dir: &Path, uid: &str) -> io::Result<u32> {
    let path = state_dir.join("vms").join(uid);
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let Some(parent) = descend(state_dir)?.map(|dir| child(&dir, "vms")).transpose().map_err(named)?.flatten() else {
        return Ok(0);
    };
    let Some(dir) = child(&parent, uid).map_err(named)? else { return Ok(0) };
    let root = rustix::fs::fstat(&dir)?;
    let mut removed = 0;
    empty(&dir, &root, DEEPEST, &mut removed).map_err(named)?;
    drop(dir);
    unlinkat(&parent, uid, AtFlags::REMOVEDIR).map_err(|error| named(error.into()))?;
    match statat(&parent, uid, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => Ok(removed + 1),
        Ok(_) => Err(named(io::Error::other("it is there again after it was removed"))),
        Err(error) => Err(named(error.into())),
    }
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The directory `path`, which must be absolute; `None` when it is not there.
fn descend(path: &Path) -> io::Result<Option<OwnedFd>> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let mut dir = open("/", DIRECTORY, Mode::empty())?;
    for part in path.components() {
        match part {
            Component::RootDir => {}
            Component::Normal(name) => match child(&dir, name).map_err(named)? {
                Some(next) => dir = next,
                None => return Ok(None),
            },
            _ => return Err(named(io::Error::new(io::ErrorKind::InvalidInput, "not an absolute path without `..`"))),
        }
    }
    Ok(Some(dir))
}

/// The directory `name` in `dir`; `None` when there is nothing of that name.
fn child(dir: &OwnedFd, name: impl rustix::path::Arg) -> io::Result<Option<OwnedFd>> {
    match openat(dir, name, DIRECTORY, Mode::empty()) {
        Ok(child) => Ok(Some(child)),
        Err(Errno::NOENT) => Ok(None),
        // Linux says the second for a link, Darwin the first
        Err(Errno::LOOP | Errno::NOTDIR) => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "a part of it is a symbolic link or no directory; root follows none: remove it by hand",
        )),
        Err(error) => Err(error.into()),
    }
}

/// Removes everything in `dir`, as long as it lies on the volume of `root`.
fn empty(dir: &OwnedFd, root: &Stat, depth: u32, removed: &mut u32) -> io::Result<()> {
    let Some(deeper) = depth.checked_sub(1) else {
        return Err(io::Error::other(format!("nested deeper than {DEEPEST} directories")));
    };
    for name in names(dir)? {
        let said = name.to_string_lossy().into_owned();
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{said}: {error}"));
        let about = match statat(dir, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(about) => about,
            Err(Errno::NOENT) => continue,
            Err(error) => return Err(named(error.into())),
        };
        let mut how = AtFlags::empty();
        if FileType::from_raw_mode(about.st_mode) == FileType::Directory {
            if about.st_dev != root.st_dev {
                return Err(named(io::Error::other("another volume is mounted there: unmount it")));
            }
            if let Some(inner) = child(dir, &name).map_err(named)? {
                empty(&inner, root, deeper, removed).map_err(named)?;
            }
            how = AtFlags::REMOVEDIR;
        }
        match unlinkat(dir, &name, how) {
            Ok(()) => *removed += 1,
            Err(Errno::NOENT) => {}
            Err(error) => return Err(named(error.into())),
        }
    }
    Ok(())
}

/// The names in a directory, listed whole before any is removed.
fn names(dir: &OwnedFd) -> io::Result<Vec<std::ffi::CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir.as_fd())? {
        let entry = entry?;
        let name: &CStr = entry.file_name();
        if name != c"." && name != c".." {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use super::*;

    const UID: &str = "0a1b2c3d-0000-4000-8000-00000000b002";

    fn state() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        fs::create_dir(path.join("vms")).unwrap();
        (dir, path)
    }

    #[test]
    fn a_directory_goes_with_all_that_is_in_it_and_its_neighbours_stay() {
        let (_keep, state) = state();
        let vm = state.join("vms").join(UID);
        fs::create_dir_all(vm.join("guest-root/a/b")).unwrap();
        fs::write(vm.join("guest-root/a/b/file"), "x").unwrap();
        fs::create_dir(state.join("vms/other")).unwrap();
        assert_eq!(remove(&state, UID).unwrap(), 5);
        assert!(!vm.exists() && state.join("vms/other").exists());
        assert_eq!(remove(&state, UID).unwrap(), 0, "what is not there is no error");
    }

    #[test]
    fn a_link_inside_is_removed_and_what_it_names_is_not() {
        let (_keep, state) = state();
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("kept"), "x").unwrap();
        let vm = state.join("vms").join(UID);
        fs::create_dir(&vm).unwrap();
        symlink(outside.path(), vm.join("link")).unwrap();
        assert_eq!(remove(&state, UID).unwrap(), 2);
        assert!(outside.path().join("kept").exists());
    }

    #[test]
    fn a_link_on_the_way_is_refused_wherever_it_stands() {
        let outside = tempfile::tempdir().unwrap();
        let target = outside.path().join("vms").join(UID);
        fs::create_dir_all(&target).unwrap();
        fs::write(target.join("kept"), "x").unwrap();
        let (_keep, state) = state();
        symlink(&target, state.join("vms").join(UID)).unwrap();
        let vm = remove(&state, UID).unwrap_err().to_string();
        fs::remove_file(state.join("vms").join(UID)).unwrap();
        fs::remove_dir(state.join("vms")).unwrap();
        symlink(outside.path().join("vms"), state.join("vms")).unwrap();
        let vms = remove(&state, UID).unwrap_err().to_string();
        let link = state.join("state");
        symlink(outside.path(), &link).unwrap();
        let root = remove(&link, UID).unwrap_err().to_string();
        for refused in [vm, vms, root] {
            assert!(refused.contains("symbolic link"), "{refused}");
        }
        assert!(target.join("kept").exists());
    }

    #[test]
    fn what_nests_without_end_is_refused() {
        let (_keep, state) = state();
        let mut deep = state.join("vms").join(UID);
        (0..80).for_each(|_| deep.push("d"));
        fs::create_dir_all(&deep).unwrap();
        assert!(remove(&state, UID).unwrap_err().to_string().contains("nested deeper"));
    }
}
