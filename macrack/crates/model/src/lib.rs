//! MacRack in a world of few bytes.

pub mod agent;
pub mod decision;
pub mod expand;
pub mod gather;
pub mod rack;
pub mod rest;
pub mod scene;
pub mod world;
