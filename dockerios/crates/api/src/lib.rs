//! The kinds of DockerIOS, in five groups: what a person writes (`spec`), what is answered (`status`), and the rules
//! that the API server itself holds.
//!
//! Invariants that stand in these schemas: an identity's values never change and its name is its serial, so the API
//! server refuses a duplicate by itself ([`identity::machine_identity`]); an image that was published keeps its source
//! ([`image::macos_image`]); a machine keeps its class ([`machine::macos_machine`]). The machine, image and identity
//! groups know no workload's words.
//!
//! One file per kind; texts with a form (names, durations, sizes, pinned images) are types of [`text`] that carry
//! their own schema and one parser. [`crds`] gives the CustomResourceDefinitions as they are installed.

// kube-derive re-emits the structs inside a module of its own, where these two lints misfire
#![allow(unreachable_pub, clippy::duplicated_attributes)]

pub mod condition;
pub mod config;
mod crd;
pub mod identity;
pub mod image;
pub mod machine;
pub mod names;
pub mod text;
mod vocabulary;

pub use condition::{Condition, Verdict};
pub use config::platform_config::{PlatformConfig, PlatformConfigSpec, PlatformConfigStatus};
pub use crd::crds;
pub use identity::machine_identity::{MachineIdentity, MachineIdentitySpec, MachineIdentityStatus};
pub use identity::pool::{IdentityPool, IdentityPoolSpec, IdentityPoolStatus};
pub use image::macos_image::{MacOSImage, MacOSImageSpec, MacOSImageStatus};
pub use machine::claim::{MacOSMachineClaim, MacOSMachineClaimSpec, MacOSMachineClaimStatus};
pub use machine::class::{MacOSMachineClass, MacOSMachineClassSpec, MacOSMachineClassStatus};
pub use machine::macos_machine::{MacOSMachine, MacOSMachineSpec, MacOSMachineStatus};
pub use machine::pool::{MacOSMachinePool, MacOSMachinePoolSpec, MacOSMachinePoolStatus};
pub use text::{Name, PinnedImage, Size, Span};
pub use vocabulary::Entry;

/// The one API version that exists; it promises nothing yet.
pub const VERSION: &str = "v1alpha1";
