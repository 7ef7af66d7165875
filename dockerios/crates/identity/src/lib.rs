//! Identities of macOS machines. Invariant: an [`Identity`] keeps every published rule, and a batch from [`fill`]
//! shares no serial, MLB, ROM or UUID with anything that was reserved.
//!
//! Pure: no clock, no system randomness, no files. The rules are those of OpenCorePkg's `macserial`, restated.

mod address;
pub mod alphabet;
mod fill;
mod generate;
mod identity;
mod mlb;
mod models;
mod refusal;
mod reserved;
mod samples;
pub mod serial;

pub use address::Octets;
pub use fill::{Filled, fill};
pub use generate::Generator;
pub use identity::{Fields, Identity};
pub use mlb::MLB_LENGTH;
pub use models::{MODELS, Model};
pub use refusal::{Field, Refusal, Refusals, Rule};
pub use reserved::{Keys, Reserved};
