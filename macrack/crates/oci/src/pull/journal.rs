//! Which parts of a pull were whole: one line each, `<number> <digest of the blob>`.
//!
//! Invariant: it only ever claims; who reads it looks at the disk before believing. So it need not be flushed, and a
//! last line that was cut is no line.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::Path;

use crate::digest::is_digest;
use crate::error::Error;

pub(super) struct Journal(File);

impl Journal {
    /// Opens it for more, and says what it claims.
    pub(super) fn open(path: &Path) -> Result<(Journal, BTreeMap<usize, String>), Error> {
        let claims = match std::fs::read(path) {
            Ok(bytes) => read(&String::from_utf8_lossy(&bytes)),
            Err(error) if error.kind() == ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(Error::io(format!("read {}", path.display()))(error)),
        };
        let open = OpenOptions::new().create(true).append(true).open(path);
        let mut file = open.map_err(Error::io(format!("open {}", path.display())))?;
        // ends a line that was cut
        file.write_all(b"\n").map_err(Error::io(format!("write {}", path.display())))?;
        Ok((Journal(file), claims))
    }

    pub(super) fn finished(&mut self, n: usize, digest: &str) -> Result<(), Error> {
        self.0.write_all(format!("{n} {digest}\n").as_bytes()).map_err(Error::io("write the journal of the pull"))
    }
}

fn read(text: &str) -> BTreeMap<usize, String> {
    let claim = |line: &str| {
        let (n, digest) = line.split_once(' ')?;
        is_digest(digest).then_some(())?;
        Some((n.parse().ok()?, digest.to_owned()))
    };
    text.lines().filter_map(claim).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_was_cut_claims_nothing_and_spoils_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let digest = format!("sha256:{}", "ab".repeat(32));
        std::fs::write(&path, format!("0 {digest}\n1 {}", &digest[..20])).unwrap();
        let (mut journal, claims) = Journal::open(&path).unwrap();
        assert_eq!(claims, BTreeMap::from([(0, digest.clone())]));
        journal.finished(2, &digest).unwrap();
        let (_, claims) = Journal::open(&path).unwrap();
        assert!(claims.keys().eq(&[0, 2]), "{claims:?}");
        std::fs::write(&path, [0xff, 0xfe, b'\n']).unwrap();
        assert!(Journal::open(&path).unwrap().1.is_empty());
    }
}
