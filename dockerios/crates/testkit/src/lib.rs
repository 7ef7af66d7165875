//! A real Kubernetes control plane for tests, the demo and the bench, and the words in which tests expect things of
//! it. Linux only; development only.
//!
//! Invariant: what this crate starts, ends: when its guard is dropped, when the process ends, and when the process is
//! killed with SIGKILL ([`run`] says by which means). No test meets what another one left.
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! use dockerios_testkit::{Scratch, expect, shared};
//! use k8s_openapi::api::core::v1::ConfigMap;
//!
//! let plane = shared().await?; // one for each test binary
//! let scratch = Scratch::new(plane, "claims").await?;
//! let tenant = plane.client_as("eve", &["tenants"]).await?;
//! let maps: kube::Api<ConfigMap> = kube::Api::namespaced(tenant, scratch.name());
//! expect::refused(maps.get("secrets").await, 403, &["cannot get resource \"configmaps\""])?;
//! # Ok(()) }
//! ```

mod access;
pub mod assets;
mod binary;
pub mod cutter;
mod der;
pub mod expect;
mod history;
mod kubeconfig;
mod manifests;
mod pki;
mod plane;
mod process;
pub mod run;
mod scratch;
mod start;

pub use access::client_from;
pub use binary::bin;
pub use cutter::{Answer, Cut, Write, WriteCutter};
pub use history::{History, Version};
pub use manifests::{apply_file, apply_yaml};
pub use plane::{ControlPlane, KUBECONFIG, Options, shared};
pub use process::{Proc, is_alive};
pub use scratch::Scratch;
