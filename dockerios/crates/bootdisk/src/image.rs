//! The disk as a whole. Invariant: 384 MiB, one EFI system partition from sector 2048 on, aligned to 1 MiB at both ends.

use crate::fat::{self, FatError, Geometry, SECTOR};
use crate::gpt::Table;
use crate::guid;

/// The size of every bootdisk.
pub const IMAGE_BYTES: u64 = 384 << 20;

const SECTORS: u64 = IMAGE_BYTES / SECTOR;
const FIRST: u64 = 2048;
/// The last MiB holds the second copy of the table.
const LAST: u64 = SECTORS - 2048 - 1;

/// Bytes at a place; what no extent covers is zero.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extent {
    /// Bytes before it.
    pub offset: u64,
    /// What is there.
    pub bytes: Vec<u8>,
}

/// The image with those files for the machine of that UUID, as extents in order.
pub fn lay_out(files: Vec<(String, Vec<u8>)>, system_uuid: &str) -> Result<Vec<Extent>, FatError> {
    let geometry = Geometry {
        first_sector: FIRST,
        sectors: LAST - FIRST + 1,
    };
    let table = Table {
        sectors: SECTORS,
        disk: guid::derived(system_uuid, "disk"),
        partition: guid::derived(system_uuid, "partition"),
        first: FIRST,
        last: LAST,
    };
    let mut extents = fat::volume(files, geometry, guid::volume_id(system_uuid))?;
    extents.extend(table.extents());
    extents.sort_by_key(|extent| extent.offset);
    Ok(extents)
}
