//! The end of a VM's files.
//!
//! Invariant: success means that `vms/` was listed afterwards and the uid was not in it.

use std::fs;
use std::io;

use macrack_wire::VmDir;

/// Removes everything of a VM and looks that it is gone. Blocking.
pub(super) fn wipe_files(dir: &VmDir) -> io::Result<()> {
    let path = dir.path();
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(named(error)),
        _ => {}
    }
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(named(io::Error::from(io::ErrorKind::InvalidInput)));
    };
    for entry in fs::read_dir(parent).map_err(named)? {
        if entry.map_err(named)?.file_name() == name {
            return Err(named(io::Error::other("still there after it was removed")));
        }
    }
    fs::File::open(parent).and_then(|parent| parent.sync_all()).map_err(named)
}
