//! What the webhook answers: rules that need more than the object itself.
//!
//! Invariant: **a rule whose facts could not be read refuses** ([`TRY_AGAIN`]); nothing is admitted because a
//! read failed. Rules refuse, they never fix. The schema's own rules (durations, immutable fields, exactly one
//! VM) are not repeated here, and none of these is the last line: that Macs carry two VMs is held by the slots.
//!
//! One file per kind: `Facts` go in, a [`Verdict`] comes out. An update is judged by what it changes.

pub mod class;
pub mod image;
pub mod instance;
pub mod lease;
mod version;

use std::fmt;

use kube::{Resource, ResourceExt};

use crate::seen::Seen;

/// The rule that stands in a refusal when a fact could not be read.
pub const TRY_AGAIN: &str = "try-again";

/// The answer to one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Let it in; the warnings are printed by kubectl.
    Allow {
        /// Advice, a sentence each.
        warnings: Vec<String>,
    },
    /// Refuse it.
    Deny(Refusal),
}

/// Why a request is refused, and what to do instead. Prints as `[rule] object: problem; way out`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The rule's name, stable: people search for it, and refusals are counted by it.
    pub rule: &'static str,
    /// `macosinstance team-a/build-1`.
    pub object: String,
    /// What is wrong.
    pub problem: String,
    /// What the person can do.
    pub way_out: String,
}

impl Refusal {
    /// Whether the very same request may be admitted later: a fact could not be read.
    pub fn is_for_now(&self) -> bool {
        self.rule == TRY_AGAIN
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rule, object, problem, way_out } = self;
        write!(f, "[{rule}] {object}: {problem}; {way_out}")
    }
}

impl From<Result<Vec<String>, Refusal>> for Verdict {
    fn from(judged: Result<Vec<String>, Refusal>) -> Self {
        match judged {
            Ok(warnings) => Self::Allow { warnings },
            Err(refusal) => Self::Deny(refusal),
        }
    }
}

/// The object of a request, as messages name it.
#[derive(Clone, Debug)]
struct Subject(String);

impl Subject {
    fn of<K: Resource<DynamicType = ()>>(object: &K) -> Self {
        let kind = K::kind(&()).to_lowercase();
        let name = object.name_any();
        match object.namespace() {
            Some(namespace) => Self(format!("{kind} {namespace}/{name}")),
            None => Self(format!("{kind} {name}")),
        }
    }

    fn refuse(&self, rule: &'static str, problem: impl Into<String>, way_out: impl Into<String>) -> Refusal {
        Refusal { rule, object: self.0.clone(), problem: problem.into(), way_out: way_out.into() }
    }

    /// The thing if it is there, None if it certainly is not, a refusal if nobody can tell.
    fn known<'a, T>(&self, seen: &'a Seen<T>, what: &str) -> Result<Option<&'a T>, Refusal> {
        match seen {
            Seen::Present(thing) => Ok(Some(thing)),
            Seen::Absent => Ok(None),
            Seen::Unknown(why) => Err(self.unread(what, why)),
        }
    }

    fn unread(&self, what: &str, why: &str) -> Refusal {
        self.refuse(TRY_AGAIN, format!("{what} could not be read ({why})"), "nothing was changed, try again")
    }
}

/// `a`, `a and b`, `a, b and c`.
fn listed(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_rule_object_problem_and_way_out() {
        let refusal = Subject("macosinstance team-a/build-3".into()).refuse("two-per-lease", "no room", "delete one");
        assert_eq!(refusal.to_string(), "[two-per-lease] macosinstance team-a/build-3: no room; delete one");
        assert_eq!(listed(&["a", "b", "c"]), "a, b and c");
    }
}
