//! The hook seen from outside: goldens, KubeVirt's passes, refusals with their reasons, properties, the filter
//! and the server. Judged by an evaluator of the tests' own ([`judge`]), never by the code under test.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails by panicking")]

mod filter;
mod golden;
mod judge;
mod namespaces;
mod passes;
mod properties;
mod refusals;
mod slots;
mod wire;
mod world;
