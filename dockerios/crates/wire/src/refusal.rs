//! Why something that arrived is refused. Invariant: names the field, what stood there, the rule and the way out,
//! and never repeats a secret or more than a few characters of what a stranger sent.

use std::fmt;

/// A refusal of one field of a report or of the config volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The field of the report, or the file of the volume.
    pub field: String,
    /// What is wrong, the rule, and the way out.
    pub message: String,
}

impl Refusal {
    pub(crate) fn of(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            message: message.into(),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

impl std::error::Error for Refusal {}

/// At most 40 characters of `text`, escaped: what a message may repeat of something a stranger sent.
#[must_use]
pub fn shown(text: &str) -> String {
    let head: String = text.chars().take(40).collect();
    let cut = if head.len() < text.len() { "…" } else { "" };
    format!("`{}{cut}`", head.escape_debug())
}
