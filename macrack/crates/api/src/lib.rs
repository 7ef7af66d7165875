//! The kinds of MacRack: what a person writes (`spec`), what MacRack answers (`status`),
//! and the rules that the API server itself holds.
//!
//! The three rules of the product stand in these schemas, not only in the code that
//! serves them: a chassis has two slots ([`rack::node`]), a lease reference is written
//! once and its floor never falls ([`rack::node`]), a minimum is never below 24 hours
//! nor lowered ([`rack::lease`]). There is no field for the number of VMs on a Mac.
//!
//! One file per kind. [`crds`] gives the CustomResourceDefinitions as they are installed.

// kube-derive re-emits the structs in a private module, which this lint mistakes for ours
#![allow(unreachable_pub)]
// several `printcolumn(type_ = "string", …)` of one kind are not one attribute said twice
#![allow(clippy::duplicated_attributes)]

pub mod condition;
pub mod config;
pub mod duration;
pub mod image;
pub mod instance;
pub mod names;
pub mod own_status;
pub mod quantity;
pub mod rack;
mod schema;
pub mod version;
mod words;

pub use condition::Condition;
pub use config::rack_config::{RackConfig, RackConfigSpec, RackConfigStatus};
pub use duration::Span;
pub use image::macos_image::{MacOSImage, MacOSImageSpec, MacOSImageStatus};
pub use instance::instance_class::{InstanceClass, InstanceClassSpec, InstanceClassStatus};
pub use instance::macos_instance::{MacOSInstance, MacOSInstanceSpec, MacOSInstanceStatus};
pub use quantity::Quantity;
pub use rack::lease::{MacNodeLease, MacNodeLeaseSpec, MacNodeLeaseStatus};
pub use rack::node::{MacNode, MacNodeSpec, MacNodeStatus};
pub use rack::node_class::{MacNodeClass, MacNodeClassSpec, MacNodeClassStatus};
pub use schema::crds;
pub use version::{Unfit, Version};
pub use words::Word;

/// The one API version that exists.
pub const VERSION: &str = "v1alpha1";
