//! Goldens in and out of a real registry, over ways that are good, bad and hostile.

mod access;
mod bench;
mod proxy;
mod round_trip;
mod trouble;
