//! Building condition lists: the transition time moves only when the status does.

use k8s_openapi::jiff::Timestamp;
use macrack_api::condition::{Condition, ConditionStatus, bounded, find};

use crate::clock::time;

/// Collects the conditions of one object.
#[derive(Debug)]
pub struct Conditions<'a> {
    old: &'a [Condition],
    generation: Option<i64>,
    now: Timestamp,
    new: Vec<Condition>,
}

impl<'a> Conditions<'a> {
    /// Over what was reported before.
    pub fn over(old: &'a [Condition], generation: Option<i64>, now: Timestamp) -> Self {
        Self { old, generation, now, new: Vec::new() }
    }

    /// Reports one; the latest call for a type holds.
    pub fn set(
        &mut self,
        type_: impl Into<String>,
        status: impl Into<ConditionStatus>,
        reason: impl Into<String>,
        message: impl AsRef<str>,
    ) {
        let (type_, status) = (type_.into(), status.into());
        let since = find(self.old, &type_).filter(|c| c.status == status).map(|c| c.last_transition_time.clone());
        self.new.retain(|c| c.type_ != type_);
        self.new.push(Condition {
            type_,
            status,
            observed_generation: self.generation,
            last_transition_time: since.unwrap_or_else(|| time(self.now)),
            reason: reason.into(),
            message: bounded(message.as_ref()),
        });
    }

    /// The list as it is written.
    pub fn done(self) -> Vec<Condition> {
        self.new
    }
}
