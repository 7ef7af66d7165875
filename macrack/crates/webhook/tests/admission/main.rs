//! Admission on a real API server: what is refused, and that it is refused for the reason that is meant.

mod agents;
mod images;
mod instances;
mod leases;
mod owned;
mod pods;
mod schema;
mod serving;
mod world;
