//! VM tasks with real VM processes and no API: what is found after a crash, what is done by force.

#![allow(clippy::unwrap_used, reason = "a test ends where its premise fails")]

mod chassis;
mod doctor;
mod ends;
mod found;
mod program;
