//! `MacOSImage`: one macOS, the Xcode that belongs on it, the guest agent. Nothing else fits in the list.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Condition, Quantity, words::words};

/// A golden in the catalogue. Written by an admin; immutable once Ready: a new OS or Xcode is a new name.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "image.macrack.io", version = "v1alpha1", kind = "MacOSImage", plural = "macosimages",
    status = "MacOSImageStatus", shortname = "macimg", category = "macrack", derive = "PartialEq",
    doc = "MacOSImage is one golden: one macOS, the Xcode that belongs on it, and the guest agent. Pulled onto a Mac when a lease needs it.",
    printcolumn(name = "OS", type_ = "string", json_path = ".spec.contents[?(@.kind==\"macOS\")].version"),
    printcolumn(name = "XCODE", type_ = "string", json_path = ".spec.contents[?(@.kind==\"Xcode\")].version"),
    printcolumn(name = "PHASE", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "SIZE", type_ = "string", json_path = ".status.size"),
    printcolumn(name = "CACHED-ON", type_ = "string", json_path = ".status.cachedOn"),
    printcolumn(name = "REASON", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "MESSAGE", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].message", priority = 1),
    validation = Rule::new("size(self.metadata.name) <= 63").message("[name-63] metadata.name: at most 63 characters; choose a shorter name"),
    validation = Rule::new("!has(oldSelf.status) || !has(oldSelf.status.phase) || oldSelf.status.phase != 'Ready' || self.spec == oldSelf.spec").message("[image-fixed-once-ready] spec: immutable once Ready; a new macOS or Xcode is a new MacOSImage")
)]
pub struct MacOSImageSpec {
    /// Where the golden is.
    pub source: Source,
    /// What is in it: exactly one macOS, one Xcode, one GuestAgent.
    #[schemars(length(min = 1, max = 3))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["kind".into()]))]
    #[x_kube(validation = Rule::new("['macOS', 'Xcode', 'GuestAgent'].all(k, self.exists(c, c.kind == k))").message("[contents-complete] spec.contents: a golden is exactly one macOS, one Xcode and one GuestAgent; add what is missing"))]
    pub contents: Vec<Content>,
    /// Oldest host macOS that can run it, when newer than the guest's own rule says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16), regex(pattern = r"^[0-9]{1,3}(\.[0-9]{1,3}){0,2}$"))]
    pub minimum_host_version: Option<String>,
}

/// Where a golden is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Source {
    /// An OCI image in Tart's layout.
    pub oci: Oci,
}

/// An OCI image.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.pullSecretRef) || !self.pullSecretRef.name.startsWith('macrack-')").message("[pull-secret-own] spec.source.oci.pullSecretRef: Secrets named macrack-… are the operator's own and are not handed to Macs; give the pull secret another name"))]
pub struct Oci {
    /// `registry/path@sha256:<64 hex>`: pinned, so that the name means the same for ever.
    #[schemars(length(min = 1, max = 512))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9][a-z0-9.:-]*(/[a-z0-9][a-z0-9._-]*)+(:[A-Za-z0-9_][A-Za-z0-9._-]*)?@sha256:[a-f0-9]{64}$')").message("[image-pinned] spec.source.oci.image: a golden is pinned by digest; write registry/path@sha256:<64 hex digits>"))]
    pub image: String,
    /// A Secret of type kubernetes.io/dockerconfigjson in the operator's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_secret_ref: Option<LocalRef>,
}

impl Oci {
    /// The digest that pins the image: `sha256:<64 hex>`.
    pub fn digest(&self) -> Option<&str> {
        self.image.rsplit_once('@').map(|(_, digest)| digest)
    }
}

/// A name in a known namespace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LocalRef {
    /// The object.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
    )]
    pub name: String,
}

/// One thing in a golden.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.kind in ['macOS', 'Xcode', 'GuestAgent']").message("[contents-kinds] spec.contents: only macOS, Xcode and GuestAgent belong in a golden; runners, tools, keys are provisioned at first boot (spec.firstBoot of a MacOSInstance)"))]
#[x_kube(validation = Rule::new("self.version.matches('^[0-9]{1,4}([.][0-9]{1,4}){0,3}$')").message("[no-beta] spec.contents: version is a release such as 26.1; betas and release candidates are not sold"))]
#[x_kube(validation = Rule::new("!has(self.build) || !self.build.matches('^[0-9]{2}[A-Z][0-9]{3,5}[a-z]$')").message("[no-beta] spec.contents: a build that ends in a small letter is a beta (Apple's numbering); use a release build"))]
pub struct Content {
    /// macOS, Xcode or GuestAgent.
    #[schemars(length(min = 1, max = 32))]
    pub kind: String,
    /// Its version, e.g. `26.1`.
    #[schemars(length(min = 1, max = 32))]
    pub version: String,
    /// Apple's build, e.g. `25B78`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16), regex(pattern = r"^[A-Za-z0-9]+$"))]
    pub build: Option<String>,
}

/// Written by the operator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct MacOSImageStatus {
    /// The generation that was judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// A summary for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<MacOSImagePhase>,
    /// The digest that was resolved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 80))]
    pub digest: Option<String>,
    /// Size of the disk once pulled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Quantity>,
    /// Serials of the chassis that have it in their cache; at most 1,000 are named, `cachedOn` counts all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000), inner(length(max = 20)))]
    pub replicated_on: Vec<String>,
    /// Chassis that have it, of all: `12/300`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub cached_on: Option<String>,
    /// `Ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// A summary of a MacOSImage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum MacOSImagePhase {
    /// Not resolved yet.
    Pending,
    /// The store has it.
    Ready,
    /// The store does not have it.
    Failed,
}

words! {
    /// Reasons of a MacOSImage's `Ready`.
    MacOSImageReason {
        /// The store has it under this digest.
        Resolved,
        /// Being looked up.
        Resolving,
        /// The store has no such image; push it, or correct spec.source.
        NotFound,
        /// The store did not answer; it is asked again.
        StoreUnreachable,
        /// What the store has is no golden; the message says what is wrong.
        NotAGolden,
    }
}
