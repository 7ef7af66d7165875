//! `RackConfig`: the cluster's settings, a singleton named `default`. Without it the defaults hold.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Condition,
    duration::{of_duration_form, well_formed},
    words::words,
};

/// Settings. None of them weakens the three rules: there is no number of VMs and no floor here.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "config.macrack.io", version = "v1alpha1", kind = "RackConfig", plural = "rackconfigs",
    status = "RackConfigStatus", category = "macrack", derive = "PartialEq",
    doc = "RackConfig holds the cluster's settings. It is optional and a singleton named default.",
    printcolumn(name = "HEARTBEAT-TIMEOUT", type_ = "string", json_path = ".spec.heartbeatTimeout"),
    printcolumn(name = "REBOOT", type_ = "string", json_path = ".spec.quota.reboot"),
    printcolumn(name = "REASON", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("self.metadata.name == 'default'").message("[singleton] metadata.name: there is one RackConfig, named default; rename this one")
)]
pub struct RackConfigSpec {
    /// How long a Node may be not Ready before its chassis is called Unreachable.
    #[serde(default = "minute")]
    #[schemars(length(min = 2, max = 16), regex(pattern = r"^([0-9]{1,5}h)?([0-9]{1,6}m)?([0-9]{1,7}s)?$"))]
    #[x_kube(validation = Rule::new(of_duration_form()).message("[duration-form] spec.heartbeatTimeout: hours, minutes, seconds in that order, e.g. 24h, 90m, 36h30m; a day is 24h"))]
    #[x_kube(validation = Rule::new(well_formed("duration(self) >= duration('10s') && duration(self) <= duration('24h')")).message("[duration-bound] spec.heartbeatTimeout: between 10s and 24h; the default is 1m"))]
    pub heartbeat_timeout: String,
    /// What is done about a stuck VM counter.
    #[serde(default)]
    pub quota: QuotaPolicy,
    /// Where the audit trail goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audit: Option<Sink>,
    /// Where billing events go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub billing: Option<Sink>,
    /// How goldens are kept on the Macs.
    #[serde(default)]
    pub image_cache: ImageCache,
}

fn minute() -> String {
    "1m".into()
}

/// What is done about a stuck VM counter. Never is the limit itself touched.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct QuotaPolicy {
    /// Who approves the reboot.
    #[serde(default)]
    pub reboot: RebootPolicy,
    /// How many reboots the policy approves within 24 hours, over all chassis, and so at most how many are rebooting by
    /// it at once. Each chassis gets one of them: what sticks again after a reboot waits for an admin, and so does
    /// whatever comes after the budget.
    #[serde(default = "two")]
    #[schemars(range(min = 1, max = 100))]
    pub budget: i32,
    /// How long a Mac may take to come back.
    #[serde(default = "half_hour")]
    #[schemars(length(min = 2, max = 16), regex(pattern = r"^([0-9]{1,5}h)?([0-9]{1,6}m)?([0-9]{1,7}s)?$"))]
    #[x_kube(validation = Rule::new(of_duration_form()).message("[duration-form] spec.quota.deadline: hours, minutes, seconds in that order, e.g. 24h, 90m, 36h30m; a day is 24h"))]
    #[x_kube(validation = Rule::new(well_formed("duration(self) >= duration('1m') && duration(self) <= duration('24h')")).message("[duration-bound] spec.quota.deadline: between 1m and 24h; the default is 30m"))]
    pub deadline: String,
}

fn two() -> i32 {
    2
}
fn half_hour() -> String {
    "30m".into()
}

impl Default for QuotaPolicy {
    fn default() -> Self {
        Self { reboot: RebootPolicy::default(), budget: two(), deadline: half_hour() }
    }
}

/// Who approves a reboot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RebootPolicy {
    /// An admin, by spec.approvedReboot of the MacNode.
    #[default]
    Manual,
    /// The operator, within the budget.
    Automatic,
}

/// Where events are sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Sink {
    /// An http or https address.
    #[schemars(length(min = 8, max = 512), regex(pattern = r"^https?://"))]
    pub url: String,
}

/// How goldens are kept on the Macs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageCache {
    /// At most so many goldens on one Mac. One with a clone is never evicted.
    #[serde(default = "two")]
    #[schemars(range(min = 1, max = 16))]
    pub max_goldens: i32,
    /// An unused golden is evicted after this time.
    #[serde(default = "week")]
    #[schemars(length(min = 2, max = 16), regex(pattern = r"^([0-9]{1,5}h)?([0-9]{1,6}m)?([0-9]{1,7}s)?$"))]
    #[x_kube(validation = Rule::new(of_duration_form()).message("[duration-form] spec.imageCache.evictAfter: hours, minutes, seconds in that order, e.g. 24h, 90m, 36h30m; a day is 24h"))]
    #[x_kube(validation = Rule::new(well_formed("duration(self) >= duration('1m') && duration(self) <= duration('8784h')")).message("[duration-bound] spec.imageCache.evictAfter: between 1m and 8784h; the default is 168h"))]
    pub evict_after: String,
}

fn week() -> String {
    "168h".into()
}

impl Default for ImageCache {
    fn default() -> Self {
        Self { max_goldens: two(), evict_after: week() }
    }
}

impl Default for RackConfigSpec {
    fn default() -> Self {
        Self {
            heartbeat_timeout: minute(),
            quota: QuotaPolicy::default(),
            audit: None,
            billing: None,
            image_cache: ImageCache::default(),
        }
    }
}

/// Written by the operator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct RackConfigStatus {
    /// The generation that was judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

words! {
    /// Reasons of a RackConfig's `Ready`.
    RackConfigReason {
        /// The settings hold.
        Accepted,
    }
}
