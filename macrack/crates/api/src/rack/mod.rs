//! `rack.macrack.io`: the hardware, who holds it, and until when.
pub mod lease;
pub mod node;
mod node_agent;
pub mod node_class;
