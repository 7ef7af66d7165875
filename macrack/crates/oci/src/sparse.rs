//! A region of a disk image, written in order: zeros stay holes. Blocking.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::digest::Hasher;

/// Runs of zeros are left out in steps of this many bytes. Divides Tart's own step of 4 MiB.
pub const STEP: usize = 1 << 20;

static ZEROS: [u8; STEP] = [0; STEP];

/// Writes a region and hashes what it is given.
pub struct Writer<'a> {
    file: &'a File,
    at: u64,
    end: u64,
    step: Vec<u8>,
    raw: Hasher,
    /// An earlier attempt may have left something where zeros belong.
    dirty: bool,
}

impl<'a> Writer<'a> {
    /// A writer of `len` bytes from `offset` on; the file is as long already.
    pub fn new(file: &'a File, offset: u64, len: u64, dirty: bool) -> Self {
        let (step, raw) = (Vec::with_capacity(STEP), Hasher::default());
        Writer { file, at: offset, end: offset + len, step, raw, dirty }
    }

    /// Takes the next bytes; returns how many were put into their place by that.
    ///
    /// # Errors
    /// The operating system's; and when there are more than the region has.
    pub fn write(&mut self, mut bytes: &[u8]) -> io::Result<u64> {
        if self.at + (self.step.len() + bytes.len()) as u64 > self.end {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "more bytes than the region has"));
        }
        self.raw.update(bytes);
        let mut placed = 0;
        while !bytes.is_empty() {
            let (head, rest) = bytes.split_at(bytes.len().min(STEP - self.step.len()));
            self.step.extend_from_slice(head);
            bytes = rest;
            if self.step.len() == STEP {
                placed += self.place()?;
            }
        }
        Ok(placed)
    }

    /// Puts the rest into its place: how many bytes, and the digest of everything.
    ///
    /// # Errors
    /// As [`Writer::write`]; and when bytes are missing.
    pub fn finish(mut self) -> io::Result<(u64, String)> {
        let placed = self.place()?;
        if self.at != self.end {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "fewer bytes than the region has"));
        }
        Ok((placed, self.raw.finish()))
    }

    fn place(&mut self) -> io::Result<u64> {
        let len = self.step.len();
        if !is_zero(&self.step) || (self.dirty && !self.is_zero_there(len)?) {
            self.file.write_all_at(&self.step, self.at)?;
        }
        self.step.clear();
        self.at += len as u64;
        Ok(len as u64)
    }

    fn is_zero_there(&self, len: usize) -> io::Result<bool> {
        let mut there = vec![0; len];
        self.file.read_exact_at(&mut there, self.at)?;
        Ok(is_zero(&there))
    }
}

/// Whether there are only zeros; at most [`STEP`] bytes at a time are compared.
pub fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(STEP).all(|chunk| *chunk == ZEROS[..chunk.len()])
}

/// Reads a region in steps; `each` may end it with an error.
///
/// # Errors
/// The operating system's, or `each`'s.
pub fn read_region<E>(file: &File, offset: u64, len: u64, each: &mut dyn FnMut(&[u8]) -> Result<(), E>) -> Result<(), E>
where
    E: From<io::Error>,
{
    let mut buffer = vec![0; STEP];
    let (mut at, end) = (offset, offset + len);
    while at < end {
        let size = usize::try_from(end - at).unwrap_or(STEP).min(STEP);
        file.read_exact_at(&mut buffer[..size], at)?;
        each(&buffer[..size])?;
        at += size as u64;
    }
    Ok(())
}

/// Whether a region is one hole; `false` also where the file system does not tell.
pub fn is_hole(file: &File, offset: u64, len: u64) -> io::Result<bool> {
    match rustix::fs::seek(file, SeekFrom::Data(offset)) {
        Ok(data) => Ok(data >= offset + len),
        Err(Errno::NXIO) => Ok(true),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn zeros_stay_holes_and_what_an_earlier_attempt_left_there_goes() {
        let file = tempfile::tempfile().unwrap();
        let len = 8 * STEP as u64;
        file.set_len(len).unwrap();
        file.write_all_at(b"rubbish of an attempt that was cut", 5 * STEP as u64 + 3).unwrap();
        let mut content = vec![0; 8 * STEP];
        content[2 * STEP + 7] = 1;
        let write = |dirty| {
            let mut writer = Writer::new(&file, 0, len, dirty);
            let placed: u64 = content.chunks(70_000).map(|piece| writer.write(piece).unwrap()).sum();
            let (rest, digest) = writer.finish().unwrap();
            assert_eq!((placed + rest, digest), (len, crate::digest::of(&content)));
            let mut found = vec![0; 8 * STEP];
            file.read_exact_at(&mut found, 0).unwrap();
            found == content
        };
        assert!(!write(false), "the test left nothing to clean");
        assert!(write(true));
        assert!(file.metadata().unwrap().blocks() * 512 <= 3 * STEP as u64, "holes were filled");
        assert!(is_hole(&file, 0, 2 * STEP as u64).unwrap());
        assert!(!is_hole(&file, 2 * STEP as u64, STEP as u64).unwrap());
    }

    #[test]
    fn a_region_takes_its_length_and_no_other() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(100).unwrap();
        assert!(Writer::new(&file, 10, 20, false).write(&[1; 21]).is_err(), "the neighbour was written to");
        let mut short = Writer::new(&file, 10, 20, false);
        short.write(&[1; 19]).unwrap();
        assert!(short.finish().is_err());
    }
}
