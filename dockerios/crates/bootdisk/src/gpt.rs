//! A GUID partition table with one EFI system partition. Invariant: both copies say the same and hold their checksums,
//! and the protective MBR covers the disk.
//!
//! After the UEFI specification 2.10, chapter 5.

use crate::fat::SECTOR;
use crate::guid::Guid;
use crate::image::Extent;

/// C12A7328-F81F-11D2-BA4B-00A0C93EC93B, the type of an EFI system partition, in the byte order of GPT.
pub(crate) const EFI_SYSTEM: Guid = [
    0x28, 0x73, 0x2A, 0xC1, 0x1F, 0xF8, 0xD2, 0x11, 0xBA, 0x4B, 0x00, 0xA0, 0xC9, 0x3E, 0xC9, 0x3B,
];

const ENTRIES: usize = 128;
const ENTRY: usize = 128;
/// Sectors of the entries.
const ARRAY_SECTORS: u64 = (ENTRIES * ENTRY) as u64 / SECTOR;

/// A disk with one partition.
#[derive(Debug, Clone, Copy)]
pub struct Table {
    /// Sectors of the disk.
    pub sectors: u64,
    /// The disk's own id.
    pub disk: Guid,
    /// The partition's own id.
    pub partition: Guid,
    /// The partition's first sector.
    pub first: u64,
    /// The partition's last sector.
    pub last: u64,
}

impl Table {
    /// The bytes of both copies and of the protective MBR.
    pub fn extents(&self) -> Vec<Extent> {
        let entries = self.entries();
        let end = self.sectors - 1;
        vec![
            Extent {
                offset: 0,
                bytes: self.protective_mbr(),
            },
            Extent {
                offset: SECTOR,
                bytes: self.header(1, end, 2, &entries),
            },
            Extent {
                offset: 2 * SECTOR,
                bytes: entries.clone(),
            },
            Extent {
                offset: (end - ARRAY_SECTORS) * SECTOR,
                bytes: entries.clone(),
            },
            Extent {
                offset: end * SECTOR,
                bytes: self.header(end, 1, end - ARRAY_SECTORS, &entries),
            },
        ]
    }

    fn entries(&self) -> Vec<u8> {
        let mut entries = vec![0; ENTRIES * ENTRY];
        entries[..16].copy_from_slice(&EFI_SYSTEM);
        entries[16..32].copy_from_slice(&self.partition);
        entries[32..40].copy_from_slice(&self.first.to_le_bytes());
        entries[40..48].copy_from_slice(&self.last.to_le_bytes());
        for (at, unit) in "EFI system partition".encode_utf16().enumerate() {
            entries[56 + 2 * at..58 + 2 * at].copy_from_slice(&unit.to_le_bytes());
        }
        entries
    }

    fn header(&self, own: u64, other: u64, array: u64, entries: &[u8]) -> Vec<u8> {
        let mut header = vec![0; SECTOR as usize];
        let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, b"EFI PART");
        put(8, &0x0001_0000u32.to_le_bytes()); // revision 1.0
        put(12, &92u32.to_le_bytes()); // the header's size
        put(24, &own.to_le_bytes());
        put(32, &other.to_le_bytes());
        put(40, &(2 + ARRAY_SECTORS).to_le_bytes()); // the first usable sector
        put(48, &(self.sectors - 2 - ARRAY_SECTORS).to_le_bytes()); // the last one
        put(56, &self.disk);
        put(72, &array.to_le_bytes());
        put(80, &(ENTRIES as u32).to_le_bytes());
        put(84, &(ENTRY as u32).to_le_bytes());
        put(88, &crc32fast::hash(entries).to_le_bytes());
        let checksum = crc32fast::hash(&header[..92]);
        header[16..20].copy_from_slice(&checksum.to_le_bytes());
        header
    }

    /// One partition of type 0xEE over the whole disk, for software that knows no GPT.
    fn protective_mbr(&self) -> Vec<u8> {
        let mut sector = vec![0; SECTOR as usize];
        let covered = u32::try_from(self.sectors - 1).unwrap_or(u32::MAX);
        sector[446..454].copy_from_slice(&[0, 0, 2, 0, 0xEE, 0xFF, 0xFF, 0xFF]);
        sector[454..458].copy_from_slice(&1u32.to_le_bytes());
        sector[458..462].copy_from_slice(&covered.to_le_bytes());
        sector[510..].copy_from_slice(&[0x55, 0xAA]);
        sector
    }
}
