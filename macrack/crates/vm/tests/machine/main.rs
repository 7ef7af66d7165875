//! `macrack-vm` and `macrack-guest` as processes, on simulated chassis.

#![allow(clippy::unwrap_used, reason = "a test ends where its premise fails")]

mod first_boot;
mod guests;
mod launchd;
mod ownership;
mod quota;
mod rack;
mod sessions;
mod stopping;
