//! From decisions to objects.
pub mod access;
pub mod node;
pub mod pod;
