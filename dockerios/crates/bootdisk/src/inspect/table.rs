//! The EFI system partition by the GUID partition table (UEFI 2.10, chapter 5). Invariant: a table counts only with
//! both its checksums, and only when the disk ends where it says, so that an image that was cut is not taken for whole.

use std::io::SeekFrom;

use super::{Disk, NoBootdisk};
use crate::fat::SECTOR;
use crate::gpt::EFI_SYSTEM;

/// The largest array of entries that is read; the usual one has 16 KiB.
const LARGEST_ARRAY: u64 = 1 << 20;
const HEADER: usize = 92;

/// Where a partition lies.
#[derive(Debug, Clone, Copy)]
pub struct Partition {
    /// Bytes before it.
    pub offset: u64,
    /// Its bytes.
    pub length: u64,
}

/// The one EFI system partition of a disk of `size` bytes.
pub fn efi_system(disk: &mut impl Disk, size: u64) -> Result<Partition, NoBootdisk> {
    let no = |why| Err(NoBootdisk::Table(why));
    let sectors = size / SECTOR;
    if sectors < 3 || !size.is_multiple_of(SECTOR) {
        return no("its size is no whole number of sectors of 512 bytes");
    }
    let mut header = [0; SECTOR as usize];
    read_at(disk, SECTOR, &mut header)?;
    if &header[..8] != b"EFI PART" {
        return no("the second sector is not the header of a GUID partition table");
    }
    let own = u32_at(&header, 16);
    header[16..20].fill(0);
    let length = u32_at(&header, 12) as usize;
    if !(HEADER..=header.len()).contains(&length) || crc32fast::hash(&header[..length]) != own {
        return no("the checksum of its header is wrong");
    }
    if u64_at(&header, 32) != sectors - 1 {
        return no("the disk does not end where the table says: it was cut, or something was appended");
    }
    let (at, count, entry) = (u64_at(&header, 72), u32_at(&header, 80), u32_at(&header, 84));
    let bytes = u64::from(count) * u64::from(entry);
    let inside = at
        .checked_mul(SECTOR)
        .filter(|start| start.saturating_add(bytes) <= size);
    let (Some(start), true) = (inside, entry >= 128 && (1..=LARGEST_ARRAY).contains(&bytes)) else {
        return no("its entries are not where a table has them");
    };
    let mut entries = vec![0; bytes as usize];
    read_at(disk, start, &mut entries)?;
    if crc32fast::hash(&entries) != u32_at(&header, 88) {
        return no("the checksum of its entries is wrong");
    }
    let mut found = entries.chunks(entry as usize).filter(|entry| entry[..16] == EFI_SYSTEM);
    let (Some(one), None) = (found.next(), found.next()) else {
        return no("it has not exactly one EFI system partition");
    };
    let (first, last) = (u64_at(one, 32), u64_at(one, 40));
    if first < 2 || first > last || last >= sectors {
        return no("its EFI system partition lies outside of the disk");
    }
    Ok(Partition {
        offset: first * SECTOR,
        length: (last - first + 1) * SECTOR,
    })
}

/// Fills `bytes` from that place of the disk on.
pub fn read_at(disk: &mut impl Disk, offset: u64, bytes: &mut [u8]) -> std::io::Result<()> {
    disk.seek(SeekFrom::Start(offset))?;
    disk.read_exact(bytes)
}

/// A little-endian number; the caller's bytes reach that far.
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    (0..4).fold(0, |number, byte| number | u32::from(bytes[at + byte]) << (8 * byte))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}
