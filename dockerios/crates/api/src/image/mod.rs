//! `image.dockerios.io`: golden images.

pub mod macos_image;
