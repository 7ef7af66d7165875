//! Conditions in Kubernetes' own shape, bounded (k8s-openapi's schema has no bounds).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Longest message in bytes; what is longer is cut ([`clip`]).
pub const MESSAGE_LIMIT: usize = 1024;

/// Shape of `metav1.Condition`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// What is judged.
    #[serde(rename = "type")]
    #[schemars(length(min = 1, max = 64))]
    pub kind: String,
    /// The verdict.
    pub status: Verdict,
    /// `metadata.generation` that was judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// When `status` last changed.
    pub last_transition_time: Time,
    /// One documented word (docs/conditions.md).
    #[schemars(length(min = 1, max = 64))]
    pub reason: String,
    /// For the person who must act.
    #[serde(default)]
    #[schemars(length(max = 1024))]
    pub message: String,
}

/// Shape of `metav1.ConditionStatus`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Verdict {
    /// It holds.
    True,
    /// It does not hold.
    False,
    /// It could not be seen. Nothing is decided from it.
    Unknown,
}

impl From<bool> for Verdict {
    fn from(holds: bool) -> Self {
        if holds { Self::True } else { Self::False }
    }
}

/// The reported condition of that type.
pub fn of<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|c| c.kind == kind)
}

/// Whether that condition was reported True.
pub fn holds(conditions: &[Condition], kind: &str) -> bool {
    of(conditions, kind).is_some_and(|c| c.status == Verdict::True)
}

/// `text` within [`MESSAGE_LIMIT`], cut between two characters.
pub fn clip(text: &str) -> String {
    const ELLIPSIS: &str = "…";
    if text.len() <= MESSAGE_LIMIT {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(MESSAGE_LIMIT - ELLIPSIS.len());
    [&text[..end], ELLIPSIS].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_past_the_limit_is_cut_between_two_characters() {
        let cut = clip(&"ü".repeat(MESSAGE_LIMIT));
        assert!(cut.len() <= MESSAGE_LIMIT, "{}", cut.len());
        assert!(cut.ends_with("ü…"));
        assert_eq!(clip("as it is"), "as it is");
    }
}
