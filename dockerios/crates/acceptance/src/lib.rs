//! Development only: the proofs, on a real control plane.
//!
//! Everything of DockerIOS is the real thing: the operator runs as the ServiceAccount of `deploy/rbac` (never as
//! admin), behind the policies of `deploy/policies`, and hook, bootdisk builder and guest agent are the real programs.
//! KubeVirt, CDI, the CSI driver and the kubelets are played by `dockerios-sim`; virtual machines do not boot here.
//!
//! ```text
//! scene ──▶ Fleet: plane ─ definitions ─ rules ─ sim ─ operator ─ platform
//!   └─▶ make (objects)   see (waits)   Chronicle (every version of every kind, in the order of their writing)
//! ```
//!
//! Invariant: a scene has a namespace, and cluster-wide objects of names, of its own; so scenes run side by side.

mod audit;
mod chronicle;
mod fleet;
pub mod make;
mod operator;
mod prometheus;
mod scene;
pub mod see;
mod template;

pub use audit::Request;
pub use chronicle::{Chronicle, Moment, Thing};
pub use fleet::Fleet;
pub use operator::Operator;
pub use prometheus::{Exporter, Prometheus};
pub use scene::{Scene, play, runtime};
