//! Conditions in Kubernetes' own shape, bounded (k8s-openapi's schema has no bounds).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Longest message in bytes; what is longer is cut ([`clip`]).
pub const MESSAGE_LIMIT: usize = 1024;

/// What is found about one condition, in Kubernetes' three words (`metav1.ConditionStatus`).
#[derive(Hash, Eq, PartialEq, Debug, Copy, Clone, JsonSchema, Deserialize, Serialize)]
pub enum Verdict {
    /// Looked at, and so.
    True,
    /// Looked at, and not so.
    False,
    /// Not looked at, or in vain: that decides nothing.
    Unknown,
}

impl From<bool> for Verdict {
    fn from(so: bool) -> Self {
        match so {
            true => Self::True,
            false => Self::False,
        }
    }
}

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

/// The reported condition of that type.
pub fn of<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|c| c.kind == kind)
}

/// Whether that condition was reported True.
pub fn holds(conditions: &[Condition], kind: &str) -> bool {
    of(conditions, kind).is_some_and(|c| c.status == Verdict::True)
}

/// Which verdict of a condition is good news.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// It is to hold: False is a fault.
    True,
    /// It is not to hold: True is a fault.
    False,
    /// It tells a fact: neither is a fault.
    Either,
}

/// What is wanted of each condition type of ours, of whichever kind: the one place that says so.
pub const WANTED: &[(&str, Wanted)] = &[
    ("Available", Wanted::True),
    ("BootDiskBuilt", Wanted::True),
    ("Degraded", Wanted::False),
    ("DiskCloned", Wanted::True),
    ("Draining", Wanted::False),
    ("EndOfLife", Wanted::Either),
    ("Expiring", Wanted::False),
    ("GPUsPermitted", Wanted::True),
    ("GatesEnabled", Wanted::True),
    ("GuestReady", Wanted::True),
    ("HonorsWaitForFirstConsumer", Wanted::True),
    ("IdentityAllocated", Wanted::True),
    ("InUse", Wanted::Either),
    ("InstanceRunning", Wanted::True),
    ("LauncherCapable", Wanted::True),
    ("NoForeignPlugin", Wanted::True),
    ("Ready", Wanted::True),
    ("Replenished", Wanted::True),
    ("StorageHeadroom", Wanted::True),
    ("Unique", Wanted::True),
];

/// What is wanted of the condition type; of one that is not known, that it holds.
pub fn wanted(kind: &str) -> Wanted {
    let known = WANTED.iter().find(|(known, _)| *known == kind);
    known.map_or(Wanted::True, |(_, wanted)| *wanted)
}

/// Whether a condition tells of a fault, or could not be seen.
pub fn is_wrong(condition: &Condition) -> bool {
    match (condition.status, wanted(&condition.kind)) {
        (Verdict::Unknown, _) | (Verdict::True, Wanted::False) | (Verdict::False, Wanted::True) => true,
        (Verdict::True | Verdict::False, _) => false,
    }
}

/// `text` within [`MESSAGE_LIMIT`], cut between two characters.
pub fn clip(text: &str) -> String {
    clip_to(text, MESSAGE_LIMIT)
}

/// Cuts a text that is longer than so many bytes, and shows that it did: somebody else's words within our own.
pub fn clip_to(text: &str, most: usize) -> String {
    const ELLIPSIS: &str = "…";
    if text.len() <= most {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(most.saturating_sub(ELLIPSIS.len()));
    [&text[..end], ELLIPSIS].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_what_is_not_wanted_and_what_was_not_seen() {
        let wrong = |kind: &str, status: Verdict| {
            is_wrong(&Condition {
                kind: kind.to_owned(),
                status,
                observed_generation: None,
                last_transition_time: Time(jiff::Timestamp::UNIX_EPOCH),
                reason: "R".to_owned(),
                message: String::new(),
            })
        };
        for (kind, when_true, when_false) in [
            ("Ready", false, true),
            ("DiskCloned", false, true),
            ("Draining", true, false),
            ("InUse", false, false),
            ("EndOfLife", false, false),
            ("Unheard", false, true),
        ] {
            assert_eq!(wrong(kind, Verdict::True), when_true, "{kind}");
            assert_eq!(wrong(kind, Verdict::False), when_false, "{kind}");
            assert!(wrong(kind, Verdict::Unknown), "{kind}");
        }
    }

    #[test]
    fn a_message_past_the_limit_is_cut_between_two_characters() {
        let cut = clip(&"ü".repeat(MESSAGE_LIMIT));
        assert!(cut.len() <= MESSAGE_LIMIT, "{}", cut.len());
        assert!(cut.ends_with("ü…"));
        assert_eq!(clip("as it is"), "as it is");
    }
}
