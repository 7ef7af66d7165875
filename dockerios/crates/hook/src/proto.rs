//! KubeVirt's hook protocol, generated from `proto/`: messages, servers, and clients for whoever plays the
//! launcher. Invariant: package, service and field numbers are KubeVirt's.
#![allow(missing_docs, clippy::all)]

/// Who the hook is.
pub mod info {
    tonic::include_proto!("kubevirt.hooks.info");
}
/// Domains only.
pub mod v1alpha1 {
    tonic::include_proto!("kubevirt.hooks.v1alpha1");
}
/// Adds cloud-init.
pub mod v1alpha2 {
    tonic::include_proto!("kubevirt.hooks.v1alpha2");
}
/// Adds Shutdown.
pub mod v1alpha3 {
    tonic::include_proto!("kubevirt.hooks.v1alpha3");
}
