//! Bootdisks. Invariant: the image follows from the template and the identity alone, byte for byte; a template that is
//! not the one that was named, or an identity or configuration that breaks a rule, gives no image at all.
//!
//! ```text
//! template folder ──verified──▶ files ──config.plist personalised──▶ FAT32 ──▶ GPT ──▶ image
//! identity file ────checked──────────────────────▲
//! image ──inspected──▶ containerDisk (an OCI image), for the machines of a Shared class
//! ```

pub mod build;
pub mod config;
pub mod fat;
pub mod gpt;
pub mod guid;
pub mod image;
pub mod inspect;
pub mod output;
pub mod pack;
pub mod plist;
pub mod template;
