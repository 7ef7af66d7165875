//! Admission on a real API server: what is refused, and that it is refused for the reason that is meant.

// a test ends at the first thing that is not as it should be, its helpers too
#![allow(clippy::unwrap_used)]

mod agents;
mod certificates;
mod forbidden;
mod images;
mod instances;
mod leases;
mod owned;
mod pods;
mod schema;
mod serving;
mod world;
