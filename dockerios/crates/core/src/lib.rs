//! The thinking part: no client, no runtime, no randomness, no clock. Time arrives as `now`.
//!
//! One pass over one object: its *facts* are gathered elsewhere, [`decide`] makes a [`plan::Plan`] of them, [`check`]
//! judges the plan before anything of it is done. [`render`] makes the objects that plans create, [`admit`] judges what
//! people write.

pub mod admit;
pub mod check;
pub mod decide;
pub mod kind;
pub mod plan;
pub mod render;
pub mod report;
pub mod seen;

pub use kind::{Id, Kind};
pub use plan::{Guard, News, Object, Plan, Step, Target};
pub use seen::Seen;
