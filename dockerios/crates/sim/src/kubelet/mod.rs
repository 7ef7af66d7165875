//! Plays a kubelet on each node: heartbeats, and pods from Pending to their end.

mod node;
mod pod;
mod program;

pub(crate) use node::{heartbeats, node};
pub(crate) use pod::pod;
pub(crate) use program::{Programs, scripts};
