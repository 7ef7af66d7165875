//! `MacOSMachineClaim`: what a tenant, or a workload, asks with. Ask and wait for one reference.
//!
//! ```text
//! Pending ──Ready machine──▶ Bound ──ttl──▶ Expired
//!     └──ttl──▶ Expired        └──machine gone──▶ Lost
//! ```

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Condition, Name, text::SpanText, vocabulary::vocabulary};

/// Which machine, and for how long.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "machine.dockerios.io", version = "v1alpha1", kind = "MacOSMachineClaim", plural = "macosmachineclaims", namespaced,
    status = "MacOSMachineClaimStatus", shortname = "macclaim", category = "dockerios", derive = "PartialEq",
    doc = "MacOSMachineClaim asks for a machine: a warm one of a pool, or one of a class. Wait for it: kubectl wait --for=condition=Ready macclaim/NAME. When it is deleted or its ttl is over, the machine is deleted, never used again.",
    printcolumn(name = "CLASS", type_ = "string", json_path = ".status.machineClassName"),
    printcolumn(name = "PHASE", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "MACHINE", type_ = "string", json_path = ".status.machineRef.name"),
    printcolumn(name = "EXPIRES", type_ = "string", json_path = ".status.expiresAt"),
    printcolumn(name = "REASON", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "MESSAGE", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].message", priority = 1),
    validation = Rule::new("size(self.metadata.name) <= 63").message("[name-63] metadata.name: at most 63 characters; choose a shorter name"),
    validation = Rule::new("!has(oldSelf.status) || !has(oldSelf.status.end) || (has(self.status) && has(self.status.end) && self.status.end == oldSelf.status.end)").message("[claim-ends-once] status.end: written once; an ended claim never comes back"),
    validation = Rule::new("!has(oldSelf.status) || !has(oldSelf.status.end) || self.spec == oldSelf.spec").message("[claim-ended] spec: this claim has ended; make a new one"),
    validation = Rule::new("!has(oldSelf.status) || !has(oldSelf.status.machineRef) || !has(self.status) || !has(self.status.machineRef) || self.status.machineRef.uid == oldSelf.status.machineRef.uid").message("[claim-bound-once] status.machineRef: a claim is never moved to another machine")
)]
#[x_kube(validation = Rule::new("has(self.poolName) != has(self.machineClassName)").message("[claim-pool-or-class] spec: exactly one of poolName, machineClassName"))]
#[x_kube(validation = Rule::new("has(self.poolName) == has(oldSelf.poolName) && (!has(self.poolName) || self.poolName == oldSelf.poolName) && (!has(self.machineClassName) || self.machineClassName == oldSelf.machineClassName)").message("[claim-target-immutable] spec.poolName, spec.machineClassName: cannot change; make a new claim"))]
pub struct MacOSMachineClaimSpec {
    /// A MacOSMachinePool in this namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool_name: Option<Name>,
    /// A MacOSMachineClass; any pool of it in this namespace may serve.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_class_name: Option<Name>,
    /// From bound to the end; the platform's default when left out. May be raised while bound, up to the platform's
    /// maximum; never lowered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<SpanText>,
}

/// What became of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct MacOSMachineClaimStatus {
    /// `metadata.generation` of the spec that all of this is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Where it stands, in one word; for people, nothing is decided from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<ClaimPhase>,
    /// Class of the machine that it gets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_class_name: Option<Name>,
    /// The machine. Written when it is Ready; what a consumer waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_ref: Option<ClaimedMachine>,
    /// When it was bound; the ttl counts from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound_at: Option<Time>,
    /// When it ends by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
    /// Written once when it ended. It is removed a day later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<ClaimEnd>,
    /// All that is to be said of it, with reasons; `Ready` is the sum.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// The machine of a claim, in the claim's namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimedMachine {
    /// Its name.
    pub name: Name,
    /// Its uid.
    #[schemars(length(min = 1, max = 64))]
    pub uid: String,
}

/// How and when a claim ended other than by deletion.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimEnd {
    /// Why.
    pub reason: ClaimEndReason,
    /// When.
    pub at: Time,
}

/// Why a claim ended other than by deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum ClaimEndReason {
    /// Its ttl is over.
    Expired,
    /// Its machine is gone or failed.
    Lost,
}

/// A summary of a MacOSMachineClaim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum ClaimPhase {
    /// Waits for a machine.
    Pending,
    /// Has one.
    Bound,
    /// Its ttl is over.
    Expired,
    /// Its machine is gone.
    Lost,
}

vocabulary! {
    /// Condition types of a MacOSMachineClaim.
    ClaimCondition:
        /// It has a Ready machine.
        Ready;
        /// It ends by itself within five minutes. Raise spec.ttl to keep the machine longer.
        Expiring;
}

vocabulary! {
    /// Reasons of a MacOSMachineClaim's condition.
    ClaimReason:
        /// It has a machine.
        Bound;
        /// A machine was taken or made for it and is not Ready yet; the message says how far it is.
        MachineNotReady;
        /// spec.poolName names no pool.
        PoolNotFound;
        /// spec.machineClassName names no class.
        ClassNotFound;
        /// The class does not allow this namespace.
        NamespaceNotAllowed;
        /// The pool has maxMachines; a claim that ends makes room.
        AtMaxMachines;
        /// A quota or another admission refused the machine; the message is its own.
        CreationRefused;
        /// Its machine does not answer; it is not replaced while it may still run.
        MachineUnreachable;
        /// The ttl is over; the machine is deleted. Make a new claim.
        Expired;
        /// The machine is gone or failed. Make a new claim.
        Lost;
        /// The stored ttl is no duration, or none that the platform allows; the platform's default counts.
        TtlUnreadable;
        /// Less than five minutes are left. Raise spec.ttl, up to the platform's maximum, to keep the machine longer.
        ExpiresSoon;
        /// More than five minutes are left.
        TimeLeft;
        /// Something could not be read just now; nothing is decided from it.
        Unreadable;
}
