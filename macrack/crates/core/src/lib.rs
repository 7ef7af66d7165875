//! What MacRack decides.
//!
//! Everything here is pure: no client, no runtime, no randomness, no clock. What was observed comes in as
//! [`seen::Seen`] facts, time comes in as [`clock::Clocks`], a [`plan::Plan`] goes out. The operator only
//! gathers the facts and carries out the steps.
//!
//! ```text
//! gather (operator) → facts → decide → Plan { steps, status, wake } → check → act (operator)
//! ```
//!
//! Reading order: [`plan`], then [`decide::node`], which is the product.

pub mod admit;
pub mod check;
pub mod clock;
pub mod conditions;
pub mod decide;
pub mod plan;
pub mod render;
pub mod seen;
mod size;
