//! The simulator on a real control plane: what is played behaves as the real things were seen to.

mod cdi;
mod end;
mod kubelet;
mod run;
mod stage;
