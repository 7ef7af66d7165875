//! Identities, their pools, images, classes and the platform: decisions as tables, and protocols crashed at each step.

mod bootdisk;
mod build;
mod class;
mod cluster;
mod crash;
mod identity;
mod image;
mod platform;
mod pool;
