//! What is decided about a machine: tables of single passes, and lives stepped through a small world.

mod cards;
mod disks;
mod ends;
mod lives;
mod reasons;
mod starts;
mod waits;
mod world;
