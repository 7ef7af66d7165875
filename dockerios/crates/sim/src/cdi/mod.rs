//! Plays CDI: fills the claims of DataVolumes.

mod claim;
mod download;
mod fill;
pub(crate) mod rights;

pub(crate) use fill::volume;
