//! Conditions of one object, and the events that their changes are worth.

use dockerios_api::condition::{Condition, Verdict, clip, of};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::plan::News;

/// Reasons of a condition that is False while all goes as it should.
const UNDER_WAY: [&str; 9] = [
    "Building",
    "Deleting",
    "ImageNotReady",
    "Importing",
    "NotChecked",
    "NotInUse",
    "NotProbed",
    "Replenishing",
    "Warming",
];

/// Collects the conditions of one pass. `lastTransitionTime` moves only with the verdict.
#[derive(Debug)]
pub struct Report<'a> {
    before: &'a [Condition],
    generation: Option<i64>,
    now: Timestamp,
    conditions: Vec<Condition>,
}

impl<'a> Report<'a> {
    /// After what was reported before.
    pub fn after(before: &'a [Condition], generation: Option<i64>, now: Timestamp) -> Self {
        Self {
            before,
            generation,
            now,
            conditions: Vec::new(),
        }
    }

    /// Says one. What is said last of a type holds.
    pub fn say(
        &mut self,
        kind: impl ToString,
        verdict: impl Into<Verdict>,
        reason: impl ToString,
        message: impl AsRef<str>,
    ) {
        let (kind, status) = (kind.to_string(), verdict.into());
        let unchanged = of(self.before, &kind).filter(|c| c.status == status);
        let condition = Condition {
            last_transition_time: unchanged.map_or(Time(self.now), |c| c.last_transition_time.clone()),
            observed_generation: self.generation,
            reason: reason.to_string(),
            message: clip(message.as_ref()),
            status,
            kind,
        };
        match self.conditions.iter_mut().find(|c| c.kind == condition.kind) {
            Some(said) => *said = condition,
            None => self.conditions.push(condition),
        }
    }

    /// What was said of that type in this pass.
    pub fn said(&self, kind: impl ToString) -> Option<&Condition> {
        of(&self.conditions, &kind.to_string())
    }

    /// An event when the reason or verdict of that type is another than before: a warning when it is not True, unless
    /// its reason only tells how far something is.
    pub fn news(&self, kind: impl ToString) -> Option<News> {
        let kind = kind.to_string();
        let now = of(&self.conditions, &kind)?;
        let same = |before: &Condition| before.reason == now.reason && before.status == now.status;
        (!of(self.before, &kind).is_some_and(same)).then(|| News {
            warning: now.status != Verdict::True && !UNDER_WAY.contains(&now.reason.as_str()),
            reason: now.reason.clone(),
            note: now.message.clone(),
        })
    }

    /// The list, sorted by type, as it is written.
    pub fn done(mut self) -> Vec<Condition> {
        self.conditions.sort_by(|a, b| a.kind.cmp(&b.kind));
        self.conditions
    }
}
