//! Goldens: from a store, over the cache of this chassis, to the disks of instances.
//!
//! ```text
//!   store ──pull──▶ images/.partial-<hex>/ ──rename──▶ images/<hex>/ ──clone──▶ vms/<uid>/
//!                        │ cut: goes on from there                 │ unused: evicted
//!                        │ full, wrong digest, unwanted: removed
//! ```
//!
//! Invariants:
//! - what stands under `images/<hex>/` is whole, and is what the digest says ([`cache`]);
//! - a pull never takes the room that instance disks may still grow into ([`room`]);
//! - a golden with a clone on this chassis, or that an instance waits for, is never evicted.

pub mod cache;
pub mod copy;
pub mod evict;
pub mod oci;
pub mod progress;
pub mod pull;
pub mod reference;
pub mod room;
pub mod store;

pub use cache::{Cache, Golden};
pub use oci::OciStore;
pub use progress::{Account, Progress};
pub use pull::{Measure, Pulled, Puller, Situation, Standing, Want, Wishes};
pub use reference::Reference;
pub use store::{DirectoryStore, ImageStore, Manifest, Source, StoreError};
