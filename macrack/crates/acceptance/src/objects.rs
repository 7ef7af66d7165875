//! The objects that tests make, as a user would write them.

use anyhow::Result;
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams, PostParams},
};
use macrack_api::{InstanceClass, MacNode, MacNodeClass, MacNodeLease, MacOSImage, MacOSInstance};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// The digest of every image that tests name; each test's store has it or not.
pub const DIGEST: &str = "sha256:dd56de4137951d9c92681b03416ec15f886b4482a27e3a517d32f085244cbe5d";

/// An object from JSON.
pub fn object<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap_or_else(|e| panic!("a test's object is none: {e}"))
}

/// A Mac class of 14 cores and 64 GiB, 2 cores and 8 GiB kept by the host.
pub fn node_class(name: &str) -> MacNodeClass {
    object(json!({
        "apiVersion": "rack.macrack.io/v1alpha1", "kind": "MacNodeClass", "metadata": { "name": name },
        "spec": {
            "chassis": "MacMini", "model": "Mac16,11", "chip": "M4 Pro", "cpuCores": 14, "memory": "64Gi",
            "storage": "1T", "linkSpeed": "10G", "hostReserve": { "cpuCores": 2, "memory": "8Gi", "storage": "150G" },
        },
    }))
}

/// A chassis.
pub fn mac_node(serial: &str, class: &str) -> MacNode {
    object(json!({
        "apiVersion": "rack.macrack.io/v1alpha1", "kind": "MacNode", "metadata": { "name": serial.to_lowercase() },
        "spec": { "serial": serial, "nodeClassName": class },
    }))
}

/// A lease of any chassis of a class.
pub fn lease(name: &str, class: &str) -> MacNodeLease {
    object(json!({
        "apiVersion": "rack.macrack.io/v1alpha1", "kind": "MacNodeLease", "metadata": { "name": name },
        "spec": { "nodeClassName": class, "minimumDuration": "24h" },
    }))
}

/// Half of the class above.
pub fn instance_class(name: &str) -> InstanceClass {
    object(json!({
        "apiVersion": "instance.macrack.io/v1alpha1", "kind": "InstanceClass", "metadata": { "name": name },
        "spec": { "cpuCores": 6, "memory": "28Gi", "disk": "250G" },
    }))
}

/// An instance on a lease.
pub fn instance(name: &str, lease: &str, class: &str, image: &str) -> MacOSInstance {
    object(json!({
        "apiVersion": "instance.macrack.io/v1alpha1", "kind": "MacOSInstance", "metadata": { "name": name },
        "spec": { "leaseName": lease, "instanceClassName": class, "imageName": image },
    }))
}

/// An image; `minor` makes its pair of versions its own.
pub fn image(name: &str, reference: &str, minor: u32) -> MacOSImage {
    object(json!({
        "apiVersion": "image.macrack.io/v1alpha1", "kind": "MacOSImage", "metadata": { "name": name },
        "spec": {
            "source": { "oci": { "image": reference } },
            "contents": [
                { "kind": "macOS", "version": format!("26.{minor}") },
                { "kind": "Xcode", "version": "26.1" },
                { "kind": "GuestAgent", "version": "0.1.0" },
            ],
        },
    }))
}

/// Makes an object of the cluster.
pub async fn make<K>(client: &Client, object: &K) -> Result<K>
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::ClusterResourceScope>
        + Clone
        + serde::Serialize
        + DeserializeOwned
        + std::fmt::Debug,
{
    Ok(Api::all(client.clone()).create(&PostParams::default(), object).await?)
}

/// Makes an object of a namespace.
pub async fn make_in<K>(client: &Client, namespace: &str, object: &K) -> kube::Result<K>
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + serde::Serialize
        + DeserializeOwned
        + std::fmt::Debug,
{
    Api::namespaced(client.clone(), namespace).create(&PostParams::default(), object).await
}

/// A merge patch that must be accepted.
pub async fn edit<K>(api: &Api<K>, name: &str, patch: Value) -> Result<K>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    Ok(api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?)
}
