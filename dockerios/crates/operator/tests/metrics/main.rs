//! What a Prometheus is told.

mod acts;
mod fleet;
mod page;
mod wire;
mod world;
