//! Identities, their pools, images, classes and the platform: decisions as tables, and protocols crashed at each step.

mod build;
mod cluster;
mod crash;
mod identity;
