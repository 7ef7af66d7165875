//! The whole of MacRack in a world of few bytes, explored by [stateright] in every order in which things can happen.
//!
//! ```text
//!            what is stored                 what is really so             what was told
//!   world::Api: MacNodes, leases,    world::Chassis: VMs on disk,   rack::Given: who has a chassis
//!   instances, namespaces            what the agent saw last        and its floor, whatever became
//!        ▲  schema rules (admits)          ▲                        of the objects
//!        │                                 │ sees, works, reports: three events, each late
//!   decision: facts → macrack_core::decide::{node, lease, instance} → steps
//!        ▲
//!   gather: caches as they are, or as they stopped at any moment
//! ```
//!
//! The deciders are the product's own, on the real API types ([`expand`] makes them). What the API server refuses is
//! written once more in [`world::admits`]. Left out: Nodes, pods, access and images; an agent here starts what it is
//! ordered to at once, which is the harder case.
//!
//! # What happens
//! Tenants of two namespaces make and delete leases and instances, raise a minimum, switch instances off and on; admins
//! remove leases, instances and MacNodes by force, retire Macs, delete a namespace; the operator's and the server's clock
//! move together or apart; agents lose VMs; the operator dies after any step of a plan; and with `freeze` a second operator
//! is at work whose caches stopped at any moment, all of them or one kind, and that goes on from any step of a plan.
//!
//! # What never happens ([`rack::World::breaks`], [`scene::Scene`])
//! - VMs of two tenants on a chassis; three alive on one; a slot for another tenant than the lease's; slots for one
//!   instance on two chassis;
//! - a chassis given to another lease before the floor of the last one by both clocks, released with a VM or a disk on it,
//!   or bound by a clock of the past; a binding that comes back with another clock or a lower floor;
//! - a lease let go while it holds a chassis, an instance while it has a slot;
//! - a slot given out while a VM cannot be reached; a plan that `macrack_core::check` refuses;
//! - what cannot be read frees nothing ([`rest::blind`]); what waits for time has asked to be woken ([`rest::asleep`]);
//! - from every state a run without faults comes to rest within [`rest::BOUND`] rounds, with every floor past, and then
//!   what was deleted is gone, free chassis are clean, and no lease or instance waits beside what it could have
//!   ([`rest::comes`]).
//!
//! Each scene also names what must be met on the way, so that none of them can pass by doing nothing.
//!
//! # That it can fail
//! Each of these changes to the deciders was made once and seen to be caught: a slot emptied without the report Wiped; a
//! release without an empty disk; the server's clock ignored; a third slot; the order Run taken back before the agent
//! answered it (two tenants on one chassis); unreadable taken for gone; a binding written back with a new clock; slots given
//! out in spite of quarantine; no wake for a Held lease; the floor that a Mac remembers judged by one clock; a VM out of a
//! slot and in again in one write; orphans left on the disk; a floor below 24 hours; a dangling chassis released at once; a
//! lease let go with its chassis held; a lease bound twice not told apart.
//!
//! And these were found here before anybody met them: the handshake around the order Run, the same VM leaving and entering
//! a slot in one write, statuses and finalizers that hit the successor of the same name when they are written without a
//! uid.

pub mod agent;
pub mod decision;
pub mod expand;
pub mod gather;
pub mod rack;
pub mod reboot;
pub mod rest;
pub mod scene;
pub mod world;
