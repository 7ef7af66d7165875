//! `image.macrack.io`: the goldens.
pub mod macos_image;
