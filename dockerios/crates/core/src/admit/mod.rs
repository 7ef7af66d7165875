//! What the webhook answers: the rules that need more than the object itself.
//!
//! Schema and CEL stand before it (`dockerios-api`), the policies of `deploy/policies` beside it; no rule of theirs is
//! said again here. One file per kind: facts go in, a [`Verdict`] comes out, nothing is read or written.
//!
//! Invariants: a fact that a rule needs and that could not be read refuses for now, and never admits; a reference to what is not there is
//! no contradiction, and is admitted (the object then waits, `Ready=False`); every fault of an object is said at once.

pub mod class;
pub(crate) mod cpu;
pub mod identity;
pub mod image;
pub mod machine;
pub mod platform;
pub mod storage;
pub mod version;

use std::fmt;

use kube::{Resource, ResourceExt};

use crate::seen::Seen;

/// The licence, as it is said wherever macOS is asked for. See docs/licence.md.
pub const LICENCE: &str = "Apple's software licence does not cover macOS on hardware that is not Apple's: this is for \
                           learning, and for Intel Macs while they last; see docs/licence.md";

/// The end of the x86 path, as PlatformConfig says it.
pub const SUNSET: &str = "macOS 26 is Apple's last macOS for Intel: what runs here ends with it, plan for it";

/// The rule that a refusal names when it could not be judged.
pub const UNSEEN: &str = "cannot-see";

/// The answer to one request: admitted when nothing is refused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Every fault.
    pub refusals: Vec<Refusal>,
    /// Advice, which kubectl prints; a sentence each.
    pub warnings: Vec<String>,
}

impl Verdict {
    /// Whether the object is let in.
    pub fn admits(&self) -> bool {
        self.refusals.is_empty()
    }

    /// Whether the same request may be admitted later: all that is wrong is what could not be seen.
    pub fn only_for_now(&self) -> bool {
        !self.admits() && self.refusals.iter().all(|refusal| refusal.rule == UNSEEN)
    }

    /// All refusals, one a line.
    pub fn reason(&self) -> String {
        let lines: Vec<String> = self.refusals.iter().map(Refusal::to_string).collect();
        lines.join("\n")
    }
}

/// One fault: prints as `[rule] kind name field: problem; way out`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The rule's name. Stable: people search for it, and refusals are counted by it.
    pub rule: &'static str,
    /// `macosmachineclass build-8`, `macosmachineclaim team-a/job-7`.
    pub object: String,
    /// The path of the field.
    pub field: &'static str,
    /// What is wrong with it.
    pub problem: String,
    /// What the person can do.
    pub way_out: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "[{}] {} {}: {}; {}",
            self.rule, self.object, self.field, self.problem, self.way_out
        )
    }
}

/// `macosmachineclass build-8`, `macosmachineclaim team-a/job-7`.
pub fn label<K: Resource<DynamicType = ()>>(object: &K) -> String {
    let kind = K::kind(&()).to_lowercase();
    match object.namespace() {
        Some(namespace) => format!("{kind} {namespace}/{}", object.name_any()),
        None => format!("{kind} {}", object.name_any()),
    }
}

/// Gathers what is wrong with one object.
struct Bench {
    object: String,
    verdict: Verdict,
}

impl Bench {
    fn of<K: Resource<DynamicType = ()>>(object: &K) -> Self {
        Self {
            object: label(object),
            verdict: Verdict::default(),
        }
    }

    fn refuse(
        &mut self,
        rule: &'static str,
        field: &'static str,
        problem: impl Into<String>,
        way_out: impl Into<String>,
    ) {
        let (problem, way_out) = (problem.into(), way_out.into());
        self.verdict.refusals.push(Refusal {
            rule,
            object: self.object.clone(),
            field,
            problem,
            way_out,
        });
    }

    fn warn(&mut self, field: &str, advice: impl fmt::Display) {
        self.verdict.warnings.push(format!("{} {field}: {advice}", self.object));
    }

    /// The thing when it is there. When nobody can tell, the object is refused for now.
    fn see<'a, T>(&mut self, seen: &'a Seen<T>, field: &'static str, what: &str) -> Option<&'a T> {
        match seen {
            Seen::Present(thing) => Some(thing),
            Seen::Absent => None,
            Seen::Unknown(why) => {
                self.refuse(
                    UNSEEN,
                    field,
                    format!("cannot see {what} now ({why})"),
                    "nothing was changed; try again",
                );
                None
            }
        }
    }

    /// The things when they are there. They are looked at for advice alone: when nobody can tell, that is what is said.
    fn advice<'a, T>(&mut self, seen: &'a Seen<T>, field: &str, what: &str) -> Option<&'a T> {
        if let Seen::Unknown(why) = seen {
            self.warn(
                field,
                format!("cannot see {what} now ({why}): whether they still fit was not looked at"),
            );
        }
        seen.present()
    }

    fn done(self) -> Verdict {
        self.verdict
    }
}

/// `a`, `a and b`, `a, b and c`; past `most` the rest is counted.
fn names<S: AsRef<str>>(all: &[S], most: usize) -> String {
    let shown: Vec<&str> = all.iter().take(most).map(AsRef::as_ref).collect();
    if all.len() > most {
        return format!("{} and {} more", shown.join(", "), all.len() - most);
    }
    match shown.as_slice() {
        [] => "none".to_owned(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_names_reads_like_a_sentence_and_is_cut() {
        assert_eq!(names(&[] as &[&str], 3), "none");
        assert_eq!(names(&["a"], 3), "a");
        assert_eq!(names(&["a", "b", "c"], 3), "a, b and c");
        assert_eq!(names(&["a", "b", "c", "d", "e"], 3), "a, b, c and 2 more");
    }

    #[test]
    fn what_cannot_be_seen_refuses_for_now_and_a_fault_for_good() {
        let mut bench = Bench {
            object: "macosimage a".to_owned(),
            verdict: Verdict::default(),
        };
        assert!(bench.see::<()>(&Seen::Absent, "spec.a", "a").is_none());
        assert!(bench.verdict.admits());
        assert!(
            bench
                .see::<()>(&Seen::Unknown("timeout".into()), "spec.a", "MacOSImage a")
                .is_none()
        );
        assert!(bench.verdict.only_for_now());
        assert_eq!(
            bench.verdict.reason(),
            "[cannot-see] macosimage a spec.a: cannot see MacOSImage a now (timeout); nothing was changed; try again"
        );
        bench.refuse("r", "spec.b", "is wrong", "mend it");
        assert!(!bench.verdict.only_for_now() && !bench.done().admits());
    }
}
