//! From template and identity to the image. Invariant: all reading and checking is done before the first byte is
//! written.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use dockerios_identity::Identity;

use crate::config::{self, CONFIG_PATH, ConfigError};
use crate::fat::FatError;
use crate::image::lay_out;
use crate::output::{self, OutputError};
use crate::template::{Template, TemplateError};

/// More than any identity has: a device has no end.
const LARGEST_IDENTITY: u64 = 64 << 10;

/// What a bootdisk is made of and where it goes.
#[derive(Debug, Clone)]
pub struct Order {
    /// The folder with the OpenCore template.
    pub template: PathBuf,
    /// The sha256 of the template's manifest.
    pub template_sha256: String,
    /// The JSON file with the identity.
    pub identity: PathBuf,
    /// The image file or block device.
    pub output: PathBuf,
}

/// Why there is no bootdisk.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The template.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The identity file cannot be read.
    #[error("identity file {path:?}: {error}; mount the file and make it readable")]
    IdentityFile {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// The identity file says something else than an identity, or an invalid one.
    #[error("identity file {path:?}: {error}")]
    Identity {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        error: serde_json::Error,
    },
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The files do not fit onto FAT.
    #[error(transparent)]
    Fat(#[from] FatError),
    /// What is written would spoil the template.
    #[error(
        "{what} {path:?} lies in the template, which would no longer match its manifest; name a file outside of it"
    )]
    InTemplate {
        /// What it is: the output, or the report.
        what: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// One file is named twice: what is written last would take the place of the other.
    #[error("{what} {path:?} is the file of the {other}, which would be lost; name another file")]
    SameFile {
        /// What is to be written there.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What it is besides.
        other: &'static str,
    },
    /// The output.
    #[error(transparent)]
    Output(#[from] OutputError),
}

/// Builds the bootdisk and gives the image's sha256.
pub fn build(order: &Order) -> Result<String, BuildError> {
    let identity = read_identity(&order.identity)?;
    let mut template = Template::load(&order.template, &order.template_sha256)?;
    demand_outside(&order.template, "output", &order.output)?;
    demand_apart("output", &order.output, "identity", &order.identity)?;
    if let Some(config) = template.files.get_mut(CONFIG_PATH) {
        *config = config::personalise(config, &identity)?.text().as_bytes().to_vec();
    }
    let extents = lay_out(template.files.into_iter().collect(), identity.system_uuid())?;
    Ok(output::write(&order.output, &extents)?)
}

/// Refuses a file that would lie in the template, by whatever way its name leads there. A folder that is not there lies in
/// no template: whoever writes the file says that it is missing.
pub fn demand_outside(template: &Path, what: &'static str, path: &Path) -> Result<(), BuildError> {
    let template = template.canonicalize().map_err(|error| TemplateError::Io {
        path: template.to_owned(),
        error,
    })?;
    // a file that is there may be a link: written through, or replaced where the link lies
    let places = [path.canonicalize(), output::folder_of(path).canonicalize()];
    match places.iter().flatten().any(|place| place.starts_with(&template)) {
        true => Err(BuildError::InTemplate {
            what,
            path: path.to_owned(),
        }),
        false => Ok(()),
    }
}

/// Refuses to write a file over another one of the same order, by whatever way its name leads there.
pub fn demand_apart(what: &'static str, path: &Path, other: &'static str, at: &Path) -> Result<(), BuildError> {
    match (place(path), place(at)) {
        (Some(one), Some(two)) if one == two => Err(BuildError::SameFile {
            what,
            path: path.to_owned(),
            other,
        }),
        _ => Ok(()),
    }
}

/// Where a file lies, or will lie; `None` in a folder that is not there, which whoever writes says.
fn place(path: &Path) -> Option<PathBuf> {
    let there = path.canonicalize().ok();
    there.or_else(|| Some(output::folder_of(path).canonicalize().ok()?.join(path.file_name()?)))
}

fn read_identity(path: &Path) -> Result<Identity, BuildError> {
    let unreadable = |error| BuildError::IdentityFile {
        path: path.to_owned(),
        error,
    };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(unreadable)?;
    file.take(LARGEST_IDENTITY + 1)
        .read_to_end(&mut bytes)
        .map_err(unreadable)?;
    if bytes.len() as u64 > LARGEST_IDENTITY {
        return Err(unreadable(std::io::Error::other(format!(
            "has more than {LARGEST_IDENTITY} bytes, an identity a few hundred"
        ))));
    }
    serde_json::from_slice(&bytes).map_err(|error| BuildError::Identity {
        path: path.to_owned(),
        error,
    })
}
