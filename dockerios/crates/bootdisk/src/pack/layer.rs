//! The one layer: a tar of the disk, compressed. Invariant: of the image no more than a piece is in memory; times, names
//! and owners are fixed.

use std::fs::File;
use std::io::{self, Read, Seek, Write};

use flate2::{Compression, GzBuilder};
use sha2::{Digest, Sha256};

/// The folder that KubeVirt looks into, and the file in it.
const FOLDER: &str = "disk/";
const FILE: &str = "disk/bootdisk.img";
/// QEMU's user in launcher pods (KubeVirt, "containerDisk workflow example": `--chown=107:107`).
const QEMU: u64 = 107;
/// gzip's mark of an unknown operating system (RFC 1952): the program may run on any.
const NO_SYSTEM: u8 = 255;

/// What is written, by its sums.
pub struct Layer {
    /// sha256 of the tar.
    pub diff_id: String,
    /// The compressed blob.
    pub blob: Blob,
}

/// A blob by its content.
pub struct Blob {
    /// sha256, hexadecimal.
    pub sha256: String,
    /// Bytes.
    pub size: u64,
}

/// Writes the layer of an image of `size` bytes.
pub fn write(image: &mut File, size: u64, to: &mut File) -> io::Result<Layer> {
    image.rewind()?;
    let packed = Summed::of(io::BufWriter::with_capacity(1 << 20, to));
    let gzip = GzBuilder::new().mtime(0).operating_system(NO_SYSTEM);
    let unpacked = Summed::of(gzip.write(packed, Compression::default()));
    let mut tar = tar::Builder::new(unpacked);
    tar.append(&header(FOLDER, tar::EntryType::Directory, 0o755, 0)?, io::empty())?;
    let mut whole = image.take(size);
    tar.append(&header(FILE, tar::EntryType::Regular, 0o444, size)?, &mut whole)?;
    if whole.limit() > 0 {
        return Err(io::Error::other("the image became shorter while it was read"));
    }
    let (gzip, unpacked) = tar.into_inner()?.done();
    let (mut out, blob) = gzip.finish()?.done();
    out.flush()?;
    Ok(Layer {
        diff_id: unpacked.sha256,
        blob,
    })
}

fn header(path: &str, kind: tar::EntryType, mode: u32, size: u64) -> io::Result<tar::Header> {
    let mut header = tar::Header::new_ustar();
    header.set_path(path)?;
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(QEMU);
    header.set_gid(QEMU);
    header.set_mtime(0);
    header.set_size(size);
    header.set_cksum();
    Ok(header)
}

/// Passes on what is written, and sums it.
struct Summed<W> {
    to: W,
    digest: Sha256,
    size: u64,
}

impl<W> Summed<W> {
    fn of(to: W) -> Self {
        Self {
            to,
            digest: Sha256::new(),
            size: 0,
        }
    }

    fn done(self) -> (W, Blob) {
        let sha256 = self
            .digest
            .finalize()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let blob = Blob {
            sha256,
            size: self.size,
        };
        (self.to, blob)
    }
}

impl<W: Write> Write for Summed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.to.write(bytes)?;
        self.digest.update(&bytes[..written]);
        self.size += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}
