//! Claims and pools: who gets which machine, how many are kept warm, and what happens in between.

mod chance;
mod claims;
mod crashes;
mod pools;
mod world;
