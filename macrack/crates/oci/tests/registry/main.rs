//! Goldens in and out of a real registry, over ways that are good, bad and hostile.

#![allow(clippy::unwrap_used)] // a bench that cannot be set up fails its test

mod access;
mod bench;
mod proxy;
mod round_trip;
mod trouble;
