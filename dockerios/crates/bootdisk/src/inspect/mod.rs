//! What a bootdisk holds, read off the image: table, EFI system partition, OpenCore, identity. Invariant: nothing is
//! written, no more of the image is in memory than the file that is asked for, and no image however broken makes a
//! reader go round for ever; that last is why the volume is read here and not by a library that trusts it.

mod fat;
mod table;

use std::io::{Read, Seek};

use dockerios_identity::Identity;

use crate::config::{self, CONFIG_PATH, ConfigError};
use crate::plist::Plist;
use crate::template::NEEDED;

/// The largest configuration that is read.
const LARGEST_CONFIG: u64 = 8 << 20;

/// Why an image is no bootdisk.
#[derive(Debug, thiserror::Error)]
pub enum NoBootdisk {
    /// It ends too early, or the system refused.
    #[error("cannot be read: {0}")]
    Io(#[from] std::io::Error),
    /// The partition table.
    #[error("has no partition table of a bootdisk: {0}")]
    Table(&'static str),
    /// The file system.
    #[error("has no FAT32 file system that can be read: {0}")]
    Volume(&'static str),
    /// A file of OpenCore.
    #[error("has no file {0} in its EFI system partition")]
    Missing(&'static str),
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// What there is.
pub trait Disk: Read + Seek {}
impl<D: Read + Seek> Disk for D {}

/// The identity in the image of `size` bytes, which is a bootdisk that a machine boots from unattended.
pub fn identity(disk: &mut impl Disk, size: u64) -> Result<Identity, NoBootdisk> {
    let partition = table::efi_system(disk, size)?;
    let mut volume = fat::Volume::open(disk, partition)?;
    for path in NEEDED {
        volume.find(path)?.ok_or(NoBootdisk::Missing(path))?;
    }
    let file = volume.find(CONFIG_PATH)?.ok_or(NoBootdisk::Missing(CONFIG_PATH))?;
    let bytes = volume.read(file, LARGEST_CONFIG)?;
    Ok(config::identity(&Plist::parse(&bytes).map_err(ConfigError::from)?)?)
}
