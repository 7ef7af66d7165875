//! Files of a FAT32 volume by their paths (Microsoft's FAT32 file system specification, 1.03). Invariant: a chain is
//! followed through as many clusters as the volume has at most, and every place that is read lies inside of it.

use super::table::{Partition, read_at, u32_at};
use super::{Disk, NoBootdisk};
use crate::fat::SECTOR;

const ENTRY: usize = 32;
/// The specification's own bound of a folder.
const LARGEST_FOLDER: u64 = 65_536 * ENTRY as u64;
const LONG_NAME: u8 = 0x0F;
const VOLUME_LABEL: u8 = 0x08;
const DIRECTORY: u8 = 0x10;
/// Where a long entry keeps its thirteen UTF-16 units.
const UNITS: [usize; 13] = [1, 3, 5, 7, 9, 14, 16, 18, 20, 22, 24, 28, 30];

/// A volume to read from.
pub struct Volume<'d, D> {
    disk: &'d mut D,
    /// Bytes before its first allocation table, before its cluster 2, and of a cluster.
    table: u64,
    data: u64,
    cluster: u64,
    /// How many clusters there are.
    count: u32,
    root: u32,
}

/// A file or folder that was found.
#[derive(Debug, Clone, Copy)]
pub struct Found {
    first: u32,
    size: u64,
    folder: bool,
}

impl<'d, D: Disk> Volume<'d, D> {
    /// Reads the boot sector.
    pub fn open(disk: &'d mut D, partition: Partition) -> Result<Self, NoBootdisk> {
        let no = |why| Err(NoBootdisk::Volume(why));
        let mut boot = [0; SECTOR as usize];
        read_at(disk, partition.offset, &mut boot)?;
        let u16_at = |at: usize| u64::from(u16::from_le_bytes([boot[at], boot[at + 1]]));
        if boot[510..] != [0x55, 0xAA] || u16_at(11) != SECTOR {
            return no("the partition does not begin with a boot sector of 512 bytes");
        }
        let (per_cluster, reserved, tables) = (u64::from(boot[13]), u16_at(14), u64::from(boot[16]));
        let (sectors, of_table) = (u64::from(u32_at(&boot, 32)), u64::from(u32_at(&boot, 36)));
        let before = reserved + tables * of_table;
        if !per_cluster.is_power_of_two() || reserved == 0 || tables == 0 || of_table == 0 || u16_at(17) != 0 {
            return no("its boot sector is not one of FAT32");
        }
        if sectors * SECTOR > partition.length || before >= sectors {
            return no("it says that it is larger than its partition");
        }
        let count = ((sectors - before) / per_cluster).min(of_table * SECTOR / 4);
        Ok(Self {
            table: partition.offset + reserved * SECTOR,
            data: partition.offset + before * SECTOR,
            cluster: per_cluster * SECTOR,
            // the upper four bits of an entry are none of the number
            count: u32::try_from(count).unwrap_or(u32::MAX).min(0x0FFF_FFF5),
            root: u32_at(&boot, 44),
            disk,
        })
    }

    /// What that path names, without regard to case, as FAT has it.
    pub fn find(&mut self, path: &str) -> Result<Option<Found>, NoBootdisk> {
        let mut at = Found {
            first: self.root,
            size: 0,
            folder: true,
        };
        for name in path.split('/') {
            if !at.folder {
                return Ok(None);
            }
            let bytes = self.chain(at.first, LARGEST_FOLDER)?;
            match entry_of(&bytes, name) {
                Some(found) => at = found,
                None => return Ok(None),
            }
        }
        Ok(Some(at))
    }

    /// The content of a file of `most` bytes at most.
    pub fn read(&mut self, file: Found, most: u64) -> Result<Vec<u8>, NoBootdisk> {
        if file.folder || file.size > most {
            return Err(NoBootdisk::Volume(
                "a file is a folder, or too large to be one of OpenCore's",
            ));
        }
        if file.size == 0 {
            return Ok(Vec::new());
        }
        let mut bytes = self.chain(file.first, file.size)?;
        if (bytes.len() as u64) < file.size {
            return Err(NoBootdisk::Volume("a file ends before its size"));
        }
        bytes.truncate(file.size as usize);
        Ok(bytes)
    }

    /// The clusters of a chain, as many as hold `wanted` bytes at most.
    fn chain(&mut self, first: u32, wanted: u64) -> Result<Vec<u8>, NoBootdisk> {
        let (mut bytes, mut at) = (Vec::new(), first);
        for _ in 0..wanted.div_ceil(self.cluster).min(u64::from(self.count)) {
            let index = at.checked_sub(2).filter(|index| *index < self.count);
            let index = index.ok_or(NoBootdisk::Volume("a chain of clusters leads out of the volume"))?;
            let held = bytes.len();
            bytes.resize(held + self.cluster as usize, 0);
            read_at(
                self.disk,
                self.data + u64::from(index) * self.cluster,
                &mut bytes[held..],
            )?;
            let mut next = [0; 4];
            read_at(self.disk, self.table + u64::from(at) * 4, &mut next)?;
            at = u32::from_le_bytes(next) & 0x0FFF_FFFF;
            if at >= 0x0FFF_FFF8 {
                break;
            }
        }
        Ok(bytes)
    }
}

/// The entry of that name in a folder's bytes.
fn entry_of(folder: &[u8], name: &str) -> Option<Found> {
    let mut long: Vec<u16> = Vec::new();
    for entry in folder.chunks_exact(ENTRY) {
        match (entry[0], entry[11]) {
            (0, _) => return None,
            (0xE5, _) => long.clear(),
            (order, LONG_NAME) => {
                // the last part stands first
                if order & 0x40 != 0 {
                    long.clear();
                }
                let part = UNITS.map(|at| u16::from_le_bytes([entry[at], entry[at + 1]]));
                let end = part.iter().position(|unit| *unit == 0).unwrap_or(part.len());
                long.splice(..0, part[..end].iter().copied());
            }
            (_, attributes) if attributes & VOLUME_LABEL != 0 => long.clear(),
            (_, attributes) => {
                let said = String::from_utf16_lossy(&long);
                if [said, short_name(entry)]
                    .iter()
                    .any(|own| own.eq_ignore_ascii_case(name))
                {
                    let half = |at: usize| u32::from(u16::from_le_bytes([entry[at], entry[at + 1]]));
                    return Some(Found {
                        first: half(20) << 16 | half(26),
                        size: u64::from(u32_at(entry, 28)),
                        folder: attributes & DIRECTORY != 0,
                    });
                }
                long.clear();
            }
        }
    }
    None
}

fn short_name(entry: &[u8]) -> String {
    let part = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    match (part(&entry[..8]), part(&entry[8..11])) {
        (base, extension) if extension.is_empty() => base,
        (base, extension) => format!("{base}.{extension}"),
    }
}
