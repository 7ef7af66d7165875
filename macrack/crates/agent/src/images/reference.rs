//! The name of a golden: see [`macrack_oci::reference`].

pub use macrack_oci::reference::{NotAReference, Reference, is_hex};
