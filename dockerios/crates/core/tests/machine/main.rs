//! What is decided about a machine: tables of single passes, and lives stepped through a small world.

mod ends;
mod lives;
mod reasons;
mod waits;
mod world;
