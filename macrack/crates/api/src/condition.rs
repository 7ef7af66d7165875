//! Conditions: Kubernetes' own shape, with bounds that k8s-openapi's schema lacks.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Longest message that is written; longer ones are cut at a character boundary.
pub const MESSAGE_MAX: usize = 1024;

/// One observed fact about an object, as `metav1.Condition`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// What is judged, e.g. `Ready`.
    #[serde(rename = "type")]
    #[schemars(length(min = 1, max = 64))]
    pub type_: String,
    /// True, False, or Unknown when the fact could not be read.
    pub status: ConditionStatus,
    /// The `metadata.generation` that was judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// When `status` last changed.
    pub last_transition_time: Time,
    /// One documented word (docs/conditions.md).
    #[schemars(length(min = 1, max = 64))]
    pub reason: String,
    /// A sentence for the person who must act.
    #[serde(default)]
    #[schemars(length(max = 1024))]
    pub message: String,
}

/// `metav1.ConditionStatus`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ConditionStatus {
    /// The fact holds.
    True,
    /// The fact does not hold.
    False,
    /// It could not be observed; nothing is decided from it.
    Unknown,
}

impl From<bool> for ConditionStatus {
    fn from(holds: bool) -> Self {
        if holds { Self::True } else { Self::False }
    }
}

/// The condition of that type, if it was reported.
pub fn find<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|c| c.type_ == type_)
}

/// Whether the condition of that type was reported True.
pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    find(conditions, type_).is_some_and(|c| c.status == ConditionStatus::True)
}

/// `text` with a blank for each control character: what an agent or a guest says ends up on people's terminals.
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// `message` in plain characters, cut to [`MESSAGE_MAX`] bytes at a character boundary.
pub fn bounded(message: &str) -> String {
    let message = plain(message);
    if message.len() <= MESSAGE_MAX {
        return message;
    }
    let cut = message.floor_char_boundary(MESSAGE_MAX - '…'.len_utf8());
    format!("{}…", &message[..cut])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let long = "é".repeat(MESSAGE_MAX);
        let cut = bounded(&long);
        assert!(cut.len() <= MESSAGE_MAX && cut.ends_with('…'), "{}", cut.len());
        assert_eq!(bounded("short"), "short");
        assert_eq!(bounded("\u{1b}[2Jgone\r\n\u{9b}31m"), " [2Jgone   31m", "no terminal obeys it");
    }
}
