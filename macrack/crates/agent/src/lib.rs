//! The Node of one Mac.
//!
//! ```text
//!   MacNode, Node, per slot: instance and placeholder        state directory, VM processes, host
//!                  │ gather                                            │ inventory, one task per VM
//!                  └──────────────▶ chassis ◀────────────────────────┘
//!                                      │ orders::decide (pure)
//!                    ┌─────────────────┼──────────────────┐
//!                    ▼ act             ▼                  ▼ report
//!               vms (tasks)     images (one puller)   status.agent, Node, placeholders
//! ```
//!
//! Invariants:
//! - on start the state directory is read first; whatever lives is adopted, and nothing is done before;
//! - a VM that runs keeps running whatever happens to the API, its pod, its rights, or this process;
//! - never do more than two VMs live, and no setting changes that.
//!
//! Read `orders` first, then `life`, `chassis`, `vms::task`.

pub mod backoff;
pub mod bell;
pub mod bootstrap;
pub mod chassis;
pub mod doctor;
pub mod gates;
pub mod gather;
pub mod headroom;
pub mod hold;
pub mod host;
pub mod identity;
pub mod images;
pub mod inventory;
pub mod kubelet;
pub mod life;
pub mod node;
pub mod notes;
pub mod orders;
pub mod quota;
pub mod reboot;
pub mod recipe;
pub mod report;
pub mod run;
pub mod selftest;
pub mod shutdown;
pub mod skew;
pub mod slots;
pub mod state_dir;
pub mod status;
pub mod vms;
pub mod writer;
