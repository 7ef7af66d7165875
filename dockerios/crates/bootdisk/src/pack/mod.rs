//! A shared bootdisk as a containerDisk: an OCI image that KubeVirt boots machines of a Shared class from.
//!
//! ```text
//! image ──is a bootdisk? whose identity?──▶ tar, gzip ──▶ blobs ──▶ manifest ──▶ index, oci-layout
//! ```
//!
//! Invariant: in one release of this program the layout follows from the image alone, byte for byte, so its digest can be
//! pinned before it is pushed (the compressor of another release may write other bytes, and then the digest is another);
//! under the output's name there is a whole layout or nothing; and an identity is packed only when its serial was said:
//! whoever pulls the image has it, and every machine of its class shows it.
//!
//! After the OCI image specification 1.1 and KubeVirt's containerDisk: one disk below `/disk`, owned by QEMU's user.

mod layer;
mod layout;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::inspect::{self, NoBootdisk};

/// What is packed and where it goes.
#[derive(Debug, Clone)]
pub struct Order {
    /// The bootdisk, as a file.
    pub image: PathBuf,
    /// The serial of the identity that all machines are to share.
    pub share: Option<String>,
    /// The folder of the layout; or, when its name ends in `.tar`, the layout in one file.
    pub output: PathBuf,
}

/// Why there is no containerDisk.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// The image cannot be read, or is no file.
    #[error("image {path:?}: {error}; name the file that `dockerios-bootdisk build` wrote")]
    Image {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// It is something else.
    #[error("image {path:?} {why}; pack a bootdisk that `dockerios-bootdisk build` wrote")]
    NoBootdisk {
        /// The file.
        path: PathBuf,
        /// What is missing.
        why: NoBootdisk,
    },
    /// Nobody said that the identity is to be shared.
    #[error(
        "image {path:?} holds the identity with serial {serial}: whoever pulls a containerDisk has it, and all machines \
         of the class show it, so it must be of no pool; if it was made for that, say --share {serial}"
    )]
    NotShared {
        /// The file.
        path: PathBuf,
        /// Whose it is.
        serial: String,
    },
    /// It is another's.
    #[error(
        "image {path:?} holds the identity with serial {found}, and --share says {said:?}; pack the image of that one"
    )]
    OtherIdentity {
        /// The file.
        path: PathBuf,
        /// Whose it is.
        found: String,
        /// What was said.
        said: String,
    },
    /// It cannot be told whether a folder or a file is meant.
    #[error("output {path:?} {why}; name a new folder, or a new file such as bootdisk.tar")]
    Name {
        /// The output.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// There is something under the output's name.
    #[error("output {0:?} is there already; remove it, or name another one: a layout is never written over")]
    Exists(PathBuf),
    /// The system refused.
    #[error("output {path:?}: {error}; the folder has to be there, writable, and to have room")]
    Output {
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
}

/// Packs the image and gives the digest of the manifest, `sha256:…`: what a class pins.
pub fn pack(order: &Order) -> Result<String, PackError> {
    demand_name(&order.output)?;
    let at_image = |error| PackError::Image {
        path: order.image.clone(),
        error,
    };
    // looked at before: a pipe that nobody writes to would not open
    if !std::fs::metadata(&order.image).map_err(at_image)?.is_file() {
        return Err(at_image(io::Error::other("is no file")));
    }
    let mut image = File::open(&order.image).map_err(at_image)?;
    let size = image.metadata().map_err(at_image)?.len();
    let identity = inspect::identity(&mut image, size).map_err(|why| PackError::NoBootdisk {
        path: order.image.clone(),
        why,
    })?;
    demand_shared(order, identity.serial())?;
    let at_output = |error: io::Error| match error.kind() {
        io::ErrorKind::AlreadyExists => PackError::Exists(order.output.clone()),
        _ => PackError::Output {
            path: order.output.clone(),
            error,
        },
    };
    if order.output.symlink_metadata().is_ok() {
        return Err(PackError::Exists(order.output.clone()));
    }
    layout::write(&order.output, &mut image, size).map_err(at_output)
}

/// Refuses what has no name, `.tar` alone, and `a.tar/`: that is a folder by its end, and a file by its name.
fn demand_name(output: &Path) -> Result<(), PackError> {
    let refuse = |why| {
        let path = output.to_owned();
        Err(PackError::Name { path, why })
    };
    match output.file_name() {
        None => refuse("has no name of its own"),
        Some(name) if name == ".tar" => refuse("has nothing before .tar"),
        Some(_) if layout::is_archive(output) && !output.as_os_str().as_encoded_bytes().ends_with(b".tar") => {
            refuse("is a file by its .tar, and a folder by what follows")
        }
        Some(_) => Ok(()),
    }
}

fn demand_shared(order: &Order, serial: &str) -> Result<(), PackError> {
    let path = order.image.clone();
    match &order.share {
        Some(said) if said == serial => Ok(()),
        Some(said) => Err(PackError::OtherIdentity {
            path,
            found: serial.to_owned(),
            said: said.clone(),
        }),
        None => Err(PackError::NotShared {
            path,
            serial: serial.to_owned(),
        }),
    }
}
