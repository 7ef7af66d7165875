//! `MacNodeLease`: a whole Mac for one tenant, for at least 24 hours.
//!
//! ```text
//! Pending ──bind──▶ Bound ──delete──▶ Held ──floor──▶ Releasing ──▶ gone
//!                     ├─maximumDuration──▶ Releasing ──▶ Expired
//!                     └─retirement of its Mac──▶ Broken
//! ```
//!
//! The truth of a binding is `MacNode.status.leaseRef`; this status is derived from it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Condition,
    duration::{maximum_not_below_minimum, never_lowered, of_duration_form, well_formed},
    words::words,
};

/// What a tenant asks for: one Mac of a class, nobody else's, until at least the floor.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "rack.macrack.io", version = "v1alpha1", kind = "MacNodeLease", plural = "macnodeleases", namespaced,
    status = "MacNodeLeaseStatus", shortname = "mnl", category = "macrack", derive = "PartialEq",
    selectable = ".spec.nodeClassName",
    doc = "MacNodeLease leases one whole Mac to one namespace for at least 24 hours, whatever is deleted. Up to two macOS VMs run on it. Deleted before the floor it is Held: the Mac stays the tenant's and takes new instances until status.earliestReleaseAt.",
    printcolumn(name = "CLASS", type_ = "string", json_path = ".spec.nodeClassName"),
    printcolumn(name = "SERIAL", type_ = "string", json_path = ".status.serial"),
    printcolumn(name = "PHASE", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "VMS", type_ = "string", json_path = ".status.instances"),
    printcolumn(name = "RELEASE-AT", type_ = "string", json_path = ".status.earliestReleaseAt"),
    printcolumn(name = "REASON", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "MESSAGE", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].message", priority = 1),
    validation = Rule::new("size(self.metadata.name) <= 63").message("[name-63] metadata.name: at most 63 characters; choose a shorter name"),
    validation = Rule::new("!has(oldSelf.status) || !has(oldSelf.status.serial) || self.spec.nodeClassName == oldSelf.spec.nodeClassName").message("[class-fixed-once-bound] spec.nodeClassName: immutable once bound; delete this lease and make another"),
    validation = Rule::new("!has(oldSelf.status) || !has(oldSelf.status.serial) || (has(self.spec.serial) == has(oldSelf.spec.serial) && (!has(self.spec.serial) || self.spec.serial == oldSelf.spec.serial))").message("[serial-fixed-once-bound] spec.serial: immutable once bound; delete this lease and make another"),
    validation = Rule::new("!has(oldSelf.status) || !has(oldSelf.status.end) || self.spec == oldSelf.spec").message("[ended-is-final] spec: this lease has ended and changes no more; make a new lease"),
    validation = Rule::new("!has(oldSelf.status) || !has(oldSelf.status.end) || (has(self.status) && has(self.status.end) && self.status.end == oldSelf.status.end)").message("[ended-is-final] status.end: written once"),
    validation = Rule::new("!has(oldSelf.status) || !has(oldSelf.status.earliestReleaseAt) || (has(self.status) && has(self.status.earliestReleaseAt) && timestamp(self.status.earliestReleaseAt) >= timestamp(oldSelf.status.earliestReleaseAt))").message("[floor-never-falls] status.earliestReleaseAt: never lowered or dropped")
)]
#[x_kube(validation = Rule::new(maximum_not_below_minimum()).message("[maximum-not-below-minimum] spec.maximumDuration: shorter than spec.minimumDuration (24h unless set); raise it, or leave it out"))]
pub struct MacNodeLeaseSpec {
    /// The MacNodeClass wanted. Immutable once bound.
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
    )]
    pub node_class_name: String,
    /// This very chassis, instead of any of the class. Immutable once bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 8, max = 20), regex(pattern = r"^[A-Z0-9]+$"))]
    pub serial: Option<String>,
    /// The chassis is not released before this time has passed since binding, whatever is deleted. At least 24h
    /// (Apple's licence); may be raised, never lowered. Form: 24h, 36h30m.
    #[serde(default = "day")]
    #[schemars(length(min = 2, max = 16), regex(pattern = r"^([0-9]{1,5}h)?([0-9]{1,6}m)?([0-9]{1,7}s)?$"))]
    #[x_kube(validation = Rule::new(of_duration_form()).message("[duration-form] spec.minimumDuration: hours, minutes, seconds in that order, e.g. 24h, 90m, 36h30m; a day is 24h"))]
    #[x_kube(validation = Rule::new(well_formed("duration(self) >= duration('24h')")).message("[minimum-24h] spec.minimumDuration: a Mac is leased for at least 24h (macOS licence); write 24h or more, e.g. 36h30m"))]
    #[x_kube(validation = Rule::new(well_formed("duration(self) <= duration('8784h')")).message("[duration-bound] spec.minimumDuration: at most 8784h (366 days); write less"))]
    #[x_kube(validation = Rule::new(never_lowered()).message("[minimum-only-rises] spec.minimumDuration: may be raised, never lowered; leave it as it was"))]
    pub minimum_duration: String,
    /// The lease ends by itself after this time. Not below minimumDuration. Without it, it lasts until it is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 2, max = 16), regex(pattern = r"^([0-9]{1,5}h)?([0-9]{1,6}m)?([0-9]{1,7}s)?$"))]
    #[x_kube(validation = Rule::new(of_duration_form()).message("[duration-form] spec.maximumDuration: hours, minutes, seconds in that order, e.g. 24h, 90m, 36h30m; a day is 24h"))]
    #[x_kube(validation = Rule::new(well_formed("duration(self) <= duration('8784h')")).message("[duration-bound] spec.maximumDuration: at most 8784h (366 days); write less"))]
    pub maximum_duration: Option<String>,
    /// Goldens to have on the Mac before the first instance asks for them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 8),
        inner(
            length(min = 1, max = 63),
            regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
        )
    )]
    pub prefetch_image_names: Vec<String>,
}

fn day() -> String {
    "24h".into()
}

/// Derived from `MacNode.status.leaseRef` by the operator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct MacNodeLeaseStatus {
    /// The generation that was judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// A summary for people; nothing is decided from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<MacNodeLeasePhase>,
    /// Serial of the chassis that was bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 20))]
    pub serial: Option<String>,
    /// Its Node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub node_name: Option<String>,
    /// When it was bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound_at: Option<Time>,
    /// The floor: `boundAt + max(minimumDuration, 24h)`; the Mac is given back not before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub earliest_release_at: Option<Time>,
    /// VMs that are to run, of two: `1/2`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8))]
    pub instances: Option<String>,
    /// Written once when the lease ended other than by deletion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<LeaseEnd>,
    /// What holds and what does not, each with its reason; `Ready` sums them up.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// How and when a lease ended other than by deletion.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LeaseEnd {
    /// Why.
    pub reason: LeaseEndReason,
    /// When.
    pub at: Time,
}

/// Why a lease ended other than by deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum LeaseEndReason {
    /// maximumDuration has passed.
    Expired,
    /// Its Mac was retired by an admin.
    Broken,
}

/// A summary of a MacNodeLease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum MacNodeLeasePhase {
    /// Waits for a chassis.
    Pending,
    /// Has a chassis.
    Bound,
    /// Deleted before the floor: the chassis is still the tenant's.
    Held,
    /// Past the floor and empty: the chassis is being given back.
    Releasing,
    /// Ended by maximumDuration.
    Expired,
    /// Ended by the retirement of its Mac.
    Broken,
}

words! {
    /// Condition types of a MacNodeLease.
    MacNodeLeaseCondition {
        /// The lease is bound and not on its way out.
        Ready,
        /// A chassis is bound to it.
        Bound,
        /// The bound chassis is usable.
        ChassisHealthy,
        /// The floor has passed: a delete releases the chassis at once.
        FloorElapsed,
        /// Told, as False, only while a stored duration is none.
        DurationsReadable,
    }
}

words! {
    /// Reasons of a MacNodeLease's conditions.
    MacNodeLeaseReason {
        /// A chassis is bound.
        Bound,
        /// A chassis is free and is being bound; it takes a moment.
        Binding,
        /// All chassis of the class are leased or unusable; the message says when the first can come free.
        NoChassisFree,
        /// No MacNode of the class exists.
        NoChassisOfClass,
        /// spec.nodeClassName names a class that does not exist.
        ClassNotFound,
        /// spec.serial names a chassis that does not exist, is of another class, or cannot be leased now.
        SerialNotAvailable,
        /// Deleted before the floor: the chassis stays the tenant's, is counted, and takes instances until status.earliestReleaseAt.
        HeldUntilFloor,
        /// Past the floor, but its instances are not all stopped and wiped yet.
        StillOccupied,
        /// The chassis is being given back.
        Releasing,
        /// maximumDuration has passed; make a new lease.
        Expired,
        /// An admin retired the chassis; make a new lease, its 24 hours begin anew.
        Broken,
        /// The floor has not passed.
        FloorNotElapsed,
        /// The floor has passed.
        FloorElapsed,
        /// Not bound yet, so no clock runs.
        NotBound,
        /// The chassis is usable.
        Healthy,
        /// The Mac does not answer; its VMs are not moved. The lease lasts until it ends or an admin retires the Mac.
        ChassisUnreachable,
        /// The Mac is quarantined; the message says why.
        ChassisQuarantined,
        /// The MacNode of the chassis is missing.
        ChassisMissing,
        /// A fact that it waits for could not be read; the message says which. Nothing is decided from it.
        Unreadable,
        /// minimumDuration or maximumDuration as stored is no duration; 24h or more is assumed, never less.
        DurationUnreadable,
    }
}
