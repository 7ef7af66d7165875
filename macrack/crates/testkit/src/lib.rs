//! A real control plane for tests and the demo.
//!
//! Invariant: **whatever this crate starts, it ends** - when the guard is dropped, when the
//! process exits, when the process dies of a signal; and what a SIGKILL leaves behind is ended by
//! the next start ([`run`] says how). A test therefore never meets the processes of another.
//!
//! ```no_run
//! # async fn test() -> anyhow::Result<()> {
//! use macrack_testkit::{Namespace, expect, shared};
//! let plane = shared();                       // one per test binary, started by the first test
//! let ns = Namespace::fresh(plane, "lease").await?;
//! let tenant = plane.as_user("eve", &["tenants"]).await?;
//! let secrets: kube::Api<k8s_openapi::api::core::v1::Secret> = kube::Api::namespaced(tenant, ns.name());
//! expect::rejects(secrets.get("token").await, "secrets \"token\" is forbidden");
//! # Ok(()) }
//! ```
//!
//! | module | duty |
//! |---|---|
//! | [`control_plane`] | starts etcd, kube-apiserver, kube-controller-manager, kube-scheduler |
//! | [`assets`] | finds or builds their binaries |
//! | [`access`] | clients as admin, user, ServiceAccount; kubeconfig files; kubectl |
//! | [`namespace`] | a namespace per test |
//! | [`expect`] | `accepts`, `rejects`, `until`, `always` |
//! | [`child`] | guards for our own binaries |
//! | [`registry`] | a real OCI registry |
//! | [`run`] | who started what, so that all of it can be ended |

pub mod access;
pub mod assets;
pub mod child;
pub mod control_plane;
pub mod expect;
pub mod namespace;
mod pki;
mod process;
pub mod registry;
pub mod run;
mod spawn;

pub use access::{Output, client_from};
pub use child::{Child, Program, bin};
pub use control_plane::{ControlPlane, Options, shared};
pub use namespace::Namespace;
pub use registry::{Registry, RegistryOptions};
