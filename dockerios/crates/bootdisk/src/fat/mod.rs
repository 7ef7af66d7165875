//! A FAT32 volume, written once. Invariant: files and directories lie in the order of their names, each in one piece,
//! `.` and `..` come first in every directory, and no byte depends on anything but names, contents and the volume id.
//!
//! After Microsoft's "FAT32 File System Specification" 1.03.

mod names;
mod tree;

use tree::{Directory, Node};

pub use names::NameFault;
pub use tree::Clash;

use crate::image::Extent;

/// Bytes in a sector.
pub const SECTOR: u64 = 512;

const SECTORS_PER_CLUSTER: u64 = 8;
const CLUSTER: usize = (SECTOR * SECTORS_PER_CLUSTER) as usize;
const RESERVED_SECTORS: u64 = 32;
const FATS: u64 = 2;
const ROOT_CLUSTER: u32 = 2;
/// Fewer clusters than this make a volume FAT16, whatever its boot sector says.
const LEAST_CLUSTERS: u64 = 65_525;
const END_OF_CHAIN: u32 = 0x0FFF_FFFF;
const ENTRY: usize = 32;
const MOST_ENTRIES: usize = 65_536;
const LABEL: &[u8; 11] = b"OPENCORE   ";
/// The first of January 2020, midnight: nothing in the image was made at a time.
const DATE: u16 = (2020 - 1980) << 9 | 1 << 5 | 1;
const DIRECTORY: u8 = 0x10;
const ARCHIVE: u8 = 0x20;
const VOLUME_LABEL: u8 = 0x08;

/// Where the volume lies on its disk.
#[derive(Debug, Clone, Copy)]
pub struct Geometry {
    /// The sectors before it.
    pub first_sector: u64,
    /// Its sectors; a multiple of 32.
    pub sectors: u64,
}

/// Why a volume cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum FatError {
    /// A name that FAT cannot hold.
    #[error("template file {path:?}: {fault}; rename it")]
    Name {
        /// The file.
        path: String,
        /// What is wrong with the name.
        fault: NameFault,
    },
    /// Two paths that FAT cannot tell apart.
    #[error(transparent)]
    Clash(#[from] Clash),
    /// Too much for the volume.
    #[error("the template takes {needed} clusters of 4 KiB and the volume has {there}; leave out what is not needed")]
    Full {
        /// Clusters needed.
        needed: u64,
        /// Clusters there are.
        there: u64,
    },
    /// A directory with too many entries.
    #[error("template folder {0:?} holds more than FAT allows (65536 entries of 32 bytes); spread its files")]
    Crowded(String),
    /// The volume is too small or too large to be FAT32.
    #[error("a volume of {0} sectors cannot be FAT32; it has to have between 66600 × 8 and 2^28 sectors")]
    Geometry(u64),
}

/// The bytes of a volume with those files (paths with `/`), relative to its disk. What is not in an extent is zero.
pub fn volume(files: Vec<(String, Vec<u8>)>, geometry: Geometry, volume_id: u32) -> Result<Vec<Extent>, FatError> {
    let layout = Layout::of(geometry)?;
    let root = Directory::of(files)?;
    let mut writer = Writer {
        layout,
        fat: vec![0x0FFF_FFF8, END_OF_CHAIN],
        extents: Vec::new(),
    };
    writer.directory(root, "", None)?;
    let Writer { fat, mut extents, .. } = writer;

    let free = layout.clusters - (fat.len() as u64 - u64::from(ROOT_CLUSTER));
    let boot = boot_sector(layout, volume_id);
    let info = info_sector(free as u32, fat.len() as u32);
    for copy in [0, 6] {
        extents.push(layout.extent(copy, boot.clone()));
        extents.push(layout.extent(copy + 1, info.clone()));
    }
    let table: Vec<u8> = fat.iter().flat_map(|next| next.to_le_bytes()).collect();
    for copy in 0..FATS {
        extents.push(layout.extent(RESERVED_SECTORS + copy * layout.fat_sectors, table.clone()));
    }
    Ok(extents)
}

#[derive(Debug, Clone, Copy)]
struct Layout {
    geometry: Geometry,
    fat_sectors: u64,
    clusters: u64,
}

impl Layout {
    fn of(geometry: Geometry) -> Result<Self, FatError> {
        let refuse = FatError::Geometry(geometry.sectors);
        if geometry.sectors > 1 << 28 || !geometry.sectors.is_multiple_of(32) {
            return Err(refuse);
        }
        let clusters_with = |fat_sectors: u64| {
            geometry.sectors.saturating_sub(RESERVED_SECTORS + FATS * fat_sectors) / SECTORS_PER_CLUSTER
        };
        // the table gets room for as many clusters as there would be without any table
        let fat_sectors = ((clusters_with(0) + 2) * 4).div_ceil(SECTOR);
        let clusters = clusters_with(fat_sectors);
        if clusters < LEAST_CLUSTERS {
            Err(refuse)
        } else {
            Ok(Self {
                geometry,
                fat_sectors,
                clusters,
            })
        }
    }

    fn extent(&self, sector: u64, bytes: Vec<u8>) -> Extent {
        Extent {
            offset: (self.geometry.first_sector + sector) * SECTOR,
            bytes,
        }
    }

    fn cluster_extent(&self, cluster: u32, bytes: Vec<u8>) -> Extent {
        let data = RESERVED_SECTORS + FATS * self.fat_sectors;
        self.extent(data + u64::from(cluster - ROOT_CLUSTER) * SECTORS_PER_CLUSTER, bytes)
    }
}

struct Writer {
    layout: Layout,
    fat: Vec<u32>,
    extents: Vec<Extent>,
}

impl Writer {
    /// Takes the clusters for that many bytes, in one piece, and gives the first.
    fn allocate(&mut self, bytes: usize) -> Result<u32, FatError> {
        let first = self.fat.len();
        let after = first + bytes.div_ceil(CLUSTER);
        let needed = after as u64 - u64::from(ROOT_CLUSTER);
        if needed > self.layout.clusters {
            return Err(FatError::Full {
                needed,
                there: self.layout.clusters,
            });
        }
        self.fat.extend((first + 1..after).map(|next| next as u32));
        self.fat.push(END_OF_CHAIN);
        Ok(first as u32)
    }

    /// Writes a directory and all that is in it; gives its first cluster. `parent` is absent for the root.
    fn directory(&mut self, directory: Directory, path: &str, parent: Option<u32>) -> Result<u32, FatError> {
        let children = names::assign(directory).map_err(|(name, fault)| FatError::Name {
            path: format!("{path}{name}"),
            fault,
        })?;
        let fixed = if parent.is_some() { 2 } else { 1 };
        let entries: usize = fixed + children.iter().map(|child| 1 + child.long_entries()).sum::<usize>();
        if entries > MOST_ENTRIES {
            return Err(FatError::Crowded(path.to_owned()));
        }
        let own = self.allocate(entries * ENTRY)?;
        let mut bytes = Vec::with_capacity(entries * ENTRY);
        match parent {
            Some(parent) => {
                bytes.extend(entry(b".          ", DIRECTORY, own, 0));
                bytes.extend(entry(b"..         ", DIRECTORY, parent, 0));
            }
            None => bytes.extend(entry(LABEL, VOLUME_LABEL, 0, 0)),
        }
        // the root is written as cluster 0 in the `..` of its children
        let as_parent = if parent.is_some() { own } else { 0 };
        for child in children {
            child.write_long_entries(&mut bytes);
            let short = child.short;
            let (attributes, cluster, size) = match child.node {
                Node::Directory(directory) => {
                    let below = format!("{path}{}/", child.name);
                    (DIRECTORY, self.directory(directory, &below, Some(as_parent))?, 0)
                }
                Node::File(content) if content.is_empty() => (ARCHIVE, 0, 0),
                Node::File(content) => {
                    let size = content.len();
                    let cluster = self.allocate(size)?;
                    self.extents.push(self.layout.cluster_extent(cluster, content));
                    (ARCHIVE, cluster, size as u32)
                }
            };
            bytes.extend(entry(&short, attributes, cluster, size));
        }
        self.extents.push(self.layout.cluster_extent(own, bytes));
        Ok(own)
    }
}

fn entry(short: &[u8; 11], attributes: u8, cluster: u32, size: u32) -> [u8; ENTRY] {
    let mut bytes = [0; ENTRY];
    bytes[..11].copy_from_slice(short);
    bytes[11] = attributes;
    for date in [16, 18, 24] {
        bytes[date..date + 2].copy_from_slice(&DATE.to_le_bytes());
    }
    bytes[20..22].copy_from_slice(&((cluster >> 16) as u16).to_le_bytes());
    bytes[26..28].copy_from_slice(&(cluster as u16).to_le_bytes());
    bytes[28..32].copy_from_slice(&size.to_le_bytes());
    bytes
}

fn boot_sector(layout: Layout, volume_id: u32) -> Vec<u8> {
    let mut sector = vec![0; SECTOR as usize];
    let mut put = |at: usize, bytes: &[u8]| sector[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &[0xEB, 0x58, 0x90]); // a jump over the parameters, which readers take for a sign of FAT
    put(3, b"MSWIN4.1"); // the name that the specification recommends for compatibility
    put(11, &(SECTOR as u16).to_le_bytes());
    put(13, &[SECTORS_PER_CLUSTER as u8]);
    put(14, &(RESERVED_SECTORS as u16).to_le_bytes());
    put(16, &[FATS as u8]);
    put(21, &[0xF8]); // a fixed disk
    put(24, &32u16.to_le_bytes()); // sectors in a track: divides the volume, as mtools demands
    put(26, &64u16.to_le_bytes()); // heads
    put(28, &(layout.geometry.first_sector as u32).to_le_bytes());
    put(32, &(layout.geometry.sectors as u32).to_le_bytes());
    put(36, &(layout.fat_sectors as u32).to_le_bytes());
    put(44, &ROOT_CLUSTER.to_le_bytes());
    put(48, &1u16.to_le_bytes()); // the sector with the number of free clusters
    put(50, &6u16.to_le_bytes()); // the copy of this sector
    put(64, &[0x80, 0, 0x29]); // a hard disk; id, label and type follow
    put(67, &volume_id.to_le_bytes());
    put(71, LABEL);
    put(82, b"FAT32   ");
    put(510, &[0x55, 0xAA]);
    sector
}

fn info_sector(free: u32, next_free: u32) -> Vec<u8> {
    let mut sector = vec![0; SECTOR as usize];
    let mut put = |at: usize, bytes: &[u8]| sector[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"RRaA");
    put(484, b"rrAa");
    put(488, &free.to_le_bytes());
    put(492, &next_free.to_le_bytes());
    put(508, &[0, 0, 0x55, 0xAA]);
    sector
}
