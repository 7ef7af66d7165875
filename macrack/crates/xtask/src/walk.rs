//! Files of the repository.

use std::{
    fs::{self, DirEntry},
    io,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

/// Every file below `dir`, in no order. What is not `wanted` is left out, a folder with all that is in it.
pub(crate) fn files(dir: &Path, wanted: &dyn Fn(&DirEntry) -> io::Result<bool>) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let entry = entry?;
        let path = entry.path();
        if !wanted(&entry)? {
            continue;
        }
        if path.is_dir() {
            found.extend(files(&path, wanted)?);
        } else {
            found.push(path);
        }
    }
    Ok(found)
}
