//! Decision tables: what each chassis, lease and instance does in each situation, step by step and in words.

#![allow(clippy::unwrap_used)] // a builder that cannot build fails its test

mod binding;
mod finalizers;
mod guests;
mod holding;
mod lost;
mod placeholder;
mod pull_secrets;
mod quarantine;
mod rack;
mod reboot;
mod release;
mod slots;
mod wipes;
